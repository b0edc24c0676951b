//! What a store must offer: a versioned map with a clock.
//!
//! A store keeps records; it decides nothing. Every method is one atomic step in the backend, takes
//! durations and never instants, and answers expected things as values. The [judge](crate::judge)
//! decides, once, for all of them; the executor writes its verdicts with [`Store::swap`].

mod any;
mod error;
mod listing;
pub mod memory;
mod replication;
mod watermark;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub use any::{AnyRenewer, AnyStore};
pub use error::{Error, Kind as ErrorKind};
pub use listing::{
    Content, Cursor, Filter, ForeignCursor, Inspect, Listed, Page, Tally, Unreadable,
};
pub use replication::{Replication, ReplicationState};
pub use watermark::{ClockTrust, Watermark};

use crate::claim::{AttemptId, Fence, Lease, OperationId};
use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;
use crate::key::{Hint, Key};
use crate::outcome::{ErrorText, Outcome, Recorded};
use crate::policy::OnCrash;
use crate::record::{Record, Version};

/// The result of a store's step.
pub type Result<T> = std::result::Result<T, Error>;

/// A future in a box, where a trait object needs one.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A claim as it is to be written. The store adds what its clock says: fence, lease end, times.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Whose record.
    pub key: Key,
    /// What the request looks like.
    pub fingerprint: Fingerprint,
    /// The operation.
    pub operation_id: OperationId,
    /// This grant.
    pub attempt_id: AttemptId,
    /// Which execution this is; 1 for a fresh record.
    pub attempt: u32,
    /// `host:pid:instance`.
    pub owner: Arc<str>,
    /// How long the claim lives without renewal.
    pub lease: Duration,
    /// Stored for whoever judges this claim's crash.
    pub on_crash: OnCrash,
    /// Stored for whoever sweeps this claim.
    pub keep: Duration,
    /// What running it again takes, for whoever finds the claim lapsed or failed: an event's
    /// envelope. It stays until the record succeeds or goes.
    pub retry_payload: Option<Outcome>,
}

/// What [`Store::open`] found.
#[derive(Clone, Debug)]
#[must_use]
pub enum Opened {
    /// Nothing was there: the draft is written, and the claim is the caller's.
    Inserted {
        /// The fence of the grant.
        fence: Fence,
    },
    /// A record was there; nothing was written.
    Existing {
        /// It.
        record: Box<Record>,
        /// The store's clock, read in the same step.
        now: Timestamp,
    },
    /// Somebody's uncommitted transaction holds the key, or a race was lost: nothing is known.
    Contended,
}

/// What a record turns into when its claim ends. Whatever does not succeed keeps its retry payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// Done, with its answer.
    Succeeded {
        /// The answer.
        outcome: Recorded,
        /// How long it is kept.
        keep: Duration,
    },
    /// Failed.
    Failed {
        /// Why.
        error: ErrorText,
        /// When the next attempt may start; `None` means never.
        retry_after: Option<Duration>,
        /// How long the failure is kept.
        keep: Duration,
    },
    /// Given up.
    Dead {
        /// Why.
        error: ErrorText,
    },
    /// Unknown whether it happened.
    Uncertain {
        /// Why.
        error: ErrorText,
    },
    /// Dealt with by an operator: nobody is to run it.
    Discarded {
        /// Why.
        error: ErrorText,
    },
    /// Gone, as if it never was.
    Removed,
}

/// What [`Store::swap`] writes over the version that was judged.
#[derive(Clone, Debug)]
pub enum Change {
    /// A new grant of the same operation: `created_at` survives, everything else is the draft's,
    /// its retry payload too.
    Regrant(Draft),
    /// A new grant over an expired record: nothing of the old one survives but that the fence grows.
    Replace(Draft),
    /// The record ends without its holder: buried, suspended, or settled by an operator.
    Settle(Settlement),
    /// An operator sends a failed, dead, uncertain or discarded record round again: Failed, due now,
    /// and its attempts counted from zero. Its retry payload stays.
    Redrive,
    /// The times of a record that was written by a clock that was ahead, counted from the store's now
    /// (see [`Record::redated`]). The holder's claim stays as it is.
    Redate,
}

/// What came of a [`Store::swap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Swapped {
    /// Written.
    Done {
        /// The record's fence after the write.
        fence: Fence,
    },
    /// The record is no longer the one that was judged, or a rival holds it: ask again.
    Lost,
}

/// What came of a [`Store::settle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Settled {
    /// Written.
    Done,
    /// The claim was no longer this lease's. An ordinary answer, never success.
    Lost,
}

/// What came of renewing one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Renewed {
    /// It runs for its full length again, from the store's now.
    Extended,
    /// The claim was no longer this lease's.
    Lost,
    /// Could not be told: this record is locked or cannot be read. The others are not held up.
    Unknown,
}

/// What came of a [`TransactionalStore::hold_in`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Held {
    /// The record is locked until the transaction ends: the claim cannot be taken over, and must not be
    /// renewed.
    Locked,
    /// Nothing is locked: the transaction does not mind renewals.
    Renewable,
    /// The claim was no longer this lease's.
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

/// What one [`Store::sweep`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Records removed.
    pub removed: u32,
    /// Lapsed claims under [`OnCrash::Hold`] and [`OnCrash::Verify`] that turned Uncertain.
    pub suspended: u32,
    /// Whether there may be more to do at once.
    pub more: bool,
    /// Whether nothing was done because the store's clock has jumped ahead and is not trusted yet; see
    /// [`Watermark`].
    pub clock_suspect: bool,
}

