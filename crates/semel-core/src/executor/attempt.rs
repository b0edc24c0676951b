//! Makes attempts until a call has an answer, and runs one attempt of fenced work.
//!
//! Once the store was called, no caller can cancel an attempt: a dropped future, an outer timeout
//! or a closed connection neither ends the attempt nor leaves its claim behind.

use std::future::Future;
use std::sync::Arc;

use super::Inner;
use super::cancellation::Cancellation;
use super::claim::{Acquired, Decision};
use super::command::ResolvedCommand;
use super::context::{Context, Place};
use super::detach::Detachable;
use super::execution::{Error, Served};
use super::grant::Grant;
use super::heartbeat::Beat;
use super::settlement::Finished;
use super::supervise::WorkEnd;
use super::wait::Waiting;
use crate::judge::Verdict;
use crate::store::{self, Store};

/// The result of one attempt. Contains the work if it did not run and may be tried again.
pub(super) enum Attempted<W, A> {
    Finished(Result<Served<A>, Error>),
    /// The store failed before the claim was granted; the work did not run.
    StoreFailed(store::Error),
    /// The claim was not granted; the work did not run.
    Decided(Decision, W),
}

impl<S: Store> Inner<S> {
    /// Makes attempts until there is an answer or the wait is over.
    pub(super) async fn execute<W, A, R, Fut>(
        self: &Arc<Self>,
        command: Arc<ResolvedCommand>,
        mut work: W,
        attempt: R,
    ) -> Result<Served<A>, Error>
    where
        R: Fn(Arc<Self>, Arc<ResolvedCommand>, W) -> Fut,
        Fut: Future<Output = Attempted<W, A>> + Send + 'static,
        W: Send + 'static,
        A: Send + 'static,
    {
        let mut waiting = Waiting::new(self, &command);
        let mut met_a_holder = false;
        loop {
            if let Some(answer) = self.replay(&command) {
                return answer;
            }
            if self.closing.is_cancelled() {
                return Err(Error::Closed);
            }
            let task = attempt(Arc::clone(self), Arc::clone(&command), work);
            let decision = match Detachable::new(&self.attempts, &command, task).await? {
                Attempted::Finished(result) => return result,
                // The store failed while this call waited. The key was held by another caller when
                // the record was last read.
                Attempted::StoreFailed(_) if met_a_holder => {
                    let waited = Some(waiting.since.elapsed());
                    return self.answer(&command, Decision::contended(), waited);
                }
                Attempted::StoreFailed(error) => return Err(error.into()),
                Attempted::Decided(decision, unused) => {
                    work = unused;
                    decision
                }
            };
            let running = matches!(decision.verdict, Verdict::Running { .. });
            // Boxed, because most calls never wait, and the future of every call would be larger by
            // it.
            if running && Box::pin(waiting.again(self, &command)).await {
                match Box::pin(waiting.reported(self, &command, &decision.verdict)).await {
                    Some(failed) => return Err(failed),
                    None => {
                        met_a_holder = true;
                        continue;
                    }
                }
            }
            let waited = running.then(|| waiting.since.elapsed());
            return self.answer(&command, decision, waited);
        }
    }

    /// Makes one attempt of fenced work: claim, run, settle.
    pub(super) async fn attempt<A, F, Fut>(
        self: Arc<Self>,
        command: Arc<ResolvedCommand>,
        work: F,
    ) -> Attempted<F, A>
    where
        F: FnOnce(Context) -> Fut + Send,
        Fut: Future<Output = Finished<A>> + Send,
    {
        failpoint!("begin.before");
        let grant = match self.claim(&command).await {
            Ok(Acquired::Granted(grant)) => grant,
            Ok(Acquired::Decided(decision)) => return Attempted::Decided(decision, work),
            Err(error) => return Attempted::StoreFailed(error),
        };
        failpoint!("begin.after");
        let context = self.context(&command, grant, Place::Fenced);
        Attempted::Finished(self.perform(&context, work).await)
    }

    /// Runs fenced work under its claim. The rare paths are boxed, so that the future stays small.
    async fn perform<A, F, Fut>(&self, context: &Context, work: F) -> Result<Served<A>, Error>
    where
        F: FnOnce(Context) -> Fut,
        Fut: Future<Output = Finished<A>>,
    {
        let beat = self.keep_alive(context);
        if context.wants_verification()
            && let Some(answer) = Box::pin(self.verify(context)).await
        {
            return answer;
        }
        if !beat.holds() {
            return Box::pin(self.too_late(context)).await;
        }
        let limit = context.command().policy.work_timeout;
        let ended = self.supervise(context, limit, async { work(context.clone()).await }).await;
        failpoint!("work.after");
        match ended {
            WorkEnd::Finished(finished) => self.conclude(context, finished).await,
            WorkEnd::Aborted => {
                let settlement = context.interrupted(ABORTED);
                Box::pin(self.settle_quickly(context, settlement)).await;
                Err(Error::Closed)
            }
            broken @ (WorkEnd::Panicked(_) | WorkEnd::TimedOut(_)) => {
                let (error, text) = broken.into_error();
                let finished = Finished::broken(error, context.doubted(&text));
                Box::pin(self.conclude(context, finished)).await
            }
        }
    }

    /// Creates the context of an attempt under `grant`.
    pub(super) fn context(
        &self,
        command: &Arc<ResolvedCommand>,
        grant: Grant,
        place: Place,
    ) -> Context {
        Context::new(command, grant, Cancellation::within(&self.closing), place)
    }

    /// Renews the lease of an attempt until the returned beat is dropped.
    pub(super) fn keep_alive(&self, context: &Context) -> Beat {
        let (grant, lease) = (context.grant(), context.command().policy.lease);
        let lost = context.cancellation().clone();
        self.heartbeat.start(grant.lease, lease, grant.since, lost)
    }
}

/// The error that is recorded for an attempt that a shutdown stopped.
pub(super) const ABORTED: &str = "the attempt was stopped by a shutdown";
