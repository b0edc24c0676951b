//! The outbox: events that are written in the transaction of their effect, and published afterwards.
//!
//! A backend offers a queue of rows with leases ([`Outbox`]); the [relay](Relay) decides what becomes of a
//! row, for all of them. Rows are claimed by their state, never by a cursor, which would pass over rows
//! that commit late.

mod any;
mod bell;
pub mod memory;
mod publisher;
mod relay;

use std::future::Future;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

pub use any::AnyPublisher;
pub use bell::Bell;
pub use publisher::{PublishError, Publisher};
pub use relay::{Pass, Relay, RelayBuilder, Relaying, Standing};

use crate::claim::AttemptId;
use crate::clock::Timestamp;
use crate::event::{Event, EventId};
use crate::outcome::ErrorText;
use crate::store::Result;

/// The status of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Waits for its first attempt.
    Pending,
    /// A relay holds a lease on it.
    Leased,
    /// The broker has confirmed it.
    Published,
    /// The last attempt failed or was postponed; the next is due later.
    Failed,
    /// Not tried again. Stays until an operator redrives or discards it; never cleaned.
    Dead,
    /// An operator decided that it is not published. Cleaned as published rows are.
    Discarded,
}

impl Status {
    /// All of them, in the order of their codes.
    pub const ALL: [Status; 6] = [
        Status::Pending,
        Status::Leased,
        Status::Published,
        Status::Failed,
        Status::Dead,
        Status::Discarded,
    ];

    /// Returns the stored code.
    pub const fn code(self) -> u8 {
        match self {
            Status::Pending => 0,
            Status::Leased => 1,
            Status::Published => 2,
            Status::Failed => 3,
            Status::Dead => 4,
            Status::Discarded => 5,
        }
    }

    /// Returns the status with this stored code.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Status::Pending,
            1 => Status::Leased,
            2 => Status::Published,
            3 => Status::Failed,
            4 => Status::Dead,
            5 => Status::Discarded,
            _ => return None,
        })
    }

    /// Returns the name used in logs and by operators.
    pub const fn name(self) -> &'static str {
        match self {
            Status::Pending => "pending",
            Status::Leased => "leased",
            Status::Published => "published",
            Status::Failed => "failed",
            Status::Dead => "dead",
            Status::Discarded => "discarded",
        }
    }
}

/// Identifies the events that keep their order among themselves: those of one tenant about one
/// aggregate. Sixteen bytes, because it is only compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Partition(pub [u8; 16]);

impl Partition {
    /// Returns the partition of an event; `None` if its order does not matter.
    pub fn of(envelope: &Event) -> Option<Self> {
        let aggregate = envelope.aggregate()?;
        let mut hash = Sha256::new();
        hash.update(b"semel/lane/1\0");
        for part in [envelope.tenant(), &aggregate.kind, &aggregate.id] {
            hash.update(part.len().to_be_bytes());
            hash.update(part.as_bytes());
        }
        let mut partition = [0; 16];
        partition.copy_from_slice(&hash.finalize()[..16]);
        Some(Self(partition))
    }

    /// Maps the partition to one of a broker's `count` partitions. The events of one stay together.
    pub fn partition(self, count: u16) -> u16 {
        let [a, b, c, d, ..] = self.0;
        let wide = u64::from(u32::from_be_bytes([a, b, c, d])) * u64::from(count);
        u16::try_from(wide >> 32).expect("less than the count")
    }
}

/// Returns which of a broker's `count` partitions an event goes to; any, where its order does not matter.
pub fn partition(envelope: &Event, count: u16) -> u16 {
    Partition::of(envelope).unwrap_or_else(|| anywhere(envelope)).partition(count)
}

/// Returns a partition by the event's id. Reversed, because an id begins with its time.
fn anywhere(envelope: &Event) -> Partition {
    let mut partition = envelope.id().to_bytes();
    partition.reverse();
    Partition(partition)
}

/// Identifies one lease of one row: the condition under which its result is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The number of the row, in the order of append.
    pub sequence: u64,
    /// The token of the lease.
    pub token: AttemptId,
}

