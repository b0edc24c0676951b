//! Rules that can match no request, reported as soon as it is known.
//!
//! A layer does not see the routes of the router that it is in. Some names can match nothing
//! whatever the routes are: those are reported when the first service is made. Others are shown to be
//! wrong by a request: its route has the shape of the rule's path and another spelling, or its path
//! fits the rule and no route did. A rule that no request has been sent to is not reported.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::Method;
use http::request::Parts;

use super::rules::{Routes, Rules};
use super::target::{matched_template, target};

/// What is known of the rules of a layer.
#[derive(Default)]
pub(super) struct RuleCheck {
    rules: Box<[NamedRule]>,
    /// Rules that no request has matched and that were not reported.
    open: AtomicUsize,
    /// Whether the names were looked at.
    begun: AtomicBool,
}

struct NamedRule {
    name: Box<str>,
    /// Whether a request has matched the rule, or the rule was reported.
    closed: AtomicBool,
}

impl RuleCheck {
    pub(super) fn new(routes: &Routes) -> Self {
        let named = |name: &str| NamedRule { name: name.into(), closed: AtomicBool::default() };
        let rules: Box<[NamedRule]> = routes.keys().map(|name| named(name)).collect();
        Self { open: AtomicUsize::new(rules.len()), rules, begun: AtomicBool::default() }
    }

    /// Reports names that no request can have. Does so once.
    pub(super) fn names(&self, routes: &Routes) {
        if self.begun.swap(true, Ordering::Relaxed) {
            return;
        }
        for rule in &self.rules {
            let reason = routes.get(&rule.name).and_then(|rules| impossible(&rule.name, rules));
            if let Some(reason) = reason
                && self.close(rule)
            {
                tracing::warn!(rule = %rule.name, reason, "a rule can match no request");
            }
        }
    }

    /// Notes that a request has matched the rule of this name.
    pub(super) fn matched(&self, operation: &str) {
        if self.open.load(Ordering::Relaxed) == 0 {
            return;
        }
        if let Some(rule) = self.rules.iter().find(|rule| *rule.name == *operation) {
            self.close(rule);
        }
    }

    /// Looks at a request whose operation has no rule of its own: does it show that a rule names no
    /// route?
    pub(super) fn missed(&self, request: &Parts) {
        if self.open.load(Ordering::Relaxed) == 0 {
            return;
        }
        let (route, sent_to) = (matched_template(request), target(request).path());
        for rule in self.rules.iter().filter(|rule| !rule.closed.load(Ordering::Relaxed)) {
            let Some(path) = path_for(&rule.name, &request.method) else { continue };
            match route {
                // A router has one route of a shape: that of the rule is not among its routes.
                Some(route) if have_one_shape(path, route) => {
                    if self.close(rule) {
                        tracing::warn!(
                            rule = %rule.name,
                            route,
                            "a rule names no route: name it after the route's template"
                        );
                    }
                }
                Some(route) if route.len() > path.len() && route.ends_with(path) => {
                    if self.close(rule) {
                        tracing::warn!(
                            rule = %rule.name,
                            route,
                            "no request has matched a rule yet: if it is meant for this route, name \
                             the whole template, with what the router is nested under"
                        );
                    }
                }
                // Had the router a route of this template, it would have matched.
                None if path.contains('{') && fits(path, sent_to) => {
                    if self.close(rule) {
                        tracing::warn!(
                            rule = %rule.name,
                            "a rule names a template, and the layer sees no route: add it with \
                             `Router::layer` to a router that has the route"
                        );
                    }
                }
                Some(_) | None => {}
            }
        }
    }

    /// Returns whether this call was the first to close the rule.
    fn close(&self, rule: &NamedRule) -> bool {
        let first = !rule.closed.swap(true, Ordering::Relaxed);
        if first {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
        first
    }
}

impl fmt::Debug for RuleCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleCheck").field("open", &self.open).finish_non_exhaustive()
    }
}

