//! The layer, and what all its services share.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use http::HeaderName;
use semel_core::store::TransactionalStore;
use semel_core::{Executor, Store};
use tower_layer::Layer;

use super::methods::{InvalidDescriptorSet, Methods};
use super::rules::Rules;
use super::service::GrpcService;
use crate::identity::{Scope, Tenant};
use crate::road::{Atomic, Fenced, Road};

/// Makes unary gRPC methods idempotent.
///
/// It cannot be built without saying how tenants and callers are told apart, and it leaves every
/// method alone that it was not told of:
///
/// ```
/// use semel_core::Executor;
/// use semel_core::store::memory::MemoryStore;
/// use semel_tower::grpc::{GrpcLayer, Rules};
/// use semel_tower::{Scope, Tenant};
///
/// let executor = Executor::new(MemoryStore::new());
/// let scope = Scope::header(http::header::AUTHORIZATION);
/// let layer = GrpcLayer::new(executor, Tenant::fixed("acme"), scope)
///     .unary("/payments.v1.Payments/Charge", Rules::new().required());
/// ```
///
/// Put it where it sees `application/grpc`: a gRPC-Web layer goes outside of it. Whatever tells
/// callers apart goes outside too: interceptors of a service (`with_interceptor`) stand inside, and
/// do not run for repeats. A limit on how much runs at once goes inside (`ConcurrencyLimitLayer`):
/// one outside ends with its caller, and the work does not.
pub struct GrpcLayer<S: Store, R = Fenced> {
    door: Arc<Door<S>>,
    road: PhantomData<R>,
}

/// What all services of a layer share.
pub(super) struct Door<S: Store> {
    pub(super) executor: Executor<S>,
    pub(super) tenant: Tenant,
    pub(super) scope: Scope,
    pub(super) keys: Arc<[HeaderName]>,
    rules: Arc<Rules>,
    methods: Methods,
}

impl<S: Store> Clone for Door<S> {
    fn clone(&self) -> Self {
        Self {
            executor: self.executor.clone(),
            tenant: self.tenant.clone(),
            scope: self.scope.clone(),
            keys: Arc::clone(&self.keys),
            rules: Arc::clone(&self.rules),
            methods: self.methods.clone(),
        }
    }
}

impl<S: Store> GrpcLayer<S, Fenced> {
    /// A layer whose handlers' effects may be anywhere: one live holder, at most one kept answer.
    pub fn new(executor: Executor<S>, tenant: Tenant, scope: Scope) -> Self {
        Self::with(executor, tenant, scope)
    }
}

impl<S: TransactionalStore> GrpcLayer<S, Atomic> {
    /// A layer whose handlers write to the ledger's own database, through the
    /// [`Transaction`](crate::Transaction) that their request carries: claim, writes and answer are
    /// one commit, so they happen exactly once. Calls of a descriptor set's methods need a key; so
    /// should those of methods with rules of their own, which have no transaction without one.
    pub fn atomic(executor: Executor<S>, tenant: Tenant, scope: Scope) -> Self {
        Self::with(executor, tenant, scope).rules(Rules::new().required())
    }
}

impl<S: Store, R: Road<S>> GrpcLayer<S, R> {
    fn with(executor: Executor<S>, tenant: Tenant, scope: Scope) -> Self {
        let door = Door {
            executor,
            tenant,
            scope,
            keys: Arc::new([
                HeaderName::from_static("idempotency-key"),
                HeaderName::from_static("x-idem-key"),
            ]),
            rules: Arc::default(),
            methods: Methods::default(),
        };
        Self { door: Arc::new(door), road: PhantomData }
    }

    fn change(mut self, change: impl FnOnce(&mut Door<S>)) -> Self {
        change(Arc::make_mut(&mut self.door));
        self
    }

    /// Makes a unary method idempotent, by rules of its own. Its name is its path:
    /// `/package.Service/Method`.
    ///
    /// A call of a streaming method that is registered here by mistake is read to its end before it
    /// is handed on, and refused if it has more than one message. A
    /// [descriptor set](Self::descriptor_set) that is given afterwards finds the mistake.
    #[must_use]
    pub fn unary(self, method: &str, rules: Rules) -> Self {
        self.change(|door| door.methods.name(method, rules))
    }

    /// Makes all unary methods of an encoded `google.protobuf.FileDescriptorSet` idempotent: by
    /// [`rules`](Self::rules), those that [`unary`](Self::unary) named by theirs. Streaming methods
    /// are left alone, and so are those with `option idempotency_level = NO_SIDE_EFFECTS`.
    ///
    /// `tonic_prost_build`'s `file_descriptor_set_path` writes such a set.
    ///
    /// # Errors
    /// [`InvalidDescriptorSet`], also where a method that was named before streams or does not
    /// exist.
    pub fn descriptor_set(mut self, encoded: &[u8]) -> Result<Self, InvalidDescriptorSet> {
        Arc::make_mut(&mut self.door).methods.describe(encoded)?;
        Ok(self)
    }

    /// How calls of a descriptor set's methods are treated. Default [`Rules::new`].
    #[must_use]
    pub fn rules(self, rules: Rules) -> Self {
        self.change(|door| door.rules = Arc::new(rules))
    }

    /// Whether calls of this path are for this layer: a unary method that it was told of.
    pub fn covers(&self, path: &str) -> bool {
        self.door.rules(path).is_some()
    }

    /// Metadata that may carry the key. Default `idempotency-key` and `x-idem-key`.
    #[must_use]
    pub fn key_metadata(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.change(|door| door.keys = names.into_iter().collect())
    }
}

impl<S: Store> Door<S> {
    /// The rules of a path; `None` if its calls are none of ours.
    pub(super) fn rules(&self, path: &str) -> Option<&Arc<Rules>> {
        self.methods.rules(path, &self.rules)
    }
}

impl<S: Store, R> Clone for GrpcLayer<S, R> {
    fn clone(&self) -> Self {
        Self { door: Arc::clone(&self.door), road: PhantomData }
    }
}

impl<S: Store, R> fmt::Debug for GrpcLayer<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcLayer")
            .field("tenant", &self.door.tenant)
            .field("scope", &self.door.scope)
            .field("methods", &self.door.methods)
            .finish_non_exhaustive()
    }
}

impl<I, S: Store, R: Road<S>> Layer<I> for GrpcLayer<S, R> {
    type Service = GrpcService<I, S, R>;

    fn layer(&self, inner: I) -> Self::Service {
        GrpcService::new(inner, Arc::clone(&self.door))
    }
}
