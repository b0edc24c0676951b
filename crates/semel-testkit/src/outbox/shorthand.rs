//! Events, and shorthands for the methods of an outbox.

use std::time::Duration;

use semel_core::event::{Builder, Event, EventId};
use semel_core::outbox::{
    ClaimRequest, Disposition, Leased, Marked, Outbox, Row, RowAction, Selection, Status, Ticket,
};
use semel_core::store::ErrorKind;
use semel_core::{AttemptId, ErrorText};

use super::OutboxFixture;

/// Too long to lapse on a loaded machine, and no longer than a relay may ask for.
pub(super) const LEASE: Duration = Duration::from_secs(600);
pub(super) const PAST_LEASE: Duration = Duration::from_secs(601);
/// More than the number of rows of any behaviour.
pub(super) const ALL: u32 = 10_000;

/// Returns an event without an aggregate, whose order does not matter.
pub(super) fn event() -> Event {
    built(Event::builder("acme", "order.placed", "/orders"))
}

/// Returns an event about an order.
pub(super) fn about(order: &str) -> Event {
    built(Event::builder("acme", "order.placed", "/orders").about("order", order))
}

pub(super) fn built(builder: Builder) -> Event {
    builder.build().expect("a valid event")
}

pub(super) fn events(count: usize) -> Vec<Event> {
    (0..count).map(|_| event()).collect()
}

pub(super) fn ids<'a>(events: impl IntoIterator<Item = &'a Event>) -> Vec<EventId> {
    events.into_iter().map(Event::id).collect()
}

/// Appends events in a transaction of their own and commits it.
pub(super) async fn put<F: OutboxFixture>(fixture: &F, outbox: &F::Outbox, events: &[Event]) {
    loop {
        let mut transaction = fixture.begin(outbox).await;
        let written = outbox.append(F::connection(&mut transaction), events).await;
        // Concurrent appends of the same event may have to be retried.
        if !written.as_ref().is_err_and(|error| error.kind() == ErrorKind::RetryTransaction) {
            written.expect("the events are written");
            return fixture.commit(outbox, transaction).await;
        }
    }
}

/// Returns the fixture's outbox after appending these events.
pub(super) async fn outbox_with<F: OutboxFixture>(fixture: &F, events: &[Event]) -> F::Outbox {
    let outbox = fixture.outbox().await;
    put(fixture, &outbox, events).await;
    outbox
}

pub(super) async fn claim<O: Outbox>(outbox: &O, limit: u32) -> Vec<Leased> {
    let leased = outbox.claim(ClaimRequest::new(limit, LEASE)).await.expect("a claim");
    assert!(leased.len() <= limit as usize, "asked for {limit}, got {}", leased.len());
    leased
}

pub(super) async fn claim_all<O: Outbox>(outbox: &O) -> Vec<Leased> {
    claim(outbox, ALL).await
}

/// Claims all rows and checks that there is exactly one.
pub(super) async fn claim_one<O: Outbox>(outbox: &O) -> Leased {
    let mut leased = claim_all(outbox).await;
    assert_eq!(leased.len(), 1, "one row is claimable: {leased:?}");
    leased.remove(0)
}

pub(super) fn id_of(leased: &Leased) -> EventId {
    leased.envelope.as_ref().map(Event::id).expect("the row can be read")
}

pub(super) fn leased_ids(leased: &[Leased]) -> Vec<EventId> {
    leased.iter().map(id_of).collect()
}

pub(super) fn sorted(mut ids: Vec<EventId>) -> Vec<EventId> {
    ids.sort();
    ids
}

pub(super) async fn mark<O: Outbox>(
    outbox: &O,
    ticket: Ticket,
    disposition: Disposition,
) -> Marked {
    let marked = outbox.mark(&[(ticket, disposition)]).await.expect("a mark");
    let [marked] = marked[..] else { panic!("one answer per row: {marked:?}") };
    marked
}

/// Marks leased rows and checks that every mark is accepted.
pub(super) async fn mark_all<O: Outbox>(outbox: &O, leased: &[Leased], disposition: &Disposition) {
    let marks: Vec<_> = leased.iter().map(|row| (row.ticket, disposition.clone())).collect();
    let marked = outbox.mark(&marks).await.expect("a mark");
    assert_eq!(marked, vec![Marked::Done; leased.len()]);
}

/// Claims all claimable rows once and marks them; returns their ids.
pub(super) async fn settle<O: Outbox>(outbox: &O, disposition: &Disposition) -> Vec<EventId> {
    let leased = claim_all(outbox).await;
    mark_all(outbox, &leased, disposition).await;
    leased_ids(&leased)
}

/// Applies an action to rows from the first on; returns how many it changed.
pub(super) async fn apply<O: Outbox>(
    outbox: &O,
    selection: &Selection,
    verb: &RowAction,
    limit: u32,
) -> u32 {
    outbox.apply(selection, verb, None, limit).await.expect("a verb").changed
}

pub(super) fn later(after: Duration) -> Disposition {
    Disposition::Later { after, error: ErrorText::new("not now") }
}

pub(super) fn retry(after: Duration) -> Disposition {
    Disposition::Retry { after, error: ErrorText::new("no luck") }
}

pub(super) fn dead() -> Disposition {
    Disposition::Dead { error: ErrorText::new("no hope"), holds_partition: false }
}

pub(super) fn dead_in_the_way() -> Disposition {
    Disposition::Dead { error: ErrorText::new("no hope"), holds_partition: true }
}

pub(super) fn every_disposition() -> [Disposition; 6] {
    [
        Disposition::Published,
        retry(LEASE),
        dead(),
        dead_in_the_way(),
        Disposition::Untried,
        later(LEASE),
    ]
}

/// Returns a ticket with a token that was never granted.
pub(super) fn forged(ticket: Ticket) -> Ticket {
    Ticket { token: AttemptId::generate(), ..ticket }
}

pub(super) fn only(ids: &[EventId]) -> Selection {
    Selection { ids: ids.to_vec(), ..Selection::default() }
}

pub(super) fn in_status(status: Status) -> Selection {
    Selection { status: Some(status), ..Selection::default() }
}

pub(super) async fn rows<O: Outbox>(outbox: &O) -> Vec<Row> {
    outbox.list(&Selection::default(), None, ALL).await.expect("a listing")
}

/// Returns the row of an event.
pub(super) async fn row<O: Outbox>(outbox: &O, id: EventId) -> Row {
    let mut rows = outbox.list(&only(&[id]), None, ALL).await.expect("a listing");
    assert_eq!(rows.len(), 1, "{id} is one row: {rows:?}");
    rows.remove(0)
}

pub(super) async fn statuses<O: Outbox>(outbox: &O) -> Vec<Status> {
    rows(outbox).await.iter().map(|row| row.status).collect()
}

/// Returns the number of rows in each status, in the order of the status codes.
pub(super) async fn tally<O: Outbox>(outbox: &O) -> [usize; 6] {
    let statuses = statuses(outbox).await;
    Status::ALL.map(|status| statuses.iter().filter(|found| **found == status).count())
}
