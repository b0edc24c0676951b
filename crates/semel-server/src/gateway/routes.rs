//! Matches requests to the routes of the settings (`[[route]]`), and converts routes into rules of
//! the layers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use semel_core::{Command, Policy};
use semel_tower::grpc::{Codes, GrpcRules};
use semel_tower::http::{Preset as Kept, Rules};

use super::pattern;
use crate::exit::ExitError;
use crate::settings::{GatewaySettings, OnCrashSetting, PresetName, RouteSettings, waits};

/// The route that a request matched, in the extensions of the request and of its response.
#[derive(Debug)]
pub(super) struct Matched {
    /// The name of the operation, such as `POST /orders/{id}`.
    pub(super) operation: String,
    /// The pattern of the route, such as `/orders/{id}`.
    pub(super) pattern: String,
    /// The pattern with its case folded.
    folded: String,
    pub(super) upstream_timeout: Option<Duration>,
    pub(super) max_request: Option<usize>,
    pub(super) max_response: Option<usize>,
}

/// All routes. The most specific route matches, whatever their order.
#[derive(Debug, Default)]
pub(super) struct Routes {
    by_method: HashMap<Method, matchit::Router<Arc<Matched>>>,
    /// The same routes, for paths in their normal form.
    folded: HashMap<Method, matchit::Router<Arc<Matched>>>,
}

impl Routes {
    pub(super) fn new(routes: &[RouteSettings]) -> Result<Self, ExitError> {
        let mut all = Self::default();
        for route in routes {
            check(route)?;
            for method in &route.methods {
                let operation = operation(method, route);
                let matched = Matched {
                    pattern: route.path.clone(),
                    folded: pattern::folded_pattern(&route.path),
                    upstream_timeout: route.upstream_timeout,
                    max_request: route.max_request,
                    max_response: route.max_response,
                    operation,
                };
                let shown = matched.operation.clone();
                let matched = Arc::new(matched);
                let router = all.by_method.entry(method.clone()).or_default();
                router.insert(&route.path, Arc::clone(&matched)).map_err(|error| {
                    ExitError::usage(format_args!("the route {shown}: {error}"))
                })?;
                // Of two patterns that differ only in case, one is enough here: exact paths match
                // `by_method`.
                let router = all.folded.entry(method.clone()).or_default();
                let _ = router.insert(matched.folded.clone(), matched);
            }
        }
        Ok(all)
    }

    /// Returns the route that the normal form of a path matches, if the path itself matches another
    /// route or none. The upstream may interpret the path in its normal form, and the request would
    /// bypass the rules of that route.
    pub(super) fn evaded(&self, method: &Method, path: &str) -> Option<&Arc<Matched>> {
        if pattern::is_plain(path) {
            return None;
        }
        let expected = self.folded.get(method)?.at(&pattern::plain(path)).ok()?.value;
        match self.matched(method, path) {
            Some(found) if found.folded == expected.folded => None,
            Some(_) | None => Some(expected),
        }
    }

    /// Returns the upper-case form of a method that is not in upper case, if rules exist for it.
    /// The upstream may ignore the case of methods.
    pub(super) fn upper_case(&self, method: &Method) -> Option<Method> {
        let capital = Method::from_bytes(method.as_str().to_ascii_uppercase().as_bytes()).ok()?;
        let takes_part = [Method::POST, Method::PATCH].contains(&capital)
            || self.by_method.contains_key(&capital);
        (capital != *method && takes_part).then_some(capital)
    }

    /// Returns the route that a request matches.
    pub(super) fn matched(&self, method: &Method, path: &str) -> Option<&Arc<Matched>> {
        let found = self.by_method.get(method)?.at(path).ok()?;
        Some(found.value)
    }
}

/// Returns the name of a route's operation, which the layer and the keys contain.
pub(super) fn operation(method: &Method, route: &RouteSettings) -> String {
    format!("{method} {}", route.path)
}

