//! What a caller gets back: an execution, or an error that says what happened and what to do.

use std::convert::Infallible;
use std::time::Duration;

use crate::claim::{Fence, OperationId};
use crate::fingerprint::InvalidFingerprint;
use crate::key::InvalidKey;
use crate::outcome::{ErrorText, Outcome};
use crate::policy::InvalidPolicy;
use crate::store;

/// How an operation came to its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Kept across takeovers and retries.
    pub operation_id: OperationId,
    /// Which execution gave the answer.
    pub attempt: u32,
    /// Its fence.
    pub fence: Fence,
    /// Whether the ledger has the answer. `false` only when the work ran, its answer could not be
    /// recorded before the lease ended, and the caller still gets it.
    pub recorded: bool,
}

/// The answer of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Execution<T> {
    /// This call ran the work.
    Executed {
        /// Its result.
        value: T,
        /// How it came about.
        receipt: Receipt,
    },
    /// An earlier call ran the work; this is its result.
    Replayed {
        /// Its result.
        value: T,
        /// How it came about.
        receipt: Receipt,
    },
    /// Somebody is running it now.
    InProgress {
        /// The operation, where it is known yet.
        operation_id: Option<OperationId>,
        /// How long the holder's lease still runs, where it is known.
        lease_remaining: Option<Duration>,
    },
}

/// What a protocol answers its caller with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Served<A> {
    /// This call ran the work; this is its answer, kept or not.
    Executed {
        /// The work's own answer.
        answer: A,
        /// How it came about, where the answer is what repeats will get.
        receipt: Option<Receipt>,
    },
    /// An earlier call ran the work; this is its recorded outcome.
    Replayed {
        /// What was recorded.
        outcome: Outcome,
        /// How it came about.
        receipt: Receipt,
    },
    /// Another call is running it now.
    InProgress {
        /// The operation, where it is known yet.
        operation_id: Option<OperationId>,
        /// How long the holder's lease still runs, where it is known.
        lease_remaining: Option<Duration>,
    },
}

impl<T> Execution<T> {
    /// Whether the result is an earlier call's.
    pub fn replayed(&self) -> bool {
        matches!(self, Execution::Replayed { .. })
    }

    /// Whether somebody is running it now.
    pub fn in_progress(&self) -> bool {
        matches!(self, Execution::InProgress { .. })
    }

    /// The result; `None` while in progress.
    pub fn value(&self) -> Option<&T> {
        match self {
            Execution::Executed { value, .. } | Execution::Replayed { value, .. } => Some(value),
            Execution::InProgress { .. } => None,
        }
    }

    /// The result by value; `None` while in progress.
    pub fn into_value(self) -> Option<T> {
        match self {
            Execution::Executed { value, .. } | Execution::Replayed { value, .. } => Some(value),
            Execution::InProgress { .. } => None,
        }
    }

    /// How the result came about; `None` while in progress.
    pub fn receipt(&self) -> Option<&Receipt> {
        match self {
            Execution::Executed { receipt, .. } | Execution::Replayed { receipt, .. } => {
                Some(receipt)
            }
            Execution::InProgress { .. } => None,
        }
    }

    /// Which execution gave the result; `None` while in progress.
    pub fn attempt(&self) -> Option<u32> {
        self.receipt().map(|receipt| receipt.attempt)
    }

    /// The same execution with another value.
    pub fn try_map<U, E>(self, f: impl FnOnce(T) -> Result<U, E>) -> Result<Execution<U>, E> {
        Ok(match self {
            Execution::Executed { value, receipt } => {
                Execution::Executed { value: f(value)?, receipt }
            }
            Execution::Replayed { value, receipt } => {
                Execution::Replayed { value: f(value)?, receipt }
            }
            Execution::InProgress { operation_id, lease_remaining } => {
                Execution::InProgress { operation_id, lease_remaining }
            }
        })
    }
}

