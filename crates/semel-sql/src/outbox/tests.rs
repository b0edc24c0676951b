//! Tests that every event is the same after it was stored, and that damage is reported as an
//! answer.

use std::time::Duration;

use semel_core::event::TraceContext;

use super::*;

const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

fn stored(row: &EventRow<'_>) -> Stored {
    Stored {
        id: row.id.clone(),
        tenant: row.tenant.into(),
        aggregatetype: row.aggregatetype.into(),
        aggregateid: row.aggregateid.map(Into::into),
        kind: row.kind.into(),
        source: row.source.into(),
        payload: Some(row.payload.to_vec()),
        content_type: row.content_type.into(),
        headers: row.headers.clone(),
        occurred_at: row.occurred_at.clone(),
    }
}

fn rich() -> Event {
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    Event::builder("acme", "order.placed", "/orders")
        .about("order", "🦀 ord_1")
        .payload("text/plain; charset=utf-8", "grüße \"🦀\"".as_bytes().to_vec())
        .attribute("region", "eu\\\"1\" 🦀")
        .attribute("data1", "x")
        .trace(TraceContext::new(parent, Some("a=b")).expect("valid"))
        .correlation_id("corr")
        .causation_id("cause")
        .occurred_at(Timestamp::from_micros(1_700_000_000_123_456))
        .build()
        .expect("valid")
}

#[test]
fn an_event_is_the_same_after_it_was_stored() {
    let plain = Event::builder("acme", "tick", "/clock").build().expect("valid");
    for event in [rich(), plain] {
        let read = stored(&EventRow::of(&event)).publishable(7, NOW);
        assert!(read == Ok(event.with_sequence(7)));
    }
}

#[test]
fn an_event_without_an_aggregate_is_routed_by_its_type() {
    let event = Event::builder("acme", "tick", "/clock").build().expect("valid");
    let row = EventRow::of(&event);
    assert_eq!((row.aggregatetype, row.aggregateid), ("tick", None));
    assert_eq!(row.headers, "{}");
}

#[test]
fn the_error_of_a_damaged_row_contains_the_column() {
    let event = rich();
    let damaged = |damage: fn(&mut Stored)| {
        let mut row = stored(&EventRow::of(&event));
        damage(&mut row);
        row.publishable(1, NOW).expect_err("damaged")
    };
    assert!(damaged(|row| row.headers = "{\"region\":".into()).contains("column headers"));
    assert!(damaged(|row| row.id = "short".into()).contains("column id"));
    assert!(damaged(|row| row.occurred_at = "yesterday".into()).contains("time"));
    assert!(damaged(|row| row.source = String::new()).contains("source"));
}

#[test]
fn a_row_without_a_time_happened_when_it_was_appended() {
    let mut row = stored(&EventRow::of(&rich()));
    row.occurred_at.clear();
    assert_eq!(row.publishable(1, NOW).expect("valid").occurred_at(), NOW);
}

#[test]
fn a_payload_is_text_unless_postgresql_would_change_it() {
    let row = |payload: &'static [u8]| {
        let event = Event::builder("acme", "k", "/s").payload("a/b", payload).build();
        let event = event.expect("valid");
        let row = EventRow::of(&event);
        (row.payload_text().map(str::to_owned), row.payload_bytes().map(<[u8]>::to_vec))
    };
    assert_eq!(row(b"{\"a\":\"\\\\x\"}"), (Some("{\"a\":\"\\\\x\"}".into()), None));
    for bytes in [&b"\xff"[..], b"a\0b", br"\x41"] {
        assert_eq!(row(bytes), (None, Some(bytes.to_vec())));
    }
}

#[test]
fn an_event_is_selected_by_every_spelling_of_its_id() {
    let id: semel_core::EventId = "01HWY2WZ0TFN5SMQHZ5CE0V7MF".parse().expect("a ULID");
    let texts = spellings(&[id]);
    assert_eq!(texts.len(), 4);
    for text in texts {
        assert_eq!(semel_core::EventId::from_ulid_or_uuid(&text), Some(id), "{text}");
    }
}

#[test]
fn chunks_hold_everything_in_order_within_their_limits() {
    let events: Vec<Event> = (0..10_usize)
        .map(|n| {
            let payload = vec![0; if n == 4 { 5_000 } else { 10 }];
            Event::builder("t", "k", "/s").payload("a/b", payload).build().expect("valid")
        })
        .collect();
    let rows: Vec<_> = events.iter().map(EventRow::of).collect();
    let chunks = chunks(&rows, 3, 1_000);
    let sizes: Vec<usize> = chunks.iter().map(|chunk| chunk.len()).collect();
    assert_eq!(sizes, [3, 1, 1, 3, 2], "a row that is too large goes alone");
    let ids: Vec<&str> = chunks.iter().flat_map(|c| c.iter()).map(|row| &*row.id).collect();
    assert_eq!(ids, rows.iter().map(|row| &*row.id).collect::<Vec<_>>());
}

#[test]
fn marks_are_answered_in_the_order_they_came_in() {
    let ticket = |sequence| Ticket { sequence, token: AttemptId::generate() };
    let (a, b, c) = (ticket(9), ticket(2), ticket(5));
    let again = Disposition::Retry { after: Duration::from_secs(1), error: ErrorText::new("no") };
    let given = [
        (a, Disposition::Published),
        (b, Disposition::Untried),
        (a, again),
        (c, Disposition::Published),
        (ticket(u64::MAX), Disposition::Published),
    ];
    let marks = Marks::of(&given);
    let rows: Vec<_> = marks.rows.iter().map(|row| (row.sequence, row.disposition)).collect();
    assert_eq!(rows, [(2, UNTRIED), (5, PUBLISHED), (9, PUBLISHED)]);
    let answers = marks.answers([0, 2]);
    use Marked::{Done, Lost};
    assert_eq!(answers, [Done, Done, Lost, Lost, Lost]);
}

#[test]
fn a_verb_reaches_only_the_statuses_that_it_changes() {
    let all = Selection::default();
    assert_eq!(statuses(&all, &RowAction::Redrive), [3, 4]);
    assert_eq!(statuses(&all, &RowAction::Republish), [2]);
    let in_status = |status| Selection { status: Some(status), ..Selection::default() };
    let named = Selection { ids: vec![EventId::generate()], ..Selection::default() };
    assert_eq!(statuses(&in_status(Status::Dead), &RowAction::Redrive), [4]);
    assert_eq!(statuses(&in_status(Status::Discarded), &RowAction::Redrive), [5]);
    assert_eq!(
        statuses(&named, &RowAction::Redrive),
        [3, 4, 5],
        "ids select rows in any status that the verb can change"
    );
    let leased = in_status(Status::Leased);
    for verb in
        [RowAction::Redrive, RowAction::Republish, RowAction::Discard { reason: "x".into() }]
    {
        assert!(statuses(&leased, &verb).is_empty());
    }
}
