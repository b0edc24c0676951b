//! The error of an event handler.

use std::fmt;
use std::time::Duration;

/// The error of an event handler. Every error that implements `Display` converts into a failure
/// that is retried. For an error that a retry cannot fix, use [`Failure::hopeless`].
///
/// ```
/// use semel_core::inbox::Failure;
///
/// fn reserve(body: &[u8]) -> Result<u32, Failure> {
///     let pieces = serde_json::from_slice(body).map_err(Failure::hopeless)?;
///     if pieces > 10 {
///         return Err(Failure::retry("out of stock"));
///     }
///     Ok(pieces)
/// }
/// assert_eq!(reserve(b"3").unwrap(), 3);
/// ```
pub struct Failure {
    pub(super) error: String,
    pub(super) next: Next,
}

/// What follows a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The next attempt is due when the inbox's policy says.
    Backoff,
    /// The next attempt is due after this time, or after the policy's backoff if that is longer.
    After(Duration),
    /// The event is dead.
    Dead,
}

impl Failure {
    /// Creates a failure that is retried according to the inbox's policy.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self { error: error.to_string(), next: Next::Backoff }
    }

    /// Creates a failure that is retried after this time, or after the policy's backoff if that is longer, for a
    /// system that says when to call again. The policy's largest number of attempts applies.
    pub fn retry_after(error: impl fmt::Display, after: Duration) -> Self {
        Self { error: error.to_string(), next: Next::After(after) }
    }

    /// Creates a failure that a retry cannot fix: the event is dead at once, and waits for an
    /// operator.
    pub fn hopeless(error: impl fmt::Display) -> Self {
        Self { error: error.to_string(), next: Next::Dead }
    }
}

impl<E: fmt::Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::retry(error)
    }
}

// `Display` is not implemented, because the conversion above would be ambiguous.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure").field("error", &self.error).finish_non_exhaustive()
    }
}
