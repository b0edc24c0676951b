//! The HTTP layer: requests with an `Idempotency-Key` run once, and repeats get the first answer.
//!
//! # Differences from a response cache
//!
//! A cache saves work and may forget. This layer keeps work from being done twice: a request whose
//! answer cannot be recorded is refused before it runs, the handler runs in a task of its own so
//! that a caller who leaves does not stop it half way, and a repeat that differs from the first
//! request is an error, not a hit.
//!
//! # Example
//!
//! ```
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::{BodyExt as _, Full};
//! use semel::Executor;
//! use semel::store::memory::MemoryStore;
//! use semel_tower::http::IdempotencyLayer;
//! use semel_tower::{Body, Scope, Tenant};
//! use std::convert::Infallible;
//! use tower::{ServiceBuilder, ServiceExt as _, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let executor = Executor::new(MemoryStore::new());
//! let service = ServiceBuilder::new()
//!     .layer(IdempotencyLayer::new(executor, Tenant::fixed("acme"), Scope::global()))
//!     .service(service_fn(async |request: Request<Body<Full<Bytes>>>| {
//!         let claim = request.extensions().get::<semel::Context>().expect("a request with a key");
//!         let order = Bytes::from(claim.operation_id().to_string());
//!         Ok::<_, Infallible>(Response::new(Full::new(order)))
//!     }));
//!
//! let place = || {
//!     Request::post("/orders").header("Idempotency-Key", "k-1").body(Full::from("{}"))
//! };
//! let first = service.clone().oneshot(place()?).await?;
//! let again = service.clone().oneshot(place()?).await?;
//! assert_eq!(again.headers()["idempotent-replayed"], "true");
//! let (first, again) = (first.into_body().collect().await?, again.into_body().collect().await?);
//! assert_eq!(first.to_bytes(), again.to_bytes());
//! # Ok(())
//! # }
//! ```

mod answer;
mod fingerprint;
mod later;
mod layer;
mod preset;
mod problem;
mod rules;
mod service;
mod slug;

pub use answer::REPLAYED;
pub use later::OPERATIONS;
pub use layer::IdempotencyLayer;
pub use preset::{Fate, Preset};
pub use rules::Rules;
pub use service::{Idempotency, ResponseFuture};
pub use slug::Slug;

/// A problem that an extractor refuses a request with.
#[cfg(feature = "axum")]
pub(crate) fn refusal(slug: Slug, detail: String) -> http::Response<bytes::Bytes> {
    problem::Problem::new(slug, detail).written(layer::PROBLEMS, "")
}
