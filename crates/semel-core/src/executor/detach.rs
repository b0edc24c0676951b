//! Polls an attempt in its caller's task, and moves the attempt to its own task when it waits or
//! its caller leaves.
//!
//! Spawning a task costs more than a quick attempt: bytes are moved, and tasks wake each other. So
//! the caller's task polls the attempt while the attempt calls the store and while the work does
//! not wait. The attempt's future is spawned as it is when it waits for anything but one call to
//! the store, and when its caller leaves. Callers see no difference: an attempt that has begun is
//! never dropped, and work that waits continues even if its caller is not polled.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TrackedFuture;

use super::command::ResolvedCommand;
use super::execution::Error;
use super::supervise::panic_text;

/// The future of an attempt, which runs in the caller's task or in its own.
pub(super) struct Detachable<F: Future + Send + 'static>
where
    F::Output: Send,
{
    progress: Progress<F>,
    command: Arc<ResolvedCommand>,
}

enum Progress<F: Future> {
    /// The attempt was not polled yet.
    New(Pin<Box<TrackedFuture<F>>>),
    /// The caller's task polls the attempt, in this runtime if there is one.
    Attached(Pin<Box<TrackedFuture<F>>>, Option<Handle>),
    Detached(JoinHandle<F::Output>),
    Over,
}

impl<F: Future + Send + 'static> Detachable<F>
where
    F::Output: Send,
{
    pub(super) fn new(attempts: &TaskTracker, command: &Arc<ResolvedCommand>, attempt: F) -> Self {
        // Boxed, because the attempt may move to another task after it was polled.
        let attempt = Box::pin(attempts.track_future(attempt));
        Self { progress: Progress::New(attempt), command: Arc::clone(command) }
    }

    /// Polls the attempt once in the caller's task.
    fn step(&mut self, task: &mut Context<'_>) -> Poll<Result<F::Output, Error>> {
        let (mut attempt, runtime) = match std::mem::replace(&mut self.progress, Progress::Over) {
            Progress::New(attempt) => (attempt, None),
            Progress::Attached(attempt, runtime) => (attempt, runtime),
            other @ (Progress::Detached(_) | Progress::Over) => {
                self.progress = other;
                return Poll::Pending;
            }
        };
        match catch_unwind(AssertUnwindSafe(|| attempt.as_mut().poll(task))) {
            Ok(Poll::Ready(done)) => return Poll::Ready(Ok(done)),
            Ok(Poll::Pending) => {}
            Err(panic) => {
                // The caller is answered even if the drop panics too.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(attempt)));
                return Poll::Ready(Err(Error::Panicked { message: panic_text(panic.as_ref()) }));
            }
        }
        let runtime = runtime.or_else(|| Handle::try_current().ok());
        self.progress = match runtime {
            Some(runtime) if self.command.is_detached() => {
                Progress::Detached(runtime.spawn(attempt))
            }
            runtime => Progress::Attached(attempt, runtime),
        };
        Poll::Pending
    }
}

impl<F: Future + Send + 'static> Future for Detachable<F>
where
    F::Output: Send,
{
    type Output = Result<F::Output, Error>;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if !matches!(this.progress, Progress::Detached(_))
            && let Poll::Ready(done) = this.step(task)
        {
            return Poll::Ready(done);
        }
        let Progress::Detached(attempt) = &mut this.progress else { return Poll::Pending };
        Poll::Ready(match ready!(Pin::new(attempt).poll(task)) {
            Ok(done) => Ok(done),
            Err(ended) => Err(match ended.try_into_panic() {
                Ok(panic) => Error::Panicked { message: panic_text(panic.as_ref()) },
                // The runtime is shutting down.
                Err(_) => Error::Closed,
            }),
        })
    }
}