/// Why an operation gave no answer. `E` is the work's own error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error<E = Infallible> {
    /// The key was used for another request.
    #[error("this key was used for a different request; use a new key for a new request")]
    Mismatch,
    /// The last attempt failed and the next is not due.
    #[error("attempt {attempt} failed ({error}); the next may start in {retry_after:?}")]
    Backoff {
        /// When to come again.
        retry_after: Duration,
        /// Executions so far.
        attempt: u32,
        /// The last failure.
        error: ErrorText,
    },
    /// The operation failed, and that is kept as its answer.
    #[error("the operation failed and is not retried: {error}")]
    FailedFinal {
        /// The failure.
        error: ErrorText,
    },
    /// Attempts are used up; an operator must redrive or discard it.
    #[error("the operation was given up: {error}")]
    Dead {
        /// Why.
        error: ErrorText,
    },
    /// A crashed attempt may or may not have happened; somebody must resolve it.
    #[error("whether the operation happened is uncertain: {error}")]
    Uncertain {
        /// Why.
        error: ErrorText,
    },
    /// The lease was lost while the work ran, and the new holder has no answer yet.
    #[error("the claim was lost while the work ran; its answer was not recorded")]
    ClaimLost,
    /// The holder that this call waited for failed (policy `Report`).
    #[error("attempt {attempt}, which this call waited for, failed: {error}")]
    HolderFailed {
        /// The failure.
        error: ErrorText,
        /// Which execution.
        attempt: u32,
    },
    /// The holder had no answer within the wait's deadline.
    #[error("no answer within {waited:?}; the operation is still in progress")]
    WaitTimeout {
        /// How long was waited.
        waited: Duration,
    },
    /// The work took longer than its limit and was cancelled. It counts as failed, and under Hold or
    /// Verify as crashed: it may have had its effect.
    #[error("the work took longer than {limit:?} and was cancelled")]
    WorkTimeout {
        /// The limit.
        limit: Duration,
    },
    /// The work panicked. It counts as failed, and under Hold or Verify as crashed: it may have had its
    /// effect.
    #[error("the work panicked: {message}")]
    Panicked {
        /// What it said.
        message: String,
    },
    /// It is done, but its answer was too large to keep. It is never run again.
    #[error("the operation is done, but its answer of {bytes} bytes was not kept")]
    ResultUnavailable {
        /// How large it was.
        bytes: u64,
    },
    /// A transaction's result is larger than the limit; nothing was committed.
    #[error("the result has {bytes} bytes, at most {max} are kept; nothing was committed")]
    ResultTooLarge {
        /// How large it is.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The work's result cannot be stored so that it reads back; nothing was committed.
    #[error("the result cannot be stored as JSON and read back: {reason}")]
    Encode {
        /// What `serde` said.
        reason: String,
    },
    /// The stored result cannot be read as the type that was asked for.
    #[error("the stored result cannot be read as this type: {reason}")]
    Decode {
        /// What `serde` said.
        reason: String,
    },
    /// The work of a transaction kept its unit beyond its own end; nothing was committed.
    #[error("the transaction's unit escaped the work; nothing was committed")]
    Escaped,
    /// The store is full and nothing ran.
    #[error("the store is full and nothing ran; try again later")]
    Capacity,
    /// A setting cannot work.
    #[error(transparent)]
    Policy(#[from] InvalidPolicy),
    /// The key cannot be one; nothing was sent to the store.
    #[error(transparent)]
    Key(#[from] InvalidKey),
    /// What makes the request the same cannot be told; nothing was sent to the store.
    #[error(transparent)]
    Fingerprint(#[from] InvalidFingerprint),
    /// The executor is shutting down and takes no new work.
    #[error("the executor is shutting down")]
    Closed,
    /// Somebody else is at it right now.
    #[error("this key is being handled by somebody else right now; come again with the same key")]
    Concurrent,
    /// The work's own error.
    #[error("the work failed: {0}")]
    Work(E),
    /// The store failed.
    #[error(transparent)]
    Store(store::Error),
}

impl Error<Infallible> {
    /// The same error beside another work's error type.
    pub(super) fn widen<E>(self) -> Error<E> {
        self.map(|never| match never {})
    }
}

impl<E> Error<E> {
    /// The same error with another error of the work.
    pub fn map<F>(self, f: impl FnOnce(E) -> F) -> Error<F> {
        match self {
            Error::Mismatch => Error::Mismatch,
            Error::Backoff { retry_after, attempt, error } => {
                Error::Backoff { retry_after, attempt, error }
            }
            Error::FailedFinal { error } => Error::FailedFinal { error },
            Error::Dead { error } => Error::Dead { error },
            Error::Uncertain { error } => Error::Uncertain { error },
            Error::ClaimLost => Error::ClaimLost,
            Error::HolderFailed { error, attempt } => Error::HolderFailed { error, attempt },
            Error::WaitTimeout { waited } => Error::WaitTimeout { waited },
            Error::WorkTimeout { limit } => Error::WorkTimeout { limit },
            Error::Panicked { message } => Error::Panicked { message },
            Error::ResultUnavailable { bytes } => Error::ResultUnavailable { bytes },
            Error::ResultTooLarge { bytes, max } => Error::ResultTooLarge { bytes, max },
            Error::Encode { reason } => Error::Encode { reason },
            Error::Decode { reason } => Error::Decode { reason },
            Error::Escaped => Error::Escaped,
            Error::Capacity => Error::Capacity,
            Error::Policy(error) => Error::Policy(error),
            Error::Key(error) => Error::Key(error),
            Error::Fingerprint(error) => Error::Fingerprint(error),
            Error::Closed => Error::Closed,
            Error::Concurrent => Error::Concurrent,
            Error::Work(error) => Error::Work(f(error)),
            Error::Store(error) => Error::Store(error),
        }
    }
}

impl<E> From<store::Error> for Error<E> {
    fn from(error: store::Error) -> Self {
        if error.kind() == store::ErrorKind::Capacity {
            Error::Capacity
        } else {
            Error::Store(error)
        }
    }
}

/// How a function's call ended, for counting.
pub(super) fn label<T, E>(result: &Result<Execution<T>, Error<E>>) -> &'static str {
    match result {
        Ok(Execution::Executed { .. }) => "executed",
        Ok(Execution::Replayed { .. }) => "replayed",
        Ok(Execution::InProgress { .. }) => "in_progress",
        Err(error) => error.label(),
    }
}

/// How a protocol's call ended, for counting.
pub(super) fn served_label<A>(result: &Result<Served<A>, Error>) -> &'static str {
    match result {
        Ok(Served::Executed { receipt: Some(_), .. }) => "executed",
        Ok(Served::Executed { receipt: None, .. }) => "failed",
        Ok(Served::Replayed { .. }) => "replayed",
        Ok(Served::InProgress { .. }) => "in_progress",
        Err(error) => error.label(),
    }
}

impl<E> Error<E> {
    fn label(&self) -> &'static str {
        match self {
            Error::WaitTimeout { .. } | Error::Concurrent => "in_progress",
            Error::Mismatch => "mismatch",
            Error::Backoff { .. } => "backoff",
            Error::Dead { .. } => "dead",
            Error::Uncertain { .. } => "uncertain",
            Error::ClaimLost => "claim_lost",
            Error::Work(_)
            | Error::FailedFinal { .. }
            | Error::HolderFailed { .. }
            | Error::WorkTimeout { .. }
            | Error::Panicked { .. } => "failed",
            Error::ResultUnavailable { .. }
            | Error::ResultTooLarge { .. }
            | Error::Encode { .. }
            | Error::Decode { .. }
            | Error::Escaped
            | Error::Capacity
            | Error::Policy(_)
            | Error::Key(_)
            | Error::Fingerprint(_)
            | Error::Closed
            | Error::Store(_) => "error",
        }
    }
}
