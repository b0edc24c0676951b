//! The last step of a transaction: commits it, determines whether a commit with a lost reply took
//! place, or records a failure after the rollback.

use std::time::Duration;

use super::Inner;
use super::claim::{Acquired, Decision, pause};
use super::command::ResolvedCommand;
use super::context::Context;
use super::execution::{Error, Served};
use super::grant::Grant;
use super::settle::Written;
use super::settlement::Finished;
use crate::clock::monotonic;
use crate::judge::Verdict;
use crate::measure;
use crate::record::State;
use crate::store::{
    self, Committed, ErrorKind, Renewed, Renewer as _, Settlement, TransactionalStore,
};

/// The longest time for which the result of a commit with a lost reply is investigated.
const RESOLVE_LIMIT: Duration = Duration::from_secs(10);

/// The longest time for which a rolled back transaction may still lock its key on the server after
/// its connection broke: servers check once a second whether the client is still there.
const RELEASE_LIMIT: Duration = Duration::from_millis(1_500);

/// The state of a transaction after its work has ended.
pub(super) enum Worked<S: TransactionalStore, A> {
    /// The work succeeded; its settlement is not yet written, and the transaction not yet
    /// committed.
    Ready { answer: A, settlement: Settlement, transaction: S::Transaction },
    /// The work failed, and the transaction was rolled back.
    RolledBack(Finished<A>),
}

impl<S: TransactionalStore> Inner<S> {
    /// Settles and commits work whose claim is in the same transaction, or records a failure after
    /// the rollback.
    pub(super) async fn finish_one_commit<A>(
        &self,
        context: &Context,
        worked: Worked<S, A>,
    ) -> Result<Served<A>, Error> {
        let (command, grant) = (context.command(), context.grant());
        let (answer, settlement, transaction) = match worked {
            Worked::Ready { answer, settlement, transaction } => (answer, settlement, transaction),
            Worked::RolledBack(finished) => {
                return self.record_rolled_back(context, finished).await;
            }
        };
        let as_of = monotonic();
        failpoint!("settle.before");
        let ending = self.store.settle_and_commit(transaction, &grant.lease, &settlement);
        match Box::pin(ending).await {
            Committed::Done => {}
            // Another caller's record was committed first, and this transaction was rolled back.
            Committed::Lost => return self.after_loss(command, Err(Error::ClaimLost)).await,
            Committed::Unsettled(error) => {
                let settlement = context.refused_by(&error);
                let finished = Finished::broken(error.into(), settlement);
                return self.record_rolled_back(context, finished).await;
            }
            Committed::Failed(error) => match self.resolve_commit(context, error).await {
                Ok(true) => {}
                Ok(false) => {
                    let lost = "the connection broke during commit; nothing was committed";
                    return Err(store::Error::new(ErrorKind::Unavailable, "commit", lost).into());
                }
                Err(error) => {
                    if is_failure_of_work(error.kind()) {
                        let settlement = context.failed(&error.to_string());
                        self.record_failure(context, settlement).await;
                    }
                    return Err(error.into());
                }
            },
        }
        context.committed();
        failpoint!("commit.after");
        let receipt = self.share(command, grant, settlement, as_of);
        Ok(Served::Executed { answer, receipt: Some(receipt) })
    }

    /// Records the settlement of one-commit work whose transaction was rolled back, and answers its
    /// caller.
    async fn record_rolled_back<A>(
        &self,
        context: &Context,
        Finished { answer, settlement, .. }: Finished<A>,
    ) -> Result<Served<A>, Error> {
        if let Some(settlement) = settlement {
            let refused = matches!(settlement, Settlement::Succeeded { .. });
            let raced = self.record_failure(context, settlement).await;
            // If another caller completed the operation first, its outcome is the answer, not this
            // refusal.
            if let Some(decision) = raced
                && refused
                && matches!(decision.verdict, Verdict::Completed { .. })
            {
                return self.answer(context.command(), decision, None);
            }
        }
        Ok(Served::Executed { answer: answer?, receipt: None })
    }