/// Checks a route for mistakes that the types of the settings cannot prevent.
fn check(route: &RouteSettings) -> Result<(), ExitError> {
    let wrong = |why: &dyn std::fmt::Display| {
        Err(ExitError::usage(format_args!("the route {}: {why}", route.path)))
    };
    if let Err(why) = pattern::check(&route.path) {
        return wrong(&why);
    }
    if route.grpc && (route.path.contains('{') || route.path.split('/').count() != 3) {
        return wrong(&"the path of a gRPC method is written out: /package.Service/Method");
    }
    if route.doubt_5xx && route.on_crash != OnCrashSetting::Hold {
        return wrong(
            &"doubt_5xx = true needs on_crash = \"hold\": under rerun a 5xx runs again anyway",
        );
    }
    let default = Policy::default();
    let policy = Policy {
        keep: route.keep.unwrap_or(default.keep),
        lease: route.lease.unwrap_or(default.lease),
        max_attempts: route.max_attempts,
        ..default
    };
    match policy.check() {
        Ok(()) if route.upstream_timeout.is_some_and(|limit| limit.is_zero()) => {
            wrong(&"upstream_timeout must be greater than 0")
        }
        Ok(()) if route.body_timeout.is_some_and(|limit| limit.is_zero()) => {
            wrong(&"body_timeout must be greater than 0")
        }
        Ok(()) => Ok(()),
        Err(invalid) => wrong(&invalid),
    }
}

/// Applies the settings of a route that HTTP and gRPC share.
macro_rules! shared_rules {
    ($rules:expr, $route:expr, $settings:expr) => {{
        let (mut rules, route) = ($rules, $route);
        rules = rules.body_timeout(route.body_timeout.unwrap_or($settings.body_timeout));
        if route.required {
            rules = rules.required();
        }
        if route.fail_open {
            rules = rules.fail_open();
        }
        if let Some(wait) = route.wait {
            rules = rules.wait(waits(wait));
        }
        if let Some(keep) = route.keep {
            rules = rules.keep(keep);
        }
        if let Some(bytes) = route.max_request {
            rules = rules.max_request(bytes);
        }
        if let Some(bytes) = route.max_response {
            rules = rules.max_response(bytes);
        }
        if let Some(delay) = route.retry_after {
            rules = rules.retry_after(delay);
        }
        rules
    }};
}

/// Returns the rules of a route for HTTP.
pub(super) fn rules(route: &RouteSettings, settings: &GatewaySettings) -> Rules {
    let kept = match route.preset {
        PresetName::SuccessOnly => Kept::success_only(),
        PresetName::Below500 => Kept::below_500(),
        PresetName::Terminal => Kept::terminal(),
        PresetName::StripeV1 => Kept::stripe_v1(),
    };
    let rules = Rules::new()
        .methods(route.methods.iter().cloned())
        .preset(if route.doubt_5xx { kept.doubt_5xx() } else { kept })
        .kept_headers(route.kept_headers.iter().cloned())
        .matched_headers(route.matched_headers.iter().cloned())
        .matched(route.matched.iter().cloned())
        .ignored(route.ignored.iter().cloned())
        .mismatch_status(route.mismatch_status)
        .respond_async(route.respond_async)
        .command(command(route));
    shared_rules!(rules, route, settings)
}

/// Returns the rules of a route for gRPC. Settings that only apply to HTTP are ignored.
pub(super) fn grpc_rules(route: &RouteSettings, settings: &GatewaySettings) -> GrpcRules {
    let kept = match route.preset {
        PresetName::SuccessOnly => Codes::ok_only(),
        PresetName::Below500 | PresetName::Terminal => Codes::terminal(),
        PresetName::StripeV1 => Codes::everything(),
    };
    let rules = GrpcRules::new()
        .codes(if route.doubt_5xx { kept.doubt_errors() } else { kept })
        .kept_metadata(route.kept_headers.iter().cloned())
        .matched_metadata(route.matched_headers.iter().cloned())
        .command(command(route));
    shared_rules!(rules, route, settings)
}

