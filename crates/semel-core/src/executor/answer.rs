//! Answers calls: with the work's own answer, a recorded outcome, or an error.

use std::time::{Duration, Instant};

use super::Inner;
use super::claim::Decision;
use super::command::ResolvedCommand;
use super::context::Context;
use super::execution::{Error, Receipt, Served};
use super::grant::Grant;
use super::settle::Written;
use super::settlement::Finished;
use crate::clock::monotonic;
use crate::judge::{Verdict, judge};
use crate::key::Key;
use crate::measure;
use crate::outcome::Recorded;
use crate::policy::Wait;
use crate::record::{Record, State};
use crate::store::{Peeked, Settlement, Store};

impl<S: Store> Inner<S> {
    /// Answers from the local replay cache; `None` if the outcome is not cached.
    pub(super) fn replay<A>(&self, command: &ResolvedCommand) -> Option<Result<Served<A>, Error>> {
        let replay = self.replays.get(&command.key)?;
        if !replay.fingerprint.accepts(&command.fingerprint) {
            return Some(Err(Error::Mismatch));
        }
        Some(Ok(Served::Replayed { outcome: replay.outcome, receipt: replay.receipt }))
    }

    /// Records how the work ended, and answers its caller.
    pub(super) async fn conclude<A>(
        &self,
        context: &Context,
        finished: Finished<A>,
    ) -> Result<Served<A>, Error> {
        let Finished { answer, settlement, .. } = finished;
        let Some(settlement) = settlement else {
            return Ok(Served::Executed { answer: answer?, receipt: None });
        };
        let (command, grant) = (context.command(), context.grant());
        let succeeded = matches!(settlement, Settlement::Succeeded { .. });
        let as_of = monotonic();
        failpoint!(if succeeded { "settle.before" } else { "fail.before" });
        let written = self.settle(command, &grant.lease, &settlement, command.policy.lease).await;
        failpoint!("settle.after");
        let receipt = match written {
            Written::Recorded => self.share(command, grant, settlement, as_of),
            Written::Lost => {
                let otherwise = if succeeded { Err(Error::ClaimLost) } else { answer };
                return Box::pin(self.after_loss(command, otherwise)).await;
            }
            Written::Unrecorded(error) => {
                if succeeded {
                    tracing::error!(key = ?command.key, %error, "the work ran, but its outcome could not be recorded; the crash policy decides when the lease ends");
                } else {
                    tracing::warn!(key = ?command.key, cause = %error, "a failure could not be recorded; the crash policy decides when the lease ends");
                }
                measure::unrecorded();
                receipt(grant, false)
            }
        };
        Ok(Served::Executed { answer: answer?, receipt: succeeded.then_some(receipt) })
    }

    /// Writes a settlement, retrying for 2 s at most, and ignores whether it was recorded.
    pub(super) async fn settle_quickly(&self, context: &Context, settlement: Option<Settlement>) {
        let Some(settlement) = settlement else { return };
        let (command, patience) = (context.command(), Duration::from_secs(2));
        let _ = self.settle(command, &context.grant().lease, &settlement, patience).await;
        self.announce(&command.key);
    }

    /// Caches the outcome of a settlement that was recorded, and wakes the calls that wait for the
    /// key.
    pub(super) fn share(
        &self,
        command: &ResolvedCommand,
        grant: &Grant,
        settlement: Settlement,
        as_of: Instant,
    ) -> Receipt {
        let receipt = receipt(grant, true);
        // Where reading the store is as cheap as reading the cache, an outcome is cached only when
        // a repeat asks for it.
        if let Settlement::Succeeded { outcome: Recorded::Whole(outcome), keep } = settlement
            && !self.store.is_in_process()
        {
            let age = (as_of, keep);
            self.replays.insert(&command.key, grant.fingerprint, &outcome, receipt, age);
        }
        self.announce(&command.key);
        receipt
    }

