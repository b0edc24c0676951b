//! The outbox: events that are written in the same transaction as what they tell about, and leave
//! it for a broker afterwards.
//!
//! A backend only offers a queue of rows with leases ([`Outbox`]); what becomes of a row is decided
//! by the [relay](Relay), once for all of them. Rows are claimed by their state, never by a cursor:
//! a cursor passes over what commits late.

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

/// Where a row stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Waits for its first try.
    Pending,
    /// A relay is at it.
    Leased,
    /// The broker has confirmed it.
    Published,
    /// The last try failed, or was put off; the next is due at some time.
    Failed,
    /// Given up. Stays until somebody redrives or discards it; cleaning never takes it.
    Dead,
    /// Dealt with by an operator, who said why: nobody is to publish it. Goes as published rows do.
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

    /// The stored code.
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

    /// The status with this stored code.
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

    /// The name used in logs and by operators.
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

/// The random end of an id in front: its beginning is the time.
fn anywhere(envelope: &Event) -> Partition {
    let mut partition = envelope.id().to_bytes();
    partition.reverse();
    Partition(partition)
}

/// Names one lease of one row: the condition of everything that is written about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The row. Grows in the order of append.
    pub sequence: u64,
    /// This lease of it.
    pub token: AttemptId,
}

/// A row that is leased to the caller.
#[derive(Clone, Debug)]
pub struct Leased {
    /// The lease.
    pub ticket: Ticket,
    /// Its event, with its sequence; or why it cannot be read.
    pub envelope: std::result::Result<Event, String>,
    /// Which try this is, counted from 1, tries that crashed included.
    pub attempt: u32,
    /// How long ago it was appended, by the store's clock.
    pub age: Duration,
}

/// How much to claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Rows at most.
    pub limit: u32,
    /// How long they are the caller's.
    pub lease: Duration,
    /// Bytes of payload at most, all rows together. One row is claimed whatever its size.
    pub bytes: u64,
}

impl Ask {
    /// Bytes of payload in a claim, unless it says otherwise: 8 MiB.
    pub const BYTES: u64 = 8 << 20;
    /// How long a relay claims rows for, unless it is told otherwise: 30 s.
    pub const LEASE: Duration = Duration::from_secs(30);

    /// So many rows for so long, of [`BYTES`](Self::BYTES) at most.
    pub const fn new(limit: u32, lease: Duration) -> Self {
        Self { limit, lease, bytes: Self::BYTES }
    }
}

/// What becomes of a leased row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The broker has confirmed it.
    Published,
    /// Try again.
    Retry {
        /// Not before this has passed.
        after: Duration,
        /// What went wrong.
        error: ErrorText,
    },
    /// Given up.
    Dead {
        /// Why.
        error: ErrorText,
        /// Whether the later events of its partition wait until somebody has dealt with it.
        holds_partition: bool,
    },
    /// It was not tried: as if it had not been claimed.
    Untried,
    /// It was not tried, and is not to be for a while. Failed, with its tries as they were.
    Later {
        /// Not before this has passed.
        after: Duration,
        /// Why not.
        error: ErrorText,
    },
}

/// What came of marking a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Marked {
    /// Written.
    Done,
    /// The row was no longer this lease's.
    Lost,
}

/// Which rows an operator means. Unset fields match everything.
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

/// A row as operators see it: a list of many must not bring what they say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its number.
    pub sequence: u64,
    /// Where it stands.
    pub status: Status,
    /// Its event [without its payload](Event::without_payload), or why it cannot be read.
    pub envelope: std::result::Result<Event, String>,
    /// How long its payload is.
    pub bytes: u64,
    /// Tries so far.
    pub attempts: u32,
    /// The last failure, or why it was discarded.
    pub error: Option<ErrorText>,
    /// When it was appended.
    pub created_at: Timestamp,
    /// When it is due: the next try, or the end of a lease. Of a pending row that waits behind others
    /// of its partition, when it is looked at again at the latest.
    pub due_at: Option<Timestamp>,
    /// When it was published or discarded.
    pub settled_at: Option<Timestamp>,
}

/// How much there is to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Rows that a relay will come back to.
    pub waiting: u64,
    /// Rows that were given up and wait for somebody: none that was discarded.
    pub dead: u64,
    /// The age of the oldest row that waits.
    pub oldest: Option<Duration>,
}

impl Backlog {
    /// Counting stops here: a gauge need not read a million rows.
    pub const MOST: u64 = 100_000;
}