/// A row with its lease.
#[derive(Clone, Debug)]
pub struct Leased {
    /// The lease.
    pub ticket: Ticket,
    /// The event with its sequence, or why it cannot be read.
    pub envelope: std::result::Result<Event, String>,
    /// The number of this attempt, counted from 1, with attempts that crashed.
    pub attempt: u32,
    /// The time since it was appended, by the store's clock.
    pub age: Duration,
}

/// The limits of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Most rows.
    pub limit: u32,
    /// The length of the leases.
    pub lease: Duration,
    /// Most bytes of payload, of all rows together. One row is claimed whatever its size.
    pub bytes: u64,
    /// Whether to look further where the rows that are due first all wait behind others of their partition,
    /// and to put those off. Without it such a claim returns what it has found, which may be nothing: for a
    /// relay with a batch in progress, since what waits may wait for that batch.
    pub look_further: bool,
}

impl Ask {
    /// The default of [`bytes`](Self::bytes): 8 MiB.
    pub const BYTES: u64 = 8 << 20;
    /// The default length of a relay's leases: 30 s.
    pub const LEASE: Duration = Duration::from_secs(30);

    /// Creates the limits of a claim of at most [`BYTES`](Self::BYTES).
    pub const fn new(limit: u32, lease: Duration) -> Self {
        Self { limit, lease, bytes: Self::BYTES, look_further: true }
    }
}

/// What becomes of a leased row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The broker has confirmed it.
    Published,
    /// The attempt failed, and is retried.
    Retry {
        /// How long until the next attempt is due.
        after: Duration,
        /// The failure.
        error: ErrorText,
    },
    /// It is not tried again.
    Dead {
        /// The last failure.
        error: ErrorText,
        /// Whether the later events of its partition wait until an operator has decided.
        holds_partition: bool,
    },
    /// It was not tried: as if it had not been claimed.
    Untried,
    /// It was postponed: Failed, without counting an attempt.
    Later {
        /// How long until it is due.
        after: Duration,
        /// The reason.
        error: ErrorText,
    },
}

/// The result of marking a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Marked {
    /// It is written.
    Done,
    /// The lease did not hold the row any more. Nothing was written.
    Lost,
}

/// Selects rows for operators. Unset fields match everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// These events.
    pub ids: Vec<EventId>,
    /// Of this tenant.
    pub tenant: Option<String>,
    /// Of this type.
    pub kind: Option<String>,
    /// In this status.
    pub status: Option<Status>,
}

/// A row as operators see it, without the payload of its event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The number of the row.
    pub sequence: u64,
    /// The status.
    pub status: Status,
    /// The event [without its payload](Event::without_payload), or why it cannot be read.
    pub envelope: std::result::Result<Event, String>,
    /// The size of the payload.
    pub bytes: u64,
    /// Number of attempts so far.
    pub attempts: u32,
    /// The last failure, or why it was discarded.
    pub error: Option<ErrorText>,
    /// When it was appended.
    pub created_at: Timestamp,
    /// When it is due: the next attempt, or the end of the lease. For a pending row that waits behind others
    /// of its partition, when it is considered again at the latest.
    pub due_at: Option<Timestamp>,
    /// When it was published or discarded.
    pub settled_at: Option<Timestamp>,
}

/// How many rows wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Number of rows that are to be published.
    pub waiting: u64,
    /// Number of dead rows, which wait for an operator.
    pub dead: u64,
    /// The age of the oldest row that waits.
    pub oldest: Option<Duration>,
}

impl Backlog {
    /// The largest count: more rows are not counted.
    pub const MOST: u64 = 100_000;
}

/// What an operator does to rows. Discarded rows are changed only if they are
/// [selected explicitly](Selection::reaches).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowAction {
    /// Makes Failed, Dead and Discarded rows pending again: due now, with attempts counted from zero, in
    /// their partition.
    Redrive,
    /// Discards Pending, Failed, Dead and Discarded rows. They do not hold their partition.
    Discard {
        /// The operator's reason.
        reason: String,
    },
    /// Makes Published rows pending again, for a broker that lost what it had confirmed.
    Republish,
}

