//! The results of calls: an execution, or an error with its cause and the next step.

use std::convert::Infallible;
use std::time::Duration;

use crate::claim::{Fence, OperationId};
use crate::fingerprint::InvalidFingerprint;
use crate::key::InvalidKey;
use crate::outcome::{ErrorText, Outcome};
use crate::policy::InvalidPolicy;
use crate::store;

/// Identifies the attempt that a result comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The id of the operation: the same across takeovers and retries.
    pub operation_id: OperationId,
    /// The number of the attempt, counted from 1.
    pub attempt: u32,
    /// The fence of the attempt.
    pub fence: Fence,
    /// Whether the result is recorded. `false` only if the work ran but the store could not record
    /// its result before the lease ended.
    pub recorded: bool,
}

/// The result of a call that runs an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Execution<T> {
    /// This call ran the work.
    Executed {
        /// The result of the work.
        value: T,
        /// The attempt of this call.
        receipt: Receipt,
    },
    /// An earlier call ran the work.
    Replayed {
        /// The recorded result.
        value: T,
        /// The attempt that the result comes from.
        receipt: Receipt,
    },
    /// The operation is in progress: another call holds the claim, or a verification was deferred.
    InProgress {
        /// The id of the operation, if it is known.
        operation_id: Option<OperationId>,
        /// The time until the holder's lease ends, if it is known.
        lease_remaining: Option<Duration>,
    },
}

/// The result of [`Executor::serve`](super::Executor::serve).
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Served<A> {
    /// This call ran the work.
    Executed {
        /// The answer that the work returned for its caller, recorded or not.
        answer: A,
        /// The attempt of this call; `None` if its outcome was not recorded for repeats.
        receipt: Option<Receipt>,
    },
    /// An earlier call ran the work.
    Replayed {
        /// The recorded outcome.
        outcome: Outcome,
        /// The attempt that the result comes from.
        receipt: Receipt,
    },
    /// The operation is in progress: another call holds the claim, or a verification was deferred.
    InProgress {
        /// The id of the operation, if it is known.
        operation_id: Option<OperationId>,
        /// The time until the holder's lease ends, if it is known.
        lease_remaining: Option<Duration>,
    },
}

impl<T> Execution<T> {
    /// Returns whether the result comes from an earlier call.
    pub fn replayed(&self) -> bool {
        matches!(self, Execution::Replayed { .. })
    }

    /// Returns whether the operation is in progress elsewhere, so that there is no result yet.
    pub fn in_progress(&self) -> bool {
        matches!(self, Execution::InProgress { .. })
    }

    /// Returns a reference to the result; `None` while the operation is in progress.
    pub fn value(&self) -> Option<&T> {
        match self {
            Execution::Executed { value, .. } | Execution::Replayed { value, .. } => Some(value),
            Execution::InProgress { .. } => None,
        }
    }

    /// Returns the result by value; `None` while the operation is in progress.
    pub fn into_value(self) -> Option<T> {
        match self {
            Execution::Executed { value, .. } | Execution::Replayed { value, .. } => Some(value),
            Execution::InProgress { .. } => None,
        }
    }

    /// Returns the attempt that the result comes from; `None` while the operation is in progress.
    pub fn receipt(&self) -> Option<&Receipt> {
        match self {
            Execution::Executed { receipt, .. } | Execution::Replayed { receipt, .. } => {
                Some(receipt)
            }
            Execution::InProgress { .. } => None,
        }
    }

    /// Returns the number of the attempt that the result comes from; `None` while the operation is
    /// in progress.
    pub fn attempt(&self) -> Option<u32> {
        self.receipt().map(|receipt| receipt.attempt)
    }

