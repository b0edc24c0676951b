//! The error "another transaction is writing this row", after which a step is sent again a moment
//! later.

use std::fmt;

use semel_core::store::{Error, ErrorKind};
use tokio::time::{Duration, Instant, sleep};

/// For how long a step that met a locked row is sent again before its caller gets the error.
const LIMIT: Duration = Duration::from_millis(250);
/// The pause between two attempts: a transaction that writes a single row ends within a few
/// milliseconds.
const PAUSE: Duration = Duration::from_millis(5);

/// The cause of the error for a locked row.
#[derive(Debug)]
struct Busy;

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("another transaction holds the record")
    }
}

impl std::error::Error for Busy {}

/// Returns the error for a step whose row another transaction has locked. Nothing was done.
pub(super) fn busy(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, operation, Busy)
}

/// Returns whether `error` was made by [`busy`].
pub(super) fn is_busy(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<Busy>())
}

/// Limits the time for which a step is sent again. A step often meets a row that the renewer locks,
/// since one statement renews many leases.
pub(super) struct Patience(Instant);

impl Patience {
    pub(super) fn new() -> Self {
        Self(Instant::now() + LIMIT)
    }

    /// Returns whether a `busy` step is to be sent again, and pauses first if so. Only the caller
    /// waits: no connection is held.
    pub(super) async fn again(&self, busy: bool) -> bool {
        let again = busy && Instant::now() < self.0;
        if again {
            sleep(PAUSE).await;
        }
        again
    }
}
