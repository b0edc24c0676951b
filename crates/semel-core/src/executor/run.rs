//! Running work under a claim, and what to tell the caller.
//!
//! From the first byte sent to the store the attempt is nobody's to cancel: a caller who leaves, a
//! timeout above us or a closed connection neither ends it nor strands its claim.

use std::any::Any;
use std::fmt::Display;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::begin::{Begun, Grant};
use super::carried::Carried;
use super::codec::Codec;
use super::command::Order;
use super::execution::{Error, Execution, label};
use super::finish::receipt_of;
use super::serve::Fault;
use super::settle::{doubted, failed};
use super::stop::Stop;
use super::supervise::Ran;
use super::wait::Waiting;
use super::{Context, Inner};
use crate::clock::monotonic;
use crate::judge::Verdict;
use crate::key::Key;
use crate::measure;
use crate::outcome::Recorded;
use crate::policy::{OnFailure, Wait};
use crate::record::{Record, State};
use crate::store::{self, Peeked, Store};

/// What one attempt came to. Work that did not run comes back.
pub(super) enum Attempted<W, T, E> {
    Finished(Result<Execution<T>, Error<E>>),
    /// The store could not be asked; nothing ran.
    Unasked(store::Error),
    Answered {
        verdict: Verdict,
        record: Option<Box<Record>>,
        as_of: Instant,
        work: W,
    },
}

