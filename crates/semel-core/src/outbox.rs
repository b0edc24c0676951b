//! The outbox: stores events in the transaction of their effect, so that they are published
//! afterwards.
//!
//! A backend implements a queue of rows with leases ([`Outbox`]); the [relay](Relay) decides for
//! every backend what happens to a row. Rows are claimed by their state, never by a cursor, which
//! would skip rows of transactions that commit late.

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
pub use relay::{Pass, Relay, RelayBuilder, RelayStatus, Relaying};

use crate::claim::AttemptId;
use crate::clock::Timestamp;
use crate::event::{Event, EventId};
use crate::outcome::ErrorText;
use crate::store::Result;

/// The status of a row of the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The row waits for its first attempt.
    Pending,
    /// A relay holds a lease on the row.
    Leased,
    /// The broker has confirmed the event.
    Published,
    /// The last attempt failed or was postponed; the next is due later.
    Failed,
    /// The event was given up. The row stays until an operator redrives or discards it; cleaning
    /// never removes it.
    Dead,
    /// An operator decided that the event is not published. The row is removed like a published
    /// row.
    Discarded,
}

impl Status {
    /// All statuses, in the order of their codes.
    pub const ALL: [Status; 6] = [
        Status::Pending,
        Status::Leased,
        Status::Published,
        Status::Failed,
        Status::Dead,
        Status::Discarded,
    ];

    /// Returns the code that stores persist for this status.
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

    /// Returns the status with this stored code; `None` if there is none.
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

/// Identifies the events of one tenant about one aggregate, which are published in order. It is a
/// hash of sixteen bytes, because it is only compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Partition(pub [u8; 16]);

impl Partition {
    /// Returns the partition of an event; `None` if the event has no aggregate, so that its order
    /// does not matter.
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

    /// Maps the partition to one of a broker's `count` partitions, always to the same one.
    pub fn partition(self, count: u16) -> u16 {
        let [a, b, c, d, ..] = self.0;
        let wide = u64::from(u32::from_be_bytes([a, b, c, d])) * u64::from(count);
        u16::try_from(wide >> 32).expect("less than the count")
    }
}

/// Returns the number of the broker's partition, out of `count`, for an event. An event without an
/// aggregate is mapped by its id.
pub fn partition(envelope: &Event, count: u16) -> u16 {
    Partition::of(envelope).unwrap_or_else(|| anywhere(envelope)).partition(count)
}

/// Returns a partition computed from the event's id. The bytes are reversed, because an id begins
/// with a time.
fn anywhere(envelope: &Event) -> Partition {
    let mut partition = envelope.id().to_bytes();
    partition.reverse();
    Partition(partition)
}

/// Identifies one lease of one row. The result of the row is written only if its lease is still
/// this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The number of the row, in the order of append.
    pub sequence: u64,
    /// The token of the lease.
    pub token: AttemptId,
}

/// A row that the caller has leased.
#[derive(Clone, Debug)]
pub struct Leased {
    /// Identifies the lease.
    pub ticket: Ticket,
    /// The event with its sequence, or the reason why it cannot be decoded.
    pub envelope: std::result::Result<Event, String>,
    /// The number of this attempt, counted from 1, including attempts that crashed.
    pub attempt: u32,
    /// The time since the event was appended, by the store's clock.
    pub age: Duration,
}

/// The limits of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The largest number of rows in the claim.
    pub limit: u32,
    /// The length of the leases on the rows.
    pub lease: Duration,
    /// The largest total size of the payloads, in bytes. The first row is claimed regardless of its
    /// size.
    pub bytes: u64,
    /// Whether to look further where the rows that are due first all wait behind others of their partition,
    /// and to put those off. Without it such a claim returns what it has found, which may be nothing: for a
    /// relay with a batch in progress, since what waits may wait for that batch.
    pub look_further: bool,
}

impl ClaimRequest {
    /// The default of [`bytes`](Self::bytes): 8 MiB.
    pub const BYTES: u64 = 8 << 20;
    /// The default length of a relay's leases: 30 s.
    pub const LEASE: Duration = Duration::from_secs(30);

    /// Creates limits with the default of [`BYTES`](Self::BYTES).
    pub const fn new(limit: u32, lease: Duration) -> Self {
        Self { limit, lease, bytes: Self::BYTES, look_further: true }
    }
}

/// The relay's decision about a leased row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The broker has confirmed the event.
    Published,
    /// The attempt failed, and the event is retried.
    Retry {
        /// The time until the next attempt is due.
        after: Duration,
        /// The error of the failed attempt.
        error: ErrorText,
    },
    /// The event is given up.
    Dead {
        /// The error of the last attempt.
        error: ErrorText,
        /// Whether later events of the same partition wait until an operator has decided about this
        /// one.
        holds_partition: bool,
    },
    /// The event was not tried: the row becomes as it was before the claim.
    Untried,
    /// The event was postponed: the row becomes Failed, without counting an attempt.
    Later {
        /// The time until the event is due again.
        after: Duration,
        /// The reason of the delay.
        error: ErrorText,
    },
}

/// The result of marking a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Marked {
    /// The disposition is written.
    Done,
    /// The caller no longer holds the lease on the row. The row was not changed.
    Lost,
}

/// Selects rows for operators. A field that is not set matches every row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Selects events with these ids; all events if empty.
    pub ids: Vec<EventId>,
    /// Selects events of this tenant.
    pub tenant: Option<String>,
    /// Selects events of this type.
    pub kind: Option<String>,
    /// Selects rows in this status.
    pub status: Option<Status>,
}

