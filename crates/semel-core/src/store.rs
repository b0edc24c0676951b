//! The interface of a store: a versioned map with a clock.
//!
//! A store keeps records and makes no decisions. Every method is one atomic step in the backend,
//! takes durations and never instants, and returns expected results as values. The
//! [judge](crate::judge) decides for every store; the executor writes its verdicts with
//! [`Store::swap`].

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
    /// The key had no record: the draft was written, and the claim is granted.
    Inserted {
        /// The fence of the grant.
        fence: Fence,
    },
    /// The key has a record; the draft was not written.
    Existing {
        /// The existing record.
        record: Box<Record>,
        /// The store's clock, read in the same step.
        now: Timestamp,
    },
    /// An uncommitted transaction holds the key, or the call lost a race: the record is not known.
    Contended,
}

/// The change that [`Store::swap`] writes over the version that was judged.
#[derive(Clone, Debug)]
pub enum Change {
    /// A new grant of the same operation: `created_at` is kept, everything else comes from the
    /// draft, including the retry payload.
    Regrant(Draft),
    /// A new grant over an expired record: nothing of the old record is kept, but the fence still
    /// grows.
    Replace(Draft),
    /// A settlement that comes from the judge or an operator instead of the holder.
    Settle(Settlement),
    /// An operator redrives a failed, dead, uncertain or discarded record: it becomes Failed and
    /// due now, with attempts counted from zero. Its retry payload is kept.
    Redrive,
    /// The times of a record, which were written by a clock that ran ahead, are counted from the
    /// store's present time (see [`Record::redated`]). The holder keeps its claim.
    Redate,
}

/// The result of [`Store::swap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Swapped {
    /// The change was written.
    Done {
        /// The fence of the record after the write.
        fence: Fence,
    },
    /// The record no longer has the version that was judged, or another transaction locks it. The
    /// change was not written.
    Lost,
}

/// The result of [`Store::settle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Settled {
    /// The settlement was written.
    Done,
    /// The caller no longer holds the claim. The settlement was not written.
    Lost,
}

/// The result of renewing one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Renewed {
    /// The lease runs for its full length again, from the store's present time.
    Extended,
    /// The caller no longer holds the claim.
    Lost,
    /// The record is locked or cannot be read. Other leases of the same call are not affected.
    Unknown,
}

/// The result of [`TransactionalStore::hold_in`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Held {
    /// The record is locked until the transaction ends: the claim cannot be taken over, and must not be
    /// renewed.
    Locked,
    /// The record is not locked: renewals do not conflict with the transaction.
    Renewable,
    /// The caller no longer holds the claim.
    Lost,
}

/// The result of [`TransactionalStore::settle_and_commit`].
#[derive(Debug)]
#[must_use]
pub enum Committed {
    /// The settlement and all other writes of the transaction are committed.
    Done,
    /// The caller no longer holds the claim, or another transaction recorded the key first: nothing
    /// is committed.
    Lost,
    /// The settlement could not be written: nothing is committed.
    Unsettled(Error),
    /// The commit failed. The error is `Ambiguous` unless the store is certain that nothing was
    /// committed.
    Failed(Error),
}

/// The result of [`Store::sweep`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// The number of records that were removed.
    pub removed: u32,
    /// The number of lapsed claims under [`OnCrash::Hold`](crate::OnCrash::Hold) and
    /// [`OnCrash::Verify`](crate::OnCrash::Verify) that became Uncertain.
    pub suspended: u32,
    /// Whether there may be more records to remove now.
    pub more: bool,
    /// Whether no record was removed because the store's clock has jumped ahead and is not trusted
    /// yet; see [`Watermark`].
    pub clock_suspect: bool,
}

/// The guarantee that a store gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// Claim, effects and outcome are one commit.
    Atomic,
    /// There is one live holder and at most one outcome; writes of late holders are refused.
    Fenced,
    /// The same as Fenced, but a crashed attempt is not run again without a decision.
    AtMostOnce,
    /// An acknowledged claim can be lost with the process or in a failover.
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

/// A property of a store's set-up that breaks or weakens its guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whether the guarantee is broken or weakened.
    pub severity: Severity,
    /// A stable name, such as `redis-eviction`.
    pub code: &'static str,
    /// A description of the property.
    pub found: String,
    /// The change to the set-up that resolves the finding.
    pub fix: String,
}

/// A record and the store's clock, read in one step.
#[derive(Clone, Debug)]
pub struct Peeked {
    /// The record that was read.
    pub record: Record,
    /// The store's clock at the time of the read.
    pub now: Timestamp,
}

