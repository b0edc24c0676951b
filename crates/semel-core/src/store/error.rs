//! The failures of a store. Expected results, such as a lost race, are `Ok` values instead.

use std::fmt;

/// The kind of a store's failure, which determines how a caller may react.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The step did not take place: the store was not reached, or refused the step before changing
    /// data.
    Unavailable,
    /// The step may have taken place: the reply was lost. The caller must read the record before it
    /// repeats the step.
    Ambiguous,
    /// The stored data cannot be decoded: it is damaged, or a newer version wrote it.
    Corrupt,
    /// The store's set-up is wrong: no schema, read-only, an unsafe setting, or a wrong URL.
    Misconfigured,
    /// The store is full; the step did not take place.
    Capacity,
    /// The caller's own transaction must be run again from its start (serialisation, deadlock).
    RetryTransaction,
    /// The store does not take what the caller's transaction contains, such as a row that violates
    /// a constraint: nothing was committed, and the same again is refused again.
    Refused,
}

impl ErrorKind {
    /// Returns the name used in metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Ambiguous => "ambiguous",
            ErrorKind::Corrupt => "corrupt",
            ErrorKind::Misconfigured => "misconfigured",
            ErrorKind::Capacity => "capacity",
            ErrorKind::RetryTransaction => "retry_transaction",
            ErrorKind::Refused => "refused",
        }
    }

    const fn advice(self) -> &'static str {
        match self {
            ErrorKind::Unavailable => "nothing was changed; try again once the store answers",
            ErrorKind::Ambiguous => "the reply was lost, so it may or may not have happened",
            ErrorKind::Corrupt => "inspect the record with `semel records` before changing it",
            ErrorKind::Misconfigured => {
                "fix the store's set-up; `check`, or `semel doctor`, lists what is wrong"
            }
            ErrorKind::Capacity => {
                "nothing was stored; raise the limit or wait for records to expire"
            }
            ErrorKind::RetryTransaction => "roll back and run the whole transaction again",
            ErrorKind::Refused => {
                "nothing was committed; correct what the transaction writes, the same again is \
                 refused again"
            }
        }
    }
}

type Source = Box<dyn std::error::Error + Send + Sync>;

/// The error of a failed step of a store.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    operation: &'static str,
    source: Source,
}

impl Error {
    /// Creates the error of a failed `operation` ("open", "settle", …) with its cause.
    pub fn new(kind: ErrorKind, operation: &'static str, source: impl Into<Source>) -> Self {
        Self { kind, operation, source: source.into() }
    }

    /// Returns the kind of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the name of the step that failed.
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// Changes the kind of the error, for layers that know more about the failure.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.kind = kind;
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, operation, source } = self;
        write!(f, "store failed to {operation}: {source} ({})", kind.advice())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}
