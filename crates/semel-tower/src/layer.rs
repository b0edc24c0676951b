//! The layer, and what all its services share.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use http::HeaderName;
use semel_core::store::TransactionalStore;
use semel_core::{Executor, Store};
use tower_layer::Layer;

use crate::caller::{PrincipalFrom, Tenant};
use crate::mode::{Atomic, Fenced, Mode};
use crate::protocol::Protocol;
use crate::rules::RouteRules;
use crate::service::KeyedService;

/// Makes the services behind it idempotent, by one protocol and in one [`Mode`].
///
/// Used by the names [`IdempotencyLayer`](crate::http::IdempotencyLayer) for HTTP and `GrpcLayer`
/// for gRPC.
pub struct KeyedLayer<P: Protocol, S: Store, M = Fenced> {
    pub(crate) config: Arc<LayerConfig<P, S>>,
    mode: PhantomData<M>,
}

/// What all services of a layer share.
pub struct LayerConfig<P: Protocol, S: Store> {
    pub(crate) executor: Executor<S>,
    pub(crate) tenant: Tenant,
    pub(crate) principal: PrincipalFrom,
    pub(crate) key_headers: Arc<[HeaderName]>,
    /// The rules of routes that have none of their own.
    pub(crate) rules: Arc<RouteRules<P>>,
    pub(crate) settings: P::Settings,
}

impl<P: Protocol, S: Store> Clone for LayerConfig<P, S> {
    fn clone(&self) -> Self {
        Self {
            executor: self.executor.clone(),
            tenant: self.tenant.clone(),
            principal: self.principal.clone(),
            key_headers: Arc::clone(&self.key_headers),
            rules: Arc::clone(&self.rules),
            settings: self.settings.clone(),
        }
    }
}

impl<P: Protocol, S: Store> KeyedLayer<P, S, Fenced> {
    /// Creates a layer whose handlers may have their effects anywhere: at most one runs at a time
    /// under a key, and at most one outcome is stored. Works with every store.
    pub fn fenced(executor: Executor<S>, tenant: Tenant, principal: PrincipalFrom) -> Self {
        Self::new(executor, tenant, principal)
    }
}

impl<P: Protocol, S: TransactionalStore> KeyedLayer<P, S, Atomic> {
    /// Creates a layer whose handlers write to the database that also holds the claims, through
    /// the [`Transaction`](crate::Transaction) in their request's extensions: claim, writes and
    /// outcome are one commit, so they happen exactly once.
    ///
    /// Its default rules [require](RouteRules::required) a key. So should the rules of single
    /// routes: a request without a key has no transaction.
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
            key_headers: P::KEY_HEADERS.map(HeaderName::from_static).into(),
            rules: Arc::default(),
            settings: P::Settings::default(),
        };
        Self { config: Arc::new(config), mode: PhantomData }.rules(RouteRules::new())
    }

    pub(crate) fn change(mut self, change: impl FnOnce(&mut LayerConfig<P, S>)) -> Self {
        let config = Arc::make_mut(&mut self.config);
        change(config);
        P::reindex(&mut config.settings, &config.rules);
        self
    }

    /// Sets the rules of requests whose route has none of its own. Default [`RouteRules::new`].
    #[must_use]
    pub fn rules(self, rules: RouteRules<P>) -> Self {
        self.change(|config| config.rules = Arc::new(rules))
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
            .field("rules", &self.config.rules)
            .field("settings", &self.config.settings)
            .finish_non_exhaustive()
    }
}

impl<I, P: Protocol, S: Store, M: Mode<S>> Layer<I> for KeyedLayer<P, S, M> {
    type Service = KeyedService<I, P, S, M>;

    fn layer(&self, inner: I) -> Self::Service {
        KeyedService::new(inner, Arc::clone(&self.config))
    }
}
