//! Settlement a claim: once, under its fence, whatever the network does.

use std::time::Duration;

use super::Inner;
use super::begin::{Grant, pause};
use super::command::Order;
use super::serve::{End, Fault};
use crate::claim::{Lease, Origin};
use crate::clock::monotonic;
use crate::judge::exceeded;
use crate::key::Key;
use crate::measure;
use crate::outcome::ErrorText;
use crate::policy::{OnCrash, OnFailure};
use crate::record::State;
use crate::store::{Error, ErrorKind, Peeked, Settled, Settlement, Store};

/// What came of an settlement.
pub(super) enum Ended {
    /// The ledger has it.
    Recorded,
    /// The claim was somebody else's by then.
    Lost,
    /// The store did not take it before the lease ended.
    Unrecorded(Error),
}

impl<S: Store> Inner<S> {
    /// Writes the settlement of a claim. Retries until a lease's length has passed: the heartbeat keeps
    /// the claim alive meanwhile, and after that the crash policy decides.
    pub(super) async fn settle(
        &self,
        order: &Order,
        lease: &Lease,
        settlement: &Settlement,
        patience: Duration,
    ) -> Ended {
        let since = monotonic();
        let (mut doubt, mut counted) = (false, false);
        let mut wait = Duration::from_millis(10);
        loop {
            match self.store.settle(lease, settlement).await {
                Ok(Settled::Done) => return Ended::Recorded,
                Ok(Settled::Lost) if !doubt => return Ended::Lost,
                // An earlier try may have been the one that ended it.
                Ok(Settled::Lost) => match self.store.peek(&order.key).await {
                    Ok(found) if is_ours(found.as_ref(), lease, settlement) => {
                        return Ended::Recorded;
                    }
                    Ok(_) => return Ended::Lost,
                    Err(error) if error.kind() == ErrorKind::Corrupt => {
                        return Ended::Unrecorded(error);
                    }
                    Err(_) => {}
                },
                Err(error) => {
                    // One trouble, however often it is tried.
                    if !std::mem::replace(&mut counted, true) {
                        measure::store_failed(&error);
                    }
                    // The work ran: only a record that cannot be read is beyond another try.
                    if error.kind() == ErrorKind::Corrupt || since.elapsed() >= patience {
                        return Ended::Unrecorded(error);
                    }
                    doubt |= error.kind() == ErrorKind::Ambiguous;
                    #[cfg(feature = "testing")]
                    if crate::testing::sabotaged(crate::testing::Guard::Ambiguity) {
                        doubt = false;
                    }
                }
            }
            if since.elapsed() >= patience {
                let unclear = "the reply was lost and the record could not be read again";
                return Ended::Unrecorded(Error::new(ErrorKind::Ambiguous, "settle", unclear));
            }
            order.go_apart();
            pause(wait).await;
            wait = (wait * 2).min(Duration::from_millis(500));
        }
    }

    /// Wakes everybody who waits for this key, here and elsewhere.
    pub(super) fn moved(&self, key: &Key) {
        self.waiters.wake(key.digest().hint());
        self.store.announce(key.digest().hint());
    }
}

/// Whether what is stored is the very settlement we wrote. Rivals and operators who end a lapsed claim
/// leave its attempt id in place, so that alone proves nothing.
fn is_ours(found: Option<&Peeked>, lease: &Lease, settlement: &Settlement) -> bool {
    let Some(Peeked { record, .. }) = found else { return *settlement == Settlement::Removed };
    if record.attempt_id != lease.attempt_id {
        return false;
    }
    match settlement {
        Settlement::Succeeded { outcome, .. } => {
            record.state == State::Succeeded && record.outcome.as_ref() == Some(outcome)
        }
        Settlement::Failed { error, .. } => {
            record.state == State::Failed && record.error.as_ref() == Some(error)
        }
        Settlement::Dead { error } => {
            record.state == State::Dead && record.error.as_ref() == Some(error)
        }
        Settlement::Uncertain { error } => {
            record.state == State::Uncertain && record.error.as_ref() == Some(error)
        }
        Settlement::Discarded { error } => {
            record.state == State::Discarded && record.error.as_ref() == Some(error)
        }
        Settlement::Removed => false,
    }
}

/// What to say of work that may have had its effect, where a crash must not be re-run blindly: neither
/// must this.
pub(super) fn doubted(order: &Order, fault: &impl Fault) -> Option<String> {
    if order.policy.on_crash == OnCrash::Rerun {
        return None;
    }
    match fault.end() {
        End::Doubt(text) => Some(text),
        End::Fail(_) | End::Bury(_) | End::Release { .. } | End::Refuse(_) => None,
    }
}

/// What work without a result leaves behind.
pub(super) fn failed(order: &Order, grant: &Grant, fault: &impl Fault) -> Settlement {
    match fault.end() {
        End::Fail(text) | End::Doubt(text) => failure(order, grant.attempt, &text),
        End::Bury(text) => Settlement::Dead { error: ErrorText::new(&text) },
        End::Refuse(outcome) => {
            let outcome = outcome.within(order.policy.max_outcome);
            Settlement::Succeeded { outcome, keep: order.policy.keep }
        }
        End::Release { forgotten } => match grant.origin {
            Origin::Fresh if forgotten => Settlement::Removed,
            // An attempt may have had effects: its operation id and count must survive.
            Origin::Fresh | Origin::AfterFailure | Origin::Takeover => Settlement::Failed {
                error: ErrorText::new("refused, and the claim was given back"),
                retry_after: Some(Duration::ZERO),
                keep: order.keep_unfinished(),
            },
        },
    }
}

/// What a failure leaves behind, by the order's policy.
pub(super) fn failure(order: &Order, attempt: u32, error: &str) -> Settlement {
    let error = ErrorText::new(error);
    let policy = &order.policy;
    if let Some(max) = policy.max_attempts.filter(|max| attempt >= *max) {
        return Settlement::Dead { error: exceeded(max, &error) };
    }
    match policy.on_failure {
        OnFailure::Release => Settlement::Removed,
        // Never tried again: it is the answer, and goes as answers do.
        OnFailure::Keep => Settlement::Failed { error, retry_after: None, keep: policy.keep },
        OnFailure::Retry | OnFailure::Backoff { .. } => Settlement::Failed {
            error,
            retry_after: policy.on_failure.delay(attempt),
            keep: order.keep_unfinished(),
        },
    }
}
