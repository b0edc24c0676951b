//! Runs work that writes in the store's own database: claim, effects and outcome are one commit.
//!
//! The open transaction takes the place of a lease: it is not renewed, no rival waits for its row,
//! and a crash leaves no record. With `.claim_first()` the claim is committed before the work, so
//! that it survives a crash, and the outcome is written in the work's transaction under the fence.

use std::fmt::Display;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::answer::{answer, receipt};
use super::attempt::{ABORTED, Attempted};
use super::claim::{Acquired, ClaimRequest, Decision, Step, conclude, judge_opened, pause};
use super::codec::{self, Json};
use super::command::{Command, ResolvedCommand};
use super::commit::Worked;
use super::context::{Context, Place};
use super::execution::{Error, Execution, Served, label, served_label};
use super::grant::Grant;
use super::heartbeat::Beat;
use super::in_flight::Hold;
use super::manual::{Claim, Claimed};
use super::settlement::Finished;
use super::supervise::WorkEnd;
use super::unit::Unit;
use super::{Executor, Inner};
use crate::clock::monotonic;
use crate::measure;
use crate::outcome::{Outcome, Recorded};
use crate::store::{self, ErrorKind, Held, Opened, Settled, TransactionalStore};

/// The number of tries to begin a transaction that locks the record of its claim.
const HOLD_TRIES: u32 = 10;

/// The error that is recorded after a failed append.
const FAILED_APPEND: &str =
    "an append failed or was cut off, so nothing is committed; hand its error on";

