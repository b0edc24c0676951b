//! How a claim is settled once its handler has responded.
//!
//! Each protocol decides by its own means: `http/preset.rs` by status, `grpc/codes.rs` by code.

/// How a claim is settled once its handler has responded. A handler decides itself by a value in the
/// extensions of its response.
///
/// ```
/// use http::{Response, StatusCode};
/// use semel_tower::http::SettleAs;
///
/// // Nothing was done: the key is free again.
/// let mut response = Response::new("no such order");
/// *response.status_mut() = StatusCode::NOT_FOUND;
/// response.extensions_mut().insert(SettleAs::Release);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleAs {
    /// The response is stored: every repeat gets it.
    Keep,
    /// Refused without effect: the key is free again, also for a corrected request.
    Release,
    /// Failed: the operation keeps its id, and the next request with this key runs it again.
    Fail,
    /// Broke off, and what it did is not known (a call to another service that was cut): settled by the
    /// crash policy, as a crash is. Run again like a failure, or held until an operator resolves it.
    Doubt,
}
