//! The settings of a layer that only HTTP has: routes, names of operations, and how problems are
//! written.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use http::Method;
use http::request::Parts;

use super::rule_check::RuleCheck;
use super::rules::{Routes, Rules};
use super::target::template;

/// The default prefix of a problem's `type`.
pub const PROBLEMS: &str = "urn:semel:problem:";

pub(super) type NameOperation = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

/// The settings that only an HTTP layer has.
#[derive(Clone)]
pub struct HttpSettings {
    pub(super) problem_types: Arc<str>,
    pub(super) error_object: bool,
    pub(super) routes: Routes,
    pub(super) operation: Option<NameOperation>,
    /// The methods to which at least one rule applies.
    methods: HashSet<Method>,
    any_required: bool,
    check: Arc<RuleCheck>,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            problem_types: PROBLEMS.into(),
            error_object: false,
            routes: Routes::new(),
            operation: None,
            methods: HashSet::new(),
            any_required: false,
            check: Arc::default(),
        }
    }
}

impl fmt::Debug for HttpSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSettings").field("routes", &self.routes).finish_non_exhaustive()
    }
}

impl HttpSettings {
    /// Returns the name of a request's operation, and the rules of its route if there are any.
    pub(super) fn find(&self, request: &Parts) -> (String, Option<&Arc<Rules>>) {
        let given = self.operation.as_ref().and_then(|name| name(request));
        let is_given = given.is_some();
        let operation = given.unwrap_or_else(|| Self::operation_of(request));
        let rules = self.route_of(&operation);
        match rules {
            Some(_) => self.check.matched(&operation),
            None if is_given => {}
            None => self.check.missed(request),
        }
        (operation, rules)
    }

    /// Reports rules that can match no request.
    pub(super) fn check(&self) {
        // Custom names may have any form.
        if self.operation.is_none() {
            self.check.names(&self.routes);
        }
    }

    /// Returns the default name of a request's operation: its method and route.
    fn operation_of(request: &Parts) -> String {
        let (method, template) = (request.method.as_str(), template(request));
        let mut name = String::with_capacity(method.len() + 1 + template.len());
        name.extend([method, " ", template]);
        name
    }

    /// Returns the rules of an operation, if it has rules of its own.
    pub(super) fn route_of(&self, operation: &str) -> Option<&Arc<Rules>> {
        self.routes.get(operation)
    }

    /// Returns whether any rule may apply to a request of this method.
    pub(super) fn applies(&self, method: &Method, keyed: impl FnOnce() -> bool) -> bool {
        self.methods.contains(method) && (self.any_required || keyed())
    }

    /// Recomputes the fields that are derived from the rules.
    pub(super) fn reindex(&mut self, rules: &Rules) {
        let all = self.routes.values().map(AsRef::as_ref).chain([rules]);
        self.any_required = all.clone().any(|rules| rules.required);
        self.methods = all.flat_map(|rules| rules.options.methods.iter().cloned()).collect();
        self.check = Arc::new(RuleCheck::new(&self.routes));
    }
}