impl<S: TransactionalStore> Executor<S> {
    /// Runs `work` exactly once within `keep`: its writes, the claim and the outcome are one
    /// commit.
    ///
    /// An error, a panic or an escaped unit rolls the transaction back, and the failure is recorded
    /// afterwards, in a separate transaction. If the caller leaves, the work continues. The store's
    /// statements come before those of the work, so the work cannot set the isolation level, which
    /// is a setting of the store's connections. If the server cannot serialize the transaction, the
    /// error is [`RetryTransaction`](crate::store::ErrorKind::RetryTransaction): the work has not
    /// failed, and the next call runs it.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn transact<T, E, F, Fut>(
        &self,
        command: Command,
        work: F,
    ) -> Result<Execution<T>, Error<E>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        E: Display + Send + 'static,
        F: FnOnce(Unit<S>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        let command = self.0.accept(command).map_err(Error::widen)?;
        command.check_crash_policy(command.claim_first)?;
        let kind = command.key.kind();
        let work = |unit: Unit<S>| async move {
            let context = unit.context().clone();
            let result = work(unit).await;
            codec::finish::<Json, T, E>(&context, result)
        };
        let served = self.0.execute(command, work, Inner::attempt_in_transaction).await;
        let execution = codec::execution::<Json, T, E>(served);
        measure::executed(kind, label(&execution));
        execution
    }

    /// Runs work like [`transact`](Self::transact), for protocols: the work chooses how its claim
    /// is settled. An answer by [`complete`](Context::complete) is committed with the work's own
    /// writes; every other answer rolls those writes back.
    ///
    /// # Errors
    /// See [`Error`]. [`Error::ResultTooLarge`] if the outcome is too large to keep: nothing was
    /// committed.
    pub async fn serve_transact<A, F, Fut>(
        &self,
        command: Command,
        work: F,
    ) -> Result<Served<A>, Error>
    where
        A: Send + 'static,
        F: FnOnce(Unit<S>) -> Fut + Send + 'static,
        Fut: Future<Output = Finished<A>> + Send + 'static,
    {
        let command = self.0.accept(command)?;
        command.check_crash_policy(command.claim_first)?;
        let kind = command.key.kind();
        let served = self.0.execute(command, work, Inner::attempt_in_transaction).await;
        measure::executed(kind, served_label(&served));
        served
    }

    /// Runs `work` in a transaction that the caller has begun on `connection`: claim, effects and
    /// outcome become visible with the caller's commit.
    ///
    /// This method combines [`open_in`](Self::open_in), the work and
    /// [`settle_in`](Self::settle_in). The caller ends the transaction: commit it after an answer,
    /// and roll it back after an error, which leaves no record. The call does not wait for a rival,
    /// records no failure, applies no work timeout, drops functions that were passed to
    /// [`Context::after_commit`], and does not cache the outcome, since it may still be rolled
    /// back.
    ///
    /// # Errors
    /// See [`Error`]. After [`RetryTransaction`](crate::store::ErrorKind::RetryTransaction) the
    /// caller must run the whole transaction again.
    pub async fn transact_in<T, E, F>(
        &self,
        connection: &mut S::Connection,
        command: Command,
        work: F,
    ) -> Result<Execution<T>, Error<E>>
    where
        T: Serialize + DeserializeOwned,
        E: Display,
        F: AsyncFnOnce(&mut S::Connection, &Context) -> Result<T, E>,
    {
        let command = self.0.accept(command).map_err(Error::widen)?;
        command.check_crash_policy(false)?;
        codec::execution::<Json, T, E>(self.0.attempt_in(connection, &command, work).await)
    }

    /// Claims a key inside a transaction that the caller has begun: the claim becomes visible, and
    /// the work counts as done, with the caller's commit. Settle the claim with
    /// [`settle_in`](Self::settle_in) on the same connection before committing. The call does not
    /// wait for a rival.
    ///
    /// # Errors
    /// See [`Error`]. After [`RetryTransaction`](crate::store::ErrorKind::RetryTransaction) the
    /// caller must run the whole transaction again.
    pub async fn open_in(
        &self,
        connection: &mut S::Connection,
        command: Command,
    ) -> Result<Claimed<S>, Error> {
        let command = self.0.accept(command)?;
        command.check_crash_policy(false)?;
        match self.0.claim_in(connection, &command).await? {
            Acquired::Granted(grant) => {
                Ok(Claimed::Granted(Claim::new(&self.0, &command, grant, Place::OneCommit)))
            }
            // Not cached: the caller's transaction may have written this record itself and may
            // still roll it back.
            Acquired::Decided(decision) => answer(&command, decision, None).map(Claimed::answered),
        }
    }

    /// Locks the record of a claim that was made outside transactions, in a transaction that the
    /// caller has begun: the claim cannot be taken over until that transaction ends. From then on
    /// the lease is not renewed, since a renewal writes the record, and a transaction at REPEATABLE
    /// READ or SERIALIZABLE cannot write a row that was changed after its snapshot. Call this
    /// method first in such a transaction, and settle the claim with
    /// [`settle_in`](Self::settle_in).
    ///
    /// At READ COMMITTED the record is not locked, the lease is renewed as before, and another
    /// caller can still take the claim over when this process hangs. On MySQL and MariaDB, where
    /// the isolation level of a transaction cannot be read, the record is locked at every level.
    ///
    /// # Errors
    /// [`Error::ClaimLost`] if another caller has taken the claim over: roll back.
    /// [`RetryTransaction`](crate::store::ErrorKind::RetryTransaction) if a renewal was in
    /// progress: roll back and begin again.
    pub async fn hold_in(
        &self,
        connection: &mut S::Connection,
        claim: &mut Claim<S>,
    ) -> Result<(), Error> {
        match self.0.store.hold_in(connection, &claim.context().grant().lease).await? {
            Held::Renewable => Ok(()),
            Held::Locked => {
                claim.stop_renewing();
                Ok(())
            }
            Held::Lost => Err(Error::ClaimLost),
        }
    }

    /// Records the outcome of a claim inside a transaction that the caller has begun. A claim of
    /// [`open_in`](Self::open_in) must be settled in its own transaction, a claim of
    /// [`claim`](Self::claim) in any.
    ///
    /// # Errors
    /// [`Error::ClaimLost`] if another caller has taken the claim over: roll back.
    /// [`Error::ResultTooLarge`]: the record was not written.
    /// [`Misconfigured`](crate::store::ErrorKind::Misconfigured) if the connection is in no
    /// transaction, or no longer in the transaction of `open_in`.
    pub async fn settle_in(
        &self,
        connection: &mut S::Connection,
        claim: Claim<S>,
        outcome: Outcome,
    ) -> Result<(), Error> {
        let (context, max) = (claim.context(), claim.context().command().policy.max_outcome);
        let outcome = match context.with_reference(Recorded::Whole(outcome)).within(max) {
            Recorded::Omitted { bytes } => {
                let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                return Err(Error::ResultTooLarge { bytes, max });
            }
            whole @ Recorded::Whole(_) => whole,
        };
        let settlement = context.succeeded(outcome);
        if context.is_committed() {
            self.0.store.adopt(connection).await?;
        }
        match self.0.store.settle_in(connection, &context.grant().lease, &settlement).await? {
            Settled::Done => Ok(()),
            Settled::Lost => Err(Error::ClaimLost),
        }
    }
}

