//! Converts SQLite's result codes into store errors: what happened, and what to do about it.
//!
//! A step inside a transaction that did not commit did not happen, so most failures are
//! `Unavailable`; only a COMMIT that failed and may have reached the disk is ambiguous.

use std::path::Path;
use std::time::Duration;

use semel_core::store::{Error, ErrorKind};

pub(super) use crate::error::explained;
use crate::missing;

/// "SQL error or missing database": no such table, no such savepoint, a transaction within one.
pub(super) const ERROR: i32 = 1;
const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const READONLY: i32 = 8;
const IOERR: i32 = 10;
const CORRUPT: i32 = 11;
const FULL: i32 = 13;
const CANTOPEN: i32 = 14;
const CONSTRAINT: i32 = 19;
const NOTADB: i32 = 26;

/// Returns SQLite's primary result code; `None` if the error does not come from SQLite.
pub(super) fn primary(error: &sqlx::Error) -> Option<i32> {
    let code: i32 = error.as_database_error()?.code()?.parse().ok()?;
    // The low byte is the primary code; the rest is a more detailed code.
    Some(code & 0xff)
}

/// Returns whether the database file, or one beside it, could not be written or created.
pub(super) fn is_unwritable(error: &sqlx::Error) -> bool {
    matches!(primary(error), Some(READONLY | CANTOPEN))
}

/// Returns whether another connection held the lock for longer than the busy timeout.
pub(super) fn is_busy(error: &sqlx::Error) -> bool {
    matches!(primary(error), Some(BUSY | LOCKED))
}

/// The extended code for a shared-memory file that could not be extended (`SQLITE_IOERR_SHMSIZE`).
const SHMSIZE: &str = "4874";

const DISK_FULL: &str = "the disk is full, so nothing was written; make room";

/// Returns whether the disk was full.
pub(super) fn is_full(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    primary(error) == Some(FULL) || code.as_deref() == Some(SHMSIZE)
}

/// Converts the error of a statement whose transaction did not commit: nothing happened.
pub(super) fn in_transaction(operation: &'static str, error: sqlx::Error) -> Error {
    if let Some(text) = missing::explanation(operation, &error) {
        return explained(ErrorKind::Misconfigured, operation, text, error);
    }
    let (kind, text) = match primary(&error) {
        Some(BUSY | LOCKED) => (
            ErrorKind::Unavailable,
            "Busy: another process is writing to the database and did not finish in time; try \
             again, or raise the busy timeout",
        ),
        Some(READONLY) => (
            ErrorKind::Misconfigured,
            "the database is read-only; make the file and its directory writable for this process",
        ),
        Some(FULL) => (ErrorKind::Capacity, DISK_FULL),
        Some(IOERR) if is_full(&error) => (ErrorKind::Capacity, DISK_FULL),
        Some(ERROR) => (
            ErrorKind::Misconfigured,
            "the schema is not the one this version needs; `check`, or `semel doctor`, lists what is \
             missing",
        ),
        Some(CORRUPT | NOTADB) => (
            ErrorKind::Corrupt,
            "the database file is damaged; stop writing, run `PRAGMA integrity_check` and restore \
             a backup",
        ),
        Some(CANTOPEN) => (
            ErrorKind::Misconfigured,
            "a file of the database cannot be opened; check that its directory exists and is \
             writable",
        ),
        Some(_) | None => (ErrorKind::Unavailable, "SQLite did not run the statement"),
    };
    explained(kind, operation, text, error)
}

/// Converts the error of a COMMIT. The commit may have reached the disk before the failure, unless
/// SQLite refused to begin it: because of another connection's lock, or of a deferred constraint.
pub(super) fn at_commit(operation: &'static str, error: sqlx::Error) -> Error {
    let (kind, text) = match primary(&error) {
        Some(BUSY | LOCKED) => return in_transaction(operation, error),
        // The log could not be extended, so its last frame, which marks the commit, is not in it.
        Some(_) if is_full(&error) => (ErrorKind::Capacity, DISK_FULL),
        // The transaction is still open, and is rolled back when it ends.
        Some(CONSTRAINT) => (
            ErrorKind::Refused,
            "COMMIT was refused, so nothing was committed: a deferred constraint does not hold",
        ),
        Some(_) | None => (ErrorKind::Ambiguous, "COMMIT failed half-way"),
    };
    explained(kind, operation, text, error)
}

/// Converts the error of opening the file at `path`.
pub(super) fn opening(path: &Path, waited: Duration, error: sqlx::Error) -> Error {
    let path = path.display();
    let (kind, text) = match primary(&error) {
        Some(BUSY | LOCKED) => {
            let text = format!("Busy: another process held {path} for longer than {waited:?}");
            (ErrorKind::Unavailable, text)
        }
        Some(CANTOPEN) => {
            let what = "does its directory exist, and may this process write there?";
            (ErrorKind::Misconfigured, format!("{path} cannot be opened or created; {what}"))
        }
        Some(READONLY) => {
            let what = "make the file and its directory writable for this process";
            (ErrorKind::Misconfigured, format!("{path} is read-only; {what}"))
        }
        Some(NOTADB) => {
            let what = "give the path of a database or of a file that does not exist yet";
            (ErrorKind::Misconfigured, format!("{path} is not a SQLite database; {what}"))
        }
        Some(CORRUPT) => (ErrorKind::Corrupt, format!("{path} is damaged; restore a backup")),
        Some(_) | None => (ErrorKind::Unavailable, format!("{path} cannot be opened")),
    };
    explained(kind, "connect", text, error)
}