    /// Caches the outcome of a settled record for repeats in this process.
    pub(super) fn remember(&self, key: &Key, found: &Peeked, as_of: Instant) {
        let Peeked { record, now } = found;
        if let (State::Succeeded, Some(Recorded::Whole(outcome)), Some(left)) =
            (record.state, &record.outcome, record.expires_at.and_then(|at| at.remaining(*now)))
        {
            let receipt = receipt_of(record);
            self.replays.insert(key, record.fingerprint, outcome, receipt, (as_of, left));
        }
    }

    /// Answers a call with a decision, and caches the outcome if one is recorded. The record must
    /// have been read outside transactions, or in a transaction that had written nothing yet.
    pub(super) fn answer<A>(
        &self,
        command: &ResolvedCommand,
        decision: Decision,
        waited: Option<Duration>,
    ) -> Result<Served<A>, Error> {
        if let Verdict::Completed { outcome: Recorded::Whole(outcome), fresh_for } =
            &decision.verdict
            && let Some(record) = &decision.record
        {
            let (fingerprint, receipt) = (record.fingerprint, receipt_of(record));
            let age = (decision.as_of, *fresh_for);
            self.replays.insert(&command.key, fingerprint, outcome, receipt, age);
        }
        answer(command, decision, waited)
    }

    /// Answers a call whose claim was lost while the work ran: with the state of the new holder if
    /// it has an outcome or still runs, else with `otherwise`.
    pub(super) async fn after_loss<A>(
        &self,
        command: &ResolvedCommand,
        otherwise: Result<A, Error>,
    ) -> Result<Served<A>, Error> {
        measure::lease_lost();
        let as_of = monotonic();
        if let Ok(Some(found)) = self.store.peek(&command.key).await {
            let mut verdict = judge(Some(&found.record), &command.request(), found.now);
            if let Verdict::Redate { then } = verdict {
                verdict = *then;
            }
            if matches!(verdict, Verdict::Completed { .. } | Verdict::Running { .. }) {
                let record = Some(Box::new(found.record));
                return self.answer(command, Decision { verdict, record, as_of }, None);
            }
        }
        Ok(Served::Executed { answer: otherwise?, receipt: None })
    }

    /// Answers a call whose lease ended, or was about to end, before the work could start. The work
    /// does not start.
    pub(super) async fn too_late<A>(&self, context: &Context) -> Result<Served<A>, Error> {
        self.settle_quickly(context, context.untouched()).await;
        if self.closing.is_cancelled() {
            return Err(Error::Closed);
        }
        self.after_loss(context.command(), Err(Error::ClaimLost)).await
    }
}

/// Answers a call with a decision, without caching.
pub(super) fn answer<A>(
    command: &ResolvedCommand,
    decision: Decision,
    waited: Option<Duration>,
) -> Result<Served<A>, Error> {
    let Decision { verdict, record, .. } = decision;
    match verdict {
        Verdict::Completed { outcome: Recorded::Omitted { bytes }, .. } => {
            Err(Error::ResultUnavailable { bytes })
        }
        Verdict::Completed { outcome: Recorded::Whole(outcome), .. } => {
            let record = record.expect("a completed verdict was given on a record");
            Ok(Served::Replayed { outcome, receipt: receipt_of(&record) })
        }
        Verdict::Running { lease_remaining } => match (command.policy.wait, waited) {
            (Wait::Deadline(_), Some(waited)) => Err(Error::WaitTimeout { waited }),
            _ => Ok(Served::InProgress {
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
        // The verdict required a write, and another caller wrote the record first.
        Verdict::Granted(_) | Verdict::Redate { .. } => Err(Error::ClaimLost),
    }
}

pub(super) fn receipt(grant: &Grant, recorded: bool) -> Receipt {
    let Grant { operation_id, attempt, lease, .. } = *grant;
    Receipt { operation_id, attempt, fence: lease.fence, recorded }
}

fn receipt_of(record: &Record) -> Receipt {
    let Record { operation_id, attempt, fence, .. } = *record;
    Receipt { operation_id, attempt, fence, recorded: true }
}
