//! Work whose writes are in the store's own database: claim, effects and outcome in one commit.
//!
//! The open transaction is the lease. It is never renewed, nobody waits on its row, and a crash
//! leaves no trace. What must survive a crash asks for `.claim_first()`: the claim is committed
//! before the work, and the completion rides in the work's transaction under the fence.

use std::fmt::Display;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::begin::{Begun, Grant, Step, conclude, judge_opened, pause};
use super::codec::{Codec, Json, Plain};
use super::command::{Command, Order};
use super::commit::{Failure, Worked};
use super::execution::{Error, Execution};
use super::finish::with_reference;
use super::flight::Hold;
use super::heartbeat::Beat;
use super::manual::{Claim, Claimed};
use super::run::{Attempted, failpoint, told, words};
use super::serve::Fault;
use super::supervise::Ran;
use super::unit::Unit;
use super::{Context, Executor, Inner};
use crate::clock::monotonic;
use crate::outcome::{Outcome, Recorded};
use crate::store::{self, ErrorKind, Held, Settled, Settlement, TransactionalStore};

/// Tries to begin a transaction that locks its claim's record.
const HOLDS: u32 = 10;

impl<S: TransactionalStore> Executor<S> {
    /// Does `work` exactly once within `keep`: its writes, the claim and the outcome are one commit.
    ///
    /// An error, a panic or an escaped unit rolls everything back, and the failure is recorded
    /// afterwards, in a transaction of its own. A caller who leaves changes nothing. The work's statements
    /// are not the transaction's first: its isolation is that of the store's connections. Where the
    /// server cannot serialize what the work did with what others did, the error is
    /// [`RetryTransaction`](crate::store::ErrorKind::RetryTransaction): the work has not failed, and the
    /// next call runs it.
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
        let order = self.0.accept(command).map_err(Error::widen)?;
        order.survives_a_crash(order.claim_first)?;
        let attempt = Inner::attempt_transact::<Json, T, E, F, Fut>;
        self.0.drive::<Json, _, _, _, _, _>(order, work, attempt).await
    }

    /// Claims inside the caller's own transaction: the claim becomes visible, and the work counts
    /// as done, with the caller's commit. Settle with [`settle_in`](Self::settle_in) on the same
    /// connection before committing. Nothing waits for a rival.
    ///
    /// # Errors
    /// See [`Error`]; [`RetryTransaction`](crate::store::ErrorKind::RetryTransaction) asks for the whole transaction again.
    pub async fn open_in(
        &self,
        connection: &mut S::Connection,
        command: Command,
    ) -> Result<Claimed<S>, Error> {
        let order = self.0.accept(command)?;
        order.survives_a_crash(false)?;
        match self.0.begin_in(connection, &order).await? {
            Begun::Granted(grant) => Ok(Claimed::Granted(Claim::new(&self.0, order, grant, false))),
            // Not remembered: it may be what this transaction itself wrote, and a rollback unwrites it.
            Begun::Answered { verdict, record, .. } => {
                told::<Plain, Outcome>(&order, verdict, record, None).map(Claimed::answered)
            }
        }
    }

    /// Hands a claim that was made outside over to the caller's own transaction: its record is locked,
    /// and it cannot be taken over until the transaction ends. From then on the claim is not renewed,
    /// since a renewal moves the record, and a transaction at REPEATABLE READ or SERIALIZABLE cannot
    /// write what was moved after its snapshot. Call it first in such a transaction, and settle the
    /// claim with [`settle_in`](Self::settle_in). At READ COMMITTED nothing is locked, the claim is
    /// renewed as before, and a process that hangs can still be taken over; except on MySQL and MariaDB,
    /// which do not tell at which level a transaction runs: there the record is locked at every level.
    ///
    /// # Errors
    /// [`Error::ClaimLost`]: roll back, another caller has it.
    /// [`RetryTransaction`](crate::store::ErrorKind::RetryTransaction): a renewal was under way; roll
    /// back and begin again.
    pub async fn hold_in(
        &self,
        connection: &mut S::Connection,
        claim: &mut Claim<S>,
    ) -> Result<(), Error> {
        match self.0.store.hold_in(connection, &claim.grant().lease).await? {
            Held::Renewable => Ok(()),
            Held::Locked => {
                claim.stop_renewing();
                Ok(())
            }
            Held::Lost => Err(Error::ClaimLost),
        }
    }

    /// Records the outcome of a claim inside the caller's own transaction: one that
    /// [`open_in`](Self::open_in) claimed in, or any other for a claim of [`claim`](Self::claim).
    ///
    /// # Errors
    /// [`Error::ClaimLost`]: roll back. [`Error::ResultTooLarge`]: nothing was written.
    /// [`Misconfigured`](crate::store::ErrorKind::Misconfigured) if the connection is in no
    /// transaction, or not in the one of `open_in` any more.
    pub async fn settle_in(
        &self,
        connection: &mut S::Connection,
        claim: Claim<S>,
        outcome: Outcome,
    ) -> Result<(), Error> {
        let max = claim.order().policy.max_outcome;
        let outcome = with_reference(outcome, claim.context());
        if outcome.size() > max {
            return Err(Error::ResultTooLarge { bytes: outcome.size(), max });
        }
        let keep = claim.order().policy.keep;
        let settlement = Settlement::Succeeded { outcome: Recorded::Whole(outcome), keep };
        if claim.is_committed() {
            self.0.store.adopt(connection).await?;
        }
        match self.0.store.settle_in(connection, &claim.grant().lease, &settlement).await? {
            Settled::Done => Ok(()),
            Settled::Lost => Err(Error::ClaimLost),
        }
    }
}

