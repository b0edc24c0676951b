//! What becomes of a claim when its work has ended.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use super::begin::Grant;
use super::codec::{Codec, Unencodable};
use super::command::Order;
use super::execution::{Error, Execution, Receipt};
use super::run::{failpoint, words};
use super::settle::{Ended, failure};
use super::{Context, Inner};
use crate::clock::monotonic;
use crate::judge::{Verdict, judge};
use crate::measure;
use crate::outcome::{ErrorText, Outcome, Recorded};
use crate::policy::OnCrash;
use crate::record::Record;
use crate::store::{Settlement, Store};

impl<S: Store> Inner<S> {
    pub(super) async fn succeed<C: Codec<T>, T, E>(
        &self,
        order: &Order,
        grant: &Grant,
        context: &Context,
        value: T,
    ) -> Result<Execution<T>, Error<E>> {
        let (outcome, value) = encoded::<C, T>(order, context, value);
        let settlement = Settlement::Succeeded { outcome, keep: order.policy.keep };
        let as_of = monotonic();
        failpoint("settle.before");
        let ended = self.settle(order, &grant.lease, &settlement, order.policy.lease).await;
        failpoint("settle.after");
        match ended {
            Ended::Recorded => {
                let receipt = self.share(order, grant, settlement, as_of);
                executed(value, receipt)
            }
            Ended::Lost => Box::pin(self.after_loss::<C, T, E>(order, Error::ClaimLost)).await,
            Ended::Unrecorded(error) => {
                tracing::error!(key = ?order.key, %error, "the work ran, but its answer is not recorded");
                measure::unrecorded();
                executed(value, receipt(grant, false))
            }
        }
    }

    /// After an settlement was recorded: remembers its answer here, then wakes whoever waits for it.
    pub(super) fn share(
        &self,
        order: &Order,
        grant: &Grant,
        settlement: Settlement,
        as_of: Instant,
    ) -> Receipt {
        let receipt = receipt(grant, true);
        // Where asking the store costs as little as remembering, only what is asked for is remembered.
        if let Settlement::Succeeded { outcome: Recorded::Whole(outcome), keep } = settlement
            && !self.store.is_near()
        {
            let age = (as_of, keep);
            self.replays.insert(&order.key, grant.fingerprint, &outcome, receipt, age);
        }
        self.moved(&order.key);
        receipt
    }

    pub(super) async fn fail<C: Codec<T>, T, E>(
        &self,
        order: &Order,
        grant: &Grant,
        settlement: Settlement,
        error: Error<E>,
    ) -> Result<Execution<T>, Error<E>> {
        failpoint("fail.before");
        match self.settle(order, &grant.lease, &settlement, order.policy.lease).await {
            Ended::Recorded => {
                self.moved(&order.key);
                Err(error)
            }
            Ended::Lost => self.after_loss::<C, T, E>(order, error).await,
            Ended::Unrecorded(cause) => {
                tracing::warn!(key = ?order.key, %cause, "a failure could not be recorded");
                measure::unrecorded();
                Err(error)
            }
        }
    }

    /// The claim was lost while the work ran: whoever has it now may have the answer.
    pub(super) async fn after_loss<C: Codec<T>, T, E>(
        &self,
        order: &Order,
        otherwise: Error<E>,
    ) -> Result<Execution<T>, Error<E>> {
        measure::lease_lost();
        let as_of = monotonic();
        let Ok(Some(found)) = self.store.peek(&order.key).await else {
            return Err(otherwise);
        };
        let mut verdict = judge(Some(&found.record), &order.request(), found.now);
        if let Verdict::Redate { then } = verdict {
            verdict = *then;
        }
        match verdict {
            verdict @ (Verdict::Completed { .. } | Verdict::Running { .. }) => self
                .answer::<C, T>(order, verdict, Some(Box::new(found.record)), as_of, None)
                .map_err(Error::widen),
            Verdict::Granted(_)
            | Verdict::Bury { .. }
            | Verdict::Suspend { .. }
            | Verdict::Redate { .. }
            | Verdict::Mismatch
            | Verdict::Backoff { .. }
            | Verdict::FailedFinal { .. }
            | Verdict::Dead { .. }
            | Verdict::Uncertain { .. } => Err(otherwise),
        }
    }