/// Keeps the records of keys: a versioned map with a clock. See the [module](self).
pub trait Store: Send + Sync + 'static {
    /// The type that renews leases, on a separate connection.
    type Renewer: Renewer;

    /// Writes the draft if the key has no record, else reads the record, in one atomic step and one
    /// round trip.
    ///
    /// An expired record is returned as existing: the judge decides whether it counts.
    fn open(&self, draft: &Draft) -> impl Future<Output = Result<Opened>> + Send;

    /// Writes `change` over the record of `key` if the record still has the version `judged`.
    fn swap(
        &self,
        key: &Key,
        judged: Version,
        change: &Change,
    ) -> impl Future<Output = Result<Swapped>> + Send;

    /// Settles a running claim if `lease` still holds it. The version, `updated_at` and
    /// `completed_at` change.
    fn settle(
        &self,
        lease: &Lease,
        settlement: &Settlement,
    ) -> impl Future<Output = Result<Settled>> + Send;

    /// Reads the record of `key`, even if it has expired or its lease has lapsed.
    fn peek(&self, key: &Key) -> impl Future<Output = Result<Option<Peeked>>> + Send;

    /// Sweeps at most `limit` records. Removes expired records, and lapsed claims under Rerun whose
    /// lease ended more than their `keep` ago. Marks as Uncertain lapsed claims under Hold, and
    /// lapsed claims under Verify whose lease ended more than their `keep` ago, since they may have
    /// taken effect. Never changes a record whose lease still runs, and changes no record while the
    /// store's clock is suspect.
    fn sweep(&self, limit: u32) -> impl Future<Output = Result<Swept>> + Send;

    /// Creates a renewer. The executor calls this method on the runtime that uses the renewer.
    fn renewer(&self) -> impl Future<Output = Result<Self::Renewer>> + Send;

    /// Subscribes to wake-ups from other processes; `None` if the store does not transport them.
    fn listen(&self) -> impl Future<Output = Result<Option<Box<dyn Listen>>>> + Send {
        async { Ok(None) }
    }

    /// Notifies other processes that a record may have changed. The method must not block or fail;
    /// it is empty in stores whose `settle` already notifies.
    fn announce(&self, hint: Hint) {
        let _ = hint;
    }

    /// Checks the store's set-up, and returns the properties that break or weaken its guarantee.
    fn check(&self) -> impl Future<Output = Result<Vec<Finding>>> + Send;

    /// Returns an error if the store is known not to accept writes, for example because the disk is
    /// full. Readiness probes call this method, so it must be cheap while the store works.
    fn writable(&self) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Returns the guarantee for work outside the store's transactions.
    fn guarantee(&self) -> Guarantee;

    /// Returns the largest size of a retry payload, in bytes; `None` if every event fits
    /// ([`MAX_PAYLOAD`](crate::event::MAX_PAYLOAD)).
    fn max_retry_payload(&self) -> Option<usize> {
        None
    }

    /// Returns whether the store is in this process, so that reading it is as cheap as reading a
    /// cache.
    fn is_in_process(&self) -> bool {
        false
    }
}

/// Renews leases on the heartbeat's thread.
pub trait Renewer: Send + 'static {
    /// Extends each lease to its full length from the store's present time. Returns one result per
    /// lease, in order. A lease that has lapsed but was not taken over is extended too.
    fn renew(
        &mut self,
        leases: &[(Lease, Duration)],
    ) -> impl Future<Output = Result<Vec<Renewed>>> + Send;
}

/// A subscription to wake-ups from other processes.
pub trait Listen: Send {
    /// Waits for the next wake-up. The method is not called again after an error.
    fn next(&mut self) -> BoxFuture<'_, Result<Hint>>;
}

/// A store whose writes can be part of the caller's database transaction.
pub trait TransactionalStore: Store {
    /// The connection that statements run on, such as `sqlx::PgConnection`.
    type Connection: Send;
    /// An open transaction that owns its connection. Dropping it rolls back.
    type Transaction: Send + 'static;

    /// Begins a transaction of the store. If the store has a single writer,
    /// [`work_limit`](Self::work_limit) bounds the time for which it may stay open.
    fn begin(&self) -> impl Future<Output = Result<Self::Transaction>> + Send;

    /// Returns the connection of the transaction.
    fn connection(transaction: &mut Self::Transaction) -> &mut Self::Connection;

    /// Prepares a transaction that the caller began on `connection` for
    /// [`settle_in`](Self::settle_in), if the claim was committed before that transaction. For a
    /// claim of the same transaction, [`open_in`](Self::open_in) has done so already.
    ///
    /// # Errors
    /// `Misconfigured` if no transaction is open on the connection.
    fn adopt(&self, connection: &mut Self::Connection) -> impl Future<Output = Result<()>> + Send {
        let _ = connection;
        async { Ok(()) }
    }

