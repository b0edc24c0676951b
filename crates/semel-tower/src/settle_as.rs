//! How a claim is settled once its handler has responded.
//!
//! Each protocol decides by its own means: `http/preset.rs` by status, `grpc/codes.rs` by code.

/// How a claim is settled once its handler has responded. A handler may also decide itself: it puts
/// one into the extensions of its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleAs {
    /// The response is stored: every repeat gets it.
    Keep,
    /// Refused without effect: the key is free again, also for a corrected request.
    Release,
    /// Failed: the operation keeps its id, and the next request with this key runs it again.
    Fail,
    /// Broke off, and nobody here knows what it did (a call to another service that was cut): as a
    /// crash is, by the crash policy. Run again like a failure, or held until somebody resolves it.
    Doubt,
}
