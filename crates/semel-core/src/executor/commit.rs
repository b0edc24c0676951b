//! The last step of a transaction: commit, find out whether a commit took place, or record a
//! failure after the rollback.

use std::time::{Duration, Instant};

use super::begin::{Begun, Grant, pause};
use super::codec::Codec;
use super::command::Order;
use super::execution::{Error, Execution};
use super::run::failpoint;
use super::serve::{End, Fault};
use super::settle::{Ended, doubted, failed};
use super::{Context, Inner};
use crate::clock::monotonic;
use crate::judge::Verdict;
use crate::outcome::ErrorText;
use crate::policy::OnCrash;
use crate::record::{Record, State};
use crate::store::{self, ErrorKind, Renewed, Renewer as _, Settlement, TransactionalStore};

/// How long a commit whose reply was lost is looked into.
const DOUBT: Duration = Duration::from_secs(10);

/// Where the work of a transaction stands.
pub(super) enum Worked<S: TransactionalStore, T, E> {
    /// The outcome is in the transaction; only the commit is missing.
    Ready { value: T, settlement: Settlement, transaction: S::Transaction },
    /// Rolled back.
    Failed(Failure<E>),
}

/// Why nothing is committed.
pub(super) enum Failure<E> {
    Work(E),
    Panicked(String),
    TimedOut(Duration),
    Escaped,
    /// An append failed or was cut off, and the work went on.
    HalfTold,
    Aborted,
    Lost,
    Result(Error),
    Store(store::Error),
}

impl<E: Fault> Failure<E> {
    /// What the failure is recorded as. `None` where there is nothing to record: nothing ran to its
    /// end, the store is the one in trouble, or the escaped unit still holds what recording needs.
    pub(super) fn blame(&self, order: &Order, grant: &Grant) -> Option<Settlement> {
        match self {
            Failure::Work(_) | Failure::Panicked(_) | Failure::TimedOut(_) | Failure::HalfTold => {
                Some(failed(order, grant, self))
            }
            // The work left its transaction in a state that cannot be committed, and said that all
            // is well. An event must be counted for that, or it comes again for ever.
            Failure::Store(error) if order.retry_payload.is_some() && !is_away(error) => {
                Some(failed(order, grant, self))
            }
            Failure::Escaped
            | Failure::Aborted
            | Failure::Lost
            | Failure::Result(_)
            | Failure::Store(_) => None,
        }
    }
}

impl<E: Fault> Fault for Failure<E> {
    /// Doubt, unless the work itself says that it failed: what it wrote here is rolled back, what it did
    /// elsewhere is not.
    fn end(&self) -> End {
        End::Doubt(match self {
            Failure::Work(error) => return error.end(),
            Failure::Panicked(message) => format!("the work panicked: {message}"),
            Failure::TimedOut(limit) => {
                format!("the work took longer than {limit:?} and was cancelled")
            }
            Failure::Escaped => "the transaction's unit escaped the work".to_owned(),
            Failure::HalfTold => HALF_TOLD.to_owned(),
            Failure::Aborted => "the attempt was stopped by a shutdown".to_owned(),
            Failure::Lost => "the claim was lost".to_owned(),
            Failure::Result(error) => error.to_string(),
            Failure::Store(error) => error.to_string(),
        })
    }
}

const HALF_TOLD: &str =
    "an append failed or was cut off, so nothing is committed; hand its error on";

/// Whether the store, rather than what was done in it, is in trouble.
fn is_away(error: &store::Error) -> bool {
    match error.kind() {
        ErrorKind::Unavailable
        | ErrorKind::Ambiguous
        | ErrorKind::Capacity
        | ErrorKind::RetryTransaction => true,
        ErrorKind::Misconfigured | ErrorKind::Corrupt => false,
    }
}

impl<E> From<Failure<E>> for Error<E> {
    fn from(failure: Failure<E>) -> Self {
        match failure {
            Failure::Work(error) => Error::Work(error),
            Failure::Panicked(message) => Error::Panicked { message },
            Failure::TimedOut(limit) => Error::WorkTimeout { limit },
            Failure::Escaped => Error::Escaped,
            Failure::HalfTold => {
                store::Error::new(ErrorKind::Misconfigured, "append", HALF_TOLD).into()
            }
            Failure::Aborted => Error::Closed,
            Failure::Lost => Error::ClaimLost,
            Failure::Result(error) => error.widen(),
            Failure::Store(error) => error.into(),
        }
    }
}

