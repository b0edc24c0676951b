//! What a store must offer: a versioned map with a clock.
//!
//! A store keeps records; it decides nothing. Every method is one atomic step in the backend, takes
//! durations and never instants, and returns expected results as values. The [judge](crate::judge)
//! decides for all of them; the executor writes its verdicts with [`Store::swap`].

mod any;
mod error;
mod listing;
pub mod memory;
mod replication;
mod watermark;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

pub use any::{AnyRenewer, AnyStore};
pub use error::{Error, ErrorKind};
pub use listing::{
    Content, Cursor, Filter, ForeignCursor, Inspect, Listed, Page, Tally, UnreadableRecord,
};
pub use replication::{Replication, ReplicationState};
pub use watermark::{ClockTrust, Watermark};

pub use crate::record::{Draft, Settlement};

use crate::claim::{Fence, Lease};
use crate::clock::Timestamp;
use crate::event::Event;
use crate::key::{Hint, Key};
use crate::record::{Record, Version};

/// The result of a call to a store.
pub type Result<T> = std::result::Result<T, Error>;

/// A boxed future, for trait objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The result of [`Store::open`].
#[derive(Clone, Debug)]
#[must_use]
pub enum Opened {
    /// There was no record: the draft is written, and the claim is granted.
    Inserted {
        /// The fence of the grant.
        fence: Fence,
    },
    /// There is a record; nothing was written.
    Existing {
        /// The record.
        record: Box<Record>,
        /// The store's clock, read in the same step.
        now: Timestamp,
    },
    /// An uncommitted transaction holds the key, or the call lost a race: nothing is known of the record.
    Contended,
}

/// What [`Store::swap`] writes over the version that was judged.
#[derive(Clone, Debug)]
pub enum Change {
    /// A new grant of the same operation: `created_at` survives, everything else is the draft's,
    /// its retry payload too.
    Regrant(Draft),
    /// A new grant over an expired record: nothing of the old one survives but that the fence grows.
    Replace(Draft),
    /// A settlement by the judge's verdict or by an operator, instead of by the holder.
    Settle(Settlement),
    /// An operator redrives a failed, dead, uncertain or discarded record: Failed, due now, and its
    /// attempts counted from zero. Its retry payload stays.
    Redrive,
    /// The times of a record that a clock wrote which was ahead, counted from the store's now (see
    /// [`Record::redated`]). The holder's claim stays as it is.
    Redate,
}

/// The result of [`Store::swap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Swapped {
    /// The change is written.
    Done {
        /// The record's fence after the write.
        fence: Fence,
    },
    /// The record is no longer at the version that was judged, or another transaction holds it. Nothing
    /// was written.
    Lost,
}

/// The result of [`Store::settle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Settled {
    /// The settlement is written.
    Done,
    /// The lease did not hold the claim any more. Nothing was written.
    Lost,
}

/// The result of renewing one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Renewed {
    /// The lease runs for its full length again, from the store's now.
    Extended,
    /// The lease did not hold the claim any more.
    Lost,
    /// The record is locked or cannot be read. Other leases are not affected.
    Unknown,
}

/// The result of [`TransactionalStore::hold_in`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Held {
    /// The record is locked until the transaction ends: the claim cannot be taken over, and must not be
    /// renewed.
    Locked,
    /// Nothing is locked: renewals do not disturb the transaction.
    Renewable,
    /// The lease did not hold the claim any more.
    Lost,
}

/// What came of a [`TransactionalStore::settle_and_commit`].
#[derive(Debug)]
#[must_use]
pub enum Committed {
    /// The settlement and all that was written in the transaction are committed.
    Done,
    /// The claim was no longer this lease's, or another transaction recorded the key first: nothing is
    /// committed.
    Lost,
    /// The settlement could not be written: nothing is committed.
    Unsettled(Error),
    /// The commit failed. `Ambiguous` unless the store knows that nothing was committed.
    Failed(Error),
}

/// The result of [`Store::sweep`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Number of records removed.
    pub removed: u32,
    /// Number of lapsed claims under [`OnCrash::Hold`](crate::OnCrash::Hold) and
    /// [`OnCrash::Verify`](crate::OnCrash::Verify) that turned Uncertain.
    pub suspended: u32,
    /// Whether there may be more to remove now.
    pub more: bool,
    /// Whether nothing was removed because the store's clock has jumped ahead and is not trusted yet; see
    /// [`Watermark`].
    pub clock_suspect: bool,
}

/// What a store promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// Claim, effects and outcome in one commit.
    Atomic,
    /// One live holder, at most one outcome, late holders refused.
    Fenced,
    /// As fenced, but a crashed attempt is never re-run by itself.
    AtMostOnce,
    /// An acknowledged claim can be lost.
    BestEffort,
}

/// The severity of a [`Finding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The guarantee holds, but the set-up should be changed.
    Warning,
    /// The guarantee does not hold.
    Error,
}

/// Something in a store's set-up that breaks or weakens its guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// A stable name, such as `redis-eviction`.
    pub code: &'static str,
    /// What was found.
    pub found: String,
    /// What to do.
    pub fix: String,
}

