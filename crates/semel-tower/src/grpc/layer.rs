//! What only a gRPC layer has: the methods that it covers.

use std::sync::Arc;

use http::HeaderName;
use semel_core::Store;
use tonic::server::NamedService;

use super::methods::InvalidDescriptorSet;
use super::protocol::Grpc;
use super::rules::GrpcRules;
use crate::layer::KeyedLayer;
use crate::mode::{Fenced, Mode};
use crate::service::KeyedService;

/// Makes unary gRPC methods idempotent.
///
/// It cannot be built without saying how tenants and callers are distinguished, and methods that it is
/// not given pass through:
///
/// ```
/// use semel_core::Executor;
/// use semel_core::store::memory::MemoryStore;
/// use semel_tower::grpc::{GrpcLayer, GrpcRules};
/// use semel_tower::{PrincipalFrom, Tenant};
///
/// let executor = Executor::new(MemoryStore::new());
/// let principal = PrincipalFrom::header(http::header::AUTHORIZATION);
/// let layer = GrpcLayer::fenced(executor, Tenant::fixed("acme"), principal)
///     .unary("/payments.v1.Payments/Charge", GrpcRules::new().required());
/// ```
///
/// Its [`rules`](KeyedLayer::rules) apply to the methods of a
/// [descriptor set](KeyedLayer::descriptor_set).
///
/// Put it where it sees `application/grpc`: a gRPC-Web layer goes outside of it. Authentication goes
/// outside too: interceptors of a service (`with_interceptor`) are inside, and do not run for
/// repeats. A limit on how much runs at once goes inside (`ConcurrencyLimitLayer`): one outside ends
/// with its caller, and the work does not.
pub type GrpcLayer<S, M = Fenced> = KeyedLayer<Grpc, S, M>;

/// The service that a [`GrpcLayer`] makes.
pub type GrpcService<I, S, M> = KeyedService<I, Grpc, S, M>;

/// Lets one service of a server be layered, as well as the server.
impl<I: NamedService, S: Store, M> NamedService for KeyedService<I, Grpc, S, M> {
    const NAME: &'static str = I::NAME;
}

impl<S: Store, M: Mode<S>> KeyedLayer<Grpc, S, M> {
    /// Makes a unary method idempotent, by rules of its own. Its name is its path:
    /// `/package.Service/Method`.
    ///
    /// A call of a streaming method that is registered here by mistake is read to its end before it
    /// is handed on, and refused if it has more than one message. A
    /// [descriptor set](Self::descriptor_set) that is given afterwards finds the mistake.
    #[must_use]
    pub fn unary(self, method: &str, rules: GrpcRules) -> Self {
        self.change(|routing| routing.settings.name(method, rules))
    }

    /// Makes all unary methods of an encoded `google.protobuf.FileDescriptorSet` idempotent: by
    /// [`rules`](Self::rules), those that [`unary`](Self::unary) named by theirs. Streaming methods
    /// are left alone, and so are those with `option idempotency_level = NO_SIDE_EFFECTS`.
    ///
    /// `tonic_prost_build`'s `file_descriptor_set_path` writes such a set.
    ///
    /// ```
    /// use semel_core::Executor;
    /// use semel_core::store::memory::MemoryStore;
    /// use semel_tower::grpc::{GrpcLayer, InvalidDescriptorSet};
    /// use semel_tower::{PrincipalFrom, Tenant};
    ///
    /// let executor = Executor::new(MemoryStore::new());
    /// let layer = GrpcLayer::fenced(executor, Tenant::fixed("acme"), PrincipalFrom::global());
    /// // Usually include_bytes!(concat!(env!("OUT_DIR"), "/payments.bin")).
    /// assert_eq!(layer.descriptor_set(b"").err(), Some(InvalidDescriptorSet::NoMethods));
    /// ```
    ///
    /// # Errors
    /// [`InvalidDescriptorSet`], also where a method that was named before streams or does not
    /// exist.
    pub fn descriptor_set(mut self, encoded: &[u8]) -> Result<Self, InvalidDescriptorSet> {
        Arc::make_mut(&mut self.config).routing.settings.describe(encoded)?;
        Ok(self)
    }

    /// Returns whether the layer covers calls of this path: those of a unary method that it was
    /// given.
    pub fn covers(&self, path: &str) -> bool {
        let routing = &self.config.routing;
        routing.settings.rules(path, &routing.rules).is_some()
    }

    /// Sets the metadata that may carry the key. Default `idempotency-key` and `x-idem-key`.
    #[must_use]
    pub fn key_metadata(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.change(|routing| routing.key_headers = names.into_iter().collect())
    }
}
