//! The settings of a layer that only HTTP has: routes, names of operations, and how problems are
//! written.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use http::Method;
use http::request::Parts;

use super::rules::Rules;
use super::target::template;

/// What a problem's type begins with, by default.
pub const PROBLEMS: &str = "urn:semel:problem:";

/// The rules of single operations, by name.
pub(super) type Routes = HashMap<Box<str>, Arc<Rules>>;

pub(super) type NameOperation = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

/// What only an HTTP layer has.
#[derive(Clone)]
pub struct HttpSettings {
    pub(super) problem_types: Arc<str>,
    pub(super) error_object: bool,
    pub(super) routes: Routes,
    pub(super) operation: Option<NameOperation>,
    /// The methods that any rule names.
    methods: HashSet<Method>,
    any_required: bool,
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
        }
    }
}

impl fmt::Debug for HttpSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSettings").field("routes", &self.routes).finish_non_exhaustive()
    }
}

impl HttpSettings {
    /// Returns the operation of a request, by its full name.
    pub(super) fn operation_of(&self, request: &Parts) -> String {
        if let Some(name) = self.operation.as_ref().and_then(|name| name(request)) {
            return name;
        }
        let (method, template) = (request.method.as_str(), template(request));
        let mut name = String::with_capacity(method.len() + 1 + template.len());
        name.extend([method, " ", template]);
        name
    }

    /// Returns the rules of an operation, if it has its own.
    pub(super) fn route_of(&self, operation: &str) -> Option<&Arc<Rules>> {
        self.routes.get(operation)
    }

    /// Returns whether any rule may apply to a request of this method.
    pub(super) fn applies(&self, method: &Method, keyed: impl FnOnce() -> bool) -> bool {
        self.methods.contains(method) && (self.any_required || keyed())
    }

    /// Updates what is derived from the rules.
    pub(super) fn reindex(&mut self, rules: &Rules) {
        let all = self.routes.values().map(AsRef::as_ref).chain([rules]);
        self.any_required = all.clone().any(|rules| rules.required);
        self.methods = all.flat_map(|rules| rules.options.methods.iter().cloned()).collect();
    }
}