impl<S: TransactionalStore> Inner<S> {
    /// [`begin`](Inner::begin) inside a transaction. One try: inside a transaction there is nothing
    /// to wait for that could become visible.
    pub(super) async fn begin_in(
        &self,
        connection: &mut S::Connection,
        order: &Order,
    ) -> store::Result<Begun> {
        let since = monotonic();
        let mut bid = self.bid_in(order);
        let opened = self.store.open_in(connection, &bid.draft).await?;
        match judge_opened(order, &mut bid, opened, since) {
            Step::Done(begun) => Ok(begun),
            Step::Write { record, change, then } => {
                let version = record.version();
                let swapped = self.store.swap_in(connection, &order.key, version, &change).await?;
                let begun = conclude(change, record, then, swapped, since);
                Ok(begun.unwrap_or_else(Begun::running))
            }
        }
    }

    pub(super) async fn attempt_transact<C, T, E, F, Fut>(
        self: Arc<Self>,
        order: Arc<Order>,
        work: F,
    ) -> Attempted<F, T, E>
    where
        C: Codec<T>,
        F: FnOnce(Unit<S>) -> Fut + Send,
        Fut: Future<Output = Result<T, E>> + Send,
        E: Fault,
    {
        let hold = match self.in_flight.hold(&order) {
            Ok(hold) => hold,
            Err(verdict) => {
                return Attempted::Answered { verdict, record: None, as_of: monotonic(), work };
            }
        };
        let attempted = self.transact_held::<C, T, E, F, Fut>(&order, &hold, work).await;
        // Whoever was woken while the key was still held here must look once more.
        drop(hold);
        self.waiters.wake(order.key.digest().hint());
        attempted
    }

