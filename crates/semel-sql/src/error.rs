//! Converts `sqlx` errors into store errors, by what a caller may do about them.
//!
//! Each dialect maps the codes of its server with its own [`Codes`]. All dialects share the rest:
//! was a statement sent, did a reply come back, and does the schema exist?

use std::fmt;

use semel_core::store::{Error, ErrorKind};
use sqlx::error::DatabaseError;

use crate::missing;

/// Maps the code with which a server refused a statement to an error kind; `None` if the code means
/// no more than "refused, nothing was done".
pub(crate) type Codes = fn(&dyn DatabaseError) -> Option<ErrorKind>;

/// How far a step had come when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No statement was sent yet, so nothing happened.
    Connecting,
    /// A statement was sent: without the server's answer, it may have taken effect.
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
        // Before a statement is sent, nothing can be in doubt.
        (Stage::Connecting, ErrorKind::Ambiguous) => ErrorKind::Unavailable,
        (_, kind) => kind,
    };
    Error::new(kind, operation, error)
}

/// An explanation by this crate, followed by the driver's error.
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

/// Returns an error of `operation` whose text is the explanation `text`, followed by the driver's
/// error.
pub(crate) fn explained(
    kind: ErrorKind,
    operation: &'static str,
    text: impl Into<String>,
    source: sqlx::Error,
) -> Error {
    Error::new(kind, operation, Explained { text: text.into(), source })
}

/// Returns the error for a step that exceeded `limit`: `Unavailable` if no statement was sent yet,
/// otherwise `Ambiguous`.
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

/// Returns the error for a value in `semel_record` that this crate cannot have written. The text
/// contains the name of the column, never the key or the value.
pub(crate) fn corrupt(operation: &'static str, column: &'static str) -> Error {
    damaged("semel_record", operation, column)
}

/// As [`corrupt`], for a row of `semel_outbox`.
pub(crate) fn corrupt_outbox(operation: &'static str, column: &'static str) -> Error {
    damaged("semel_outbox", operation, column)
}

/// As [`corrupt`], for a row of `semel_id_map`.
pub(crate) fn corrupt_map(operation: &'static str, column: &'static str) -> Error {
    damaged("semel_id_map", operation, column)
}

fn damaged(table: &str, operation: &'static str, column: &'static str) -> Error {
    let text = format!("column {column} of {table} holds what no version of this crate wrote");
    Error::new(ErrorKind::Corrupt, operation, text)
}

/// Returns a copy of `error` for another step that failed for the same reason.
pub(crate) fn again(error: &Error, operation: &'static str) -> Error {
    let cause = std::error::Error::source(error).map_or_else(String::new, ToString::to_string);
    Error::new(error.kind(), operation, cause)
}

fn kind(codes: Codes, error: &sqlx::Error) -> ErrorKind {
    use sqlx::Error as E;
    // The enum is `non_exhaustive`: a variant that a newer sqlx adds is treated as ambiguous.
    #[allow(clippy::wildcard_enum_match_arm)]
    match error {
        // The server answered: the statement was refused and rolled back, unless the code means
        // something else.
        E::Database(refusal) => codes(&**refusal).unwrap_or(ErrorKind::Unavailable),
        E::Configuration(_) | E::ConfigFile(_) | E::InvalidArgument(_) => ErrorKind::Misconfigured,
        // The schema has another column or type than the statements expect.
        E::TypeNotFound { .. } | E::ColumnNotFound(_) | E::ColumnIndexOutOfBounds { .. } => {
            ErrorKind::Misconfigured
        }
        E::ColumnDecode { .. } | E::Decode(_) => ErrorKind::Corrupt,
        // Nothing was sent: a value could not be encoded, or no connection was available.
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
