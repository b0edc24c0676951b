//! Extractors for axum: the claim that a handler runs under, and its transaction.

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use semel::Context;
use semel::executor::Unit;
use semel::store::TransactionalStore;

use crate::http::Slug;
use crate::road::Transaction;

/// What a handler knows about the claim that it runs under: fence, operation id, downstream keys,
/// cancellation. `Option<Claim>` where requests without a key are welcome too.
///
/// ```
/// use axum::http::StatusCode;
/// use semel_tower::axum::Claim;
///
/// async fn pay(Claim(claim): Claim) -> Result<String, StatusCode> {
///     // The same in every retry: the provider recognises a repeat.
///     claim.downstream_key("charge").map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Claim(pub Context);

impl<T: Sync> FromRequestParts<T> for Claim {
    type Rejection = NoClaim;

    async fn from_request_parts(parts: &mut Parts, _: &T) -> Result<Self, NoClaim> {
        parts.extensions.get().cloned().map(Claim).ok_or(NoClaim)
    }
}

impl<T: Sync> OptionalFromRequestParts<T> for Claim {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        _: &T,
    ) -> Result<Option<Self>, std::convert::Infallible> {
        Ok(parts.extensions.get().cloned().map(Claim))
    }
}

/// The open transaction of a request behind
/// [`IdempotencyLayer::atomic`](crate::http::IdempotencyLayer::atomic). What the handler writes
/// through it commits with the kept answer, and with nothing else.
pub struct Tx<S: TransactionalStore>(pub Unit<S>);

impl<S: TransactionalStore> std::fmt::Debug for Tx<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tx").field(&self.0).finish()
    }
}

impl<S: TransactionalStore, T: Sync> FromRequestParts<T> for Tx<S> {
    type Rejection = NoClaim;

    async fn from_request_parts(parts: &mut Parts, _: &T) -> Result<Self, NoClaim> {
        let carried = parts.extensions.remove::<Transaction<S>>();
        carried.and_then(|transaction| transaction.take()).map(Tx).ok_or(NoClaim)
    }
}

/// The request has no claim: it came without a key, or the route is not behind the layer that the
/// extractor is for. Answered as `key-missing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this handler runs under a claim: send an Idempotency-Key")]
pub struct NoClaim;

impl IntoResponse for NoClaim {
    fn into_response(self) -> Response {
        crate::http::refusal(Slug::KeyMissing, self.to_string()).map(axum::body::Body::from)
    }
}
