//! The settings that only an HTTP layer has: routes, names of operations, and how problems are
//! written.

use std::sync::Arc;

use http::HeaderName;
use http::request::Parts;
use semel_core::Store;

use super::protocol::Http;
#[cfg(feature = "openapi")]
use super::rules::Routes;
use super::rules::Rules;
use crate::layer::KeyedLayer;
use crate::mode::{Fenced, Mode};
use crate::service::KeyedService;

/// A layer that makes HTTP services idempotent.
///
/// A layer cannot be built without a way to identify tenants and callers:
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

/// The service that an [`IdempotencyLayer`] creates.
pub type Idempotency<I, S, M> = KeyedService<I, Http, S, M>;

impl<S: Store, M: Mode<S>> KeyedLayer<Http, S, M> {
    /// Sets the rules of one operation. Its name is the method and the route's template under axum
    /// (`POST /orders/{id}/refunds`), the method and the literal path elsewhere, or the result of
    /// [`operation`](Self::operation). A warning reports a name that can match no request, at start
    /// or at the first request that shows it.
    #[must_use]
    pub fn route(self, operation: &str, rules: Rules) -> Self {
        self.change(|routing| {
            routing.settings.routes.insert(operation.into(), Arc::new(rules));
        })
    }

    /// Sets the headers that may carry the key. Default `Idempotency-Key` and `X-Idempotency-Key`.
    #[must_use]
    pub fn key_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.change(|routing| routing.key_headers = names.into_iter().collect())
    }

    /// Sets the prefix of a problem's `type`, which the slug follows. Default `urn:semel:problem:`;
    /// with the address of your copy of `docs/errors/` the type becomes a link.
    #[must_use]
    pub fn problem_types(self, base: impl Into<Arc<str>>) -> Self {
        self.change(|routing| routing.settings.problem_types = base.into())
    }

    /// Sets whether problems also have an `error` object; see
    /// [`Problem::error_object`](super::Problem::error_object). Default no.
    #[must_use]
    pub fn error_object(self, wanted: bool) -> Self {
        self.change(|routing| routing.settings.error_object = wanted)
    }

    /// Sets a function that returns the name of a request's operation. If it returns `None` the
    /// default is used: the method and, under axum, the route's template, elsewhere the path.
    ///
    /// The operation is part of the key: the same text under another operation is another key.
    ///
    /// ```
    /// use semel_core::Executor;
    /// use semel_core::store::memory::MemoryStore;
    /// use semel_tower::http::{IdempotencyLayer, Rules};
    /// use semel_tower::{PrincipalFrom, Tenant};
    ///
    /// let executor = Executor::new(MemoryStore::new());
    /// let layer = IdempotencyLayer::fenced(executor, Tenant::fixed("acme"), PrincipalFrom::global())
    ///     .operation(|request| {
    ///         let name = request.headers.get("x-operation")?.to_str().ok()?;
    ///         Some(name.to_owned())
    ///     })
    ///     .route("PAY", Rules::new().required());
    /// ```
    #[must_use]
    pub fn operation(
        self,
        name: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.change(|routing| routing.settings.operation = Some(Arc::new(name)))
    }
}

#[cfg(feature = "openapi")]
impl<S: Store, M> KeyedLayer<Http, S, M> {
    /// Returns the default rules, the rules of single routes, and the headers that may carry the
    /// key.
    pub(crate) fn described(&self) -> (&Arc<Rules>, &Routes, &[HeaderName]) {
        let routing = &self.config.routing;
        (&routing.rules, &routing.settings.routes, &routing.key_headers)
    }
}