/// A record and the store's clock, read in one step.
#[derive(Clone, Debug)]
pub struct Peeked {
    /// The record.
    pub record: Record,
    /// The store's clock.
    pub now: Timestamp,
}

/// A versioned map with a clock; see the [module](self).
pub trait Store: Send + Sync + 'static {
    /// Renews leases, over a connection of its own.
    type Renewer: Renewer;

    /// Writes the draft if there is no record, else reads the record. One step, one round trip.
    ///
    /// An expired record is *existing*: the judge decides whether it counts.
    fn open(&self, draft: &Draft) -> impl Future<Output = Result<Opened>> + Send;

    /// Writes `change` over the record of `key` if it is still at version `judged`.
    fn swap(
        &self,
        key: &Key,
        judged: Version,
        change: &Change,
    ) -> impl Future<Output = Result<Swapped>> + Send;

    /// Ends a running claim, under its lease. `version`, `updated_at` and `completed_at` move.
    fn settle(
        &self,
        lease: &Lease,
        settlement: &Settlement,
    ) -> impl Future<Output = Result<Settled>> + Send;

    /// Reads a record, also an expired or lapsed one.
    fn peek(&self, key: &Key) -> impl Future<Output = Result<Option<Peeked>>> + Send;

    /// Sweeps at most `limit` records: removes expired ones, and lapsed claims under Rerun whose lease
    /// ended more than their `keep` ago; marks as Uncertain lapsed claims under Hold, and those under
    /// Verify whose lease ended more than their `keep` ago, since they may have taken effect. Never
    /// changes a record whose lease has not ended. Does nothing while the store's clock is suspect.
    fn sweep(&self, limit: u32) -> impl Future<Output = Result<Swept>> + Send;

    /// Creates a renewer. Called on the runtime that will use it.
    fn renewer(&self) -> impl Future<Output = Result<Self::Renewer>> + Send;

    /// Subscribes to wake-ups from other processes; `None` where the store does not carry them.
    fn listen(&self) -> impl Future<Output = Result<Option<Box<dyn Listen>>>> + Send {
        async { Ok(None) }
    }

    /// Notifies other processes that a record may have changed. Must not block or fail; empty in stores
    /// whose `settle` notifies already.
    fn announce(&self, hint: Hint) {
        let _ = hint;
    }

    /// Checks the store's set-up. Returns what is wrong with it.
    fn check(&self) -> impl Future<Output = Result<Vec<Finding>>> + Send;

    /// Returns an error if the store is known not to accept writes, such as for a full disk. Called by
    /// readiness probes, so it costs nothing while the store works.
    fn writable(&self) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Returns what this store promises for work outside its transactions.
    fn guarantee(&self) -> Guarantee;

    /// Returns the size of the largest retry payload that a record can hold, in bytes; `None` if that is
    /// more than any event has ([`MAX_PAYLOAD`](crate::event::MAX_PAYLOAD)).
    fn max_retry_payload(&self) -> Option<usize> {
        None
    }

    /// Returns whether the store is in this process, so that reading it costs no more than a cache.
    fn is_near(&self) -> bool {
        false
    }
}

/// Renews leases, on the heartbeat's own thread.
pub trait Renewer: Send + 'static {
    /// Extends each lease to its full length from the store's now. Returns one result per lease, in order.
    /// A lease that lapsed but was not taken over is extended.
    fn renew(
        &mut self,
        leases: &[(Lease, Duration)],
    ) -> impl Future<Output = Result<Vec<Renewed>>> + Send;
}

/// A stream of wake-ups from other processes.
pub trait Listen: Send {
    /// Waits for the next wake-up. Not called again after an error.
    fn next(&mut self) -> BoxFuture<'_, Result<Hint>>;
}

/// A store whose writes can join the caller's database transaction.
pub trait TransactionalStore: Store {
    /// The connection that statements run on, such as `sqlx::PgConnection`.
    type Connection: Send;
    /// An open transaction that owns its connection. Dropping it rolls back.
    type Transaction: Send + 'static;

    /// Begins a transaction of ours. [`work_limit`](Self::work_limit) bounds how long it may stay open, where
    /// the store has a single writer.
    fn begin(&self) -> impl Future<Output = Result<Self::Transaction>> + Send;

    /// The connection inside.
    fn connection(transaction: &mut Self::Transaction) -> &mut Self::Connection;

    /// Makes the transaction that a plain client began on `connection` one that
    /// [`settle_in`](Self::settle_in) takes, for a claim that was committed before it. Where the
    /// claim was opened in the same transaction, [`open_in`](Self::open_in) has done that already.
    ///
    /// # Errors
    /// `Misconfigured` if the connection is in no transaction.
    fn adopt(&self, connection: &mut Self::Connection) -> impl Future<Output = Result<()>> + Send {
        let _ = connection;
        async { Ok(()) }
    }

    /// [`Store::open`] inside a transaction; never waits for a rival, who makes it `Contended`.
    fn open_in(
        &self,
        connection: &mut Self::Connection,
        draft: &Draft,
    ) -> impl Future<Output = Result<Opened>> + Send;

