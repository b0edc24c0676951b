//! The gRPC layer: unary calls with an `idempotency-key` run once, and repeats get the first answer.
//!
//! [`GrpcLayer`] wraps a tonic server or one of its services. It handles the unary methods that are
//! registered with it, one by one or by a descriptor set; streams, other methods and calls without
//! a key pass through unchanged. A client sends a key with [`KeyInterceptor`], [`with_key`] or
//! [`Retry`].
//!
//! # Codes of refusals
//!
//! | situation | code |
//! |---|---|
//! | key missing where it is required, malformed, repeated | `INVALID_ARGUMENT` |
//! | another message under the same key | `FAILED_PRECONDITION` |
//! | still running; failed and not yet due; another attempt took over | `ABORTED`, with `grpc-retry-pushback-ms` |
//! | waited for the answer until the route's [deadline](semel_core::Wait::Deadline) | `DEADLINE_EXCEEDED` |
//! | failed for good, given up, uncertain; done, but the response was too large to store | `FAILED_PRECONDITION` |
//! | message too large; ledger full | `RESOURCE_EXHAUSTED` |
//! | tenant or caller unknown | `UNAUTHENTICATED` |
//! | the [replay check](GrpcRules::replay_check) refuses | `PERMISSION_DENIED` |
//! | handler panicked; took too long | `INTERNAL`; `DEADLINE_EXCEEDED` |
//! | ledger cannot be reached, or the service is shutting down | `UNAVAILABLE` |
//! | more or less than one message | `UNIMPLEMENTED` |
//!
//! Each refusal has a `google.rpc.ErrorInfo` whose reason is the [`Slug`] in capitals
//! (`KEY_REUSED`), and a `google.rpc.RetryInfo` where a retry helps.
//!
//! # What is stored
//!
//! A response whose code is [stored](Codes) is stored with its message, byte for byte; with
//! `grpc-status`, `grpc-message` and `grpc-status-details-bin`, also if it has trailers only; and
//! with the metadata that [the rules](GrpcRules::kept_metadata) list. A replay has
//! `idempotent-replayed: true` in its *trailers*: initial metadata would end a client's own
//! retries.
//!
//! Responses to calls with a key are not compressed, whatever the caller accepts: a repeat may come
//! from a caller that does not accept compression. Request messages may be compressed; they are
//! compared in the form in which they arrive.
//!
//! # Differences from the HTTP layer
//!
//! A gRPC response has its code at its very end, so it is always read whole before the claim is
//! settled. If the caller's deadline (`grpc-timeout`) passes or the caller disconnects, only the
//! caller stops waiting: the handler goes on, and a repeat gets its response.
//!
//! # Example
//!
//! ```
//! use bytes::Bytes;
//! use http::{HeaderMap, HeaderValue, Request, Response};
//! use http_body_util::{BodyExt as _, Full};
//! use semel_core::Executor;
//! use semel_core::store::memory::MemoryStore;
//! use semel_tower::grpc::{GrpcLayer, GrpcRules};
//! use semel_tower::{Body, PrincipalFrom, Tenant};
//! use std::convert::Infallible;
//! use tower::{ServiceBuilder, ServiceExt as _, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let executor = Executor::new(MemoryStore::new());
//! let layer = GrpcLayer::fenced(executor, Tenant::fixed("acme"), PrincipalFrom::global())
//!     .unary("/payments.v1.Payments/Charge", GrpcRules::new().required());
//!
//! // With tonic: Server::builder().layer(layer).add_service(PaymentsServer::new(payments))
//! let service = ServiceBuilder::new().layer(layer).service(service_fn(charge));
//!
//! async fn charge(
//!     request: Request<Body<Full<Bytes>>>,
//! ) -> Result<Response<http_body_util::combinators::BoxBody<Bytes, Infallible>>, Infallible> {
//!     // In a tonic handler: request.extensions().get::<semel_core::Context>()
//!     let claim = request.extensions().get::<semel_core::Context>().expect("a call with a key");
//!     assert_eq!(claim.attempt(), 1);
//!     let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), 0.into())]);
//!     let message = Full::from(&b"\0\0\0\0\x02ok"[..]);
//!     Ok(Response::new(message.with_trailers(async { Some(Ok(trailers)) }).boxed()))
//! }
//!
//! let call = || {
//!     Request::post("/payments.v1.Payments/Charge")
//!         .header("content-type", "application/grpc")
//!         .header("idempotency-key", "order-7")
//!         .body(Full::from(&b"\0\0\0\0\x021$"[..]))
//! };
//! let first = service.clone().oneshot(call()?).await?.into_body().collect().await?;
//! let again = service.clone().oneshot(call()?).await?.into_body().collect().await?;
//! assert_eq!(again.trailers().expect("trailers")["idempotent-replayed"], "true");
//! assert_eq!(first.to_bytes(), again.to_bytes());
//! # Ok(())
//! # }
//! ```

mod codes;
mod frame;
mod interceptor;
mod layer;
mod methods;
mod problem;
mod protocol;
mod respond;
mod retry;
mod rules;

pub use crate::client::{CallKey, InvalidCallKey};
pub use crate::future::ResponseFuture;
pub use crate::headers::REPLAYED;
pub use crate::problem::{Problem, Slug};
pub use crate::settle_as::SettleAs;
pub use codes::{Codes, HandlerResponse, released};
pub use interceptor::{KeyInterceptor, with_key};
pub use layer::{GrpcLayer, GrpcService};
pub use methods::InvalidDescriptorSet;
pub use protocol::Grpc;
pub use retry::Retry;
pub use rules::GrpcRules;