    /// Returns whether a commit whose reply was lost took place.
    ///
    /// If the record has this attempt's id, the commit took place. If there is no such record, the
    /// server may still be committing. Only a new claim of the same key proves that the transaction
    /// was not committed, since no claim is granted while an uncommitted one exists.
    async fn resolve_commit(&self, context: &Context, error: store::Error) -> store::Result<bool> {
        let (command, grant) = (context.command(), context.grant());
        measure::store_failed(&error);
        if error.kind() != ErrorKind::Ambiguous {
            return Err(error);
        }
        let since = monotonic();
        while since.elapsed() < RESOLVE_LIMIT {
            if let Ok(Some(found)) = self.store.peek(&command.key).await
                && found.record.attempt_id == grant.lease.attempt_id
            {
                return Ok(found.record.state == State::Succeeded);
            }
            if let Ok(mut probe) = self.store.begin().await {
                let acquired = self.claim_in(S::connection(&mut probe), command).await;
                self.store.rollback(probe).await;
                match acquired {
                    Ok(Acquired::Granted(_)) => return Ok(false),
                    // The commit or a rival's transaction is still in progress: try again.
                    Ok(Acquired::Decided(_)) | Err(_) => {}
                }
            }
            pause(Duration::from_millis(50)).await;
        }
        Err(error)
    }

    /// Records a failure of one-commit work after its rollback: claims the key again and settles
    /// that claim at once. If another caller has a record under the key by then, returns the
    /// decision about that record.
    async fn record_failure(&self, context: &Context, settlement: Settlement) -> Option<Decision> {
        let command = context.command();
        if !guard!(FailureAfterRollback) {
            return None;
        }
        if context.attempt() == 1 && settlement == Settlement::Removed {
            self.announce(&command.key);
            return None;
        }
        // Uses `claim_again`, because this transaction still reserves the key in this process, and
        // `claim` would find the key in flight.
        let since = monotonic();
        let claimed = loop {
            match self.claim_again(command, context.grant()).await {
                // The server may keep the lock of the rolled back transaction for a moment longer.
                Ok(Acquired::Decided(decision))
                    if is_contended(&decision.verdict) && since.elapsed() < RELEASE_LIMIT =>
                {
                    pause(Duration::from_millis(20)).await;
                }
                claimed => break claimed,
            }
        };
        let (raced, cause) = match claimed {
            Ok(Acquired::Granted(again)) => {
                let patience = command.policy.lease;
                match self.settle(command, &again.lease, &settlement, patience).await {
                    Written::Unrecorded(cause) => (None, Some(cause)),
                    Written::Recorded | Written::Lost => (None, None),
                }
            }
            Ok(Acquired::Decided(decision)) => (Some(decision), None),
            Err(cause) => (None, Some(cause)),
        };
        if let Some(cause) = cause {
            tracing::warn!(key = ?command.key, %cause, "a failure could not be recorded");
            measure::unrecorded();
        }
        self.announce(&command.key);
        raced
    }