fn command(route: &RouteSettings) -> impl Fn(Command) -> Command + Send + Sync + 'static {
    let (lease, attempts, on_crash) = (route.lease, route.max_attempts, route.on_crash);
    move |command| {
        // The listener polls a request until its response is ready or its caller disconnects.
        let mut command = command.attended();
        if let Some(lease) = lease {
            command = command.lease(lease);
        }
        if let Some(attempts) = attempts {
            command = command.max_attempts(attempts);
        }
        match on_crash {
            OnCrashSetting::Rerun => command.on_crash(semel_core::OnCrash::Rerun),
            OnCrashSetting::Hold => command.on_crash(semel_core::OnCrash::Hold),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(texts: &[&str]) -> Result<Routes, String> {
        let all: Vec<RouteSettings> =
            texts.iter().map(|text| toml::from_str(text).unwrap()).collect();
        Routes::new(&all).map_err(|failure| failure.to_string())
    }

    #[test]
    fn the_most_specific_route_matches_whatever_their_order() {
        let routes = routes(&[
            "path = \"/{*rest}\"",
            "path = \"/orders/{id}\"",
            "path = \"/orders/new\"",
            "path = \"/orders\"\nmethods = [\"PUT\"]",
        ])
        .unwrap();
        let matched = |method: &Method, path| {
            routes.matched(method, path).map(|found| found.operation.as_str())
        };
        assert_eq!(matched(&Method::POST, "/orders/new"), Some("POST /orders/new"));
        assert_eq!(matched(&Method::POST, "/orders/7"), Some("POST /orders/{id}"));
        assert_eq!(matched(&Method::PATCH, "/orders/7/x"), Some("PATCH /{*rest}"));
        assert_eq!(matched(&Method::PUT, "/orders"), Some("PUT /orders"));
        assert_eq!(matched(&Method::PUT, "/orders/7"), None);
        assert_eq!(matched(&Method::GET, "/orders"), None);
    }

    #[test]
    fn a_route_is_not_bypassed_by_another_spelling_of_its_path() {
        let routes =
            routes(&["path = \"/orders\"", "path = \"/orders/{id}/pay\"", "path = \"/a/\""])
                .unwrap();
        let evaded = |path: &str| routes.evaded(&Method::POST, path).is_some();
        for path in
            ["//orders", "/%6frders", "/x/../orders", "/orders/", "/./orders", "/orders//7/pay"]
        {
            assert!(evaded(path), "{path}");
        }
        for path in ["/orders;x=1", "/;x/orders", "/x/..;/orders", "/orders%3bx", "/orders/7/pay;"]
        {
            assert!(evaded(path), "{path}");
        }
        for path in ["/orders/7;v=1/pay", "/b;x=1", "/b;"] {
            assert!(!evaded(path), "{path}");
        }
        for path in ["/orders", "/orders/7/pay", "/orders/a%20b/pay", "/a/", "/b//c", "/"] {
            assert!(!evaded(path), "{path}");
        }
    }

    #[test]
    fn a_route_is_not_bypassed_by_another_case() {
        let routes = routes(&[
            "path = \"/orders\"",
            "path = \"/orders/{id}\"",
            "path = \"/orders/new\"",
            "path = \"/Both/{a}\"",
            "path = \"/both/{b}\"",
            "path = \"/x\"\nmethods = [\"PUT\"]",
        ])
        .unwrap();
        let evaded = |path: &str| routes.evaded(&Method::POST, path).is_some();
        for path in ["/Orders", "/ORDERS/7", "/orders/NEW", "/BOTH/7", "/%4frders", "/Orders/"] {
            assert!(evaded(path), "{path}");
        }
        for path in ["/orders", "/orders/01HZX", "/both/X", "/Both/X", "/Other", "/X"] {
            assert!(!evaded(path), "{path}");
        }
        let upper = |method: &str| routes.upper_case(&method.parse().unwrap());
        assert_eq!((upper("post"), upper("Patch")), (Some(Method::POST), Some(Method::PATCH)));
        assert_eq!((upper("put"), upper("POST"), upper("get")), (Some(Method::PUT), None, None));
    }

    #[test]
    fn invalid_routes_are_refused_by_name() {
        for (texts, named) in [
            (&["path = \"orders\""][..], "slash"),
            (&["path = \"/orders/:id\""], "write it as /orders/{id}"),
            (&["path = \"/a\"", "path = \"/a\""], "POST /a"),
            (&["path = \"/a/{x}\"", "path = \"/a/{y}\""], "POST /a/{y}"),
            (&["path = \"/a/{x\""], "/a/{x"),
            (&["path = \"/a\"\nlease = \"1ms\""], "lease"),
            (&["path = \"/a\"\nkeep = \"0s\""], "keep"),
            (&["path = \"/a\"\nmax_attempts = 0"], "/a"),
            (&["path = \"/a\"\nupstream_timeout = \"0s\""], "upstream_timeout"),
            (&["path = \"/a\"\nbody_timeout = \"0s\""], "body_timeout"),
            (&["path = \"/a\"\ngrpc = true"], "/package.Service/Method"),
        ] {
            let refused = routes(texts).unwrap_err();
            assert!(refused.contains(named), "{texts:?}: {refused}");
        }
    }
}