/// Returns why no request can have this operation, or why its rules apply to none of its requests.
fn impossible(name: &str, rules: &Rules) -> Option<&'static str> {
    let Some((method, path)) = name.split_once(' ') else {
        return Some("it has no method: write `POST /orders`");
    };
    if method.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Some("its method is in lower case: write `POST /orders`");
    }
    if !path.starts_with('/') {
        return Some("its path does not begin with `/`: write `POST /orders`");
    }
    if path.split('/').any(|segment| segment.starts_with([':', '*'])) {
        return Some("its parameters are not in braces: write `POST /orders/{id}`");
    }
    if !rules.options.methods.iter().any(|known| known.as_str() == method) {
        return Some("its rules do not apply to its method: add the method with `Rules::methods`");
    }
    None
}

/// Returns the path of a rule for requests of this method.
fn path_for<'r>(rule: &'r str, method: &Method) -> Option<&'r str> {
    rule.strip_prefix(method.as_str())?.strip_prefix(' ')
}

/// Returns whether two templates match the same paths, though they are spelled differently.
fn have_one_shape(one: &str, two: &str) -> bool {
    let (mut ones, mut twos) = (one.split('/'), two.split('/'));
    loop {
        match (ones.next(), twos.next()) {
            (None, None) => return one != two,
            (Some(one), Some(two)) if one == two => {}
            (Some(one), Some(two)) if parameter(one).is_some() => {
                if parameter(one) != parameter(two) {
                    return false;
                }
            }
            _ => return false,
        }
    }
}

/// Returns whether a path is one of those that a template matches.
fn fits(template: &str, path: &str) -> bool {
    let mut segments = path.split('/');
    for expected in template.split('/') {
        let Some(segment) = segments.next() else { return false };
        match parameter(expected) {
            Some(Parameter::Rest) => return !segment.is_empty(),
            Some(Parameter::One) if segment.is_empty() => return false,
            Some(Parameter::One) => {}
            None if segment != expected => return false,
            None => {}
        }
    }
    segments.next().is_none()
}

/// What a segment of a template stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parameter {
    /// `{id}`: one segment.
    One,
    /// `{*rest}`: the rest of the path.
    Rest,
}

/// Reads a segment of a template; `None` if it stands for itself.
fn parameter(segment: &str) -> Option<Parameter> {
    let name = segment.strip_prefix('{')?.strip_suffix('}')?;
    match name.starts_with('{') {
        // `{{` is a brace.
        true => None,
        false if name.starts_with('*') => Some(Parameter::Rest),
        false => Some(Parameter::One),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_request_can_have_are_found() {
        let rules = Rules::new();
        let possible = |name| impossible(name, &rules).is_none();
        for name in ["POST /orders", "PATCH /orders/{id}", "POST /v1/orders:cancel"] {
            assert!(possible(name), "{name}");
        }
        for name in ["/orders", "post /orders", "POST orders", "POST /orders/:id", "PUT /orders"] {
            assert!(!possible(name), "{name}");
        }
        assert!(impossible("PUT /orders", &Rules::new().methods([Method::PUT])).is_none());
    }

    #[test]
    fn templates_are_compared_by_their_shape() {
        for (one, two) in [("/o/{id}", "/o/{order}"), ("/{a}/x/{*b}", "/{c}/x/{*d}")] {
            assert!(have_one_shape(one, two), "{one} {two}");
        }
        for (one, two) in [
            ("/o/{id}", "/o/{id}"),
            ("/o/{id}", "/o/bulk"),
            ("/o/{id}", "/o/{*rest}"),
            ("/o/{id}", "/o/{id}/refunds"),
            ("/o", "/p"),
        ] {
            assert!(!have_one_shape(one, two), "{one} {two}");
        }
    }

    #[test]
    fn a_path_fits_its_template() {
        assert!(fits("/o/{id}", "/o/7") && fits("/o/{*rest}", "/o/7/8") && fits("/o", "/o"));
        for path in ["/o/", "/o", "/o/7/8", "/p/7"] {
            assert!(!fits("/o/{id}", path), "{path}");
        }
        assert!(!fits("/o/{*rest}", "/o/"));
    }
}