impl<S: Store> Inner<S> {
    /// Attempts until there is an answer or the wait is over.
    pub(super) async fn drive<C, W, T, E, A, Fut>(
        self: &Arc<Self>,
        order: Arc<Order>,
        mut work: W,
        attempt: A,
    ) -> Result<Execution<T>, Error<E>>
    where
        C: Codec<T>,
        A: Fn(Arc<Self>, Arc<Order>, W) -> Fut,
        Fut: Future<Output = Attempted<W, T, E>> + Send + 'static,
        W: Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        let kind = order.key.kind();
        let mut waiting = Waiting::new(self, &order);
        let mut met = false;
        let result = loop {
            if let Some(answer) = self.replay::<C, T>(&order) {
                break answer.map_err(Error::widen);
            }
            if self.closing.is_cancelled() {
                break Err(Error::Closed);
            }
            let task = attempt(Arc::clone(self), Arc::clone(&order), work);
            let (verdict, record, as_of) = match Carried::new(&self.attempts, &order, task).await {
                Ok(Attempted::Finished(result)) => break result,
                // The store went away while this call waited: somebody was at it when it was last
                // seen, and that is all that is known.
                Ok(Attempted::Unasked(_)) if met => {
                    let verdict = Verdict::Running { lease_remaining: None };
                    let waited = Some(waiting.since.elapsed());
                    break self
                        .answer::<C, T>(&order, verdict, None, monotonic(), waited)
                        .map_err(Error::widen);
                }
                Ok(Attempted::Unasked(error)) => break Err(error.into()),
                Ok(Attempted::Answered { verdict, record, as_of, work: unused }) => {
                    work = unused;
                    (verdict, record, as_of)
                }
                Err(ended) => break Err(ended.widen()),
            };
            let running = matches!(verdict, Verdict::Running { .. });
            // Boxed, because most calls never wait, and each would keep room for it.
            if running && Box::pin(waiting.again(self, &order)).await {
                match Box::pin(waiting.reported(self, &order, &verdict)).await {
                    Some(failed) => break Err(failed.widen()),
                    None => {
                        met = true;
                        continue;
                    }
                }
            }
            let waited = running.then(|| waiting.since.elapsed());
            break self
                .answer::<C, T>(&order, verdict, record, as_of, waited)
                .map_err(Error::widen);
        };
        measure::executed(kind, label(&result));
        result
    }

    /// Answers from this process's memory, where it has the answer.
    fn replay<C: Codec<T>, T>(&self, order: &Order) -> Option<Result<Execution<T>, Error>> {
        let replay = self.replays.get(&order.key)?;
        if !replay.fingerprint.accepts(&order.fingerprint) {
            return Some(Err(Error::Mismatch));
        }
        Some(match C::decode(&replay.outcome) {
            Ok(value) => Ok(Execution::Replayed { value, receipt: replay.receipt }),
            Err(reason) => Err(Error::Decode { reason }),
        })
    }

    /// Keeps a settled record's answer for repeats in this process.
    pub(super) fn remember(&self, key: &Key, found: &Peeked, as_of: Instant) {
        let Peeked { record, now } = found;
        if let (State::Succeeded, Some(Recorded::Whole(outcome)), Some(left)) =
            (record.state, &record.outcome, record.expires_at.and_then(|at| at.remaining(*now)))
        {
            let receipt = receipt_of(record);
            self.replays.insert(key, record.fingerprint, outcome, receipt, (as_of, left));
        }
    }

    /// What a verdict other than a grant means for the caller. A recorded answer is remembered: the
    /// record must have been read outside transactions, or in one that had written nothing yet.
    pub(super) fn answer<C: Codec<T>, T>(
        &self,
        order: &Order,
        verdict: Verdict,
        record: Option<Box<Record>>,
        as_of: Instant,
        waited: Option<Duration>,
    ) -> Result<Execution<T>, Error> {
        if let Verdict::Completed { outcome: Recorded::Whole(outcome), fresh_for } = &verdict
            && let Some(record) = &record
        {
            let (fingerprint, receipt) = (record.fingerprint, receipt_of(record));
            let age = (as_of, *fresh_for);
            self.replays.insert(&order.key, fingerprint, outcome, receipt, age);
        }
        told::<C, T>(order, verdict, record, waited)
    }

    /// One attempt of fenced work: claim, run, settle.
    pub(super) async fn attempt<C, T, E, F, Fut>(
        self: Arc<Self>,
        order: Arc<Order>,
        work: F,
    ) -> Attempted<F, T, E>
    where
        C: Codec<T>,
        F: FnOnce(Context) -> Fut + Send,
        Fut: Future<Output = Result<T, E>> + Send,
        E: Fault,
    {
        failpoint("begin.before");
        let begun = match self.begin(&order).await {
            Ok(begun) => begun,
            Err(error) => return Attempted::Unasked(error),
        };
        failpoint("begin.after");
        match begun {
            Begun::Answered { verdict, record, as_of } => {
                Attempted::Answered { verdict, record, as_of, work }
            }
            Begun::Granted(grant) => {
                Attempted::Finished(self.perform::<C, T, E, F, Fut>(&order, &grant, work).await)
            }
        }
    }

    /// What does not end well is boxed: an attempt keeps room for the largest of its ends.
    async fn perform<C, T, E, F, Fut>(
        &self,
        order: &Order,
        grant: &Grant,
        work: F,
    ) -> Result<Execution<T>, Error<E>>
    where
        C: Codec<T>,
        F: FnOnce(Context) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: Fault,
    {
        let context = self.context(order, grant, true);
        let beat = self.keep_alive(order, grant, &context);
        if grant.verify
            && let Some(answer) = Box::pin(self.verify::<C, T>(order, grant, &context)).await
        {
            return answer.map_err(Error::widen);
        }
        if !beat.holds() {
            return Box::pin(self.too_late::<C, T, E>(order, grant)).await;
        }
        let limit = order.policy.work_timeout;
        let ran =
            self.supervise(order, &context, limit, async { work(context.clone()).await }).await;
        failpoint("work.after");
        match ran {
            Ran::Finished(Ok(value)) => {
                self.succeed::<C, T, E>(order, grant, &context, value).await
            }
            Ran::Finished(Err(error)) => {
                if let Some(text) = doubted(order, &error) {
                    Box::pin(self.interrupted(order, grant, &text)).await;
                    return Err(Error::Work(error));
                }
                let settlement = failed(order, grant, &error);
                Box::pin(self.fail::<C, T, E>(order, grant, settlement, Error::Work(error))).await
            }
            Ran::Panicked(message) => {
                let text = format!("the work panicked: {message}");
                let error = Error::Panicked { message };
                Box::pin(self.broke_off::<C, T, E>(order, grant, &text, error)).await
            }
            Ran::TimedOut(limit) => {
                let text = format!("the work took longer than {limit:?} and was cancelled");
                let error = Error::WorkTimeout { limit };
                Box::pin(self.broke_off::<C, T, E>(order, grant, &text, error)).await
            }
            Ran::Aborted => {
                let why = "the attempt was stopped by a shutdown";
                Box::pin(self.interrupted(order, grant, why)).await;
                Err(Error::Closed)
            }
        }
    }

    /// What the work will know.
    pub(super) fn context(&self, order: &Order, grant: &Grant, committed: bool) -> Context {
        Context {
            durable: committed && order.policy.on_failure != OnFailure::Release,
            key: order.key.clone(),
            operation_id: grant.operation_id,
            attempt: grant.attempt,
            fence: grant.lease.fence,
            origin: grant.origin,
            cancelled: Stop::within(&self.closing),
            notes: Arc::default(),
        }
    }

    pub(super) fn keep_alive(
        &self,
        order: &Order,
        grant: &Grant,
        context: &Context,
    ) -> super::heartbeat::Beat {
        let (length, lost) = (order.policy.lease, context.cancelled.clone());
        self.heartbeat.start(grant.lease, length, grant.since, lost)
    }
}

