//! Warnings about rules that can match no request.
//!
//! A layer does not see the routes of its router. Some names cannot match any route: these are
//! reported when the first service is created. Others turn out to be wrong with a request: its
//! route has the same shape as the rule's path but other parameter names, or its path fits the rule
//! although no route matched. A rule to which no request was sent is not reported.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::Method;
use http::request::Parts;

use super::rules::{Routes, Rules};
use super::target::{matched_template, target};

/// The rules of a layer, and whether each was matched or reported.
#[derive(Default)]
pub(super) struct RuleCheck {
    rules: Box<[NamedRule]>,
    /// The number of rules that no request has matched and that were not reported.
    open: AtomicUsize,
    /// Whether the names of the rules were checked.
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

    /// Reports the rules whose names no request can have. Only the first call does anything.
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

    /// Records that a request has matched the rule of this name.
    pub(super) fn matched(&self, operation: &str) {
        if self.open.load(Ordering::Relaxed) == 0 {
            return;
        }
        if let Some(rule) = self.rules.iter().find(|rule| *rule.name == *operation) {
            self.close(rule);
        }
    }

    /// Reports the rules that a request shows to be wrong. The operation of the request has no rule
    /// of its own.
    pub(super) fn missed(&self, request: &Parts) {
        if self.open.load(Ordering::Relaxed) == 0 {
            return;
        }
        let (route, sent_to) = (matched_template(request), target(request).path());
        for rule in self.rules.iter().filter(|rule| !rule.closed.load(Ordering::Relaxed)) {
            let Some(path) = path_for(&rule.name, &request.method) else { continue };
            match route {
                // A router has only one route of a shape, so it has no route with the rule's
                // spelling.
                Some(route) if have_one_shape(path, route) => {
                    if self.close(rule) {
                        tracing::warn!(
                            rule = %rule.name,
                            route,
                            "no route has the name of a rule: use the route's template as the name"
                        );
                    }
                }
                Some(route) if route.len() > path.len() && route.ends_with(path) => {
                    if self.close(rule) {
                        tracing::warn!(
                            rule = %rule.name,
                            route,
                            "no request has matched a rule yet: if it is meant for this route, use \
                             the whole template, including the prefix of the nested router"
                        );
                    }
                }
                // If the router had a route with this template, the route would have matched.
                None if path.contains('{') && fits(path, sent_to) => {
                    if self.close(rule) {
                        tracing::warn!(
                            rule = %rule.name,
                            "the name of a rule is a template, but the layer sees no route: add \
                             the layer with `Router::layer` to a router that has the route"
                        );
                    }
                }
                Some(_) | None => {}
            }
        }
    }

    /// Marks a rule as matched or reported. Returns whether this call was the first to do so.
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

/// Returns the reason why no request can match the rule, or `None`.
fn impossible(name: &str, rules: &Rules) -> Option<&'static str> {
    let Some((method, path)) = name.split_once(' ') else {
        return Some("the name has no method: write `POST /orders`");
    };
    if method.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Some("the method is in lower case: write `POST /orders`");
    }
    if !path.starts_with('/') {
        return Some("the path does not begin with `/`: write `POST /orders`");
    }
    if path.split('/').any(|segment| segment.starts_with([':', '*'])) {
        return Some("the parameters are not in braces: write `POST /orders/{id}`");
    }
    if !rules.options.methods.iter().any(|known| known.as_str() == method) {
        return Some("the rules do not apply to this method: add the method with `Rules::methods`");
    }
    None
}

/// Returns the path in the rule's name, if the name has this method.
fn path_for<'r>(rule: &'r str, method: &Method) -> Option<&'r str> {
    rule.strip_prefix(method.as_str())?.strip_prefix(' ')
}

/// Returns whether two different templates match the same paths: only their parameter names differ.
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

/// Returns whether `template` matches `path`.
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

/// A parameter in a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parameter {
    /// `{id}`: one segment.
    One,
    /// `{*rest}`: the rest of the path.
    Rest,
}

/// Parses a segment of a template; `None` if it is literal text.
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
