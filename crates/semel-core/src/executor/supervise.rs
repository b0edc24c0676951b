//! Work under watch: it ends by itself, by its limit, or by the executor's end.
//!
//! Written out rather than `select!`ed: work is large, and an async function holds what it is given
//! twice, once as it came and once where it polls it.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context as Task, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use super::command::Order;
use super::run::words;
use super::stop::Stop;
use super::{Context, Inner};
use crate::store::Store;

/// How the work itself ended.
pub(super) enum Ran<T, E> {
    Finished(Result<T, E>),
    Panicked(String),
    TimedOut(Duration),
    /// Shutdown dropped it: it is no longer running.
    Aborted,
}

pin_project! {
    /// The work, until it has ended.
    pub(super) struct Supervised<'a, F> {
        abort: &'a CancellationToken,
        // Who never waits never stands in line to be told: the line is one for the whole executor.
        #[pin]
        aborted: Option<WaitForCancellationFuture<'a>>,
        #[pin]
        work: Option<F>,
        #[pin]
        over: Option<Sleep>,
        limit: Duration,
        order: &'a Order,
        cancelled: &'a Stop,
    }
}

impl<S: Store> Inner<S> {
    /// Runs the work to its end, its limit, or the executor's.
    pub(super) fn supervise<'a, F>(
        &'a self,
        order: &'a Order,
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
            order,
            cancelled: &context.cancelled,
        }
    }
}

impl<T, E, F: Future<Output = Result<T, E>>> Future for Supervised<'_, F> {
    type Output = Ran<T, E>;

    fn poll(self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<Ran<T, E>> {
        let mut this = self.project();
        // Before the work: an attempt that slipped in behind a shutdown does not start it.
        let aborted = match this.aborted.as_mut().as_pin_mut() {
            Some(aborted) => aborted.poll(task).is_ready(),
            None => this.abort.is_cancelled(),
        };
        if aborted {
            let_go(this.work);
            return Poll::Ready(Ran::Aborted);
        }
        if let Some(work) = this.work.as_mut().as_pin_mut() {
            match catch_unwind(AssertUnwindSafe(|| work.poll(task))) {
                Ok(Poll::Pending) => this.order.go_apart(),
                Ok(Poll::Ready(result)) => return Poll::Ready(Ran::Finished(result)),
                Err(panic) => {
                    let_go(this.work);
                    return Poll::Ready(Ran::Panicked(words(panic.as_ref())));
                }
            }
        }
        if this.aborted.is_none() {
            this.aborted.set(Some(this.abort.cancelled()));
            let aborted = this.aborted.as_mut().as_pin_mut();
            if aborted.is_some_and(|aborted| aborted.poll(task).is_ready()) {
                let_go(this.work);
                return Poll::Ready(Ran::Aborted);
            }
        }
        match this.over.as_pin_mut().map(|over| over.poll(task)) {
            Some(Poll::Ready(())) => {
                let_go(this.work);
                this.cancelled.cancel();
                Poll::Ready(Ran::TimedOut(*this.limit))
            }
            Some(Poll::Pending) | None => Poll::Pending,
        }
    }
}

/// Drops the work. Should that panic as well, its claim is settled all the same.
fn let_go<F>(mut work: Pin<&mut Option<F>>) {
    let _ = catch_unwind(AssertUnwindSafe(|| work.set(None)));
}
