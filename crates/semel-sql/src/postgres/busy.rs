//! "Another transaction is writing this row": an answer after which a step is sent again a moment later.

use std::fmt;

use semel_core::store::{Error, ErrorKind};
use tokio::time::{Duration, Instant, sleep};

/// How long a step that met a locked row is sent again before its caller gets that answer.
const LIMIT: Duration = Duration::from_millis(250);
/// How long between two such tries: a transaction that writes a single row ends within a few milliseconds.
const PAUSE: Duration = Duration::from_millis(5);

/// The cause of such an error.
#[derive(Debug)]
struct Busy;

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("another transaction holds the record")
    }
}

impl std::error::Error for Busy {}

/// Returns the failure of a step whose row another transaction has locked. Nothing was done.
pub(super) fn busy(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, operation, Busy)
}

/// Returns whether `error` is such a failure.
pub(super) fn is_busy(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<Busy>())
}

/// Counts the time in which a step is sent again. The renewer extends leases in one statement, so
/// meeting it is nothing unusual.
pub(super) struct Patience(Instant);

impl Patience {
    pub(super) fn new() -> Self {
        Self(Instant::now() + LIMIT)
    }

    /// Pauses if a `busy` answer is to be asked for again, and says whether it is. The wait is the
    /// caller's alone: no connection is kept for it.
    pub(super) async fn again(&self, busy: bool) -> bool {
        let again = busy && Instant::now() < self.0;
        if again {
            sleep(PAUSE).await;
        }
        again
    }
}
