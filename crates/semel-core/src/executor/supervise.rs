//! Polls work until it ends, reaches its time limit, or is stopped by the executor's shutdown.
//!
//! A hand-written future is used instead of `select!`: work is large, and an async function would
//! store it twice, as its argument and as the future that is polled.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context as Task, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use super::Inner;
use super::context::Context;
use super::execution::Error;
use crate::store::Store;

/// The way in which the work ended.
pub(super) enum WorkEnd<T> {
    Finished(T),
    Panicked(String),
    TimedOut(Duration),
    /// A shutdown dropped the work.
    Aborted,
}

impl<T> WorkEnd<T> {
    /// Returns the error for the caller of work that did not finish, and the text to record.
    pub(super) fn into_error(self) -> (Error, String) {
        match self {
            WorkEnd::Panicked(message) => {
                let text = format!("the work panicked: {message}");
                (Error::Panicked { message }, text)
            }
            WorkEnd::TimedOut(limit) => {
                let text = format!("the work took longer than {limit:?} and was cancelled");
                (Error::WorkTimeout { limit }, text)
            }
            WorkEnd::Finished(_) | WorkEnd::Aborted => {
                (Error::Closed, "the attempt was stopped by a shutdown".to_owned())
            }
        }
    }
}

/// Returns the message of a panic.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a value that is not text".to_owned())
}

pin_project! {
    /// The future that polls the work until it has ended.
    pub(super) struct Supervised<'a, F> {
        abort: &'a CancellationToken,
        // Registered lazily: the waiter list is shared by all attempts of the executor.
        #[pin]
        aborted: Option<WaitForCancellationFuture<'a>>,
        #[pin]
        work: Option<F>,
        #[pin]
        over: Option<Sleep>,
        limit: Duration,
        context: &'a Context,
    }
}

impl<S: Store> Inner<S> {
    /// Runs the work until it ends, reaches its limit, or is aborted by a shutdown.
    pub(super) fn supervise<'a, F>(
        &'a self,
        context: &'a Context,
        limit: Option<Duration>,
        work: F,
    ) -> Supervised<'a, F> {
        Supervised {
            abort: &self.abort,
            aborted: None,
            work: Some(work),
            over: limit.map(tokio::time::sleep),
            limit: limit.unwrap_or_default(),
            context,
        }
    }
}

impl<F: Future> Future for Supervised<'_, F> {
    type Output = WorkEnd<F::Output>;

    fn poll(self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        // Checked before the work is polled, so that an attempt that races with a shutdown does not
        // start its work.
        let aborted = match this.aborted.as_mut().as_pin_mut() {
            Some(aborted) => aborted.poll(task).is_ready(),
            None => this.abort.is_cancelled(),
        };
        if aborted {
            drop_work(this.work);
            return Poll::Ready(WorkEnd::Aborted);
        }
        if let Some(work) = this.work.as_mut().as_pin_mut() {
            match catch_unwind(AssertUnwindSafe(|| work.poll(task))) {
                Ok(Poll::Pending) => this.context.command().detach(),
                Ok(Poll::Ready(result)) => return Poll::Ready(WorkEnd::Finished(result)),
                Err(panic) => {
                    drop_work(this.work);
                    return Poll::Ready(WorkEnd::Panicked(panic_text(panic.as_ref())));
                }
            }
        }
        if this.aborted.is_none() {
            this.aborted.set(Some(this.abort.cancelled()));
            let aborted = this.aborted.as_mut().as_pin_mut();
            if aborted.is_some_and(|aborted| aborted.poll(task).is_ready()) {
                drop_work(this.work);
                return Poll::Ready(WorkEnd::Aborted);
            }
        }
        match this.over.as_pin_mut().map(|over| over.poll(task)) {
            Some(Poll::Ready(())) => {
                drop_work(this.work);
                this.context.cancellation().cancel();
                Poll::Ready(WorkEnd::TimedOut(*this.limit))
            }
            Some(Poll::Pending) | None => Poll::Pending,
        }
    }
}

/// Drops the work. A panic of the drop is caught, so that the claim is settled.
fn drop_work<F>(mut work: Pin<&mut Option<F>>) {
    let _ = catch_unwind(AssertUnwindSafe(|| work.set(None)));
}
