//! The ways in which a claim is settled after its handler has responded.
//!
//! Each protocol decides by its own means: `http/preset.rs` by status, `grpc/codes.rs` by code.

/// The way in which a claim is settled after its handler has responded. A handler can choose it
/// with a value in the extensions of its response.
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
    /// The response is stored, and every repeat gets it.
    Keep,
    /// The request was refused without effect: the key can be used again, also for a corrected
    /// request.
    Release,
    /// The request failed: the operation keeps its id, and the next request with this key runs it
    /// again.
    Fail,
    /// The work broke off, and its effect is unknown (a call to another service that was cut off).
    /// The crash policy decides as after a crash: the operation is run again like a failure, or
    /// held until an operator resolves it.
    Doubt,
}