    /// The work broke off: it panicked, took too long, or could not be committed. It may have had
    /// effects: where a crash must not be re-run blindly, neither must this.
    pub(super) async fn broke_off<C: Codec<T>, T, E>(
        &self,
        order: &Order,
        grant: &Grant,
        text: &str,
        error: Error<E>,
    ) -> Result<Execution<T>, Error<E>> {
        match order.policy.on_crash {
            OnCrash::Rerun => {
                let settlement = failure(order, grant.attempt, text);
                self.fail::<C, T, E>(order, grant, settlement, error).await
            }
            OnCrash::Hold | OnCrash::Verify => {
                self.interrupted(order, grant, text).await;
                Err(error)
            }
        }
    }

    /// Ends the claim of work that broke off. What it did so far is unknown, so the operation keeps its
    /// id, and a policy that asks for care gets it.
    pub(super) async fn interrupted(&self, order: &Order, grant: &Grant, text: &str) {
        let error = ErrorText::new(text);
        let settlement = match order.policy.on_crash {
            OnCrash::Rerun => {
                let keep = order.keep_unfinished();
                Settlement::Failed { error, retry_after: Some(Duration::ZERO), keep }
            }
            OnCrash::Hold => Settlement::Uncertain { error },
            // The lease lapses, and the next caller asks its verifier.
            OnCrash::Verify => return,
        };
        let _ = self.settle(order, &grant.lease, &settlement, Duration::from_secs(2)).await;
        self.moved(&order.key);
    }

    /// Gives back a claim under which nothing ran.
    pub(super) async fn give_back(&self, order: &Order, grant: &Grant) {
        if let Some(settlement) = grant.untouched(order.keep_unfinished()) {
            let _ = self.settle(order, &grant.lease, &settlement, Duration::from_secs(2)).await;
            self.moved(&order.key);
        }
    }

    /// The lease was over, or about to be, before the work could start: it does not start.
    pub(super) async fn too_late<C: Codec<T>, T, E>(
        &self,
        order: &Order,
        grant: &Grant,
    ) -> Result<Execution<T>, Error<E>> {
        self.give_back(order, grant).await;
        if self.closing.is_cancelled() {
            return Err(Error::Closed);
        }
        self.after_loss::<C, T, E>(order, Error::ClaimLost).await
    }
}

/// What is recorded of a result, and the result itself; what it says if encoding it panicked.
fn encoded<C: Codec<T>, T>(
    order: &Order,
    context: &Context,
    value: T,
) -> (Recorded, Result<T, String>) {
    let max = order.policy.max_outcome;
    // The work ran: whatever is wrong with its result, it must not run again.
    match std::panic::catch_unwind(AssertUnwindSafe(|| C::encode(value))) {
        Ok(Ok((Recorded::Whole(outcome), value))) => match with_reference(outcome, context) {
            whole if whole.size() <= max => (Recorded::Whole(whole), Ok(value)),
            large => (Recorded::Omitted { bytes: large.size() as u64 }, Ok(value)),
        },
        Ok(Ok((omitted @ Recorded::Omitted { .. }, value))) => (omitted, Ok(value)),
        Ok(Err(Unencodable { value, reason })) => {
            tracing::error!(key = ?order.key, reason, "a result cannot be stored or replayed");
            (Recorded::Omitted { bytes: 0 }, Ok(value))
        }
        Err(panic) => (Recorded::Omitted { bytes: 0 }, Err(words(panic.as_ref()))),
    }
}

fn executed<T, E>(value: Result<T, String>, receipt: Receipt) -> Result<Execution<T>, Error<E>> {
    match value {
        Ok(value) => Ok(Execution::Executed { value, receipt }),
        Err(panic) => Err(Error::Encode { reason: format!("it panicked: {panic}") }),
    }
}

pub(super) fn with_reference(outcome: Outcome, context: &Context) -> Outcome {
    match context.take_reference() {
        Some(reference) => outcome.with_reference(reference),
        None => outcome,
    }
}

pub(super) fn receipt(grant: &Grant, recorded: bool) -> Receipt {
    let Grant { operation_id, attempt, lease, .. } = *grant;
    Receipt { operation_id, attempt, fence: lease.fence, recorded }
}

pub(super) fn receipt_of(record: &Record) -> Receipt {
    let Record { operation_id, attempt, fence, .. } = *record;
    Receipt { operation_id, attempt, fence, recorded: true }
}