impl<S: TransactionalStore> Inner<S> {
    /// Claims a key inside a transaction, in one try: retrying is useless, since the transaction
    /// might never see a rival's commit.
    pub(super) async fn claim_in(
        &self,
        connection: &mut S::Connection,
        command: &ResolvedCommand,
    ) -> store::Result<Acquired> {
        let since = monotonic();
        let request = self.request_in(command);
        let opened = self.store.open_in(connection, &request.draft).await?;
        self.judge_in(connection, command, request, opened, since).await
    }

    /// Makes one attempt of work in the caller's transaction. The outcome is not cached, since the
    /// caller may roll it back.
    async fn attempt_in<T, E, F>(
        &self,
        connection: &mut S::Connection,
        command: &Arc<ResolvedCommand>,
        work: F,
    ) -> Result<Served<Result<T, Error<E>>>, Error>
    where
        T: Serialize + DeserializeOwned,
        E: Display,
        F: AsyncFnOnce(&mut S::Connection, &Context) -> Result<T, E>,
    {
        // Fails if there is no transaction: the claim and each statement of the work would be
        // committed separately.
        self.store.adopt(connection).await?;
        let grant = match self.claim_in(connection, command).await? {
            Acquired::Granted(grant) => grant,
            Acquired::Decided(decision) => return answer(command, decision, None),
        };
        let context = self.context(command, grant, Place::OneCommit);
        let result = work(connection, &context).await;
        let finished = codec::finish::<Json, T, E>(&context, result);
        let answer = finished.answer?;
        let Some(settlement) = finished.settlement.filter(|_| finished.commits) else {
            return Ok(Served::Executed { answer, receipt: None });
        };
        match self.store.settle_in(connection, &grant.lease, &settlement).await? {
            Settled::Done => Ok(Served::Executed { answer, receipt: Some(receipt(&grant, true)) }),
            Settled::Lost => Err(Error::ClaimLost),
        }
    }

    /// Begins a transaction and claims the key of `command` in it.
    async fn begin_claiming(
        &self,
        command: &ResolvedCommand,
    ) -> store::Result<(S::Transaction, Acquired)> {
        let since = monotonic();
        let request = self.request_in(command);
        let (mut transaction, opened) = Box::pin(self.store.begin_and_open(&request.draft)).await?;
        let connection = S::connection(&mut transaction);
        match self.judge_in(connection, command, request, opened, since).await {
            Ok(acquired) => Ok((transaction, acquired)),
            Err(error) => {
                self.store.rollback(transaction).await;
                Err(error)
            }
        }
    }

    /// Judges a key that was opened in a transaction, and writes the verdict if it changes the
    /// record.
    async fn judge_in(
        &self,
        connection: &mut S::Connection,
        command: &ResolvedCommand,
        mut request: ClaimRequest,
        opened: Opened,
        since: Instant,
    ) -> store::Result<Acquired> {
        match judge_opened(command, &mut request, opened, since) {
            Step::Done(acquired) => Ok(acquired),
            Step::Write { record, change, then } => {
                let version = record.version();
                let swapped =
                    self.store.swap_in(connection, &command.key, version, &change).await?;
                let acquired = conclude(change, record, then, swapped, since);
                Ok(acquired.unwrap_or_else(|| Acquired::Decided(Decision::contended())))
            }
        }
    }