    async fn transact_held<C, T, E, F, Fut>(
        &self,
        order: &Order,
        hold: &Hold,
        work: F,
    ) -> Attempted<F, T, E>
    where
        C: Codec<T>,
        F: FnOnce(Unit<S>) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: Fault,
    {
        failpoint("begin.before");
        // An open transaction holds locks: it waits for nobody.
        order.go_apart();
        if order.claim_first {
            return self.attempt_claimed::<C, T, E, F, Fut>(order, hold, work).await;
        }
        let mut transaction = match self.store.begin().await {
            Ok(transaction) => transaction,
            Err(error) => return Attempted::Finished(Err(error.into())),
        };
        let begun = match self.begin_in(S::connection(&mut transaction), order).await {
            Ok(begun) => begun,
            Err(error) => {
                self.store.rollback(transaction).await;
                return Attempted::Finished(Err(error.into()));
            }
        };
        failpoint("begin.after");
        match begun {
            Begun::Granted(grant) => {
                hold.granted(grant.fingerprint);
                let context = self.context(order, &grant, false);
                let ran =
                    self.work::<C, T, E, F, Fut>(order, &grant, &context, transaction, work).await;
                Attempted::Finished(
                    self.finish_one_commit::<C, T, E>(order, &grant, &context, ran).await,
                )
            }
            // Given up, suspended or counted anew in this transaction: that must be kept. Else there is
            // nothing in it.
            Begun::Answered { verdict, record, as_of } => {
                let _ = self.store.commit(transaction).await;
                Attempted::Answered { verdict, record, as_of, work }
            }
        }
    }

    /// Runs the work with its unit and puts its result into the transaction. Everything that is not
    /// ready to commit comes back rolled back.
    async fn work<C, T, E, F, Fut>(
        &self,
        order: &Order,
        grant: &Grant,
        context: &Context,
        transaction: S::Transaction,
        work: F,
    ) -> Worked<S, T, E>
    where
        C: Codec<T>,
        F: FnOnce(Unit<S>) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: Fault,
    {
        let home = Arc::new(Mutex::new(None));
        let unit = Unit {
            transaction: Some(transaction),
            store: Arc::clone(&self.store),
            home: Arc::clone(&home),
            context: context.clone(),
        };
        let store_limit = self.store.work_limit(order.policy.lease);
        let limit = order.policy.work_timeout.into_iter().chain(store_limit).min();
        let ran = self.supervise(order, context, limit, async { work(unit).await }).await;
        failpoint("work.after");
        let back = home.lock().unwrap_or_else(PoisonError::into_inner).take();
        let value = match (ran, back) {
            (Ran::Finished(Ok(_)), back @ Some(_)) if context.is_half_told() => {
                Err((Failure::HalfTold, back))
            }
            (Ran::Finished(Ok(value)), Some(transaction)) => Ok((value, transaction)),
            (Ran::Finished(Ok(_)), None) => Err((Failure::Escaped, None)),
            (Ran::Finished(Err(error)), back) => Err((Failure::Work(error), back)),
            (Ran::Panicked(message), back) => Err((Failure::Panicked(message), back)),
            (Ran::TimedOut(limit), back) => Err((Failure::TimedOut(limit), back)),
            (Ran::Aborted, back) => Err((Failure::Aborted, back)),
        };
        let (value, mut transaction) = match value {
            Ok(done) => done,
            Err((failure, back)) => {
                self.undo(grant, failure.blame(order, grant), back).await;
                return Worked::Failed(failure);
            }
        };
        let (outcome, value) = match self.encode_whole::<C, T>(order, context, value) {
            Ok(done) => done,
            Err(error) => {
                self.store.rollback(transaction).await;
                return Worked::Failed(Failure::Result(error));
            }
        };
        let settlement =
            Settlement::Succeeded { outcome: Recorded::Whole(outcome), keep: order.policy.keep };
        failpoint("settle.before");
        let connection = S::connection(&mut transaction);
        match self.store.settle_in(connection, &grant.lease, &settlement).await {
            Ok(Settled::Done) => Worked::Ready { value, settlement, transaction },
            Ok(Settled::Lost) => {
                self.store.rollback(transaction).await;
                Worked::Failed(Failure::Lost)
            }
            Err(error) => {
                self.store.rollback(transaction).await;
                Worked::Failed(Failure::Store(error))
            }
        }
    }

    /// Rolls back. Nothing of the failure may be written before that: it would go with the rest.
    async fn undo(&self, grant: &Grant, blame: Option<Settlement>, back: Option<S::Transaction>) {
        let Some(mut transaction) = back else { return };
        #[cfg(feature = "testing")]
        if crate::testing::sabotaged(crate::testing::Guard::FailureAfterRollback) {
            let connection = S::connection(&mut transaction);
            let settlement = blame.unwrap_or(Settlement::Removed);
            let _ = self.store.settle_in(connection, &grant.lease, &settlement).await;
            return self.store.rollback(transaction).await;
        }
        let _ = (grant, blame, S::connection(&mut transaction));
        self.store.rollback(transaction).await;
    }