/// What an operator's verb does to rows. What was discarded is left alone by those who do not
/// [name](Selection::reaches) it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Failed, Dead and Discarded rows are pending again: due now, tries counted from zero, in their
    /// partition.
    Redrive,
    /// Pending, Failed, Dead and Discarded rows are discarded for this reason and hold nobody up.
    Discard {
        /// Why.
        reason: String,
    },
    /// Published rows are pending again, for a broker that lost what it had confirmed.
    Republish,
}

impl Selection {
    /// Whether a verb changes the rows in this status that match. Those that were discarded are
    /// somebody's decision: only who names them, by their ids or by that status, means them.
    pub fn reaches(&self, verb: &Verb, status: Status) -> bool {
        let named = !self.ids.is_empty() || self.status.is_some();
        self.status.is_none_or(|wanted| wanted == status)
            && verb.applies(status)
            && (named || status != Status::Discarded)
    }
}

impl Verb {
    /// Whether the verb can change rows in this status; [`Selection::reaches`] says whether it does.
    pub const fn applies(&self, status: Status) -> bool {
        use Status::{Dead, Discarded, Failed, Pending};
        match self {
            Verb::Redrive => matches!(status, Failed | Dead | Discarded),
            Verb::Discard { .. } => matches!(status, Pending | Failed | Dead | Discarded),
            Verb::Republish => matches!(status, Status::Published),
        }
    }
}

/// What an operator's verb came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Applied {
    /// Rows that were changed.
    pub changed: u32,
    /// The number of the last of them: where to go on. `None` if there was none.
    pub last: Option<u64>,
}

/// What one [`Outbox::clean`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Cleaned {
    /// Rows removed.
    pub removed: u32,
    /// Whether none was removed because the store's clock has jumped ahead and is not trusted yet; see
    /// [`Watermark`](crate::store::Watermark).
    pub clock_suspect: bool,
}

/// A queue of events with leases, inside the caller's database.
///
/// A row is claimable when it is due: pending or failed and its time has come, or leased and the
/// lease is over. Of a partition, only what has no unpublished predecessor outside the same claim is
/// claimable. A row whose lease is over is claimed alone: should it be what kills relays, it must
/// not take its neighbours' tries with it.
pub trait Outbox: Send + Sync + 'static {
    /// What [`append`](Self::append) writes on: an open transaction of the caller's.
    type Connection: Send;

    /// Writes events in the caller's transaction. An event whose tenant and id are there already is
    /// left as it is.
    fn append(
        &self,
        connection: &mut Self::Connection,
        events: &[Event],
    ) -> impl Future<Output = Result<()>> + Send;

    /// Leases rows that are due, the longest due first, those of one partition in order. One step, of
    /// bounded cost, however many rows wait behind others of their partition: where it has looked through
    /// very many of them and found nothing, it gives nothing and rings the [bell](Self::bell), so
    /// that the next claim goes on from there.
    fn claim(&self, ask: Ask) -> impl Future<Output = Result<Vec<Leased>>> + Send;

    /// Writes what became of leased rows: one answer per row, in order.
    fn mark(
        &self,
        marks: &[(Ticket, Disposition)],
    ) -> impl Future<Output = Result<Vec<Marked>>> + Send;

    /// How much there is to do. Bounded cost, however much was published.
    fn backlog(&self) -> impl Future<Output = Result<Backlog>> + Send;

    /// At most `limit` rows that match, by their number, after `after`. Payloads stay where they are.
    fn list(
        &self,
        selection: &Selection,
        after: Option<u64>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Row>>> + Send;

    /// How many rows a verb would change, counted up to [`Backlog::MOST`].
    fn count(&self, selection: &Selection, verb: &Verb)
    -> impl Future<Output = Result<u64>> + Send;

    /// Does a verb to at most `limit` rows that match and whose number is greater than `after`, the
    /// oldest first. Never to a leased row.
    ///
    /// Asked again after the [last](Applied::last) one until there is none, it changes every row
    /// once, even those that match again afterwards, such as what was republished and has been
    /// published meanwhile.
    fn apply(
        &self,
        selection: &Selection,
        verb: &Verb,
        after: Option<u64>,
        limit: u32,
    ) -> impl Future<Output = Result<Applied>> + Send;

    /// Removes at most `limit` rows that were published or discarded longer than `keep` ago. Never
    /// dead ones, and nothing while the store's clock is suspect. Makes rows that wait for longer than
    /// their lease or their backoff, because a clock that was ahead wrote when they are due, wait for
    /// just that from now on.
    fn clean(&self, keep: Duration, limit: u32) -> impl Future<Output = Result<Cleaned>> + Send;

    /// Rung when there may be something to claim.
    fn bell(&self) -> &Bell;
}