/// How much a store promises; see the guarantees table of the front page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// Claim, effects and outcome in one commit.
    Atomic,
    /// One live holder, at most one outcome, late holders refused.
    Fenced,
    /// As fenced, but a crashed attempt is never re-run by itself.
    AtMostOnce,
    /// A claim that was acknowledged can be lost.
    BestEffort,
}

/// How bad a [`Finding`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The promise holds, but something is not as it should be.
    Warning,
    /// The promise does not hold.
    Error,
}

/// Something about a store's set-up that breaks or weakens a promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad.
    pub severity: Severity,
    /// A stable name, such as `redis-eviction`.
    pub code: &'static str,
    /// What was found.
    pub found: String,
    /// What to do.
    pub fix: String,
}

/// A record with the store's clock, read in one step.
#[derive(Clone, Debug)]
pub struct Peeked {
    /// The record.
    pub record: Record,
    /// The store's clock.
    pub now: Timestamp,
}

/// A versioned map with a clock. See the module's first lines for what that means.
pub trait Store: Send + Sync + 'static {
    /// Renews leases over a connection of its own.
    type Renewer: Renewer;

    /// Writes the draft if there is no record, else reads the record. One step, one trip.
    ///
    /// An expired record is *existing*: whether it counts is the judge's business.
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

    /// Reads a record. Expired and lapsed ones are shown as they are.
    fn peek(&self, key: &Key) -> impl Future<Output = Result<Option<Peeked>>> + Send;

    /// Works off at most `limit` records: removes expired ones, and lapsed claims under Rerun whose
    /// lease ended more than their `keep` ago; turns Uncertain lapsed claims under Hold, and those
    /// under Verify whose lease ended more than their `keep` ago, since what may have happened must
    /// not be forgotten unasked. Never touches a record whose lease runs. Does nothing while the
    /// store's clock is suspect.
    fn sweep(&self, limit: u32) -> impl Future<Output = Result<Swept>> + Send;

    /// A renewer. Called on the runtime that will use it.
    fn renewer(&self) -> impl Future<Output = Result<Self::Renewer>> + Send;

    /// Wake-ups from other processes, where the store can carry them.
    fn listen(&self) -> impl Future<Output = Result<Option<Box<dyn Listen>>>> + Send {
        async { Ok(None) }
    }

    /// Tells other processes that a record of theirs may have moved. Must not block or fail; a
    /// store whose `settle` already tells them leaves it empty.
    fn announce(&self, hint: Hint) {
        let _ = hint;
    }

    /// What is wrong with the store's set-up. An empty list is good news.
    fn check(&self) -> impl Future<Output = Result<Vec<Finding>>> + Send;

    /// Whether the store takes writes, as far as it knows: an error says why not (a full disk). Readiness
    /// probes ask it, so it costs nothing while all is well.
    fn writable(&self) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// How much this store promises for work outside its transactions.
    fn guarantee(&self) -> Guarantee;

    /// The largest retry payload that a record can hold, in bytes. `None` where that is more than any
    /// event has ([`MAX_PAYLOAD`](crate::event::MAX_PAYLOAD)).
    fn max_retry_payload(&self) -> Option<usize> {
        None
    }

    /// Whether it is in this process, so that asking it costs no more than remembering its answers.
    fn is_near(&self) -> bool {
        false
    }
}

/// Extends leases. Lives on the heartbeat's own thread.
pub trait Renewer: Send + 'static {
    /// Extends each lease to its full length from the store's now: one answer per lease, in order.
    /// A lease that lapsed but was not taken over is extended.
    fn renew(
        &mut self,
        leases: &[(Lease, Duration)],
    ) -> impl Future<Output = Result<Vec<Renewed>>> + Send;
}

/// A stream of wake-ups from other processes.
pub trait Listen: Send {
    /// The next one. After an error the listener is not used again.
    fn next(&mut self) -> BoxFuture<'_, Result<Hint>>;
}

/// A store whose writes can join the caller's database transaction.
pub trait TransactionalStore: Store {
    /// The connection that statements run on, such as `sqlx::PgConnection`.
    type Connection: Send;
    /// An open transaction that owns its connection. Dropping it rolls back.
    type Transaction: Send + 'static;

    /// Begins a transaction of ours. `limit` bounds how long it may hold what it locks, where the
    /// store has a single writer.
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
        async {
            let mut transaction = self.begin().await?;
            match self.open_in(Self::connection(&mut transaction), draft).await {
                Ok(opened) => Ok((transaction, opened)),
                Err(error) => {
                    self.rollback(transaction).await;
                    Err(error)
                }
            }
        }
    }

    /// Settles a claim in a transaction of ours and commits it: [`settle_in`](Self::settle_in) and
    /// [`commit`](Self::commit), in as few trips as the store needs. Rolls back unless it committed.
    fn settle_and_commit(
        &self,
        transaction: Self::Transaction,
        lease: &Lease,
        settlement: &Settlement,
    ) -> impl Future<Output = Committed> + Send {
        self.settle_then_commit(transaction, lease, settlement)
    }

    /// [`settle_and_commit`](Self::settle_and_commit) in two steps, for a claim whose record is written.
    fn settle_then_commit(
        &self,
        mut transaction: Self::Transaction,
        lease: &Lease,
        settlement: &Settlement,
    ) -> impl Future<Output = Committed> + Send {
        async move {
            let refused =
                match self.settle_in(Self::connection(&mut transaction), lease, settlement).await {
                    Ok(Settled::Done) => {
                        failpoint!("commit.before");
                        let committed = self.commit(transaction).await;
                        return committed.map_or_else(Committed::Failed, |()| Committed::Done);
                    }
                    Ok(Settled::Lost) => Committed::Lost,
                    Err(error) => Committed::Unsettled(error),
                };
            self.rollback(transaction).await;
            refused
        }
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
