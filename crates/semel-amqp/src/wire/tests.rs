//! Tests of writing and reading messages, without a broker.

use semel_core::Timestamp;

use super::*;

fn event() -> Event {
    Event::builder("acme", "order.placed", "/orders")
        .about("order", "ord_1")
        .payload("text/plain", "hello")
        .attribute("odd", "☃ 🦀")
        .occurred_at(Timestamp::from_micros(1_700_000_000_123_456))
        .build()
        .expect("a valid event")
        .with_sequence(7)
}

#[test]
fn an_event_is_written_as_the_binding_requires() {
    let event = event();
    let properties = properties(&event);
    let headers = properties.headers().as_ref().expect("there are headers");
    assert_eq!(headers.inner()["cloudEvents:specversion"], AMQPValue::LongString("1.0".into()));
    assert!(!headers.contains_key("cloudEvents:datacontenttype"));
    assert_eq!(properties.content_type().as_ref().map(ShortString::as_str), Some("text/plain"));
    assert_eq!(properties.delivery_mode(), &Some(2));
    assert_eq!(properties.timestamp(), &Some(1_700_000_000));
    let id = event.id().to_string();
    assert_eq!(properties.message_id().as_ref().map(ShortString::as_str), Some(&*id));
}

#[test]
fn an_event_reads_back() {
    let event = event();
    assert_eq!(envelope(&properties(&event), event.payload(), None), Ok(event));
}

#[test]
fn a_message_has_the_mark_of_its_event() {
    assert_eq!(mark_in(&properties(&event())).1, "acme");
    let event = event();
    assert_eq!(mark_in(&properties(&event)), mark(&event));
    assert_ne!(mark_in(&BasicProperties::default()), mark(&event));
}

#[test]
fn a_copy_has_the_senders_properties_and_none_that_the_broker_interprets() {
    let event = event();
    let mut headers = properties(&event).headers().clone().expect("there are headers");
    for name in ["CC", "x-death", "x-first-death-queue", "x-delivery-count"] {
        headers.insert(name.into(), AMQPValue::Boolean(true));
    }
    let came = properties(&event).with_headers(headers).with_user_id("somebody".into());
    let copy = again(&came, 250);
    assert_eq!(copy.expiration().as_ref().map(ShortString::as_str), Some("250"));
    assert_eq!(copy.headers(), properties(&event).headers());
    assert_eq!((copy.user_id(), copy.message_id()), (&None, came.message_id()));
    assert_eq!(envelope(&copy, event.payload(), None), Ok(event));
}

#[test]
fn a_raw_message_contains_all_properties_of_its_sender() {
    let mut headers = FieldTable::default();
    headers.insert("cloudEvents:id".into(), AMQPValue::LongString(vec![b'7', 0xff].into()));
    headers.insert("count".into(), AMQPValue::LongInt(-3));
    headers.insert("note".into(), AMQPValue::LongString("two\nlines, a \\ and a 🦀".into()));
    let came = BasicProperties::default()
        .with_content_type("text/plain".into())
        .with_app_id("them".into())
        .with_timestamp(1_700_000_000)
        .with_headers(headers);
    let body = Bytes::from_static(b"\xff\nbody");
    let wanted = "content-type: text/plain\napp-id: them\ntimestamp: 1700000000\n\
        cloudEvents:id: 7\\xff\ncount: -3\nnote: two\\nlines, a \\\\ and a 🦀\n\n";
    assert_eq!(raw(&came, &body), [wanted.as_bytes(), &body].concat());
    assert_eq!(raw(&BasicProperties::default(), &body), &b"\n\xff\nbody"[..]);
}

#[test]
fn a_raw_message_is_the_same_for_every_delivery() {
    let event = event();
    let mut headers = properties(&event).headers().clone().expect("there are headers");
    headers.insert("x-delivery-count".into(), AMQPValue::LongLongInt(3));
    let later = properties(&event).with_headers(headers);
    let first = raw(&properties(&event), event.payload());
    assert_eq!(raw(&later, event.payload()), first);
    assert_eq!(raw(&again(&later, 250), event.payload()), first);
}

#[test]
fn a_message_with_a_delivery_count_was_delivered_before() {
    let counted = |count| {
        let mut headers = FieldTable::default();
        headers.insert("x-delivery-count".into(), AMQPValue::LongLongInt(count));
        came_before(&BasicProperties::default().with_headers(headers))
    };
    assert!(!came_before(&BasicProperties::default()));
    assert_eq!([0, 1, 300].map(counted), [false, true, true]);
}

#[test]
fn the_frame_of_the_properties_is_not_underestimated() {
    let event = event();
    let table = properties(&event).headers().clone().expect("there are headers");
    let entry = |(name, value): (&ShortString, &AMQPValue)| {
        let AMQPValue::LongString(text) = value else { panic!("only text is written") };
        1 + name.as_str().len() + 1 + 4 + text.len()
    };
    let written: usize = table.into_iter().map(entry).sum();
    // Frame header and end 8, class, weight, size and flags 14, the table's length 4, content type
    // and message id with their lengths, delivery mode 1, timestamp 8.
    let others = 8 + 14 + 4 + 1 + event.content_type().len() + 1 + 26 + 1 + 8;
    assert!(header_frame(&event) >= written + others);
}
