//! Outbound HTTP calls that carry a stable idempotency key and are retried only where that is safe.
//!
//! [`CallLayer`] wraps any tower client of HTTP: hyper-util's, or reqwest's with the feature
//! `reqwest` (`CallLayer::reqwest`). It gives each call a key in the provider's [`Dialect`], sends
//! the same key with every retry, and refuses a key that the provider would not accept before
//! anything is sent.
//!
//! # The key
//!
//! The key of a call is, in this order: the key that the request's header already has; the
//! [`CallKey`] in the request's extensions; a fresh random key, if the provider honours keys on
//! that method (POST, and PATCH in some dialects). Inside an execution use [`CallKey::of`]: that
//! key survives a crash of this process. A fresh key only makes the retries *inside one call* safe:
//! a caller that may call again after an error must supply a key that it can use again. The
//! extensions of the response hold the key that was used, and [`Attempts`].
//!
//! # What is retried
//!
//! | the call | is tried again after |
//! |---|---|
//! | has a key that the provider honours, or is GET, HEAD, OPTIONS, TRACE, PUT, DELETE | an error of the inner service; no answer in time; 408, 425, 429, 500, 502, 503, 504; 409 with `Retry-After` (in some dialects: any 409, or as a response header decides); an answer that [breaks off](CallLayer::read_ahead) |
//! | any other POST or PATCH | nothing: the call may have taken effect |
//! | has a [`OneShot`] body, or a body for which [`Replay`] returns `None` | nothing |
//!
//! Waits are exponential with full jitter, never shorter than `Retry-After`; tries, waits and the
//! whole call have limits. When a limit is reached, the caller gets the last response or error
//! unchanged.
//!
//! # Differences from tower's `retry`
//!
//! `tower::retry` leaves it to your policy whether to try again and how to clone the request. It
//! does not handle keys, so it cannot tell which repeats are harmless, and it does not drain the
//! responses that it drops. It has a budget across calls, which this layer lacks; for that, put a
//! `tower::load_shed` or a rate limit *inside* this layer.
//!
//! # Example
//!
//! ```
//! use std::convert::Infallible;
//!
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use bytes::Bytes;
//! use semel_tower::client::{Attempts, CallKey, CallLayer, Dialect};
//! use tower::{Layer as _, ServiceExt as _};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use std::sync::atomic::{AtomicU32, Ordering};
//! # static CALLS: AtomicU32 = AtomicU32::new(0);
//! # let client = tower::service_fn(|request: Request<Full<Bytes>>| async move {
//! #     assert_eq!(request.headers()["idempotency-key"], "order-7/charge");
//! #     let status = if CALLS.fetch_add(1, Ordering::SeqCst) == 0 { 503 } else { 201 };
//! #     Response::builder().status(status).body(Full::new(Bytes::new()))
//! # });
//! // `client` is hyper-util's, say: Client::builder(TokioExecutor::new()).build_http().
//! let stripe = CallLayer::new(Dialect::stripe()).tries(3).layer(client);
//!
//! let charge = Request::post("http://payments.internal/charges")
//!     .extension(CallKey::new("order-7/charge")?)
//!     .body(Full::new(Bytes::from_static(br#"{"cents":1999}"#)))?;
//! let answer = stripe.oneshot(charge).await?;
//!
//! assert_eq!(answer.status(), 201);
//! assert_eq!(answer.extensions().get(), Some(&Attempts(2))); // the first was answered 503
//! # Ok(())
//! # }
//! ```

mod body;
mod dialect;
mod invalid_key;
mod key;
mod layer;
#[cfg(feature = "reqwest")]
mod reqwest;
mod retry;
mod service;
mod settings;

#[cfg(feature = "reqwest")]
pub use self::reqwest::{ReqwestFuture, ReqwestService};
pub use body::{OneShot, ReadAheadBody, Replay};
pub use dialect::Dialect;
pub use invalid_key::InvalidCallKey;
pub use key::{CallKey, MAX_CALL_KEY};
pub use layer::CallLayer;
pub use service::{Attempts, Call, Error};

#[cfg(feature = "grpc")]
pub(crate) use retry::Backoff;
