//! The settings that only a gRPC layer has: the methods that it covers.

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
/// A layer cannot be built without a way to identify tenants and callers. Methods that are not
/// registered pass through:
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
/// The layer's [`rules`](KeyedLayer::rules) apply to the methods of a [descriptor
/// set](KeyedLayer::descriptor_set).
///
/// The layer must see `application/grpc`, so a gRPC-Web layer goes outside of it. Authentication
/// goes outside too: the interceptors of a service (`with_interceptor`) are inside, and do not run
/// for repeats. A concurrency limit (`ConcurrencyLimitLayer`) goes inside: outside, a permit would
/// be freed when the caller leaves, while the work goes on.
pub type GrpcLayer<S, M = Fenced> = KeyedLayer<Grpc, S, M>;

/// The service that a [`GrpcLayer`] creates.
pub type GrpcService<I, S, M> = KeyedService<I, Grpc, S, M>;

/// Allows the layer around one service of a server, not only around the whole server.
impl<I: NamedService, S: Store, M> NamedService for KeyedService<I, Grpc, S, M> {
    const NAME: &'static str = I::NAME;
}

impl<S: Store, M: Mode<S>> KeyedLayer<Grpc, S, M> {
    /// Makes a unary method idempotent, with separate rules. `method` is the path of the method:
    /// `/package.Service/Method`.
    ///
    /// If a streaming method is registered by mistake, its calls are read to the end before they
    /// are passed on, and refused if they have more than one message. A [descriptor
    /// set](Self::descriptor_set) that is added afterwards reveals the mistake.
    #[must_use]
    pub fn unary(self, method: &str, rules: GrpcRules) -> Self {
        self.change(|routing| routing.settings.name(method, rules))
    }

    /// Makes all unary methods of an encoded `google.protobuf.FileDescriptorSet` idempotent, with
    /// the rules of [`rules`](Self::rules); a method that was registered with
    /// [`unary`](Self::unary) keeps its own rules. Streaming methods and methods with
    /// `option idempotency_level = NO_SIDE_EFFECTS` pass through.
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
    /// [`InvalidDescriptorSet`] if the set is unusable, or if a method that was registered before
    /// is a streaming method or does not exist.
    pub fn descriptor_set(mut self, encoded: &[u8]) -> Result<Self, InvalidDescriptorSet> {
        Arc::make_mut(&mut self.config).routing.settings.describe(encoded)?;
        Ok(self)
    }

    /// Returns whether the layer covers calls of this path, which is the case for registered unary
    /// methods.
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
