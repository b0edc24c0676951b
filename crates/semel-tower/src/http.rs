//! The HTTP layer: requests with an `Idempotency-Key` run once, and repeats get the first response.
//!
//! # Differences from a response cache
//!
//! A cache saves work and may forget. This layer prevents work from being done twice: a request
//! whose response could not be recorded is refused before it runs; a handler that has begun goes on
//! if its caller leaves; and a repeat that differs from the first request is an error, not a hit.
//!
//! # Position among other layers
//!
//! Authentication goes outside, because the layer must know the caller. CORS and tracing go outside
//! too, because the layer's error responses need them as well. (If a handler sets CORS headers
//! itself, replays keep them.) Under axum, add the layer with `Router::layer` to the outermost
//! router: only that router sees requests for [the outcome of an operation](OPERATIONS).
//!
//! The services of the layer take and return [`Body`](crate::Body). Inside one `ServiceBuilder`, an
//! inner layer that requires axum's own body type (`middleware::from_fn`) needs
//! `.map_request(|request: Request<_>| request.map(axum::body::Body::new))` in front of it.
//!
//! A handler's response is delivered when it is complete and recorded; a response that must stream
//! belongs to a request without a key. The extensions of every response to a request with a key
//! hold the [`Key`](semel_core::Key), so that an outer layer can log its digest; those of an error
//! response hold its [`Slug`], and those of a recorded response its
//! [`Receipt`](semel_core::Receipt).
//!
//! # Example
//!
//! ```
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::{BodyExt as _, Full};
//! use semel_core::Executor;
//! use semel_core::store::memory::MemoryStore;
//! use semel_tower::http::IdempotencyLayer;
//! use semel_tower::{Body, PrincipalFrom, Tenant};
//! use std::convert::Infallible;
//! use tower::{ServiceBuilder, ServiceExt as _, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let executor = Executor::new(MemoryStore::new());
//! let service = ServiceBuilder::new()
//!     .layer(IdempotencyLayer::fenced(executor, Tenant::fixed("acme"), PrincipalFrom::global()))
//!     .service(service_fn(async |request: Request<Body<Full<Bytes>>>| {
//!         let claim = request.extensions().get::<semel_core::Context>().expect("a request with a key");
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

mod content;
mod cors;
mod fingerprint;
mod layer;
mod multipart;
mod operations;
mod prefer;
mod preset;
mod problem;
mod protocol;
mod respond;
mod rule_check;
mod rules;
mod settings;
mod target;

pub use crate::future::ResponseFuture;
pub use crate::headers::REPLAYED;
pub use crate::problem::{Problem, Slug};
pub use crate::settle_as::SettleAs;
pub use layer::{Idempotency, IdempotencyLayer};
pub use operations::OPERATIONS;
pub use preset::Preset;
pub use protocol::Http;
pub use rules::Rules;
pub use settings::PROBLEMS;

/// Returns the response with which an extractor refuses a request.
#[cfg(feature = "axum")]
pub(crate) fn refusal(slug: Slug, detail: String) -> http::Response<bytes::Bytes> {
    Problem::new(slug, detail).into_http_response(PROBLEMS, "")
}
