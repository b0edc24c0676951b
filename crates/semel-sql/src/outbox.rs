//! Events as rows of `semel_outbox`, the same in every dialect: the columns of an event, of a mark
//! and of an operator's selection, and how a row is read back.
//!
//! The statements are in the dialects. The relay in `semel-core` decides what becomes of a row.

mod search;
mod stored;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
#[cfg(feature = "testing")]
use std::sync::atomic::{AtomicU64, Ordering};

use semel_core::claim::AttemptId;
use semel_core::clock::{Timestamp, micros};
use semel_core::event::Event;
use semel_core::outbox::{Disposition, Leased, Marked, Row, RowAction, Selection, Status, Ticket};
use semel_core::outcome::ErrorText;
use semel_core::store::Result;

pub(crate) use self::search::{GRACE, LONG, REDATED, SHORT, Scanned, Search};
pub(crate) use self::stored::{LARGEST, Stored, spellings};
use crate::error::corrupt_outbox;
use crate::migrate::Shape;

/// The columns of the outbox's table: those that it has in every dialect, and a dialect's own.
macro_rules! columns {
    ($($own:literal),*) => {
        &[
            "sequence",
            "id",
            "tenant",
            "aggregatetype",
            "aggregateid",
            "type",
            "source",
            "payload",
            "content_type",
            "headers",
            "occurred_at",
            "status",
            "attempts",
            "due_at",
            "rest_us",
            "in_partition",
            "partition_key",
            "token",
            "error",
            "created_at",
            "published_at",
            $($own),*
        ]
    };
}

/// The outbox's table.
pub(crate) const OUTBOX: Shape = Shape {
    table: "semel_outbox",
    columns: columns!(),
    indexes: &[
        "semel_outbox_event",
        "semel_outbox_due",
        "semel_outbox_partition",
        "semel_outbox_published",
        "semel_outbox_dead",
    ],
    keys: &[&["sequence"], &["id", "tenant"]],
};

/// The same in PostgreSQL, where a lease has a column of its own, and so has a payload that is not text.
pub(crate) const PG_OUTBOX: Shape =
    Shape { columns: columns!("leased_until", "payload_bytes"), ..OUTBOX };

/// The CloudEvents attributes that are not stored in the column `headers`: each has a column, is
/// derived from one, or is constant.
const COLUMNS: [&str; 11] = [
    "specversion",
    "id",
    "source",
    "type",
    "time",
    "datacontenttype",
    "tenantid",
    "subject",
    "partitionkey",
    "aggregatetype",
    "sequence",
];

/// The columns of an event that is appended.
pub(crate) struct EventRow<'e> {
    pub(crate) id: String,
    pub(crate) tenant: &'e str,
    pub(crate) aggregatetype: &'e str,
    pub(crate) aggregateid: Option<&'e str>,
    pub(crate) kind: &'e str,
    pub(crate) source: &'e str,
    pub(crate) payload: &'e [u8],
    pub(crate) content_type: &'e str,
    pub(crate) headers: String,
    pub(crate) occurred_at: String,
}

impl<'e> EventRow<'e> {
    pub(crate) fn of(envelope: &'e Event) -> Self {
        let all = envelope.cloud_attributes();
        let time = all.iter().find(|(name, _)| *name == "time");
        let occurred_at = time.map(|(_, at)| at.to_string()).unwrap_or_default();
        let headers: BTreeMap<&str, Cow<'_, str>> =
            all.into_iter().filter(|(name, _)| !COLUMNS.contains(name)).collect();
        let aggregate = envelope.aggregate();
        Self {
            id: envelope.id().to_string(),
            tenant: envelope.tenant(),
            aggregatetype: aggregate.map_or(envelope.kind(), |about| &about.kind),
            aggregateid: aggregate.map(|about| &*about.id),
            kind: envelope.kind(),
            source: envelope.source(),
            payload: envelope.payload(),
            content_type: envelope.content_type(),
            headers: serde_json::to_string(&headers).expect("names and texts are JSON"),
            occurred_at,
        }
    }

    /// Returns the payload if PostgreSQL can keep it as text and it cannot be mistaken for bytes that a
    /// driver has cast to text, which begin with `\x`.
    pub(crate) fn payload_text(&self) -> Option<&'e str> {
        if self.payload.contains(&0) || self.payload.starts_with(br"\x") {
            return None;
        }
        std::str::from_utf8(self.payload).ok()
    }

    /// Returns the payload if it is not kept as [text](Self::payload_text).
    pub(crate) fn payload_bytes(&self) -> Option<&'e [u8]> {
        self.payload_text().is_none().then_some(self.payload)
    }

    /// Returns about how many bytes of a statement the row takes.
    pub(crate) fn size(&self) -> usize {
        let texts = [self.tenant, self.aggregatetype, self.kind, self.source, self.content_type];
        let texts: usize = texts.into_iter().map(str::len).sum();
        texts + self.aggregateid.map_or(0, str::len) + self.headers.len() + self.payload.len() + 200
    }
}

