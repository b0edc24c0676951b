//! The reasons why a request is refused.
//!
//! The protocols share the problems and write them differently: `http/problem.rs` as a body,
//! `grpc/problem.rs` as a status. Each kind of problem has a page in `docs/errors/` that explains
//! the cause and the remedy.

mod slug;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use http::StatusCode;
use semel_core::store::ErrorKind;
use semel_core::{Error, OperationId};

use self::slug::Facts;
pub use self::slug::Slug;

/// A reason why a request is refused, from which an error response is made. The layers write their
/// own problems; use this type in a service behind a layer that refuses requests itself (a proxy
/// whose upstream is unavailable). A [`SettleAs`](crate::http::SettleAs) in the extensions of the
/// response decides how the claim is settled.
///
/// ```
/// use semel_tower::http::{SettleAs, PROBLEMS, Problem, Slug};
///
/// let detail = "the upstream did not answer within 30s";
/// let problem = Problem::new(Slug::UpstreamAmbiguous, detail);
/// let mut answer = problem.into_http_response(PROBLEMS, "/orders");
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
    /// The gRPC code, if it differs from the default of the slug.
    #[cfg(feature = "grpc")]
    pub(crate) code: Option<tonic::Code>,
    /// The HTTP status.
    pub(crate) status: StatusCode,
    /// Whether the HTTP/1.1 connection must be closed, because a part of the request's body was not
    /// read.
    pub(crate) close: bool,
    /// Whether the HTTP body also has an `error` object.
    pub(crate) error_object: bool,
}

impl Problem {
    /// Creates a problem. Status, `retryable` and `safe_new_key` are the defaults of the slug.
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

    /// Sets the delay after which the caller should retry. Default: none.
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// Sets whether a retry of the same request may succeed and cannot take effect twice. Default:
    /// the value of the slug, which assumes a key and a claim.
    pub fn retryable(mut self, retryable: bool) -> Self {
        self.retryable = retryable;
        self
    }

    /// Sets the id of the operation, by which operators can find it in records and logs. Default:
    /// none.
    pub fn operation(mut self, id: Option<OperationId>) -> Self {
        self.operation_id = id;
        self
    }

    /// Returns the problem for an error of the executor. `retry_after` is the delay of problems
    /// that a retry may solve, if the error has no delay of its own.
    pub(crate) fn of<E: fmt::Display>(error: Error<E>, retry_after: Duration) -> Self {
        let text = error.to_string();
        match error {
            Error::Mismatch => Self::new(Slug::KeyReused, text),
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
                Self::new(Slug::InProgress, text).retry_after(retry_after)
            }
            Error::WorkTimeout { .. } => Self::new(Slug::WorkTimeout, text),
            Error::Panicked { .. } => {
                Self::new(Slug::WorkFailed, "the handler panicked; its log says why")
            }
            Error::Escaped => Self::new(Slug::WorkFailed, text),
            Error::ResultUnavailable { .. } => Self::new(Slug::ResultUnavailable, text),
            Error::Decode { .. } | Error::Encode { .. } => {
                Self::new(Slug::ResultUnavailable, "the stored response cannot be read")
            }
            Error::ResultTooLarge { .. } => Self::new(Slug::ResultTooLarge, text),
            Error::Capacity => Self::new(Slug::StoreFull, text).retry_after(retry_after),
            Error::Closed => Self::new(Slug::ShuttingDown, text).retry_after(retry_after),
            Error::Key(_) => Self::new(Slug::KeyInvalid, text),
            Error::Policy(_) | Error::Fingerprint(_) => Self::new(Slug::Misconfigured, text),
            Error::Store(error) if error.kind() == ErrorKind::Misconfigured => {
                let detail = "the store is not set up for this service; its log says why";
                Self::new(Slug::Misconfigured, detail)
            }
            Error::Store(error) if error.kind() == ErrorKind::Refused => {
                let detail =
                    "the store refused what the operation writes; the service's log says why";
                Self::new(Slug::WorkFailed, detail)
            }
            Error::Store(_) => {
                let detail = "nothing is known to have run; retry with the same key";
                Self::new(Slug::StoreUnavailable, detail).retry_after(retry_after)
            }
            Error::Work(error) => {
                tracing::error!(%error, "the work of a command failed");
                Self::new(Slug::WorkFailed, "the operation failed; the service's log says why")
            }
            _ => Self::new(Slug::WorkFailed, text),
        }
    }
}

/// Lets a handler that runs a command itself return the executor's error with `?`. The text of the
/// work's own error is logged, and not sent to the caller.
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
    fn a_store_that_is_not_set_up_is_not_reported_as_an_outage() {
        let slug = |kind| {
            let error = store::Error::new(kind, "open", "no such table");
            Problem::from(Error::<String>::Store(error)).slug
        };
        assert_eq!(slug(ErrorKind::Misconfigured), Slug::Misconfigured);
        assert_eq!(slug(ErrorKind::Refused), Slug::WorkFailed);
        assert_eq!(slug(ErrorKind::Unavailable), Slug::StoreUnavailable);
    }
}