impl<S: TransactionalStore> Inner<S> {
    /// Commits, or records the failure after the rollback.
    pub(super) async fn finish_one_commit<C: Codec<T>, T, E: Fault>(
        &self,
        order: &Order,
        grant: &Grant,
        context: &Context,
        worked: Worked<S, T, E>,
    ) -> Result<Execution<T>, Error<E>> {
        let (value, settlement, transaction) = match worked {
            Worked::Ready { value, settlement, transaction } => (value, settlement, transaction),
            Worked::Failed(failure) => {
                if let Some(settlement) = failure.blame(order, grant) {
                    let refused = matches!(settlement, Settlement::Succeeded { .. });
                    let raced = self.record_failure(order, grant, settlement).await;
                    // A refusal that somebody's answer came before is not the answer.
                    if let Some((verdict @ Verdict::Completed { .. }, record, as_of)) = raced
                        && refused
                    {
                        let answer = self.answer::<C, T>(order, verdict, record, as_of, None);
                        return answer.map_err(Error::widen);
                    }
                }
                return Err(failure.into());
            }
        };
        let as_of = monotonic();
        failpoint("commit.before");
        if let Err(error) = self.store.commit(transaction).await {
            match self.resolve_commit(order, grant, error).await {
                Ok(true) => {}
                Ok(false) => {
                    let lost = "the connection broke during commit; nothing was committed";
                    return Err(store::Error::new(ErrorKind::Unavailable, "commit", lost).into());
                }
                Err(error) => {
                    // Refused, not lost: a constraint checked at commit fails the work like any
                    // other error. A transaction to be run again has not failed yet.
                    if !matches!(error.kind(), ErrorKind::Ambiguous | ErrorKind::RetryTransaction) {
                        let settlement = failed(order, grant, &error);
                        self.record_failure(order, grant, settlement).await;
                    }
                    return Err(error.into());
                }
            }
        }
        context.committed();
        failpoint("commit.after");
        let receipt = self.share(order, grant, settlement, as_of);
        Ok(Execution::Executed { value, receipt })
    }

    /// Whether a commit whose reply was lost took place.
    ///
    /// A record that carries our attempt says yes. Its absence says nothing while the server may
    /// still be at it: only a claim of the same key, which cannot be granted beside an uncommitted
    /// one, proves that nothing was committed.
    async fn resolve_commit(
        &self,
        order: &Order,
        grant: &Grant,
        error: store::Error,
    ) -> store::Result<bool> {
        crate::measure::store_failed(&error);
        if error.kind() != ErrorKind::Ambiguous {
            return Err(error);
        }
        let since = monotonic();
        while since.elapsed() < DOUBT {
            if let Ok(Some(found)) = self.store.peek(&order.key).await
                && found.record.attempt_id == grant.lease.attempt_id
            {
                return Ok(found.record.state == State::Succeeded);
            }
            if let Ok(mut probe) = self.store.begin().await {
                let begun = self.begin_in(S::connection(&mut probe), order).await;
                self.store.rollback(probe).await;
                match begun {
                    Ok(Begun::Granted(_)) => return Ok(false),
                    // Still at it, or somebody else is: look again.
                    Ok(Begun::Answered { .. }) | Err(_) => {}
                }
            }
            pause(Duration::from_millis(50)).await;
        }
        Err(error)
    }

    /// A failure of one-commit work, recorded after its rollback: a claim of its own, ended at once.
    /// Gives what was there instead, if something was.
    async fn record_failure(
        &self,
        order: &Order,
        grant: &Grant,
        settlement: Settlement,
    ) -> Option<(Verdict, Option<Box<Record>>, Instant)> {
        let fresh = grant.attempt == 1;
        if fresh && settlement == Settlement::Removed {
            self.moved(&order.key);
            return None;
        }
        #[cfg(feature = "testing")]
        if crate::testing::sabotaged(crate::testing::Guard::FailureAfterRollback) {
            return None;
        }
        let mut instead = None;
        // The key is still ours in this process; `begin` would answer that it is in flight.
        match self.begin_again(order, grant).await {
            Ok(Begun::Granted(again)) => {
                let ended = self.settle(order, &again.lease, &settlement, order.policy.lease).await;
                if let Ended::Unrecorded(cause) = ended {
                    tracing::warn!(key = ?order.key, %cause, "a failure could not be recorded");
                    crate::measure::unrecorded();
                }
            }
            Ok(Begun::Answered { verdict, record, as_of }) => {
                instead = Some((verdict, record, as_of));
            }
            Err(cause) => {
                tracing::warn!(key = ?order.key, %cause, "a failure could not be recorded");
                crate::measure::unrecorded();
            }
        }
        self.moved(&order.key);
        instead
    }

