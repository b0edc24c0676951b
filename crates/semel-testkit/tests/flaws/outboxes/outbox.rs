//! The memory outbox with one mistake in it.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a mistake changes one verb and leaves everything else as it is"
)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::event::{Event, EventId};
use semel_core::outbox::memory::MemoryOutbox;
use semel_core::outbox::{
    Applied, Backlog, Bell, ClaimRequest, Cleaned, Disposition, Leased, Marked, Outbox, Row,
    RowAction, Selection, Status, Ticket,
};
use semel_core::store::Result;
use semel_core::{AttemptId, Clock, ErrorText, Timestamp};
use semel_testkit::OutboxFixture;

/// The mistake of an outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// No mistake: the control.
    Nothing,
    /// Partitions are ignored.
    ForgetsPartitions,
    /// A claim continues after the highest number that was claimed.
    Cursor,
    /// A mark is accepted with any token.
    NoToken,
    /// Lapsed rows are claimed together with others.
    LapsedTogether,
    /// A claim leases nothing.
    NoLease,
    /// A lapsed row is never claimed again.
    LeavesLapsed,
    /// The lowest number is claimed first, not the row that has been due longest.
    ByNumber,
    /// A claim takes all due rows.
    Unlimited,
    /// A row marked `Untried` loses an attempt.
    CountsUntried,
    /// A failed row is due at once.
    NeverRests,
    /// Error texts of failures are dropped.
    ForgetsWhy,
    /// Dead rows never hold their partition.
    DeadHoldNothing,
    /// Dead rows always hold their partition.
    DeadHoldAlways,
    /// An event that is appended twice is two rows.
    TakesTwice,
    /// Tenants are compared without case.
    FoldsTenants,
    /// Payloads are cut to 64 KiB.
    CutsPayloads,
    /// Operators' actions change leased rows.
    VerbsTakeLeased,
    /// Operators' actions on many rows change discarded rows too.
    VerbsTakeDiscarded,
    /// Discarded rows count as dead.
    CountsDiscarded,
    /// Published rows are removed whatever their age.
    CleansAtOnce,
    /// A claim takes any number of bytes.
    AnyBytes,
    /// Operators' actions start at the first row, whatever `after` is.
    StartsOver,
    /// A row marked `Later` loses an attempt.
    CountsLater,
    /// A row marked `Later` is due at once.
    NeverLater,
}

#[derive(Clone)]
pub(crate) struct WrongOutbox {
    outbox: MemoryOutbox,
    wrong: Wrong,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    /// The appended events, by the id under which the outbox in memory has them.
    originals: HashMap<(String, EventId), Event>,
    /// The leases that were granted and not marked yet.
    leases: HashMap<u64, AttemptId>,
    cursor: u64,
}

impl WrongOutbox {
    fn is(&self, wrong: Wrong) -> bool {
        self.wrong == wrong
    }

    /// Returns the event as the outbox in memory is to store it.
    fn disguise(&self, event: &Event) -> Event {
        let tenant = match self.wrong {
            Wrong::FoldsTenants => event.tenant().to_lowercase(),
            _ => event.tenant().to_owned(),
        };
        let id = if self.is(Wrong::TakesTwice) { EventId::generate() } else { event.id() };
        let mut builder = Event::builder(&tenant, event.kind(), event.source()).id(id);
        builder = builder.payload(event.content_type(), event.payload().clone());
        if let Some(about) = event.aggregate().filter(|_| !self.is(Wrong::ForgetsPartitions)) {
            builder = builder.about(&about.kind, &about.id);
        }
        let disguised = builder.build().expect("still valid");
        let name = (tenant, id);
        let mut original = event.clone();
        if self.is(Wrong::CutsPayloads) && event.payload().len() > 65_536 {
            let mut cut = Event::builder(event.tenant(), event.kind(), event.source());
            cut = cut.id(event.id()).payload(event.content_type(), event.payload().slice(..65_536));
            original = cut.build().expect("still valid");
        }
        self.seen.lock().expect("sound").originals.entry(name).or_insert(original);
        disguised
    }

    /// Returns the event as it was appended.
    fn reveal(&self, disguised: Event) -> Event {
        let name = (disguised.tenant().to_owned(), disguised.id());
        let original = self.seen.lock().expect("sound").originals.get(&name).cloned();
        original
            .expect("the event was appended")
            .with_sequence(disguised.sequence().expect("a number"))
    }

