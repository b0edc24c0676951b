//! From what `sqlx` reports to what a caller may do about it.
//!
//! The server's own codes are not here: each dialect brings them as [`Codes`]. What is shared are the
//! questions that all of them answer alike: was anything sent, did a reply come back, and is the schema there?

use std::fmt;

use semel_core::store::{Error, ErrorKind};
use sqlx::error::DatabaseError;

use crate::missing;

/// A dialect's reading of the codes with which its server refuses a statement; `None` where the
/// code means no more than "refused, nothing was done".
pub(crate) type Codes = fn(&dyn DatabaseError) -> Option<ErrorKind>;

/// How far a step had come when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No statement was sent yet: whatever failed, nothing happened.
    Connecting,
    /// A statement was on its way: without the server's answer it may have happened.
    Running,
}

/// Converts an sqlx error of `operation` into a store error of the right kind.
pub(crate) fn classify(
    codes: Codes,
    stage: Stage,
    operation: &'static str,
    error: sqlx::Error,
) -> Error {
    if let Some(text) = missing::explanation(operation, &error) {
        return explained(ErrorKind::Misconfigured, operation, text, error);
    }
    let kind = match (stage, kind(codes, &error)) {
        // Before a statement was sent there is nothing to be in doubt about.
        (Stage::Connecting, ErrorKind::Ambiguous) => ErrorKind::Unavailable,
        (_, kind) => kind,
    };
    Error::new(kind, operation, error)
}

/// A failure in our own words, with the driver's behind them.
#[derive(Debug)]
struct Explained {
    text: String,
    source: sqlx::Error,
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.text, self.source)
    }
}

impl std::error::Error for Explained {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Names the failure of `operation` in our own words.
pub(crate) fn explained(
    kind: ErrorKind,
    operation: &'static str,
    text: impl Into<String>,
    source: sqlx::Error,
) -> Error {
    Error::new(kind, operation, Explained { text: text.into(), source })
}

/// The failure of a step that did not answer within its time.
pub(crate) fn timed_out(
    stage: Stage,
    operation: &'static str,
    limit: std::time::Duration,
) -> Error {
    match stage {
        Stage::Connecting => {
            let text = format!("no connection to the database within {limit:?}");
            Error::new(ErrorKind::Unavailable, operation, text)
        }
        Stage::Running => {
            let text = format!("the database did not answer within {limit:?}");
            Error::new(ErrorKind::Ambiguous, operation, text)
        }
    }
}

/// A stored value that cannot be what we wrote. Names the column, never the key or the value.
pub(crate) fn corrupt(operation: &'static str, column: &'static str) -> Error {
    damaged("semel_record", operation, column)
}

/// As [`corrupt`], of an event's row.
pub(crate) fn corrupt_outbox(operation: &'static str, column: &'static str) -> Error {
    damaged("semel_outbox", operation, column)
}

/// As [`corrupt`], of a public id's row.
pub(crate) fn corrupt_map(operation: &'static str, column: &'static str) -> Error {
    damaged("semel_id_map", operation, column)
}

fn damaged(table: &str, operation: &'static str, column: &'static str) -> Error {
    let text = format!("column {column} of {table} holds what no version of this crate wrote");
    Error::new(ErrorKind::Corrupt, operation, text)
}

/// The same failure once more, for another step that met it.
pub(crate) fn again(error: &Error, operation: &'static str) -> Error {
    let cause = std::error::Error::source(error).map_or_else(String::new, ToString::to_string);
    Error::new(error.kind(), operation, cause)
}

fn kind(codes: Codes, error: &sqlx::Error) -> ErrorKind {
    use sqlx::Error as E;
    // Foreign and `non_exhaustive`: what a newer sqlx adds is unknown to us, so it is ambiguous.
    #[allow(clippy::wildcard_enum_match_arm)]
    match error {
        // The server spoke: the statement was refused and rolled back, unless its code says more.
        E::Database(refusal) => codes(&**refusal).unwrap_or(ErrorKind::Unavailable),
        E::Configuration(_) | E::ConfigFile(_) | E::InvalidArgument(_) => ErrorKind::Misconfigured,
        // A column or type that is not what our statements expect is a schema that is not ours.
        E::TypeNotFound { .. } | E::ColumnNotFound(_) | E::ColumnIndexOutOfBounds { .. } => {
            ErrorKind::Misconfigured
        }
        E::ColumnDecode { .. } | E::Decode(_) => ErrorKind::Corrupt,
        // Nothing leaves the process when a value cannot be encoded or no connection was to be had.
        E::Encode(_) | E::PoolTimedOut | E::PoolClosed => ErrorKind::Unavailable,
        _ => ErrorKind::Ambiguous,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn reset() -> sqlx::Error {
        sqlx::Error::Io(io::Error::from(io::ErrorKind::ConnectionReset))
    }

    #[test]
    fn a_lost_reply_is_ambiguous_and_a_failed_connect_is_not() {
        let codes: Codes = |_| None;
        let kind = |stage, error| classify(codes, stage, "open", error).kind();
        assert_eq!(kind(Stage::Running, reset()), ErrorKind::Ambiguous);
        assert_eq!(kind(Stage::Connecting, reset()), ErrorKind::Unavailable);
        assert_eq!(kind(Stage::Running, sqlx::Error::WorkerCrashed), ErrorKind::Ambiguous);
        assert_eq!(kind(Stage::Running, sqlx::Error::PoolTimedOut), ErrorKind::Unavailable);
    }

    #[test]
    fn every_request_of_a_failed_batch_learns_the_cause() {
        let first = classify(|_| None, Stage::Running, "open", reset());
        let second = again(&first, "open");
        assert_eq!((first.kind(), first.operation()), (second.kind(), second.operation()));
        assert_eq!(first.to_string(), second.to_string());
    }
}
