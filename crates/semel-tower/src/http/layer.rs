//! The layer, and what all its services share.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderName, Method, Uri};
use semel_core::store::TransactionalStore;
use semel_core::{Executor, Store};
use tower_layer::Layer;

use super::rules::Rules;
use super::service::Idempotency;
use crate::identity::{Scope, Tenant};
use crate::road::{Atomic, Fenced, Road};

/// What a problem's type begins with, where nothing else is said.
pub const PROBLEMS: &str = "urn:semel:problem:";

/// The rules of single operations, by name.
type Routes = HashMap<Box<str>, Arc<Rules>>;

type Named = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

/// Makes the services behind it idempotent.
///
/// It cannot be built without saying how tenants and callers are told apart:
///
/// ```
/// use semel_core::Executor;
/// use semel_core::store::memory::MemoryStore;
/// use semel_tower::http::{IdempotencyLayer, Rules};
/// use semel_tower::{Scope, Tenant};
///
/// let executor = Executor::new(MemoryStore::new());
/// let scope = Scope::header(http::header::AUTHORIZATION);
/// let layer = IdempotencyLayer::new(executor, Tenant::fixed("acme"), scope)
///     .rules(Rules::new())
///     .route("POST /payments", Rules::new().required());
/// ```
pub struct IdempotencyLayer<S: Store, R = Fenced> {
    door: Arc<Door<S>>,
    road: PhantomData<R>,
}

/// What all services of a layer share.
pub(super) struct Door<S: Store> {
    pub(super) executor: Executor<S>,
    pub(super) tenant: Tenant,
    pub(super) scope: Scope,
    pub(super) keys: Arc<[HeaderName]>,
    pub(super) problems: Arc<str>,
    pub(super) error_object: bool,
    rules: Arc<Rules>,
    routes: Routes,
    /// All that any rule names.
    methods: HashSet<Method>,
    any_required: bool,
    operation: Option<Named>,
}

impl<S: Store> Clone for Door<S> {
    fn clone(&self) -> Self {
        Self {
            executor: self.executor.clone(),
            tenant: self.tenant.clone(),
            scope: self.scope.clone(),
            keys: Arc::clone(&self.keys),
            problems: Arc::clone(&self.problems),
            error_object: self.error_object,
            rules: self.rules.clone(),
            routes: self.routes.clone(),
            methods: self.methods.clone(),
            any_required: self.any_required,
            operation: self.operation.clone(),
        }
    }
}

impl<S: Store> IdempotencyLayer<S, Fenced> {
    /// A layer whose handlers' effects may be anywhere: one live holder, at most one kept answer.
    pub fn new(executor: Executor<S>, tenant: Tenant, scope: Scope) -> Self {
        Self::with(executor, tenant, scope)
    }
}

impl<S: TransactionalStore> IdempotencyLayer<S, Atomic> {
    /// A layer whose handlers write to the ledger's own database, through the
    /// [`Transaction`](crate::Transaction) that their request carries: claim, writes and answer are
    /// one commit, so they happen exactly once. Every request of its methods needs a key.
    pub fn atomic(executor: Executor<S>, tenant: Tenant, scope: Scope) -> Self {
        Self::with(executor, tenant, scope).rules(Rules::new().required())
    }
}

impl<S: Store, R: Road<S>> IdempotencyLayer<S, R> {
    fn with(executor: Executor<S>, tenant: Tenant, scope: Scope) -> Self {
        let door = Door {
            executor,
            tenant,
            scope,
            keys: Arc::new([
                HeaderName::from_static("idempotency-key"),
                HeaderName::from_static("x-idempotency-key"),
            ]),
            problems: PROBLEMS.into(),
            error_object: false,
            rules: Arc::default(),
            routes: HashMap::new(),
            methods: HashSet::new(),
            any_required: false,
            operation: None,
        };
        Self { door: Arc::new(door), road: PhantomData }.rules(Rules::new())
    }

    fn change(mut self, change: impl FnOnce(&mut Door<S>)) -> Self {
        let door = Arc::make_mut(&mut self.door);
        change(door);
        let all = door.routes.values().chain([&door.rules]);
        door.any_required = all.clone().any(|rules| rules.required);
        door.methods = all.flat_map(|rules| rules.methods.iter().cloned()).collect();
        self
    }