    /// [`Store::swap`] inside a transaction.
    fn swap_in(
        &self,
        connection: &mut Self::Connection,
        key: &Key,
        judged: Version,
        change: &Change,
    ) -> impl Future<Output = Result<Swapped>> + Send;

    /// Called first in a transaction that is to settle a claim made outside it: where the transaction
    /// could not write a record that is renewed after its snapshot (REPEATABLE READ, SERIALIZABLE), it
    /// locks the record. Never waits: a record that is just being written is `RetryTransaction`.
    fn hold_in(
        &self,
        connection: &mut Self::Connection,
        lease: &Lease,
    ) -> impl Future<Output = Result<Held>> + Send {
        let _ = (connection, lease);
        async { Ok(Held::Renewable) }
    }

    /// [`Store::settle`] inside a transaction: one of ours, one in which the claim was opened, or one
    /// that was [adopted](Self::adopt). Fails with `Misconfigured` if the connection is no longer in
    /// it (the work committed it).
    fn settle_in(
        &self,
        connection: &mut Self::Connection,
        lease: &Lease,
        settlement: &Settlement,
    ) -> impl Future<Output = Result<Settled>> + Send;

    /// Begins a transaction of ours and opens the key of `draft` in it: [`begin`](Self::begin) and
    /// [`open_in`](Self::open_in), in as few trips as the store needs.
    ///
    /// A store may leave a fresh record unwritten until the end: `Inserted` then says that this
    /// transaction holds the key, so that every rival is `Contended`, and
    /// [`settle_and_commit`](Self::settle_and_commit) writes the record once, finished. It must end in
    /// that call or in a rollback.
    fn begin_and_open(
        &self,
        draft: &Draft,
    ) -> impl Future<Output = Result<(Self::Transaction, Opened)>> + Send {
        begin_then_open(self, draft)
    }

    /// Takes events over that a transaction of ours is to write when it commits, in this order and after those
    /// that it took over before. Returns the events that it does not take over, which
    /// [`Outbox::append`](crate::outbox::Outbox::append) is to write now: all of them, by default.
    ///
    /// [`settle_and_commit`](Self::settle_and_commit) and [`commit`](Self::commit) write the events. If they cannot,
    /// nothing is committed, and the error is theirs. A store that takes over one event of a transaction takes
    /// over all that follow, since their order would change otherwise.
    fn defer_events(&self, transaction: &mut Self::Transaction, events: Vec<Event>) -> Vec<Event> {
        let _ = transaction;
        events
    }

    /// Settles a claim in a transaction of ours and commits it: [`settle_in`](Self::settle_in) and
    /// [`commit`](Self::commit), in as few trips as the store needs. Rolls back unless it committed.
    fn settle_and_commit(
        &self,
        transaction: Self::Transaction,
        lease: &Lease,
        settlement: &Settlement,
    ) -> impl Future<Output = Committed> + Send {
        settle_then_commit(self, transaction, lease, settlement)
    }

    /// Commits. An error is `Ambiguous` unless the store knows that nothing was committed.
    fn commit(&self, transaction: Self::Transaction) -> impl Future<Output = Result<()>> + Send;

    /// Rolls back. Errors are of no interest: a lost connection rolls back too.
    fn rollback(&self, transaction: Self::Transaction) -> impl Future<Output = ()> + Send;

    /// How long the work of one transaction may take, where the store has a single writer that
    /// everybody else waits for; `None` where it does not matter.
    fn work_limit(&self, lease: Duration) -> Option<Duration> {
        let _ = lease;
        None
    }
}

/// Begins a transaction, and opens a key in it: [`TransactionalStore::begin_and_open`] in two steps.
///
/// # Errors
/// Those of the two steps. The transaction is rolled back.
pub async fn begin_then_open<S: TransactionalStore + ?Sized>(
    store: &S,
    draft: &Draft,
) -> Result<(S::Transaction, Opened)> {
    let mut transaction = store.begin().await?;
    let opening = store.open_in(S::connection(&mut transaction), draft);
    // Boxed: the steps of some stores are large, and one future must not be as large as all of them.
    match Box::pin(opening).await {
        Ok(opened) => Ok((transaction, opened)),
        Err(error) => {
            store.rollback(transaction).await;
            Err(error)
        }
    }
}

/// Settles a claim whose record is written, and commits: [`TransactionalStore::settle_and_commit`] in two
/// steps. Rolls back unless it committed.
pub async fn settle_then_commit<S: TransactionalStore + ?Sized>(
    store: &S,
    mut transaction: S::Transaction,
    lease: &Lease,
    settlement: &Settlement,
) -> Committed {
    let settling = store.settle_in(S::connection(&mut transaction), lease, settlement);
    let refused = match Box::pin(settling).await {
        Ok(Settled::Done) => {
            failpoint!("commit.before");
            let committed = Box::pin(store.commit(transaction)).await;
            return committed.map_or_else(Committed::Failed, |()| Committed::Done);
        }
        Ok(Settled::Lost) => Committed::Lost,
        Err(error) => Committed::Unsettled(error),
    };
    store.rollback(transaction).await;
    refused
}