/// Splits rows into runs of at most `count` rows and, if possible, at most `bytes` bytes.
pub(crate) fn chunks<'r, 'e>(
    mut rows: &'r [EventRow<'e>],
    count: usize,
    bytes: usize,
) -> Vec<&'r [EventRow<'e>]> {
    let mut chunks = Vec::new();
    while !rows.is_empty() {
        let mut size = 0;
        let fits = |row: &EventRow<'_>| {
            size += row.size();
            size <= bytes
        };
        let fitting = rows.iter().take(count).map(fits).take_while(|fits| *fits).count();
        let (chunk, rest) = rows.split_at(fitting.max(1));
        chunks.push(chunk);
        rows = rest;
    }
    chunks
}

/// The columns of a row that was just leased, as a dialect read them.
pub(crate) struct Claimed {
    pub(crate) sequence: i64,
    pub(crate) attempts: i64,
    pub(crate) created_at: i64,
    pub(crate) now: i64,
    pub(crate) stored: std::result::Result<Stored, String>,
}

impl Claimed {
    pub(crate) fn leased(self, token: AttemptId) -> Leased {
        let sequence = self.sequence.unsigned_abs();
        let (now, created) =
            (Timestamp::from_micros(self.now), Timestamp::from_micros(self.created_at));
        Leased {
            ticket: Ticket { sequence, token },
            envelope: self.stored.and_then(|stored| stored.publishable(sequence, created)),
            attempt: u32::try_from(self.attempts).unwrap_or(u32::MAX),
            age: now.remaining(created).unwrap_or_default(),
        }
    }
}

/// The columns of a row for operators, as a dialect read them. The payload in `stored` is empty;
/// `bytes` is its length.
pub(crate) struct Listed {
    pub(crate) sequence: i64,
    pub(crate) status: i16,
    pub(crate) attempts: i64,
    pub(crate) error: Option<String>,
    pub(crate) created_at: i64,
    pub(crate) due_at: Option<i64>,
    pub(crate) settled_at: Option<i64>,
    pub(crate) bytes: i64,
    pub(crate) stored: std::result::Result<Stored, String>,
}

impl Listed {
    pub(crate) fn row(self) -> Result<Row> {
        let sequence = self.sequence.unsigned_abs();
        let status = u8::try_from(self.status).ok().and_then(Status::from_code);
        let created_at = Timestamp::from_micros(self.created_at);
        Ok(Row {
            sequence,
            status: status.ok_or_else(|| corrupt_outbox("list", "status"))?,
            envelope: self.stored.and_then(|stored| stored.envelope(sequence, created_at)),
            bytes: self.bytes.unsigned_abs(),
            attempts: u32::try_from(self.attempts).unwrap_or(u32::MAX),
            error: self.error.map(|text| ErrorText::new(&text)),
            created_at,
            due_at: self.due_at.map(Timestamp::from_micros),
            settled_at: self.settled_at.map(Timestamp::from_micros),
        })
    }
}

/// A relay's mark on a leased row, as the values that a statement binds.
#[derive(Clone, Copy)]
pub(crate) struct MarkRow<'m> {
    pub(crate) sequence: i64,
    pub(crate) token: [u8; 16],
    pub(crate) disposition: i16,
    pub(crate) after_us: i64,
    pub(crate) error: Option<&'m str>,
}

/// [`MarkRow::disposition`]: the broker has the event.
pub(crate) const PUBLISHED: i16 = 0;
/// [`MarkRow::disposition`]: the event is to be published again after `after_us`.
pub(crate) const RETRY: i16 = 1;
/// [`MarkRow::disposition`]: the event is given up, and its partition continues.
pub(crate) const DEAD: i16 = 2;
/// [`MarkRow::disposition`]: the event is given up, and its partition waits for an operator.
pub(crate) const HOLDING: i16 = 3;
/// [`MarkRow::disposition`]: the row is due again as if it had not been claimed.
pub(crate) const UNTRIED: i16 = 4;
/// [`MarkRow::disposition`]: as [`UNTRIED`], but the row is not due again before `after_us`.
pub(crate) const LATER: i16 = 5;