    /// Settles and commits work under a claim that was committed before, or records its failure.
    pub(super) async fn finish_claimed<A>(
        &self,
        context: &Context,
        worked: Worked<S, A>,
    ) -> Result<Served<A>, Error> {
        let (command, grant) = (context.command(), context.grant());
        let (answer, settlement, transaction) = match worked {
            Worked::Ready { answer, settlement, transaction } => (answer, settlement, transaction),
            Worked::RolledBack(finished) => {
                return self.conclude_rolled_back(context, finished).await;
            }
        };
        let as_of = monotonic();
        failpoint!("settle.before");
        let ending = self.store.settle_and_commit(transaction, &grant.lease, &settlement);
        match Box::pin(ending).await {
            Committed::Done => {}
            Committed::Lost => return self.after_loss(command, Err(Error::ClaimLost)).await,
            Committed::Failed(error) if error.kind() == ErrorKind::Ambiguous => {
                match self.settle_uncommitted(context).await {
                    Written::Recorded => {
                        self.announce(&command.key);
                        return Err(error.with_kind(ErrorKind::Unavailable).into());
                    }
                    Written::Unrecorded(_) => return Err(error.into()),
                    Written::Lost => {
                        let found = self.store.peek(&command.key).await.ok().flatten();
                        let ours = |found: &store::Peeked| {
                            found.record.attempt_id == grant.lease.attempt_id
                                && found.record.state == State::Succeeded
                        };
                        if !found.as_ref().is_some_and(ours) {
                            return self.after_loss(command, Err(Error::ClaimLost)).await;
                        }
                    }
                }
            }
            Committed::Unsettled(error) | Committed::Failed(error) => {
                let settlement = context.refused_by(&error);
                let finished = Finished::broken(error.into(), settlement);
                return self.conclude_rolled_back(context, finished).await;
            }
        }
        context.committed();
        failpoint!("commit.after");
        let receipt = self.share(command, grant, settlement, as_of);
        Ok(Served::Executed { answer, receipt: Some(receipt) })
    }

    /// Records a settlement like [`conclude`](Inner::conclude), but returns no receipt: the
    /// settlement is recorded, but the work's own writes were rolled back.
    async fn conclude_rolled_back<A>(
        &self,
        context: &Context,
        finished: Finished<A>,
    ) -> Result<Served<A>, Error> {
        Ok(match self.conclude(context, finished).await? {
            Served::Executed { answer, .. } => Served::Executed { answer, receipt: None },
            other @ (Served::Replayed { .. } | Served::InProgress { .. }) => other,
        })
    }

    /// Settles the claim of a commit whose reply was lost, unless that commit has settled it. The
    /// write waits for the commit's lock on the record, so that it sees whether the commit took
    /// place.
    async fn settle_uncommitted(&self, context: &Context) -> Written {
        let (command, grant) = (context.command(), context.grant());
        let text = "the connection broke during commit; nothing was committed";
        // Under `OnCrash::Verify` the claim must lapse unchanged: only check whether it is still
        // held.
        let Some(settlement) = context.interrupted(text) else {
            return self.still_held(command, grant).await;
        };
        self.settle(command, &grant.lease, &settlement, command.policy.lease).await
    }

    /// Renews the claim to determine whether this call still holds it: [`Written::Recorded`] if it
    /// does.
    async fn still_held(&self, command: &ResolvedCommand, grant: &Grant) -> Written {
        let since = monotonic();
        loop {
            let renewed = async {
                let mut renewer = self.store.renewer().await?;
                renewer.renew(&[(grant.lease, command.policy.lease)]).await
            };
            let error = match renewed.await {
                Ok(renewed) if renewed == [Renewed::Extended] => return Written::Recorded,
                Ok(renewed) if renewed == [Renewed::Lost] => return Written::Lost,
                Ok(_) => store::Error::new(ErrorKind::Ambiguous, "commit", "the record is locked"),
                Err(error) => error,
            };
            if since.elapsed() >= command.policy.lease {
                return Written::Unrecorded(error);
            }
            pause(Duration::from_millis(50)).await;
        }
    }
}

/// Returns whether a commit that failed with this kind is a failure of the work, such as a deferred
/// constraint that does not hold. What is temporary is the store's failure: the work has not failed,
/// and under [`OnFailure::Keep`](crate::OnFailure::Keep) a record of it would be the answer to every
/// repeat.
fn is_failure_of_work(kind: ErrorKind) -> bool {
    match kind {
        ErrorKind::Refused | ErrorKind::Misconfigured | ErrorKind::Corrupt => true,
        ErrorKind::Unavailable
        | ErrorKind::Capacity
        | ErrorKind::Ambiguous
        | ErrorKind::RetryTransaction => false,
    }
}

/// Returns whether the key is held by an open transaction, whose lease is not known.
fn is_contended(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Running { lease_remaining: None, .. })
}