impl<F: Future + Send + 'static> Drop for Detachable<F>
where
    F::Output: Send,
{
    /// Spawns an attempt that has begun, so that it continues without its caller.
    fn drop(&mut self) {
        if !guard!(Spawn) {
            return;
        }
        if let Progress::Attached(attempt, Some(runtime)) =
            std::mem::replace(&mut self.progress, Progress::Over)
        {
            drop(runtime.spawn(attempt));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::poll;
    use tokio::sync::oneshot;

    use super::*;
    use crate::executor::{Command, Executor};
    use crate::key::Key;
    use crate::policy::Policy;
    use crate::store::memory::MemoryStore;

    fn command() -> Command {
        Command::new(Key::command("acme", "PAY", "1").expect("a key"))
    }

    fn detachable<F: Future<Output: Send> + Send + 'static>(attempt: F) -> Pin<Box<Detachable<F>>> {
        let command = Arc::new(command().resolve(&Policy::default()).expect("valid"));
        Box::pin(Detachable::new(&TaskTracker::new(), &command, attempt))
    }

    #[tokio::test]
    async fn an_attempt_that_has_begun_continues_when_its_caller_leaves() {
        let (open, gate) = oneshot::channel::<()>();
        let (done, ended) = oneshot::channel();
        let mut attempt = detachable(async move {
            gate.await.expect("opened");
            done.send(()).expect("the test waits for the end");
        });
        assert!(poll!(&mut attempt).is_pending());
        drop(attempt);
        open.send(()).expect("the attempt waits");
        ended.await.expect("the attempt ended");
    }

    #[tokio::test]
    async fn an_attempt_that_was_not_polled_does_not_begin() {
        let (done, ended) = oneshot::channel::<()>();
        drop(detachable(async move { done.send(()) }));
        assert!(ended.await.is_err());
    }

    #[tokio::test]
    async fn a_panic_in_the_callers_task_or_in_a_spawned_task_is_an_error() {
        let here = detachable(async { panic!("here") });
        let text = |error| match error {
            Err(Error::Panicked { message }) => message,
            _ => "no panic".to_owned(),
        };
        assert_eq!(text(here.await.map(|(): ()| ())), "here");
        let mut detached = detachable(async {
            tokio::task::yield_now().await;
            panic!("detached")
        });
        detached.command.detach();
        assert!(poll!(&mut detached).is_pending());
        assert!(matches!(detached.progress, Progress::Detached(_)));
        assert_eq!(text(detached.await.map(|(): ()| ())), "detached");
    }

    #[tokio::test]
    async fn attended_work_stays_in_its_callers_task_until_the_caller_leaves() {
        let executor = Executor::new(MemoryStore::new());
        let (open, mut gate) = oneshot::channel::<()>();
        let (done, mut ended) = oneshot::channel();
        let mut running = Box::pin(executor.run(command().attended(), |_| async move {
            (&mut gate).await.expect("opened");
            done.send(()).expect("the test waits for the end");
            Ok::<_, Infallible>(7)
        }));
        assert!(poll!(&mut running).is_pending());
        open.send(()).expect("the work waits");
        for _ in 0..9 {
            tokio::task::yield_now().await;
        }
        assert!(ended.try_recv().is_err(), "the work ran although its caller was not polled");
        drop(running);
        ended.await.expect("the work ended");
        let again = executor.run(command(), |_| async { Ok::<_, Infallible>(8) }).await;
        assert_eq!(again.expect("settled").value(), Some(&7));
    }

    #[tokio::test]
    async fn work_that_waits_does_not_wait_for_its_caller() {
        let executor = Executor::new(MemoryStore::new());
        let (open, gate) = oneshot::channel::<()>();
        let (done, ended) = oneshot::channel();
        let mut running = Box::pin(executor.run(command(), |_| async move {
            gate.await.expect("opened");
            done.send(()).expect("the test waits for the end");
            Ok::<_, Infallible>(7)
        }));
        assert!(poll!(&mut running).is_pending());
        open.send(()).expect("the work waits");
        // The caller's future is not polled meanwhile.
        ended.await.expect("the work ended");
        assert_eq!(running.await.expect("executed").value(), Some(&7));
    }
}
