//! An outbox in memory, for tests and development. It has no transactions: appended events are
//! visible at once. It ends with the process.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{
    Applied, Backlog, Bell, ClaimRequest, Cleaned, Disposition, Leased, Marked, Outbox, Partition,
    Row, RowAction, Selection, Status, Ticket,
};
use crate::claim::AttemptId;
use crate::clock::{Clock, SteadyClock, Timestamp};
use crate::event::{Event, EventId};
use crate::outcome::ErrorText;
use crate::store::Result;

/// An outbox in memory. Cheap to clone: clones share the rows.
#[derive(Clone, Debug, Default)]
pub struct MemoryOutbox(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    clock: SteadyClock,
    bell: Bell,
    rows: Mutex<Rows>,
}

#[derive(Debug, Default)]
struct Rows {
    last: u64,
    by_sequence: BTreeMap<u64, Kept>,
    ids: HashSet<(Box<str>, EventId)>,
}

#[derive(Clone, Debug)]
struct Kept {
    envelope: Event,
    status: Status,
    attempts: u32,
    token: Option<AttemptId>,
    /// The partition whose later events wait for this row; `None` if no event waits for it.
    partition: Option<Partition>,
    error: Option<ErrorText>,
    created_at: Timestamp,
    due_at: Option<Timestamp>,
    settled_at: Option<Timestamp>,
}