    /// Returns the selection with the ids under which the outbox in memory has the rows.
    fn selection(&self, selection: &Selection) -> Selection {
        let mut selection = selection.clone();
        if self.is(Wrong::TakesTwice) && !selection.ids.is_empty() {
            let seen = self.seen.lock().expect("sound");
            let wanted = |original: &Event| selection.ids.contains(&original.id());
            let names = seen.originals.iter().filter(|(_, original)| wanted(original));
            selection.ids = names.map(|((_, id), _)| *id).collect();
        }
        selection
    }

    fn disposition(&self, disposition: &Disposition) -> Disposition {
        match disposition {
            Disposition::Untried if self.is(Wrong::CountsUntried) => {
                Disposition::Retry { after: Duration::ZERO, error: ErrorText::new("not tried") }
            }
            Disposition::Retry { after, error } => {
                let after = if self.is(Wrong::NeverRests) { Duration::ZERO } else { *after };
                Disposition::Retry { after, error: self.error_text(error) }
            }
            Disposition::Dead { error, holds_partition } => {
                let holds_partition = match self.wrong {
                    Wrong::DeadHoldNothing => false,
                    Wrong::DeadHoldAlways => true,
                    _ => *holds_partition,
                };
                Disposition::Dead { error: self.error_text(error), holds_partition }
            }
            Disposition::Later { after, error } if self.is(Wrong::CountsLater) => {
                Disposition::Retry { after: *after, error: error.clone() }
            }
            Disposition::Later { after, error } => {
                let after = if self.is(Wrong::NeverLater) { Duration::ZERO } else { *after };
                Disposition::Later { after, error: self.error_text(error) }
            }
            Disposition::Published | Disposition::Untried => disposition.clone(),
        }
    }

    fn error_text(&self, error: &ErrorText) -> ErrorText {
        if self.is(Wrong::ForgetsWhy) { ErrorText::new("") } else { error.clone() }
    }

    /// Claims rows from the outbox in memory and applies the mistake to them.
    async fn choose(&self, ask: ClaimRequest) -> Result<Vec<Leased>> {
        let all = ClaimRequest { limit: u32::MAX, ..ask };
        match self.wrong {
            Wrong::NoLease => {
                self.outbox.claim(ClaimRequest { lease: Duration::ZERO, ..ask }).await
            }
            Wrong::Unlimited => self.outbox.claim(all).await,
            Wrong::AnyBytes => self.outbox.claim(ClaimRequest { bytes: u64::MAX, ..ask }).await,
            Wrong::LapsedTogether => {
                let mut leased = self.outbox.claim(ask).await?;
                while leased.len() < ask.limit as usize {
                    let more = self.outbox.claim(ClaimRequest { limit: 1, ..ask }).await?;
                    if more.is_empty() {
                        break;
                    }
                    leased.extend(more);
                }
                Ok(leased)
            }
            Wrong::ByNumber => {
                let mut leased = self.outbox.claim(all).await?;
                leased.sort_by_key(|row| row.ticket.sequence);
                let rest = leased.split_off(leased.len().min(ask.limit as usize));
                let rest: Vec<_> =
                    rest.iter().map(|row| (row.ticket, Disposition::Untried)).collect();
                let _ = self.outbox.mark(&rest).await?;
                Ok(leased)
            }
            _ => self.outbox.claim(ask).await,
        }
    }
}

impl Outbox for WrongOutbox {
    type Connection = Self;

    async fn append(&self, connection: &mut Self, events: &[Event]) -> Result<()> {
        let disguised: Vec<Event> = events.iter().map(|event| connection.disguise(event)).collect();
        let outbox = connection.outbox.clone();
        outbox.append(&mut connection.outbox, &disguised).await
    }

    async fn claim(&self, ask: ClaimRequest) -> Result<Vec<Leased>> {
        let mut leased = self.choose(ask).await?;
        for row in &mut leased {
            row.envelope = row.envelope.clone().map(|event| self.reveal(event));
        }
        let mut seen = self.seen.lock().expect("sound");
        if self.is(Wrong::Cursor) {
            leased.retain(|row| row.ticket.sequence > seen.cursor);
            let last = leased.iter().map(|row| row.ticket.sequence).max();
            seen.cursor = seen.cursor.max(last.unwrap_or_default());
        }
        if self.is(Wrong::LeavesLapsed) {
            leased.retain(|row| !seen.leases.contains_key(&row.ticket.sequence));
        }
        seen.leases.extend(leased.iter().map(|row| (row.ticket.sequence, row.ticket.token)));
        Ok(leased)
    }

