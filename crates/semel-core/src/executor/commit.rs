//! The last step of a transaction: commit, find out whether a commit took place, or record a
//! failure after the rollback.

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

/// How long a commit whose reply was lost is looked into.
const DOUBT: Duration = Duration::from_secs(10);

/// How long a rolled back transaction may hold its key on the server, where its session was cut off: a server
/// looks for its client once a second.
const RELEASE: Duration = Duration::from_millis(1_500);

/// Where the work of a transaction stands.
pub(super) enum Worked<S: TransactionalStore, A> {
    /// It ended well: the settlement and the commit are missing.
    Ready { answer: A, settlement: Settlement, transaction: S::Transaction },
    /// Rolled back.
    RolledBack(Finished<A>),
}

impl<S: TransactionalStore> Inner<S> {
    /// Settles and commits, or records the failure after the rollback.
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
            // Another caller's record was there first: nothing of this transaction is left.
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
                    // Refused, not lost: a constraint checked at commit fails the work like any
                    // other error. A transaction to be run again has not failed yet.
                    if !matches!(error.kind(), ErrorKind::Ambiguous | ErrorKind::RetryTransaction) {
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

    /// Records how one-commit work ended that was rolled back.
    async fn record_rolled_back<A>(
        &self,
        context: &Context,
        Finished { answer, settlement, .. }: Finished<A>,
    ) -> Result<Served<A>, Error> {
        if let Some(settlement) = settlement {
            let refused = matches!(settlement, Settlement::Succeeded { .. });
            let raced = self.record_failure(context, settlement).await;
            // A refusal that another caller's answer came before is not the answer.
            if let Some(decision) = raced
                && refused
                && matches!(decision.verdict, Verdict::Completed { .. })
            {
                return self.answer(context.command(), decision, None);
            }
        }
        Ok(Served::Executed { answer: answer?, receipt: None })
    }

    /// Whether a commit whose reply was lost took place.
    ///
    /// A record that carries our attempt says yes. Its absence says nothing while the server may
    /// still be at it: only a claim of the same key, which cannot be granted beside an uncommitted
    /// one, proves that nothing was committed.
    async fn resolve_commit(&self, context: &Context, error: store::Error) -> store::Result<bool> {
        let (command, grant) = (context.command(), context.grant());
        measure::store_failed(&error);
        if error.kind() != ErrorKind::Ambiguous {
            return Err(error);
        }
        let since = monotonic();
        while since.elapsed() < DOUBT {
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
                    // Still at it, or a rival is: look again.
                    Ok(Acquired::Decided(_)) | Err(_) => {}
                }
            }
            pause(Duration::from_millis(50)).await;
        }
        Err(error)
    }

    /// Records a failure of one-commit work after its rollback: claims the key again and settles it at
    /// once. If another record was there first, returns the decision about that one.
    async fn record_failure(&self, context: &Context, settlement: Settlement) -> Option<Decision> {
        let command = context.command();
        if !guard!(FailureAfterRollback) {
            return None;
        }
        if context.attempt() == 1 && settlement == Settlement::Removed {
            self.announce(&command.key);
            return None;
        }
        // The key is still held here by this transaction; `claim` would answer that it is in flight.
        let since = monotonic();
        let claimed = loop {
            match self.claim_again(command, context.grant()).await {
                // The server may hold the rolled back transaction's lock for a moment longer.
                Ok(Acquired::Decided(decision))
                    if is_contended(&decision.verdict) && since.elapsed() < RELEASE =>
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

    /// Settles and commits work under a committed claim, or records how it ended.
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

    /// [`conclude`](Inner::conclude) without a receipt: a refusal's answer is recorded, but the work's
    /// own writes are not.
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

    /// Settles the claim of a commit in doubt, unless the commit did. Whatever is written to the record
    /// waits for that commit, and finds the claim ended by it or still its own.
    async fn settle_uncommitted(&self, context: &Context) -> Written {
        let (command, grant) = (context.command(), context.grant());
        let text = "the connection broke during commit; nothing was committed";
        // Where it must stay as it is, to lapse, only whether it is still there is found out.
        let Some(settlement) = context.interrupted(text) else {
            return self.still_held(command, grant).await;
        };
        self.settle(command, &grant.lease, &settlement, command.policy.lease).await
    }

    /// Whether the claim is still its holder's, found out by renewing it.
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

/// Whether an open transaction holds the key, of which nothing else is known.
fn is_contended(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Running { lease_remaining: None, .. })
}
