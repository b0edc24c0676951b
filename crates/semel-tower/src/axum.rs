//! axum extractors for the claim that a handler runs under, the transaction of that claim, and the
//! resources that the public ids in a request identify.

#[cfg(feature = "ids")]
pub mod ids;

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use semel_core::Context;
use semel_core::executor::Unit;
use semel_core::store::TransactionalStore;

use crate::fail_open::Unprotected;
use crate::http::{PROBLEMS, Problem, Slug};
use crate::mode::Transaction;

/// The claim that a handler runs under: fence, operation id, downstream keys, cancellation. Use
/// `Option<OperationContext>` in a handler that also takes requests without a key.
///
/// ```
/// use axum::http::StatusCode;
/// use semel_tower::axum::OperationContext;
///
/// async fn pay(OperationContext(claim): OperationContext) -> Result<String, StatusCode> {
///     // The same in every retry: the provider recognises a repeat.
///     claim.downstream_key("charge").map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct OperationContext(pub Context);

impl<T: Sync> FromRequestParts<T> for OperationContext {
    type Rejection = OperationRejection;

    async fn from_request_parts(parts: &mut Parts, _: &T) -> Result<Self, OperationRejection> {
        parts
            .extensions
            .get()
            .cloned()
            .map(OperationContext)
            .ok_or_else(|| OperationRejection::of(parts))
    }
}

impl<T: Sync> OptionalFromRequestParts<T> for OperationContext {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        _: &T,
    ) -> Result<Option<Self>, std::convert::Infallible> {
        Ok(parts.extensions.get().cloned().map(OperationContext))
    }
}

/// The open transaction of a request behind
/// [`IdempotencyLayer::atomic`](crate::http::IdempotencyLayer::atomic). The handler's writes in
/// this transaction commit together with the stored response, or not at all.
///
/// ```
/// use axum::http::StatusCode;
/// use semel_sql::sqlite::SqliteStore;
/// use semel_tower::axum::Tx;
///
/// async fn place(Tx(mut unit): Tx<SqliteStore>) -> Result<StatusCode, StatusCode> {
///     let insert = sqlx::query("INSERT INTO customer_order (sku) VALUES ('tea')");
///     insert.execute(unit.conn()).await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
///     Ok(StatusCode::CREATED)
/// }
/// ```
pub struct Tx<S: TransactionalStore>(pub Unit<S>);

impl<S: TransactionalStore> std::fmt::Debug for Tx<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tx").field(&self.0).finish()
    }
}

impl<S: TransactionalStore, T: Sync> FromRequestParts<T> for Tx<S> {
    type Rejection = OperationRejection;

    async fn from_request_parts(parts: &mut Parts, _: &T) -> Result<Self, OperationRejection> {
        let extension = parts.extensions.remove::<Transaction<S>>();
        let unit = extension.and_then(|transaction| transaction.take());
        unit.map(Tx).ok_or_else(|| match parts.extensions.get::<Context>() {
            Some(_) => OperationRejection::NoTransaction,
            None => OperationRejection::of(parts),
        })
    }
}

/// Writes the problem as `application/problem+json`, so that a handler can return a `Problem`; `?`
/// converts an error of the executor into one.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.into_http_response(PROBLEMS, "").map(axum::body::Body::from)
    }
}

/// The reason why a handler that needs a claim does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperationRejection {
    /// The request came without a key, or the route is not behind the layer. Answered as
    /// `key-missing`.
    #[error("this handler runs under a claim: send an Idempotency-Key")]
    Unkeyed,
    /// The request has a claim, but no transaction of this store: the layer is not
    /// [`atomic`](crate::http::IdempotencyLayer::atomic), has another store, or the handler
    /// extracts the transaction twice. Answered as `misconfigured`: another key would not help.
    #[error("the claim has no transaction of this handler's store, or it was taken before")]
    NoTransaction,
    /// The store is unavailable and the route [fails open](crate::RouteRules::fail_open), but this
    /// handler needs a claim. Answered as `store-unavailable`.
    #[error(
        "this handler runs under a claim, and the ledger cannot be reached; retry with the same key"
    )]
    Unprotected,
}

impl OperationRejection {
    fn of(request: &Parts) -> Self {
        match request.extensions.get::<Unprotected>() {
            Some(Unprotected) => OperationRejection::Unprotected,
            None => OperationRejection::Unkeyed,
        }
    }
}

impl IntoResponse for OperationRejection {
    fn into_response(self) -> Response {
        let slug = match self {
            OperationRejection::Unkeyed => Slug::KeyMissing,
            OperationRejection::NoTransaction => Slug::Misconfigured,
            OperationRejection::Unprotected => Slug::StoreUnavailable,
        };
        crate::http::refusal(slug, self.to_string()).map(axum::body::Body::from)
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::routing::post;
    use http::{Request, StatusCode};
    use semel_core::Executor;
    use semel_core::store::memory::MemoryStore;
    use semel_sql::sqlite::SqliteStore;
    use tower::ServiceExt as _;

    use super::*;
    use crate::http::IdempotencyLayer;
    use crate::{PrincipalFrom, Tenant};

    #[tokio::test]
    async fn an_error_of_the_executor_becomes_a_response() {
        let failed = semel_core::Error::Work("the disk is full");
        let response = Problem::from(failed).into_response();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let body = axum::body::to_bytes(response.into_body(), 4096).await.expect("a body");
        let body = String::from_utf8(body.to_vec()).expect("JSON");
        assert!(body.contains("work-failed") && !body.contains("disk"), "{body}");
        let closed = semel_core::Error::<String>::Closed;
        let response = Problem::from(closed).into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()["retry-after"], "1");
    }

    #[tokio::test]
    async fn a_missing_transaction_is_not_reported_as_a_missing_key() {
        let executor = Executor::new(MemoryStore::new());
        let fenced =
            IdempotencyLayer::fenced(executor, Tenant::fixed("acme"), PrincipalFrom::global());
        let app = Router::new().route("/", post(async |_: Tx<SqliteStore>| ())).layer(fenced);
        let status = async |request: http::request::Builder| {
            let request = request.body(Body::empty()).expect("a request");
            let Ok(answer) = app.clone().oneshot(request).await;
            answer.status()
        };
        assert_eq!(status(Request::post("/")).await, StatusCode::BAD_REQUEST);
        let keyed = Request::post("/").header("idempotency-key", "k");
        assert_eq!(status(keyed).await, StatusCode::INTERNAL_SERVER_ERROR);
    }
}