/// What a verdict other than a grant means for the caller. Nothing is remembered.
pub(super) fn told<C: Codec<T>, T>(
    order: &Order,
    verdict: Verdict,
    record: Option<Box<Record>>,
    waited: Option<Duration>,
) -> Result<Execution<T>, Error> {
    match verdict {
        Verdict::Completed { outcome: Recorded::Omitted { bytes }, .. } => {
            Err(Error::ResultUnavailable { bytes })
        }
        Verdict::Completed { outcome: Recorded::Whole(outcome), .. } => {
            let record = record.expect("a completed verdict was given on a record");
            let receipt = receipt_of(&record);
            let value = C::decode(&outcome).map_err(|reason| Error::Decode { reason })?;
            Ok(Execution::Replayed { value, receipt })
        }
        Verdict::Running { lease_remaining } => match (order.policy.wait, waited) {
            (Wait::Deadline(_), Some(waited)) => Err(Error::WaitTimeout { waited }),
            _ => Ok(Execution::InProgress {
                operation_id: record.map(|record| record.operation_id),
                lease_remaining,
            }),
        },
        Verdict::Mismatch => Err(Error::Mismatch),
        Verdict::Backoff { retry_after, attempt, error } => {
            Err(Error::Backoff { retry_after, attempt, error })
        }
        Verdict::FailedFinal { error } => Err(Error::FailedFinal { error }),
        Verdict::Dead { error } | Verdict::Bury { error } => Err(Error::Dead { error }),
        Verdict::Uncertain { error } | Verdict::Suspend { error } => {
            Err(Error::Uncertain { error })
        }
        // What is written and lost is asked for again.
        Verdict::Granted(_) | Verdict::Redate { .. } => Err(Error::ClaimLost),
    }
}

/// What an error says, whatever its `Display` does: a claim must be settled even so.
pub(super) fn shown(error: &impl Display) -> String {
    std::panic::catch_unwind(AssertUnwindSafe(|| error.to_string()))
        .unwrap_or_else(|_| "the work failed with an error that cannot be shown".to_owned())
}

pub(super) fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a value that is not text".to_owned())
}

/// A point where crash tests end the process.
pub(crate) fn failpoint(name: &str) {
    #[cfg(feature = "testing")]
    crate::testing::failpoint(name);
    let _ = name;
}
