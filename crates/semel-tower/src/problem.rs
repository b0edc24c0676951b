//! Why a request is refused.
//!
//! Protocols share the problems and write them differently: `http/problem.rs` as a body,
//! `grpc/problem.rs` as a status. Each kind has a page in `docs/errors/` that says what happened and what
//! to do.

mod slug;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use http::StatusCode;
use semel_core::store::ErrorKind;
use semel_core::{Error, OperationId};

use self::slug::Facts;
pub use self::slug::Slug;

/// A problem, before it is written. The layers write their own; this is for a service behind a layer that
/// refuses requests itself (a proxy whose upstream is away). A
/// [`SettleAs`](crate::http::SettleAs) in the extensions of the response says how the claim is settled.
///
/// ```
/// use semel_tower::http::{SettleAs, PROBLEMS, Problem, Slug};
///
/// let detail = "the upstream did not answer within 30s";
/// let problem = Problem::new(Slug::UpstreamAmbiguous, detail);
/// let mut answer = problem.written(PROBLEMS, "/orders");
/// answer.extensions_mut().insert(SettleAs::Doubt);
/// assert_eq!(answer.status(), 504);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Problem {
    pub(crate) slug: Slug,
    pub(crate) detail: Cow<'static, str>,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) retryable: bool,
    pub(crate) safe_new_key: bool,
    pub(crate) operation_id: Option<OperationId>,
    /// The gRPC code, where it is not that of the kind.
    #[cfg(feature = "grpc")]
    pub(crate) code: Option<tonic::Code>,
    /// The HTTP status.
    pub(crate) status: StatusCode,
    /// Whether an HTTP/1.1 connection is not to be used again: a request's body was left on it.
    pub(crate) close: bool,
    /// Whether the HTTP body has an `error` object too.
    pub(crate) error_object: bool,
}

impl Problem {
    /// Creates a problem with this detail. Status, `retryable` and `safe_new_key` are the defaults of
    /// its slug.
    pub fn new(slug: Slug, detail: impl Into<Cow<'static, str>>) -> Self {
        let Facts { status, retryable, safe_new_key, .. } = slug.facts();
        Self {
            slug,
            detail: detail.into(),
            retry_after: None,
            retryable,
            safe_new_key,
            operation_id: None,
            #[cfg(feature = "grpc")]
            code: None,
            status,
            close: false,
            error_object: false,
        }
    }

    /// Sets when to retry. Default: not said.
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// Sets whether the same request may succeed later, and do nothing twice. Default: the value of its
    /// kind, which assumes a key and a claim.
    pub fn retryable(mut self, retryable: bool) -> Self {
        self.retryable = retryable;
        self
    }

    /// Sets the operation that the problem is about, so that operators can find it in records and logs.
    /// Default: not said.
    pub fn operation(mut self, id: Option<OperationId>) -> Self {
        self.operation_id = id;
        self
    }

    /// Returns what an executor's error means to a caller, which retries after `retry_after` where that
    /// helps and the error does not say when.
    pub(crate) fn of<E: fmt::Display>(error: Error<E>, retry_after: Duration) -> Self {
        let said = error.to_string();
        match error {
            Error::Mismatch => Self::new(Slug::KeyReused, said),
            Error::Backoff { retry_after, .. } => {
                let detail = "the last attempt failed; retry with the same key when it is due";
                Self::new(Slug::BackingOff, detail).retry_after(retry_after)
            }
            Error::FailedFinal { .. } | Error::HolderFailed { .. } => {
                Self::new(Slug::Failed, "the operation failed, and its failure is kept")
            }
            Error::Dead { .. } => {
                Self::new(Slug::Dead, "all attempts failed; an operator must look at it")
            }
            Error::Uncertain { .. } => {
                let detail =
                    "an attempt broke off; an operator must find out whether it took effect";
                Self::new(Slug::Uncertain, detail)
            }
            Error::ClaimLost => {
                let detail = "retry with the same key for the response of the other attempt";
                Self::new(Slug::ClaimLost, detail).retry_after(retry_after)
            }
            Error::WaitTimeout { .. } | Error::Concurrent => {
                Self::new(Slug::InProgress, said).retry_after(retry_after)
            }
            Error::WorkTimeout { .. } => Self::new(Slug::WorkTimeout, said),
            Error::Panicked { .. } => {
                Self::new(Slug::WorkFailed, "the handler panicked; its log says why")
            }
            Error::Escaped => Self::new(Slug::WorkFailed, said),
            Error::ResultUnavailable { .. } => Self::new(Slug::ResultUnavailable, said),
            Error::Decode { .. } | Error::Encode { .. } => {
                Self::new(Slug::ResultUnavailable, "the stored response cannot be read")
            }
            Error::ResultTooLarge { .. } => Self::new(Slug::ResultTooLarge, said),
            Error::Capacity => Self::new(Slug::StoreFull, said).retry_after(retry_after),
            Error::Closed => Self::new(Slug::ShuttingDown, said).retry_after(retry_after),
            Error::Key(_) => Self::new(Slug::KeyInvalid, said),
            Error::Policy(_) | Error::Fingerprint(_) => Self::new(Slug::Misconfigured, said),
            Error::Store(error) if error.kind() == ErrorKind::Misconfigured => {
                let detail = "the store is not set up for this service; its log says why";
                Self::new(Slug::Misconfigured, detail)
            }
            Error::Store(_) => {
                let detail = "nothing is known to have run; retry with the same key";
                Self::new(Slug::StoreUnavailable, detail).retry_after(retry_after)
            }
            Error::Work(error) => {
                tracing::error!(%error, "the work of a command failed");
                Self::new(Slug::WorkFailed, "the operation failed; the service's log says why")
            }
            _ => Self::new(Slug::WorkFailed, said),
        }
    }
}

/// Lets a handler that runs a command itself return the executor's error with `?`. What the work's
/// own error says is logged, and not sent to the caller.
///
/// ```
/// use semel_core::store::memory::MemoryStore;
/// use semel_core::{Command, Executor, Key};
/// use semel_tower::http::Problem;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// async fn place(executor: &Executor<MemoryStore>, key: Key) -> Result<u64, Problem> {
///     let placed = executor.run(Command::new(key), |_| async { Ok::<_, String>(7) }).await?;
///     Ok(placed.into_value().unwrap_or_default())
/// }
///
/// let key = Key::command("acme", "ORDER_CREATE", "k-1")?;
/// assert_eq!(place(&Executor::new(MemoryStore::new()), key).await.ok(), Some(7));
/// # Ok(())
/// # }
/// ```
impl<E: fmt::Display> From<Error<E>> for Problem {
    fn from(error: Error<E>) -> Self {
        Self::of(error, Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use semel_core::store;

    use super::*;

    #[test]
    fn a_store_that_is_not_set_up_is_no_outage() {
        let slug = |kind| {
            let error = store::Error::new(kind, "open", "no such table");
            Problem::from(Error::<String>::Store(error)).slug
        };
        assert_eq!(slug(ErrorKind::Misconfigured), Slug::Misconfigured);
        assert_eq!(slug(ErrorKind::Unavailable), Slug::StoreUnavailable);
    }
}
