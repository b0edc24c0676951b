//! What becomes of a claim once its handler has answered.
//!
//! Which answer gets which fate is each door's to say: `http/preset.rs` by status, `grpc/codes.rs` by
//! code.

/// What becomes of the claim under which a handler answered. A handler may also say it itself: put
/// one into the extensions of its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleAs {
    /// The answer is the operation's: every repeat gets it.
    Keep,
    /// Refused without effect: the key is free again, also for a corrected request.
    Release,
    /// Failed: the operation keeps its id, and the next request with this key runs it again.
    Fail,
    /// Broke off, and nobody here knows what it did (a call to another service that was cut): as a
    /// crash is, by the crash policy. Run again like a failure, or held until somebody resolves it.
    Doubt,
}