impl Selection {
    /// Returns whether an action changes rows in this status that match. Discarded rows are an operator's
    /// decision, so they are changed only if the selection has their ids or that status.
    pub fn reaches(&self, verb: &RowAction, status: Status) -> bool {
        let named = !self.ids.is_empty() || self.status.is_some();
        self.status.is_none_or(|wanted| wanted == status)
            && verb.applies(status)
            && (named || status != Status::Discarded)
    }
}

impl RowAction {
    /// Returns whether the action can change rows in this status; [`Selection::reaches`] tells whether it
    /// does.
    pub const fn applies(&self, status: Status) -> bool {
        use Status::{Dead, Discarded, Failed, Pending};
        match self {
            RowAction::Redrive => matches!(status, Failed | Dead | Discarded),
            RowAction::Discard { .. } => matches!(status, Pending | Failed | Dead | Discarded),
            RowAction::Republish => matches!(status, Status::Published),
        }
    }
}

/// The result of an operator's action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Applied {
    /// Number of rows that were changed.
    pub changed: u32,
    /// The number of the last of them, after which to continue; `None` if there was none.
    pub last: Option<u64>,
}

/// The result of [`Outbox::clean`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Cleaned {
    /// Number of rows removed.
    pub removed: u32,
    /// Whether none was removed because the store's clock has jumped ahead and is not trusted yet; see
    /// [`Watermark`](crate::store::Watermark).
    pub clock_suspect: bool,
}

/// A queue of events with leases, inside the caller's database.
///
/// A row is claimable when it is due: pending or failed and its time has come, or leased and its lease has
/// lapsed. In a partition, a row is claimable only if all unpublished predecessors are in the same claim. A
/// row whose lease has lapsed is claimed alone: if it crashes relays, it must not use up the attempts of
/// other rows.
pub trait Outbox: Send + Sync + 'static {
    /// The caller's open transaction, which [`append`](Self::append) writes in.
    type Connection: Send;

    /// Writes events in the caller's transaction. An event whose tenant and id exist already is not
    /// written again.
    fn append(
        &self,
        connection: &mut Self::Connection,
        events: &[Event],
    ) -> impl Future<Output = Result<()>> + Send;

    /// Leases rows that are due, the longest due first, those of one partition in order. One step of bounded
    /// cost, however many rows wait behind others of their partition: if it has read very many of them and
    /// found nothing, it returns nothing and rings the [bell](Self::bell), so that the next claim continues
    /// from there.
    fn claim(&self, ask: Ask) -> impl Future<Output = Result<Vec<Leased>>> + Send;

    /// Writes what became of leased rows. Returns one result per row, in order.
    fn mark(
        &self,
        marks: &[(Ticket, Disposition)],
    ) -> impl Future<Output = Result<Vec<Marked>>> + Send;

    /// Counts the rows that wait, at bounded cost however many were published.
    fn backlog(&self) -> impl Future<Output = Result<Backlog>> + Send;

    /// Returns at most `limit` rows that match, ordered by number, after `after`. Payloads are not read.
    fn list(
        &self,
        selection: &Selection,
        after: Option<u64>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Row>>> + Send;

    /// Returns how many rows an action would change, counted up to [`Backlog::MOST`].
    fn count(
        &self,
        selection: &Selection,
        verb: &RowAction,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Applies an action to at most `limit` rows that match and whose number is greater than `after`, the
    /// oldest first. Leased rows are not changed.
    ///
    /// Called again after the [last](Applied::last) row until there is none, it changes every row once, also
    /// those that match again, such as rows that were republished and are published again.
    fn apply(
        &self,
        selection: &Selection,
        verb: &RowAction,
        after: Option<u64>,
        limit: u32,
    ) -> impl Future<Output = Result<Applied>> + Send;

    /// Removes at most `limit` rows that were published or discarded longer than `keep` ago. Never dead ones,
    /// and nothing while the store's clock is suspect. Where a clock that was ahead wrote the due time of a
    /// row, sets it to the row's lease or backoff from now.
    fn clean(&self, keep: Duration, limit: u32) -> impl Future<Output = Result<Cleaned>> + Send;

    /// Returns the bell, which is rung when there may be something to claim.
    fn bell(&self) -> &Bell;
}