    pub(super) async fn finish_claimed<C: Codec<T>, T, E: Fault>(
        &self,
        order: &Order,
        grant: &Grant,
        context: &Context,
        worked: Worked<S, T, E>,
    ) -> Result<Execution<T>, Error<E>> {
        let (value, settlement, transaction) = match worked {
            Worked::Ready { value, settlement, transaction } => (value, settlement, transaction),
            Worked::Failed(Failure::Lost) => {
                return self.after_loss::<C, T, E>(order, Error::ClaimLost).await;
            }
            Worked::Failed(Failure::Aborted) => {
                self.interrupted(order, grant, "the attempt was stopped by a shutdown").await;
                return Err(Error::Closed);
            }
            // As in one-commit work: a transaction to be run again has not failed yet. Nothing was
            // committed, and the claim is free for the next caller.
            Worked::Failed(Failure::Store(error))
                if error.kind() == ErrorKind::RetryTransaction =>
            {
                self.interrupted(order, grant, &error.to_string()).await;
                return Err(error.into());
            }
            Worked::Failed(failure) => {
                if let Some(text) = doubted(order, &failure) {
                    self.interrupted(order, grant, &text).await;
                    return Err(failure.into());
                }
                let settlement = failed(order, grant, &failure);
                return self.fail::<C, T, E>(order, grant, settlement, failure.into()).await;
            }
        };
        let as_of = monotonic();
        failpoint("commit.before");
        if let Err(error) = self.store.commit(transaction).await {
            let text = error.to_string();
            match error.kind() {
                ErrorKind::Ambiguous => {}
                ErrorKind::RetryTransaction => {
                    self.interrupted(order, grant, &text).await;
                    return Err(error.into());
                }
                ErrorKind::Unavailable
                | ErrorKind::Corrupt
                | ErrorKind::Misconfigured
                | ErrorKind::Capacity => {
                    return self.broke_off::<C, T, E>(order, grant, &text, error.into()).await;
                }
            }
            match self.end_uncommitted(order, grant).await {
                Ended::Recorded => {
                    self.moved(&order.key);
                    return Err(error.with_kind(ErrorKind::Unavailable).into());
                }
                Ended::Unrecorded(_) => return Err(error.into()),
                Ended::Lost => {
                    let found = self.store.peek(&order.key).await.ok().flatten();
                    let ours = |found: &store::Peeked| {
                        found.record.attempt_id == grant.lease.attempt_id
                            && found.record.state == State::Succeeded
                    };
                    if !found.as_ref().is_some_and(ours) {
                        return self.after_loss::<C, T, E>(order, Error::ClaimLost).await;
                    }
                }
            }
        }
        context.committed();
        failpoint("commit.after");
        let receipt = self.share(order, grant, settlement, as_of);
        Ok(Execution::Executed { value, receipt })
    }

    /// Ends the claim of a commit in doubt, unless the commit did. Whatever is written to the record
    /// waits for that commit, and finds the claim ended by it or still its own.
    async fn end_uncommitted(&self, order: &Order, grant: &Grant) -> Ended {
        let error = ErrorText::new("the connection broke during commit; nothing was committed");
        let settlement = match order.policy.on_crash {
            OnCrash::Rerun => {
                let keep = order.keep_unfinished();
                Settlement::Failed { error, retry_after: Some(Duration::ZERO), keep }
            }
            OnCrash::Hold => Settlement::Uncertain { error },
            // The claim must stay as it is, to lapse: only whether it is still there is found out.
            OnCrash::Verify => return self.still_held(order, grant).await,
        };
        self.settle(order, &grant.lease, &settlement, order.policy.lease).await
    }

    /// Whether the claim is still its holder's, found out by renewing it.
    async fn still_held(&self, order: &Order, grant: &Grant) -> Ended {
        let since = monotonic();
        loop {
            let renewed = async {
                let mut renewer = self.store.renewer().await?;
                renewer.renew(&[(grant.lease, order.policy.lease)]).await
            };
            let error = match renewed.await {
                Ok(renewed) if renewed == [Renewed::Extended] => return Ended::Recorded,
                Ok(renewed) if renewed == [Renewed::Lost] => return Ended::Lost,
                Ok(_) => store::Error::new(ErrorKind::Ambiguous, "commit", "the record is locked"),
                Err(error) => error,
            };
            if since.elapsed() >= order.policy.lease {
                return Ended::Unrecorded(error);
            }
            pause(Duration::from_millis(50)).await;
        }
    }
}
