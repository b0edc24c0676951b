//! Appends: events read back as they were appended.
//!
//! Rollbacks are in [`rolling_back`](super::rolling_back), claims in [`claiming`](super::claiming).

use std::collections::HashSet;
use std::time::Duration;

use semel_core::Timestamp;
use semel_core::event::{Builder, Event, EventId, MAX_ATTRIBUTES, MAX_NAME, MAX_TYPE, MAX_VALUE};
use semel_core::event::{InvalidEvent, TraceContext};
use semel_core::key::MAX_TENANT;
use semel_core::outbox::{Outbox, Status};

use super::OutboxFixture;
use super::shorthand::*;

/// Returns a builder with every field of an event set.
fn full() -> Builder {
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    Event::builder("acme", "order.placed", "/orders")
        .about("order", "ord_1")
        .payload("application/json; charset=utf-8", r#"{"cents":1999}"#)
        .attribute("region", "eu-west-1")
        .attribute("priority", "7")
        .headers_json(r#"{"X-Shop":["a",{"b":1.0}],"traceId":"0af7 \"x\" 50% 订单\n🎉"}"#)
        .occurred_at(Timestamp::from_micros(1_700_000_000_123_457))
        .trace(TraceContext::new(parent, Some("vendor=a,other=b")).expect("a trace"))
        .correlation_id("op_root")
        .causation_id("op_parent")
}

/// Appends events and checks that a claim returns each of them unchanged, with its sequence number,
/// and that a listing returns it without the payload but with the payload's length.
async fn assert_reads_back<F: OutboxFixture>(fixture: &F, events: &[Event]) {
    let outbox = outbox_with(fixture, events).await;
    let leased = claim_all(&outbox).await;
    assert_eq!(leased.len(), events.len());
    for row in &leased {
        let read = row.envelope.as_ref().expect("the row can be read");
        assert_eq!(read.sequence(), Some(row.ticket.sequence));
        let sent =
            events.iter().find(|sent| (sent.id(), sent.tenant()) == (read.id(), read.tenant()));
        assert_same(
            read,
            &sent.expect("the event was appended").clone().with_sequence(row.ticket.sequence),
        );
    }
    for row in rows(&outbox).await {
        let shown = row.envelope.expect("the row can be read");
        let read = leased.iter().find(|leased| leased.ticket.sequence == row.sequence);
        let read =
            read.and_then(|leased| leased.envelope.as_ref().ok()).expect("the row was leased");
        assert_eq!(row.bytes, read.payload().len() as u64);
        assert_same(&shown, &read.clone().without_payload());
    }
}

/// Compares two events field by field, because `Debug` does not show all fields of an event.
fn assert_same(read: &Event, sent: &Event) {
    assert_eq!((read.tenant(), read.id()), (sent.tenant(), sent.id()));
    assert_eq!((read.kind(), read.source()), (sent.kind(), sent.source()));
    assert_eq!(read.aggregate(), sent.aggregate());
    assert_eq!(read.content_type(), sent.content_type());
    assert_eq!(read.attributes().collect::<Vec<_>>(), sent.attributes().collect::<Vec<_>>());
    assert_eq!(read.headers_json(), sent.headers_json());
    assert_eq!(read.occurred_at(), sent.occurred_at());
    assert_eq!(read.trace(), sent.trace());
    assert_eq!(read.correlation_id(), sent.correlation_id());
    assert_eq!(read.causation_id(), sent.causation_id());
    assert!(read.payload() == sent.payload(), "the payload of {} bytes", sent.payload().len());
    assert!(read == sent, "another field differs");
}

/// An event with every field set reads back unchanged.
pub async fn a_full_event_reads_back<F: OutboxFixture>(fixture: F) {
    assert_reads_back(&fixture, &[built(full())]).await;
}

/// An event without optional fields reads back with none added: no aggregate, no payload.
pub async fn a_bare_event_reads_back<F: OutboxFixture>(fixture: F) {
    assert_reads_back(&fixture, &[event()]).await;
}

/// A payload of any bytes reads back: empty, every byte value, JSON that could be reformatted, 1
/// MiB.
pub async fn a_payload_of_any_bytes_reads_back<F: OutboxFixture>(fixture: F) {
    let mebibyte: Vec<u8> = (0..1 << 20).map(|at: u32| at.to_le_bytes()[0]).collect();
    let payloads: [Vec<u8>; 6] = [
        Vec::new(),
        (0..=255).collect(),
        vec![0; 3],
        vec![0xff, 0xfe, 0xc3, 0x28],
        b"{ \"b\": 1.0,\n \"a\": 1e400, \"a\": null }".to_vec(),
        mebibyte,
    ];
    let events = payloads.map(|payload| built(full().payload("application/octet-stream", payload)));
    assert_reads_back(&fixture, &events.map(unordered)).await;
}

/// Returns an event with this payload and an aggregate of its own, so that all events are claimable
/// at once.
fn unordered(event: Event) -> Event {
    let id = EventId::generate();
    built(
        full()
            .id(id)
            .about("order", &id.to_string())
            .payload(event.content_type(), event.payload().clone()),
    )
}

/// Text of any script or syntax reads back byte for byte.
pub async fn text_of_any_script_reads_back<F: OutboxFixture>(fixture: F) {
    let texts = [
        "caf\u{e9}",
        "cafe\u{301}",
        "\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467} \u{1f680}",
        "\u{5d0}\u{5d1} \u{627}\u{644}",
        "'; DROP TABLE x; --",
        "a\\b\"c'd`e%f_g{h}",
        " trailing ",
        "$1 ?1 :name @p",
    ];
    let make = |text: &str| {
        let builder =
            Event::builder(text, text, text).about(text, text).payload(text, text.to_owned());
        let builder = builder.attribute("text", text).correlation_id(text).causation_id(text);
        built(builder)
    };
    assert_reads_back(&fixture, &texts.map(make)).await;
}

/// An event in which every field has its maximum length reads back.
pub async fn an_event_of_full_size_reads_back<F: OutboxFixture>(fixture: F) {
    // Three bytes per character, so that a column whose limit counts characters fits too.
    let text = |max: usize| format!("{}{}", "\u{20ac}".repeat(max / 3), "x".repeat(max % 3));
    let name = text(MAX_NAME);
    let mut builder = Event::builder(&text(MAX_TENANT), &text(MAX_TYPE), &name)
        .about(&name, &name)
        .payload(&name, vec![7; 70_000])
        .occurred_at(Timestamp::from_micros(-1));
    for at in 0..MAX_ATTRIBUTES {
        builder = builder.attribute(&format!("attribute{at:011}"), &text(MAX_VALUE));
    }
    let long = "c".repeat(semel_core::key::MAX_ID);
    let sound: Result<Event, InvalidEvent> =
        builder.correlation_id(&long).causation_id(&long).build();
    assert_reads_back(&fixture, &[sound.expect("an event at its limits")]).await;
}

/// Sequence numbers grow in the order of append, within a call and between calls.
pub async fn numbers_grow_in_the_order_of_append<F: OutboxFixture>(fixture: F) {
    let events = events(30);
    let outbox = fixture.outbox().await;
    for some in events.chunks(7) {
        put(&fixture, &outbox, some).await;
    }
    let rows = rows(&outbox).await;
    let listed: Vec<EventId> =
        rows.iter().map(|row| row.envelope.as_ref().map(Event::id).expect("read")).collect();
    assert_eq!(listed, ids(&events));
    assert!(rows.is_sorted_by(|one, next| one.sequence < next.sequence));
}

/// An appended event is pending, without attempts, and due at once.
pub async fn an_appended_event_is_pending<F: OutboxFixture>(fixture: F) {
    let event = event();
    let outbox = outbox_with(&fixture, std::slice::from_ref(&event)).await;
    let row = row(&outbox, event.id()).await;
    assert_eq!((row.status, row.attempts, &row.error), (Status::Pending, 0, &None));
    assert_eq!(row.settled_at, None);
    assert!(row.due_at.is_none_or(|due| due <= row.created_at), "{row:?}");
}

/// One transaction may append several times.
pub async fn a_transaction_may_append_several_times<F: OutboxFixture>(fixture: F) {
    let (events, outbox) = (events(3), fixture.outbox().await);
    let mut transaction = fixture.begin(&outbox).await;
    for event in &events {
        let one = std::slice::from_ref(event);
        outbox.append(F::connection(&mut transaction), one).await.expect("written");
    }
    fixture.commit(&outbox, transaction).await;
    assert_eq!(leased_ids(&claim_all(&outbox).await), ids(&events));
}

/// The same event id appended twice is one row, which keeps the first event: within one call, and
/// in a later call.
pub async fn the_same_event_twice_is_one_row<F: OutboxFixture>(fixture: F) {
    let first = built(full());
    let again = built(Event::builder("acme", "order.changed", "/other").id(first.id()));
    let outbox = outbox_with(&fixture, &[first.clone(), again.clone()]).await;
    put(&fixture, &outbox, &[again.clone(), event(), first.clone()]).await;
    assert_eq!(rows(&outbox).await.len(), 2);
    let kept = row(&outbox, first.id()).await;
    let expected = first.with_sequence(kept.sequence).without_payload();
    assert_same(&kept.envelope.expect("read"), &expected);
}

/// A published event that is appended again stays published.
pub async fn a_published_event_appended_again_stays_published<F: OutboxFixture>(fixture: F) {
    let event = event();
    let outbox = outbox_with(&fixture, std::slice::from_ref(&event)).await;
    settle(&outbox, &semel_core::outbox::Disposition::Published).await;
    put(&fixture, &outbox, std::slice::from_ref(&event)).await;
    assert!(claim_all(&outbox).await.is_empty());
    assert_eq!(row(&outbox, event.id()).await.status, Status::Published);
}

/// The same event id under another tenant is another row.
pub async fn the_same_id_in_another_tenant_is_another_row<F: OutboxFixture>(fixture: F) {
    let id = EventId::generate();
    let of = |tenant: &str| built(Event::builder(tenant, "order.placed", "/orders").id(id));
    assert_reads_back(&fixture, &[of("acme"), of("globex")]).await;
}

/// Tenants are compared byte by byte.
pub async fn tenants_that_differ_in_anything_are_different<F: OutboxFixture>(fixture: F) {
    let id = EventId::generate();
    let tenants =
        ["acme", "ACME", "Acme", "acme ", "\u{e0}cme", "a\u{300}cme", "acm\u{435}", "acme\u{200b}"];
    let events =
        tenants.map(|tenant| built(Event::builder(tenant, "order.placed", "/orders").id(id)));
    assert_reads_back(&fixture, &events).await;
}

/// Event ids that differ in one bit are different rows.
pub async fn ids_that_differ_in_one_bit_are_different<F: OutboxFixture>(fixture: F) {
    let bytes = [0x00, 0x20, 0x41, 0x61, 0x7f, 0x80, 0xff, 0x5a, 0, 0, 0, 0, 0, 0, 0, 0];
    let flipped = (0..128).map(|bit: usize| {
        let mut bytes = bytes;
        bytes[bit / 8] ^= 1 << (bit % 8);
        EventId::from_bytes(&bytes).expect("sixteen bytes")
    });
    let events: Vec<Event> =
        flipped.map(|id| built(Event::builder("acme", "order.placed", "/orders").id(id))).collect();
    let outbox = outbox_with(&fixture, &events).await;
    let leased: HashSet<EventId> = leased_ids(&claim_all(&outbox).await).into_iter().collect();
    assert_eq!(leased, ids(&events).into_iter().collect());
}

/// One call appends 700 events.
pub async fn hundreds_of_events_are_one_append<F: OutboxFixture>(fixture: F) {
    let events = events(700);
    let outbox = outbox_with(&fixture, &events).await;
    assert_eq!(leased_ids(&claim_all(&outbox).await), ids(&events));
}

/// An append of no events leaves no row.
pub async fn an_append_of_nothing_leaves_nothing<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &[]).await;
    assert!(rows(&outbox).await.is_empty());
    assert!(claim_all(&outbox).await.is_empty());
}

/// A claim returns how long ago the event was appended, by the outbox's clock.
pub async fn an_event_grows_older<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &[event()]).await;
    fixture.advance(Duration::from_secs(1_000)).await;
    let age = claim_one(&outbox).await.age;
    assert!((1_000..1_600).contains(&age.as_secs()), "{age:?}");
}