    /// Makes one attempt of work in a transaction of the store.
    pub(super) async fn attempt_in_transaction<A, F, Fut>(
        self: Arc<Self>,
        command: Arc<ResolvedCommand>,
        work: F,
    ) -> Attempted<F, A>
    where
        F: FnOnce(Unit<S>) -> Fut + Send,
        Fut: Future<Output = Finished<A>> + Send,
    {
        let hold = match self.in_flight.hold(&command) {
            Ok(hold) => hold,
            Err(verdict) => return Attempted::Decided(Decision::without_record(verdict), work),
        };
        failpoint!("begin.before");
        // An open transaction holds locks, so the attempt must continue even if its caller is not
        // polled.
        command.detach();
        let attempted = if command.claim_first {
            self.attempt_claimed(&command, &hold, work).await
        } else {
            self.attempt_one_commit(&command, &hold, work).await
        };
        // Wakes the waiters again: one that was woken before `hold` was dropped has found the key
        // still held.
        drop(hold);
        self.waiters.wake(command.key.digest().hint());
        attempted
    }

    /// Makes one attempt with claim, work and outcome in one commit.
    async fn attempt_one_commit<A, F, Fut>(
        &self,
        command: &Arc<ResolvedCommand>,
        hold: &Hold,
        work: F,
    ) -> Attempted<F, A>
    where
        F: FnOnce(Unit<S>) -> Fut,
        Fut: Future<Output = Finished<A>>,
    {
        let (transaction, acquired) = match self.begin_claiming(command).await {
            Ok(begun) => begun,
            Err(error) => return Attempted::Finished(Err(error.into())),
        };
        failpoint!("begin.after");
        match acquired {
            Acquired::Granted(grant) => {
                hold.granted(grant.fingerprint);
                let context = self.context(command, grant, Place::OneCommit);
                let worked = self.work(&context, transaction, work).await;
                Attempted::Finished(self.finish_one_commit(&context, worked).await)
            }
            // The verdict may have changed the record in this transaction (to Dead or Uncertain, or
            // with new times), which must be committed. Otherwise the transaction is empty.
            Acquired::Decided(decision) => {
                let _ = self.store.commit(transaction).await;
                Attempted::Decided(decision, work)
            }
        }
    }

    /// Makes one attempt under a committed claim; the outcome is written in the work's transaction.
    async fn attempt_claimed<A, F, Fut>(
        &self,
        command: &Arc<ResolvedCommand>,
        hold: &Hold,
        work: F,
    ) -> Attempted<F, A>
    where
        F: FnOnce(Unit<S>) -> Fut,
        Fut: Future<Output = Finished<A>>,
    {
        let grant = match self.claim_held_here(command).await {
            Ok(Acquired::Granted(grant)) => grant,
            Ok(Acquired::Decided(decision)) => return Attempted::Decided(decision, work),
            Err(error) => return Attempted::Finished(Err(error.into())),
        };
        failpoint!("begin.after");
        hold.granted(grant.fingerprint);
        let context = self.context(command, grant, Place::ClaimFirst);
        let beat = self.keep_alive(&context);
        if let Some(answer) = self.verify(&context).await {
            return Attempted::Finished(answer);
        }
        if !beat.holds() {
            return Attempted::Finished(self.too_late(&context).await);
        }
        let (transaction, beat) = match self.begin_claimed(&grant, beat).await {
            Ok(Some(begun)) => begun,
            Ok(None) => return Attempted::Finished(self.too_late(&context).await),
            Err(error) => {
                self.settle_quickly(&context, context.untouched()).await;
                return Attempted::Finished(Err(error.into()));
            }
        };
        let worked = self.work(&context, transaction, work).await;
        let finished = self.finish_claimed(&context, worked).await;
        drop(beat);
        Attempted::Finished(finished)
    }