    /// The result as it will be stored. Larger than the limit is refused: nothing is committed yet.
    fn encode_whole<C: Codec<T>, T>(
        &self,
        order: &Order,
        context: &Context,
        value: T,
    ) -> Result<(Outcome, T), Error> {
        let max = order.policy.max_outcome;
        let (recorded, value) =
            match std::panic::catch_unwind(AssertUnwindSafe(|| C::encode(value))) {
                Ok(Ok(done)) => done,
                Ok(Err(failed)) => return Err(Error::Encode { reason: failed.reason }),
                Err(panic) => {
                    let reason = format!("it panicked: {}", words(panic.as_ref()));
                    return Err(Error::Encode { reason });
                }
            };
        let bytes = match recorded {
            Recorded::Whole(outcome) if outcome.size() <= max => {
                return Ok((with_reference(outcome, context), value));
            }
            Recorded::Whole(outcome) => outcome.size(),
            Recorded::Omitted { bytes } => usize::try_from(bytes).unwrap_or(usize::MAX),
        };
        Err(Error::ResultTooLarge { bytes, max })
    }

    /// Work under a committed claim: the completion rides in the work's transaction.
    async fn attempt_claimed<C, T, E, F, Fut>(
        &self,
        order: &Order,
        hold: &Hold,
        work: F,
    ) -> Attempted<F, T, E>
    where
        C: Codec<T>,
        F: FnOnce(Unit<S>) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: Fault,
    {
        let grant = match self.begin_unheld(order).await {
            Ok(Begun::Granted(grant)) => grant,
            Ok(Begun::Answered { verdict, record, as_of }) => {
                return Attempted::Answered { verdict, record, as_of, work };
            }
            Err(error) => return Attempted::Finished(Err(error.into())),
        };
        failpoint("begin.after");
        hold.granted(grant.fingerprint);
        let context = self.context(order, &grant, true);
        let beat = self.keep_alive(order, &grant, &context);
        if let Some(answer) = self.verify::<C, T>(order, &grant, &context).await {
            return Attempted::Finished(answer.map_err(Error::widen));
        }
        if !beat.holds() {
            return Attempted::Finished(self.too_late::<C, T, E>(order, &grant).await);
        }
        let (transaction, beat) = match self.begin_claimed(&grant, beat).await {
            Ok(Some(begun)) => begun,
            Ok(None) => {
                return Attempted::Finished(self.too_late::<C, T, E>(order, &grant).await);
            }
            Err(error) => {
                self.give_back(order, &grant).await;
                return Attempted::Finished(Err(error.into()));
            }
        };
        let worked = self.work::<C, T, E, F, Fut>(order, &grant, &context, transaction, work).await;
        let finished = self.finish_claimed::<C, T, E>(order, &grant, &context, worked).await;
        drop(beat);
        Attempted::Finished(finished)
    }

    /// Begins the transaction of work under a committed claim. Where that would be broken by renewals
    /// of the claim, the transaction keeps the claim itself and there is no beat any more; `None` if
    /// the claim is no longer its holder's.
    async fn begin_claimed(
        &self,
        grant: &Grant,
        beat: Beat,
    ) -> store::Result<Option<(S::Transaction, Option<Beat>)>> {
        for _ in 0..HOLDS {
            let mut transaction = self.store.begin().await?;
            match self.store.hold_in(S::connection(&mut transaction), &grant.lease).await {
                Ok(Held::Renewable) => return Ok(Some((transaction, Some(beat)))),
                Ok(Held::Locked) => return Ok(Some((transaction, None))),
                Ok(Held::Lost) => {
                    self.store.rollback(transaction).await;
                    return Ok(None);
                }
                // A renewal was under way, and is through by now.
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