    async fn mark(&self, marks: &[(Ticket, Disposition)]) -> Result<Vec<Marked>> {
        let mut ours = Vec::new();
        {
            let mut seen = self.seen.lock().expect("sound");
            for (ticket, disposition) in marks {
                let token = seen.leases.get(&ticket.sequence).copied();
                let token = token.filter(|_| self.is(Wrong::NoToken)).unwrap_or(ticket.token);
                ours.push((Ticket { token, ..*ticket }, self.disposition(disposition)));
                if seen.leases.get(&ticket.sequence) == Some(&token) {
                    seen.leases.remove(&ticket.sequence);
                }
            }
        }
        self.outbox.mark(&ours).await
    }

    async fn backlog(&self) -> Result<Backlog> {
        let mut backlog = self.outbox.backlog().await?;
        if self.is(Wrong::CountsDiscarded) {
            let discarded = Selection { status: Some(Status::Discarded), ..Selection::default() };
            backlog.dead += self.outbox.count(&discarded, &RowAction::Redrive).await?;
        }
        Ok(backlog)
    }

    async fn list(
        &self,
        selection: &Selection,
        after: Option<u64>,
        limit: u32,
    ) -> Result<Vec<Row>> {
        let mut rows = self.outbox.list(&self.selection(selection), after, limit).await?;
        for row in &mut rows {
            row.envelope = row.envelope.clone().map(|event| self.reveal(event).without_payload());
        }
        Ok(rows)
    }

    async fn count(&self, selection: &Selection, verb: &RowAction) -> Result<u64> {
        self.outbox.count(&self.selection(selection), verb).await
    }

    async fn apply(
        &self,
        selection: &Selection,
        verb: &RowAction,
        after: Option<u64>,
        limit: u32,
    ) -> Result<Applied> {
        let selection = self.selection(selection);
        let after = after.filter(|_| !self.is(Wrong::StartsOver));
        if self.is(Wrong::VerbsTakeLeased) {
            let leased = Selection { status: Some(Status::Leased), ..selection.clone() };
            for row in self.outbox.list(&leased, None, limit).await? {
                let token = self.seen.lock().expect("sound").leases.get(&row.sequence).copied();
                let ticket = token.map(|token| Ticket { sequence: row.sequence, token });
                let marks: Vec<_> =
                    ticket.into_iter().map(|one| (one, Disposition::Untried)).collect();
                let _ = self.outbox.mark(&marks).await?;
            }
        }
        if self.is(Wrong::VerbsTakeDiscarded) && selection.status.is_none() {
            let discarded = Selection { status: Some(Status::Discarded), ..selection.clone() };
            let _ = self.outbox.apply(&discarded, verb, after, limit).await?;
        }
        self.outbox.apply(&selection, verb, after, limit).await
    }

    async fn clean(&self, keep: Duration, limit: u32) -> Result<Cleaned> {
        let keep = if self.is(Wrong::CleansAtOnce) { Duration::ZERO } else { keep };
        let cleaned = self.outbox.clean(keep, limit).await?;
        let left = self.outbox.list(&Selection::default(), None, u32::MAX).await?;
        let left: Vec<_> = left.into_iter().flat_map(|row| row.envelope).collect();
        let is_left = |name: &(String, EventId)| {
            left.iter().any(|event| (event.tenant(), event.id()) == (&name.0, name.1))
        };
        self.seen.lock().expect("sound").originals.retain(|name, _| is_left(name));
        Ok(cleaned)
    }

    fn bell(&self) -> &Bell {
        self.outbox.bell()
    }
}

pub(crate) struct WrongOutboxFixture {
    outbox: WrongOutbox,
    clock: Clock,
}

impl WrongOutboxFixture {
    pub(crate) async fn new(wrong: Wrong) -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        let outbox = MemoryOutbox::with_clock(clock.clone());
        Self { outbox: WrongOutbox { outbox, wrong, seen: Arc::default() }, clock }
    }
}

impl OutboxFixture for WrongOutboxFixture {
    type Outbox = WrongOutbox;
    type Transaction = WrongOutbox;

    async fn outbox(&self) -> WrongOutbox {
        self.outbox.clone()
    }

    async fn begin(&self, outbox: &WrongOutbox) -> WrongOutbox {
        outbox.clone()
    }

    fn connection(transaction: &mut WrongOutbox) -> &mut WrongOutbox {
        transaction
    }

    async fn commit(&self, _: &WrongOutbox, _: WrongOutbox) {}

    async fn advance(&self, span: Duration) {
        self.clock.advance(span);
    }
}