    /// How requests are treated whose route says nothing else. Default [`Rules::new`].
    #[must_use]
    pub fn rules(self, rules: Rules) -> Self {
        self.change(|door| door.rules = Arc::new(rules))
    }

    /// How requests of one operation are treated: `POST /orders/{id}/refunds` under axum, the method
    /// and the literal path elsewhere, or what [`operation`](Self::operation) names.
    #[must_use]
    pub fn route(self, operation: &str, rules: Rules) -> Self {
        self.change(|door| {
            door.routes.insert(operation.into(), Arc::new(rules));
        })
    }

    /// Headers that may carry the key. Default `Idempotency-Key` and `X-Idempotency-Key`.
    #[must_use]
    pub fn key_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.change(|door| door.keys = names.into_iter().collect())
    }

    /// What the type of a problem begins with; the slug follows. Default `urn:semel:problem:`; give
    /// the address of your copy of `docs/errors/` to make it a link.
    #[must_use]
    pub fn problem_types(self, base: impl Into<Arc<str>>) -> Self {
        self.change(|door| door.problems = base.into())
    }

    /// Whether problems also carry an `error` object, as
    /// [`Problem::error_object`](super::Problem::error_object) has it. Default no.
    #[must_use]
    pub fn error_object(self, wanted: bool) -> Self {
        self.change(|door| door.error_object = wanted)
    }

    /// Names the operation of a request; `None` falls back to the default: the method and, under
    /// axum, the route's template, elsewhere the path.
    ///
    /// The same key under another operation is another key.
    #[must_use]
    pub fn operation(
        self,
        name: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.change(|door| door.operation = Some(Arc::new(name)))
    }
}

#[cfg(feature = "openapi")]
impl<S: Store, R> IdempotencyLayer<S, R> {
    /// The general rules, those of single routes, and the headers that may carry the key.
    pub(crate) fn described(&self) -> (&Arc<Rules>, &Routes, &[HeaderName]) {
        (&self.door.rules, &self.door.routes, &self.door.keys)
    }
}

impl<S: Store> Door<S> {
    /// The operation of a request, by its full name.
    pub(super) fn operation(&self, request: &Parts) -> String {
        if let Some(name) = self.operation.as_ref().and_then(|name| name(request)) {
            return name;
        }
        let (method, template) = (request.method.as_str(), template(request));
        let mut name = String::with_capacity(method.len() + 1 + template.len());
        name.extend([method, " ", template]);
        name
    }

    pub(super) fn rules(&self, operation: &str) -> &Arc<Rules> {
        self.routes.get(operation).unwrap_or(&self.rules)
    }

    /// Whether any rule may concern this request.
    pub(super) fn concerns(&self, request: &Parts) -> bool {
        let keyed = || self.keys.iter().any(|name| request.headers.contains_key(name));
        self.methods.contains(&request.method) && (self.any_required || keyed())
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

/// Where the request went. A nested axum router sees only the rest of it, and that of two accounts
/// may be the same.
#[cfg(feature = "axum")]
pub(super) fn target(request: &Parts) -> &Uri {
    match request.extensions.get::<axum::extract::OriginalUri>() {
        Some(original) => &original.0,
        None => &request.uri,
    }
}

/// Where the request went.
#[cfg(not(feature = "axum"))]
pub(super) fn target(request: &Parts) -> &Uri {
    &request.uri
}

impl<S: Store, R> Clone for IdempotencyLayer<S, R> {
    fn clone(&self) -> Self {
        Self { door: Arc::clone(&self.door), road: PhantomData }
    }
}

impl<S: Store, R> fmt::Debug for IdempotencyLayer<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("tenant", &self.door.tenant)
            .field("scope", &self.door.scope)
            .field("rules", &self.door.rules)
            .finish_non_exhaustive()
    }
}

impl<I, S: Store, R: Road<S>> Layer<I> for IdempotencyLayer<S, R> {
    type Service = Idempotency<I, S, R>;

    fn layer(&self, inner: I) -> Self::Service {
        Idempotency::new(inner, Arc::clone(&self.door))
    }
}