/// A row for operators, without the payload of its event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The number of the row, in the order of append.
    pub sequence: u64,
    /// The status of the row.
    pub status: Status,
    /// The event [without its payload](Event::without_payload), or the reason why it cannot be
    /// decoded.
    pub envelope: std::result::Result<Event, String>,
    /// The size of the payload, in bytes.
    pub bytes: u64,
    /// The number of attempts so far.
    pub attempts: u32,
    /// The error of the last attempt, or the operator's reason for discarding the row.
    pub error: Option<ErrorText>,
    /// The time at which the event was appended.
    pub created_at: Timestamp,
    /// The time of the next attempt, or the end of the lease. For a pending row that waits behind
    /// others of its partition, the latest time at which it is considered again.
    pub due_at: Option<Timestamp>,
    /// The time at which the event was published or discarded.
    pub settled_at: Option<Timestamp>,
}

/// The numbers of rows that wait for a relay or an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// The number of rows that are to be published.
    pub waiting: u64,
    /// The number of dead rows, which wait for an operator.
    pub dead: u64,
    /// The age of the oldest row that is to be published.
    pub oldest: Option<Duration>,
}

impl Backlog {
    /// The largest count that is reported: further rows are not counted.
    pub const MOST: u64 = 100_000;
}

/// An operator's action on rows. Discarded rows are changed only if they are [selected
/// explicitly](Selection::reaches).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowAction {
    /// Makes Failed, Dead and Discarded rows pending again: due now, with attempts counted from
    /// zero, in the order of their partition.
    Redrive,
    /// Discards Pending, Failed and Dead rows, and replaces the reason of Discarded rows. Later
    /// events of their partitions do not wait for them.
    Discard {
        /// The operator's reason.
        reason: String,
    },
    /// Makes Published rows pending again, after a broker has lost events that it had confirmed.
    Republish,
}

impl Selection {
    /// Returns whether an action changes matching rows in this status. Discarded rows are an
    /// operator's decision, so they are changed only if the selection contains ids or that status.
    pub fn reaches(&self, verb: &RowAction, status: Status) -> bool {
        let named = !self.ids.is_empty() || self.status.is_some();
        self.status.is_none_or(|wanted| wanted == status)
            && verb.applies(status)
            && (named || status != Status::Discarded)
    }
}

impl RowAction {
    /// Returns whether the action applies to rows in this status. [`Selection::reaches`] also
    /// considers the selection.
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
    /// The number of rows that were changed.
    pub changed: u32,
    /// The number of the last row that was changed, after which the next call continues; `None` if
    /// no row was changed.
    pub last: Option<u64>,
}

/// The result of [`Outbox::clean`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Cleaned {
    /// The number of rows that were removed.
    pub removed: u32,
    /// Whether no row was removed because the store's clock has jumped ahead and is not trusted
    /// yet; see [`Watermark`](crate::store::Watermark).
    pub clock_suspect: bool,
}

/// A queue of events with leases, in the caller's database.
///
/// A row can be claimed when it is due: if it is pending or failed and its time has come, or if it
/// is leased and its lease has lapsed. In a partition, a row can be claimed only if all unpublished
/// predecessors are in the same claim. A row whose lease has lapsed is claimed alone: if it crashes
/// relays, it must not use up the attempts of other rows.
pub trait Outbox: Send + Sync + 'static {
    /// The connection of the caller's open transaction, in which [`append`](Self::append) writes.
    type Connection: Send;

    /// Writes events in the caller's transaction. An event is skipped if the outbox has an event
    /// with the same tenant and id.
    fn append(
        &self,
        connection: &mut Self::Connection,
        events: &[Event],
    ) -> impl Future<Output = Result<()>> + Send;

    /// Leases rows that are due: the longest due first, the rows of one partition in order. The
    /// cost is bounded, however many rows wait behind others of their partition: if a claim has
    /// read very many rows without finding one to lease, it returns none and rings the
    /// [bell](Self::bell), so that the next claim continues there.
    fn claim(&self, ask: ClaimRequest) -> impl Future<Output = Result<Vec<Leased>>> + Send;

    /// Writes the dispositions of leased rows. Returns one result per row, in order.
    fn mark(
        &self,
        marks: &[(Ticket, Disposition)],
    ) -> impl Future<Output = Result<Vec<Marked>>> + Send;

    /// Counts the rows that wait. The cost does not grow with the number of published rows.
    fn backlog(&self) -> impl Future<Output = Result<Backlog>> + Send;

    /// Returns at most `limit` rows that match and whose number is greater than `after`, ordered by
    /// number. Payloads are not read.
    fn list(
        &self,
        selection: &Selection,
        after: Option<u64>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Row>>> + Send;

    /// Returns the number of rows that an action would change, counted up to [`Backlog::MOST`].
    fn count(
        &self,
        selection: &Selection,
        verb: &RowAction,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Applies an action to at most `limit` rows that match and whose number is greater than `after`, the
    /// oldest first. Leased rows are not changed.
    ///
    /// If the caller repeats the call after the [last](Applied::last) changed row until no row is
    /// changed, every row is changed once, even rows that match again, such as republished rows
    /// that are published again.
    fn apply(
        &self,
        selection: &Selection,
        verb: &RowAction,
        after: Option<u64>,
        limit: u32,
    ) -> impl Future<Output = Result<Applied>> + Send;

    /// Removes at most `limit` rows that were published or discarded longer than `keep` ago. Dead
    /// rows are never removed, and no row is removed while the store's clock is suspect. If the due
    /// time of a row was written by a clock that ran ahead, it is set to the row's lease or backoff
    /// from now.
    fn clean(&self, keep: Duration, limit: u32) -> impl Future<Output = Result<Cleaned>> + Send;

    /// Returns the bell, which is rung when there may be rows to claim.
    fn bell(&self) -> &Bell;
}
