//! "Somebody is writing this very row": an answer that is worth asking again a moment later.

use std::fmt;

use semel::store::{Error, ErrorKind};

/// The cause of such an error.
#[derive(Debug)]
struct Busy;

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("another transaction holds the record")
    }
}

impl std::error::Error for Busy {}

/// A step that met a row that somebody has locked. Nothing was done.
pub(super) fn busy(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, operation, Busy)
}

/// Whether `error` is such a one.
pub(super) fn is_busy(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<Busy>())
}