    /// Performs [`Store::open`] inside a transaction. It never waits for a rival: a key that
    /// another transaction holds is `Contended`.
    fn open_in(
        &self,
        connection: &mut Self::Connection,
        draft: &Draft,
    ) -> impl Future<Output = Result<Opened>> + Send;

    /// Performs [`Store::swap`] inside a transaction.
    fn swap_in(
        &self,
        connection: &mut Self::Connection,
        key: &Key,
        judged: Version,
        change: &Change,
    ) -> impl Future<Output = Result<Swapped>> + Send;

    /// Locks the record of a claim that was made outside the transaction, if the transaction could
    /// not write a record that is renewed after its snapshot (REPEATABLE READ, SERIALIZABLE).
    /// Called first in a transaction that will settle such a claim. It never waits: if the record
    /// is just being written, the error is `RetryTransaction`.
    fn hold_in(
        &self,
        connection: &mut Self::Connection,
        lease: &Lease,
    ) -> impl Future<Output = Result<Held>> + Send {
        let _ = (connection, lease);
        async { Ok(Held::Renewable) }
    }

    /// Performs [`Store::settle`] inside a transaction: one of the store, one in which the claim
    /// was opened, or one that was [adopted](Self::adopt). Fails with `Misconfigured` if the
    /// connection is no longer in that transaction, because the work has committed it.
    fn settle_in(
        &self,
        connection: &mut Self::Connection,
        lease: &Lease,
        settlement: &Settlement,
    ) -> impl Future<Output = Result<Settled>> + Send;

    /// Begins a transaction of the store and opens the key of `draft` in it: [`begin`](Self::begin)
    /// and [`open_in`](Self::open_in), in as few round trips as possible.
    ///
    /// A store may postpone writing a fresh record until the commit: `Inserted` then means that
    /// this transaction holds the key, so that every rival is `Contended`, and
    /// [`settle_and_commit`](Self::settle_and_commit) writes the settled record once. Such a
    /// transaction must end with that call or with a rollback.
    fn begin_and_open(
        &self,
        draft: &Draft,
    ) -> impl Future<Output = Result<(Self::Transaction, Opened)>> + Send {
        begin_then_open(self, draft)
    }

    /// Defers events to the commit of a transaction of the store. Returns the events that are not
    /// deferred and must be written now by [`Outbox::append`](crate::outbox::Outbox::append): by
    /// default all of them.
    ///
    /// [`settle_and_commit`](Self::settle_and_commit) and [`commit`](Self::commit) write deferred
    /// events, in the order of these calls. If that fails, they fail and nothing is committed. Once a
    /// store has deferred an event, it must defer every valid event that follows in the same
    /// transaction, to keep their order.
    fn defer_events(&self, transaction: &mut Self::Transaction, events: Vec<Event>) -> Vec<Event> {
        let _ = transaction;
        events
    }

    /// Settles a claim in a transaction of the store and commits: [`settle_in`](Self::settle_in)
    /// and [`commit`](Self::commit), in as few round trips as possible. Rolls back if the claim
    /// cannot be settled.
    fn settle_and_commit(
        &self,
        transaction: Self::Transaction,
        lease: &Lease,
        settlement: &Settlement,
    ) -> impl Future<Output = Committed> + Send {
        settle_then_commit(self, transaction, lease, settlement)
    }

    /// Commits the transaction. An error is `Ambiguous` unless the store is certain that nothing
    /// was committed.
    fn commit(&self, transaction: Self::Transaction) -> impl Future<Output = Result<()>> + Send;

    /// Rolls the transaction back. Errors are ignored, since a lost connection rolls back too.
    fn rollback(&self, transaction: Self::Transaction) -> impl Future<Output = ()> + Send;

    /// Returns the longest time that the work of one transaction may take, if the store has a
    /// single writer that all other callers wait for; `None` if there is no such limit.
    fn work_limit(&self, lease: Duration) -> Option<Duration> {
        let _ = lease;
        None
    }
}

/// Performs [`TransactionalStore::begin_and_open`] in two steps, of which the second writes the
/// record of a free key.
///
/// # Errors
/// Those of the two steps. The transaction is rolled back.
pub async fn begin_then_open<S: TransactionalStore + ?Sized>(
    store: &S,
    draft: &Draft,
) -> Result<(S::Transaction, Opened)> {
    let mut transaction = store.begin().await?;
    let opening = store.open_in(S::connection(&mut transaction), draft);
    // Boxed, because the futures of some stores are large, and this future would be as large as
    // their sum.
    match Box::pin(opening).await {
        Ok(opened) => Ok((transaction, opened)),
        Err(error) => {
            store.rollback(transaction).await;
            Err(error)
        }
    }
}

/// Performs [`TransactionalStore::settle_and_commit`] in two steps, for a claim whose record is
/// already written. Rolls back if the claim cannot be settled.
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