    /// Runs the work with its unit, and rolls the transaction back unless the work succeeded.
    async fn work<A, F, Fut>(
        &self,
        context: &Context,
        transaction: S::Transaction,
        work: F,
    ) -> Worked<S, A>
    where
        F: FnOnce(Unit<S>) -> Fut,
        Fut: Future<Output = Finished<A>>,
    {
        let returned = Arc::new(Mutex::new(None));
        let unit = Unit {
            transaction: Some(transaction),
            store: Arc::clone(&self.store),
            returned: Arc::clone(&returned),
            context: context.clone(),
        };
        let policy = &context.command().policy;
        let store_limit = self.store.work_limit(policy.lease);
        let limit = policy.work_timeout.into_iter().chain(store_limit).min();
        let ended = self.supervise(context, limit, async { work(unit).await }).await;
        failpoint!("work.after");
        let transaction = returned.lock().unwrap_or_else(PoisonError::into_inner).take();
        let finished = match ended {
            WorkEnd::Finished(finished) if !finished.commits => finished,
            WorkEnd::Finished(finished) => match transaction {
                Some(transaction) if !context.has_failed_append() => {
                    let (Ok(answer), Some(settlement)) = (finished.answer, finished.settlement)
                    else {
                        unreachable!("work that commits has an answer and a settlement");
                    };
                    return Worked::Ready { answer, settlement, transaction };
                }
                Some(transaction) => {
                    self.store.rollback(transaction).await;
                    let error =
                        store::Error::new(ErrorKind::Misconfigured, "append", FAILED_APPEND);
                    let settlement = context.doubted(FAILED_APPEND);
                    return Worked::RolledBack(Finished::broken(error.into(), settlement));
                }
                None => {
                    let settlement = context.uncommitted("the transaction's unit escaped the work");
                    return Worked::RolledBack(Finished::broken(Error::Escaped, settlement));
                }
            },
            WorkEnd::Aborted => {
                if let Some(transaction) = transaction {
                    self.store.rollback(transaction).await;
                }
                if context.is_committed() {
                    self.settle_quickly(context, context.interrupted(ABORTED)).await;
                }
                return Worked::RolledBack(Finished::broken(Error::Closed, None));
            }
            broken @ (WorkEnd::Panicked(_) | WorkEnd::TimedOut(_)) => {
                let (error, text) = broken.into_error();
                Finished::broken(error, context.doubted(&text))
            }
        };
        // The failure is recorded after the rollback: a record inside this transaction would be
        // rolled back too.
        if let Some(transaction) = transaction {
            self.store.rollback(transaction).await;
        }
        Worked::RolledBack(finished)
    }

    /// Begins the transaction of work under a committed claim. If renewals would conflict with the
    /// transaction, it locks the record of the claim instead, and the returned beat is `None`.
    /// Returns `None` if the claim was lost.
    async fn begin_claimed(
        &self,
        grant: &Grant,
        beat: Beat,
    ) -> store::Result<Option<(S::Transaction, Option<Beat>)>> {
        for _ in 0..HOLD_TRIES {
            let mut transaction = self.store.begin().await?;
            match self.store.hold_in(S::connection(&mut transaction), &grant.lease).await {
                Ok(Held::Renewable) => return Ok(Some((transaction, Some(beat)))),
                Ok(Held::Locked) => return Ok(Some((transaction, None))),
                Ok(Held::Lost) => {
                    self.store.rollback(transaction).await;
                    return Ok(None);
                }
                // A renewal was in progress; it ends within moments.
                Err(error) if error.kind() == ErrorKind::RetryTransaction => {
                    self.store.rollback(transaction).await;
                    pause(Duration::from_millis(5)).await;
                }
                Err(error) => {
                    self.store.rollback(transaction).await;
                    return Err(error);
                }
            }
        }
        let text = "the claim's record was being written all the time; nothing ran";
        Err(store::Error::new(ErrorKind::Unavailable, "hold", text))
    }
}