impl MemoryOutbox {
    /// Creates an empty outbox.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty outbox whose time advances with `clock`.
    pub fn with_clock(clock: Clock) -> Self {
        Self(Arc::new(Inner { clock: SteadyClock::new(&clock), ..Inner::default() }))
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.0.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rows {
    fn append(&mut self, envelope: &Event, now: Timestamp) {
        if !self.ids.insert((envelope.tenant().into(), envelope.id())) {
            return;
        }
        self.last += 1;
        let kept = Kept {
            envelope: envelope.clone().with_sequence(self.last),
            status: Status::Pending,
            attempts: 0,
            token: None,
            partition: Partition::of(envelope),
            error: None,
            created_at: now,
            due_at: Some(now),
            settled_at: None,
        };
        self.by_sequence.insert(self.last, kept);
    }

    /// Returns the rows to lease: either one row whose lease has lapsed, or due rows that are not
    /// leased.
    fn choose(&self, ask: ClaimRequest, now: Timestamp) -> Vec<u64> {
        let mut seen: HashSet<Partition> = HashSet::new();
        // The time at which each partition became due, of the partitions whose next row this claim
        // may take.
        let mut open: HashMap<Partition, Timestamp> = HashMap::new();
        let mut chosen: Vec<(Timestamp, u64)> = Vec::new();
        let mut lapsed: Option<(Timestamp, u64)> = None;
        for (sequence, row) in &self.by_sequence {
            let due = row.due_at.filter(|at| *at <= now);
            let head = row.partition.is_none_or(|partition| !seen.contains(&partition));
            let before = row.partition.and_then(|partition| open.remove(&partition));
            match (due, row.status) {
                (Some(at), Status::Leased) if head => {
                    lapsed = lapsed.into_iter().chain([(at, *sequence)]).min();
                }
                (Some(at), Status::Pending | Status::Failed) if head || before.is_some() => {
                    // A row is not due before its predecessor, so that sorting keeps their order.
                    let at = before.map_or(at, |before| before.max(at));
                    open.extend(row.partition.map(|partition| (partition, at)));
                    chosen.push((at, *sequence));
                }
                _ => {}
            }
            seen.extend(row.partition);
        }
        chosen.sort_unstable();
        // A row whose lease has lapsed is claimed alone, if it is the first that is due.
        let first = chosen.first().copied();
        if let Some(alone) = lapsed.filter(|one| first.is_none_or(|first| *one <= first)) {
            return vec![alone.1];
        }
        let mut chosen: Vec<u64> = chosen.into_iter().map(|(_, sequence)| sequence).collect();
        chosen.truncate(ask.limit as usize);
        chosen.truncate(self.count_within(&chosen, ask.bytes).max(1));
        chosen
    }

    /// Returns the number of rows, from the first, whose payloads have at most `bytes` bytes in
    /// total.
    fn count_within(&self, chosen: &[u64], bytes: u64) -> usize {
        let mut total = 0;
        let fits = |sequence: &&u64| {
            let row = self.by_sequence.get(sequence);
            total += row.map_or(0, |row| row.envelope.payload().len() as u64);
            total <= bytes
        };
        chosen.iter().take_while(fits).count()
    }
}

impl Kept {
    fn mark(&mut self, disposition: &Disposition, now: Timestamp) {
        self.token = None;
        match disposition {
            Disposition::Published => {
                self.status = Status::Published;
                (self.due_at, self.partition, self.settled_at) = (None, None, Some(now));
            }
            Disposition::Retry { after, error } => {
                self.status = Status::Failed;
                self.due_at = Some(now.after(*after));
                self.error = Some(error.clone());
            }
            Disposition::Dead { error, holds_partition } => {
                self.status = Status::Dead;
                self.due_at = None;
                self.partition = self.partition.filter(|_| *holds_partition);
                self.error = Some(error.clone());
            }
            Disposition::Untried => {
                self.attempts = self.attempts.saturating_sub(1);
                self.status = if self.attempts == 0 { Status::Pending } else { Status::Failed };
                self.due_at = Some(now);
            }
            Disposition::Later { after, error } => {
                self.attempts = self.attempts.saturating_sub(1);
                self.status = Status::Failed;
                self.due_at = Some(now.after(*after));
                self.error = Some(error.clone());
            }
        }
    }

    fn apply(&mut self, verb: &RowAction, now: Timestamp) {
        self.token = None;
        match verb {
            RowAction::Redrive | RowAction::Republish => {
                (self.status, self.attempts) = (Status::Pending, 0);
                (self.due_at, self.settled_at) = (Some(now), None);
                self.partition = Partition::of(&self.envelope);
            }
            RowAction::Discard { reason } => {
                self.status = Status::Discarded;
                (self.due_at, self.partition, self.settled_at) = (None, None, Some(now));
                self.error = Some(ErrorText::new(reason));
            }
        }
    }

    fn is_selected(&self, selection: &Selection, verb: &RowAction) -> bool {
        selection.reaches(verb, self.status) && selection.matches(&self.envelope, self.status)
    }

    fn to_row(&self, sequence: u64) -> Row {
        Row {
            sequence,
            status: self.status,
            envelope: Ok(self.envelope.clone().without_payload()),
            bytes: self.envelope.payload().len() as u64,
            attempts: self.attempts,
            error: self.error.clone(),
            created_at: self.created_at,
            due_at: self.due_at,
            settled_at: self.settled_at,
        }
    }
}

impl Selection {
    /// Returns whether a row matches this selection, for outboxes that filter in the process.
    pub fn matches(&self, envelope: &Event, status: Status) -> bool {
        (self.ids.is_empty() || self.ids.contains(&envelope.id()))
            && self.tenant.as_deref().is_none_or(|tenant| envelope.tenant() == tenant)
            && self.kind.as_deref().is_none_or(|kind| envelope.kind() == kind)
            && self.status.is_none_or(|wanted| wanted == status)
    }
}

impl Outbox for MemoryOutbox {
    type Connection = Self;

    async fn append(&self, connection: &mut Self, events: &[Event]) -> Result<()> {
        let now = connection.0.clock.now();
        let mut rows = connection.rows();
        for event in events {
            rows.append(event, now);
        }
        drop(rows);
        connection.0.bell.ring();
        Ok(())
    }

    async fn claim(&self, ask: ClaimRequest) -> Result<Vec<Leased>> {
        let now = self.0.clock.now();
        let mut rows = self.rows();
        let chosen = rows.choose(ask, now);
        let lease = |sequence: u64| {
            let row = rows.by_sequence.get_mut(&sequence).expect("a chosen row exists");
            let token = AttemptId::generate();
            row.status = Status::Leased;
            row.attempts += 1;
            row.token = Some(token);
            row.due_at = Some(now.after(ask.lease));
            let age = now.remaining(row.created_at).unwrap_or_default();
            let envelope = Ok(row.envelope.clone());
            Leased { ticket: Ticket { sequence, token }, envelope, attempt: row.attempts, age }
        };
        Ok(chosen.into_iter().map(lease).collect())
    }

    async fn mark(&self, marks: &[(Ticket, Disposition)]) -> Result<Vec<Marked>> {
        let now = self.0.clock.now();
        let mut rows = self.rows();
        let mark = |(ticket, disposition): &(Ticket, Disposition)| match rows
            .by_sequence
            .get_mut(&ticket.sequence)
        {
            Some(row) if row.token == Some(ticket.token) => {
                row.mark(disposition, now);
                Marked::Done
            }
            Some(_) | None => Marked::Lost,
        };
        Ok(marks.iter().map(mark).collect())
    }

    async fn backlog(&self) -> Result<Backlog> {
        let now = self.0.clock.now();
        let rows = self.rows();
        let mut backlog = Backlog::default();
        for row in rows.by_sequence.values() {
            match row.status {
                Status::Pending | Status::Leased | Status::Failed => {
                    backlog.waiting += 1;
                    let age = now.remaining(row.created_at).unwrap_or_default();
                    backlog.oldest = backlog.oldest.max(Some(age));
                }
                Status::Dead => backlog.dead += 1,
                Status::Published | Status::Discarded => {}
            }
        }
        let Backlog { waiting, dead, .. } = backlog;
        let (waiting, dead) = (waiting.min(Backlog::MOST), dead.min(Backlog::MOST));
        Ok(Backlog { waiting, dead, ..backlog })
    }

    async fn list(
        &self,
        selection: &Selection,
        after: Option<u64>,
        limit: u32,
    ) -> Result<Vec<Row>> {
        let rows = self.rows();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let later = rows.by_sequence.range((from, Bound::Unbounded));
        let matching = later.filter(|(_, row)| selection.matches(&row.envelope, row.status));
        Ok(matching.take(limit as usize).map(|(sequence, row)| row.to_row(*sequence)).collect())
    }

    async fn count(&self, selection: &Selection, verb: &RowAction) -> Result<u64> {
        let rows = self.rows();
        let selected = |row: &&Kept| row.is_selected(selection, verb);
        let count = rows.by_sequence.values().filter(selected).count() as u64;
        Ok(count.min(Backlog::MOST))
    }

    async fn apply(
        &self,
        selection: &Selection,
        verb: &RowAction,
        after: Option<u64>,
        limit: u32,
    ) -> Result<Applied> {
        let now = self.0.clock.now();
        let mut rows = self.rows();
        let mut applied = Applied::default();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        for (sequence, row) in rows.by_sequence.range_mut((from, Bound::Unbounded)) {
            if applied.changed == limit {
                break;
            }
            if row.is_selected(selection, verb) {
                row.apply(verb, now);
                applied = Applied { changed: applied.changed + 1, last: Some(*sequence) };
            }
        }
        drop(rows);
        self.0.bell.ring();
        Ok(applied)
    }

    async fn clean(&self, keep: Duration, limit: u32) -> Result<Cleaned> {
        let now = self.0.clock.now();
        let mut rows = self.rows();
        let old = |row: &Kept| row.settled_at.is_some_and(|at| at.after(keep) <= now);
        let gone: Vec<(u64, Box<str>, EventId)> = rows
            .by_sequence
            .iter()
            .filter(|(_, row)| old(row))
            .map(|(sequence, row)| (*sequence, row.envelope.tenant().into(), row.envelope.id()))
            .take(limit as usize)
            .collect();
        for (sequence, tenant, id) in &gone {
            rows.by_sequence.remove(sequence);
            rows.ids.remove(&(tenant.clone(), *id));
        }
        let removed = u32::try_from(gone.len()).unwrap_or(u32::MAX);
        Ok(Cleaned { removed, clock_suspect: false })
    }

    fn bell(&self) -> &Bell {
        &self.0.bell
    }
}
