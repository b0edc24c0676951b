//! The layer that makes any service idempotent.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use http::HeaderName;
use semel_core::store::TransactionalStore;
use semel_core::{Executor, Store};
use tower_layer::Layer;

use crate::caller::{PrincipalFrom, Tenant};
use crate::config::LayerConfig;
use crate::mode::{Atomic, Fenced, Mode};
use crate::protocol::{Protocol, Routing, RulesOf};
use crate::rules::RouteRules;
use crate::service::KeyedService;

/// A layer that makes services idempotent, for one protocol and in one [`Mode`].
///
/// The aliases of this type are [`IdempotencyLayer`](crate::http::IdempotencyLayer) for HTTP and
/// `GrpcLayer` for gRPC.
pub struct KeyedLayer<P: Protocol, S: Store, M = Fenced> {
    pub(crate) config: Arc<LayerConfig<P, S>>,
    mode: PhantomData<M>,
}

impl<P: Protocol, S: Store> KeyedLayer<P, S, Fenced> {
    /// Creates a layer whose handlers may have effects outside the store: at most one attempt runs
    /// at a time under a key, and at most one outcome is stored. Works with every store.
    ///
    /// ```
    /// use semel_core::Executor;
    /// use semel_core::store::memory::MemoryStore;
    /// use semel_tower::http::IdempotencyLayer;
    /// use semel_tower::{PrincipalFrom, Tenant};
    ///
    /// let executor = Executor::new(MemoryStore::new());
    /// let principal = PrincipalFrom::header("authorization");
    /// let layer = IdempotencyLayer::fenced(executor, Tenant::fixed("acme"), principal);
    /// ```
    pub fn fenced(executor: Executor<S>, tenant: Tenant, principal: PrincipalFrom) -> Self {
        Self::new(executor, tenant, principal)
    }
}

impl<P: Protocol, S: TransactionalStore> KeyedLayer<P, S, Atomic> {
    /// Creates a layer whose handlers write to the database that also holds the claims, through the
    /// [`Transaction`](crate::Transaction) in the request's extensions. Claim, writes and outcome
    /// are one commit, so the writes happen exactly once.
    ///
    /// The default rules of this layer [require](RouteRules::required) a key. The rules of single
    /// routes should do so too: a request without a key has no transaction.
    ///
    /// ```
    /// use semel_core::Executor;
    /// use semel_sql::sqlite::SqliteStore;
    /// use semel_tower::http::IdempotencyLayer;
    /// use semel_tower::{Atomic, PrincipalFrom, Tenant};
    ///
    /// fn layer(executor: Executor<SqliteStore>) -> IdempotencyLayer<SqliteStore, Atomic> {
    ///     let principal = PrincipalFrom::header("authorization");
    ///     IdempotencyLayer::atomic(executor, Tenant::fixed("acme"), principal)
    /// }
    /// ```
    pub fn atomic(executor: Executor<S>, tenant: Tenant, principal: PrincipalFrom) -> Self {
        Self::new(executor, tenant, principal).rules(RouteRules::new().required())
    }
}

impl<P: Protocol, S: Store, M: Mode<S>> KeyedLayer<P, S, M> {
    fn new(executor: Executor<S>, tenant: Tenant, principal: PrincipalFrom) -> Self {
        let config = LayerConfig {
            executor,
            tenant,
            principal,
            routing: Routing {
                key_headers: P::KEY_HEADERS.map(HeaderName::from_static).into(),
                rules: Arc::default(),
                settings: P::Settings::default(),
            },
        };
        Self { config: Arc::new(config), mode: PhantomData }.rules(RouteRules::new())
    }

    pub(crate) fn change(mut self, change: impl FnOnce(&mut Routing<P>)) -> Self {
        let routing = &mut Arc::make_mut(&mut self.config).routing;
        change(routing);
        P::reindex(&mut routing.settings, &routing.rules);
        self
    }

    /// Sets the rules for requests whose route has no rules of its own. Default
    /// [`RouteRules::new`].
    #[must_use]
    pub fn rules(self, rules: RulesOf<P>) -> Self {
        self.change(|routing| routing.rules = Arc::new(rules))
    }
}

impl<P: Protocol, S: Store, M> Clone for KeyedLayer<P, S, M> {
    fn clone(&self) -> Self {
        Self { config: Arc::clone(&self.config), mode: PhantomData }
    }
}

impl<P: Protocol, S: Store, M> fmt::Debug for KeyedLayer<P, S, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedLayer")
            .field("tenant", &self.config.tenant)
            .field("principal", &self.config.principal)
            .field("rules", &self.config.routing.rules)
            .field("settings", &self.config.routing.settings)
            .finish_non_exhaustive()
    }
}

impl<I, P: Protocol, S: Store, M: Mode<S>> Layer<I> for KeyedLayer<P, S, M> {
    type Service = KeyedService<I, P, S, M>;

    fn layer(&self, inner: I) -> Self::Service {
        P::check(&self.config.routing.settings);
        KeyedService::new(inner, Arc::clone(&self.config))
    }
}
