//! What a handler says when it cannot handle an event.

use std::fmt;

/// A handler's failure. Any error that can be shown turns into one that is retried; what no retry
/// can help is [hopeless](Failure::hopeless).
pub struct Failure {
    pub(super) error: String,
    pub(super) hopeless: bool,
}

impl Failure {
    /// To be tried again, by the inbox's policy.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self { error: error.to_string(), hopeless: false }
    }

    /// No retry would help: the event is given up at once, and waits for an operator.
    pub fn hopeless(error: impl fmt::Display) -> Self {
        Self { error: error.to_string(), hopeless: true }
    }
}

impl<E: fmt::Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::retry(error)
    }
}

// Not `Display`: the conversion above would then be two.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure").field("error", &self.error).finish_non_exhaustive()
    }
}