/// The marks of one call, one per lease, in the order in which every statement locks the rows.
pub(crate) struct Marks<'m> {
    pub(crate) rows: Vec<MarkRow<'m>>,
    /// The position in `rows` of each lease's mark.
    places: HashMap<Ticket, usize>,
    tickets: Vec<Ticket>,
}

impl<'m> Marks<'m> {
    pub(crate) fn of(marks: &'m [(Ticket, Disposition)]) -> Self {
        let mut sorted: Vec<&(Ticket, Disposition)> = marks.iter().collect();
        // Stable, so that of two marks on one lease the first counts.
        sorted.sort_by_key(|(ticket, _)| ticket.sequence);
        let mut places = HashMap::with_capacity(marks.len());
        let mut rows = Vec::with_capacity(marks.len());
        for (ticket, disposition) in sorted {
            // No table has a row with such a number.
            let Ok(sequence) = i64::try_from(ticket.sequence) else { continue };
            if places.contains_key(ticket) {
                continue;
            }
            places.insert(*ticket, rows.len());
            let (disposition, after_us, error) = match disposition {
                Disposition::Published => (PUBLISHED, 0, None),
                Disposition::Retry { after, error } => {
                    (RETRY, micros(*after), Some(error.as_str()))
                }
                Disposition::Dead { error, holds_partition: true } => {
                    (HOLDING, 0, Some(error.as_str()))
                }
                Disposition::Dead { error, holds_partition: false } => {
                    (DEAD, 0, Some(error.as_str()))
                }
                Disposition::Untried => (UNTRIED, 0, None),
                Disposition::Later { after, error } => {
                    (LATER, micros(*after), Some(error.as_str()))
                }
            };
            let token = ticket.token.to_bytes();
            rows.push(MarkRow { sequence, token, disposition, after_us, error });
        }
        Self { rows, places, tickets: marks.iter().map(|(ticket, _)| *ticket).collect() }
    }

    /// Returns the answers in the order of the call, given the positions in `rows` that were
    /// written.
    pub(crate) fn answers(mut self, written: impl IntoIterator<Item = usize>) -> Vec<Marked> {
        let mut done = vec![false; self.rows.len()];
        for place in written {
            if let Some(done) = done.get_mut(place) {
                *done = true;
            }
        }
        // Removed at its first mark: a second mark on the same lease is answered with `Lost`.
        let mut answer = |ticket: &Ticket| match self.places.remove(ticket) {
            Some(place) if done[place] => Marked::Done,
            Some(_) | None => Marked::Lost,
        };
        self.tickets.iter().map(&mut answer).collect()
    }
}

/// Returns the stored codes of the statuses in which `verb` changes matching rows; empty if there
/// are none.
pub(crate) fn statuses(selection: &Selection, verb: &RowAction) -> Vec<u8> {
    let reached = |status: &Status| selection.reaches(verb, *status);
    Status::ALL.into_iter().filter(reached).map(Status::code).collect()
}

/// Returns whether rows of all these statuses, given as stored codes, have a due time: an index
/// covers those.
pub(crate) fn are_due(wanted: &[u8]) -> bool {
    let due = [Status::Pending, Status::Leased, Status::Failed].map(Status::code);
    !wanted.is_empty() && wanted.iter().all(|code| due.contains(code))
}

/// Returns the reason to store with a discarded row; `None` for the verbs that discard nothing.
pub(crate) fn discarded(verb: &RowAction) -> Option<ErrorText> {
    match verb {
        RowAction::Discard { reason } => Some(ErrorText::new(reason)),
        RowAction::Redrive | RowAction::Republish => None,
    }
}

/// The highest sequence number claimed so far. Only tests use it: they show that a claim that
/// continues after this number would skip rows that commit late. Real claims select rows by state.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    #[cfg(feature = "testing")]
    last: AtomicU64,
}

#[cfg(feature = "testing")]
impl Cursor {
    /// Returns the number after which a claim selects rows, if a test has disabled claiming by
    /// state.
    pub(crate) fn after(&self) -> Option<u64> {
        let removed = semel_core::testing::sabotaged(semel_core::testing::Guard::ClaimByState);
        removed.then(|| self.last.load(Ordering::SeqCst))
    }

    pub(crate) fn passed(&self, leased: &[Leased]) {
        let last = leased.iter().map(|row| row.ticket.sequence).max().unwrap_or(0);
        self.last.fetch_max(last, Ordering::SeqCst);
    }
}

#[cfg(not(feature = "testing"))]
impl Cursor {
    #[allow(clippy::unused_self)]
    pub(crate) const fn after(&self) -> Option<u64> {
        None
    }

    #[allow(clippy::unused_self)]
    pub(crate) const fn passed(&self, _leased: &[Leased]) {}
}

#[cfg(test)]
mod tests;
