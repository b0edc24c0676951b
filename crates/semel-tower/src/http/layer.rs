//! What only an HTTP layer has: routes, names of operations, and how problems are written.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderName, Method, Uri};
use semel_core::Store;

use super::protocol::Http;
use super::rules::Rules;
use crate::layer::KeyedLayer;
use crate::mode::{Fenced, Mode};
use crate::service::KeyedService;

/// What a problem's type begins with, by default.
pub const PROBLEMS: &str = "urn:semel:problem:";

/// The rules of single operations, by name.
type Routes = HashMap<Box<str>, Arc<Rules>>;

type NameOperation = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

/// Makes the services behind it idempotent.
///
/// It cannot be built without saying how tenants and callers are told apart:
///
/// ```
/// use semel_core::Executor;
/// use semel_core::store::memory::MemoryStore;
/// use semel_tower::http::{IdempotencyLayer, Rules};
/// use semel_tower::{PrincipalFrom, Tenant};
///
/// let executor = Executor::new(MemoryStore::new());
/// let principal = PrincipalFrom::header(http::header::AUTHORIZATION);
/// let layer = IdempotencyLayer::fenced(executor, Tenant::fixed("acme"), principal)
///     .rules(Rules::new())
///     .route("POST /payments", Rules::new().required());
/// ```
pub type IdempotencyLayer<S, M = Fenced> = KeyedLayer<Http, S, M>;

/// The service that an [`IdempotencyLayer`] makes.
pub type Idempotency<I, S, M> = KeyedService<I, Http, S, M>;

/// What only an HTTP layer has.
#[derive(Clone)]
pub struct HttpSettings {
    pub(super) problem_types: Arc<str>,
    pub(super) error_object: bool,
    routes: Routes,
    operation: Option<NameOperation>,
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

impl<S: Store, M: Mode<S>> KeyedLayer<Http, S, M> {
    /// Sets the rules of one operation: `POST /orders/{id}/refunds` under axum, the method and the
    /// literal path elsewhere, or what [`operation`](Self::operation) returns.
    #[must_use]
    pub fn route(self, operation: &str, rules: Rules) -> Self {
        self.change(|config| {
            config.settings.routes.insert(operation.into(), Arc::new(rules));
        })
    }

    /// Sets the headers that may carry the key. Default `Idempotency-Key` and `X-Idempotency-Key`.
    #[must_use]
    pub fn key_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.change(|config| config.key_headers = names.into_iter().collect())
    }

    /// Sets what the type of a problem begins with; the slug follows. Default `urn:semel:problem:`;
    /// give the address of your copy of `docs/errors/` to make it a link.
    #[must_use]
    pub fn problem_types(self, base: impl Into<Arc<str>>) -> Self {
        self.change(|config| config.settings.problem_types = base.into())
    }

    /// Sets whether problems also carry an `error` object, see
    /// [`Problem::error_object`](super::Problem::error_object). Default no.
    #[must_use]
    pub fn error_object(self, wanted: bool) -> Self {
        self.change(|config| config.settings.error_object = wanted)
    }

    /// Sets a function that names the operation of a request; `None` falls back to the default: the
    /// method and, under axum, the route's template, elsewhere the path.
    ///
    /// The same key under another operation is another key.
    #[must_use]
    pub fn operation(
        self,
        name: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.change(|config| config.settings.operation = Some(Arc::new(name)))
    }
}

#[cfg(feature = "openapi")]
impl<S: Store, M> KeyedLayer<Http, S, M> {
    /// Returns the general rules, those of single routes, and the headers that may carry the key.
    pub(crate) fn described(&self) -> (&Arc<Rules>, &Routes, &[HeaderName]) {
        (&self.config.rules, &self.config.settings.routes, &self.config.key_headers)
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

    pub(super) fn reindex(&mut self, rules: &Arc<Rules>) {
        let all = self.routes.values().chain([rules]);
        self.any_required = all.clone().any(|rules| rules.required);
        self.methods = all.flat_map(|rules| rules.options.methods.iter().cloned()).collect();
    }
}

#[cfg(feature = "axum")]
fn template(request: &Parts) -> &str {
    match request.extensions.get::<axum::extract::MatchedPath>() {
        Some(matched) => matched.as_str(),
        None => target(request).path(),
    }
}

#[cfg(not(feature = "axum"))]
fn template(request: &Parts) -> &str {
    target(request).path()
}

/// Returns where the request was sent. A nested axum router sees only the rest of the path, and that
/// of two accounts may be the same.
#[cfg(feature = "axum")]
pub(super) fn target(request: &Parts) -> &Uri {
    match request.extensions.get::<axum::extract::OriginalUri>() {
        Some(original) => &original.0,
        None => &request.uri,
    }
}

/// Returns where the request was sent.
#[cfg(not(feature = "axum"))]
pub(super) fn target(request: &Parts) -> &Uri {
    &request.uri
}