    /// Returns this execution with its value replaced by the result of `f`.
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

/// The reason why a call has no result. `E` is the error type of the work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error<E = Infallible> {
    /// The key was used before for a request with another fingerprint.
    #[error("this key was used for a different request; use a new key for a new request")]
    Mismatch,
    /// The last attempt failed, and the next attempt is not due yet.
    #[error("attempt {attempt} failed ({error}); the next may start in {retry_after:?}")]
    Backoff {
        /// The time until the next attempt is due.
        retry_after: Duration,
        /// The number of attempts so far.
        attempt: u32,
        /// The error of the last attempt.
        error: ErrorText,
    },
    /// The operation failed, and the failure policy keeps the failure as the answer to every
    /// repeat.
    #[error("the operation failed and is not retried: {error}")]
    FailedFinal {
        /// The recorded error of the operation.
        error: ErrorText,
    },
    /// The operation was given up; an operator must redrive or discard the record.
    #[error("the operation was given up: {error}")]
    Dead {
        /// The error of the last attempt, or the operator's reason.
        error: ErrorText,
    },
    /// A crashed attempt may or may not have taken effect; an operator must resolve the record.
    #[error("whether the operation took effect is uncertain: {error}")]
    Uncertain {
        /// The recorded text about the crashed attempt.
        error: ErrorText,
    },
    /// The claim was lost before the result of this call was recorded.
    #[error("the claim was lost while the work ran; its result was not recorded")]
    ClaimLost,
    /// The attempt that this call waited for failed; returned under
    /// [`Woken::Report`](crate::Woken::Report) only.
    #[error("attempt {attempt}, which this call waited for, failed: {error}")]
    HolderFailed {
        /// The error of the failed attempt.
        error: ErrorText,
        /// The number of the failed attempt.
        attempt: u32,
    },
    /// The other call recorded no outcome within the deadline of
    /// [`Wait::Deadline`](crate::Wait::Deadline).
    #[error("no outcome within {waited:?}; the operation is still in progress")]
    WaitTimeout {
        /// The time that this call has waited.
        waited: Duration,
    },
    /// The work took longer than its limit and was cancelled. It counts as a failure, and under
    /// [`OnCrash::Hold`](crate::OnCrash::Hold) or [`OnCrash::Verify`](crate::OnCrash::Verify) as a
    /// crash: it may have taken effect.
    #[error("the work took longer than {limit:?} and was cancelled")]
    WorkTimeout {
        /// The longest time that the work may run.
        limit: Duration,
    },
    /// The work panicked. It counts as a failure, and under [`OnCrash::Hold`](crate::OnCrash::Hold)
    /// or [`OnCrash::Verify`](crate::OnCrash::Verify) as a crash: it may have taken effect.
    #[error("the work panicked: {message}")]
    Panicked {
        /// The message of the panic.
        message: String,
    },
    /// The operation has succeeded, but its outcome was too large to keep. The work does not run
    /// again.
    #[error("the operation has succeeded, but its outcome of {bytes} bytes was not kept")]
    ResultUnavailable {
        /// The size of the outcome in bytes.
        bytes: u64,
    },
    /// A transaction's result is larger than the limit; nothing was committed.
    #[error("the result has {bytes} bytes, at most {max} are kept; nothing was committed")]
    ResultTooLarge {
        /// The size of the result in bytes.
        bytes: usize,
        /// The largest size that is kept, in bytes.
        max: usize,
    },
    /// The work's result cannot be encoded as JSON and decoded again; nothing was committed.
    #[error("the result cannot be stored as JSON and read back: {reason}")]
    Encode {
        /// The message of the serializer.
        reason: String,
    },
    /// The stored result cannot be decoded as the type that the caller expects.
    #[error("the stored result cannot be read as this type: {reason}")]
    Decode {
        /// The message of the deserializer.
        reason: String,
    },
    /// The work of a transaction ended without dropping its unit; nothing was committed.
    #[error("the transaction's unit escaped the work; nothing was committed")]
    Escaped,
    /// The store is full, and the work did not run.
    #[error("the store is full and nothing ran; try again later")]
    Capacity,
    /// The command's policy is not valid.
    #[error(transparent)]
    Policy(#[from] InvalidPolicy),
    /// The key is not valid; nothing was sent to the store.
    #[error(transparent)]
    Key(#[from] InvalidKey),
    /// The fingerprint could not be computed; nothing was sent to the store.
    #[error(transparent)]
    Fingerprint(#[from] InvalidFingerprint),
    /// The executor is shutting down and refuses new work.
    #[error("the executor is shutting down")]
    Closed,
    /// The operation is in progress: another call holds the claim, or a verification was deferred.
    #[error("another call with this key is in progress; retry with the same key")]
    Concurrent,
    /// The error that the work returned.
    #[error("the work failed: {0}")]
    Work(E),
    /// The store returned an error.
    #[error(transparent)]
    Store(store::Error),
}

impl Error<Infallible> {
    /// Converts an error that cannot come from the work to the error type of any work.
    pub(super) fn widen<E>(self) -> Error<E> {
        self.map(|never| match never {})
    }
}

impl<E> Error<E> {
    /// Applies `f` to the error of the work, and returns all other errors unchanged.
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

/// Returns the metric label for the result of [`Executor::run`](super::Executor::run) and similar
/// methods.
pub(super) fn label<T, E>(result: &Result<Execution<T>, Error<E>>) -> &'static str {
    match result {
        Ok(Execution::Executed { .. }) => "executed",
        Ok(Execution::Replayed { .. }) => "replayed",
        Ok(Execution::InProgress { .. }) => "in_progress",
        Err(error) => error.label(),
    }
}

/// Returns the metric label for the result of [`Executor::serve`](super::Executor::serve).
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
