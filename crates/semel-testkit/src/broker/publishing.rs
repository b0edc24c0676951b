//! Publishing: the publisher returns one result per event, and every event arrives byte for byte.

use std::future::Future;

use futures_util::future::join_all;
use semel_core::Timestamp;
use semel_core::event::{Event, MAX_HEADERS, TraceContext};
use semel_core::outbox::Publisher;

use super::BrokerFixture;
use super::shorthand::{GROUP, KIND, built, event, events, ids, publish, take, take_all, within};

/// Publishes events one by one and checks that each arrives as it was sent.
async fn arrive<F: BrokerFixture>(fixture: &F, sent: Vec<Event>) {
    let source = fixture.source(GROUP, false).await;
    let publisher = fixture.publisher().await;
    for event in sent {
        publish(&publisher, std::slice::from_ref(&event)).await;
        let arrived = take(&source).await;
        // The parts are compared first: the `Debug` text of an event does not show them.
        assert_eq!(arrived.cloud_attributes(), event.cloud_attributes());
        assert_eq!(arrived.headers_json(), event.headers_json());
        assert_eq!(arrived.payload(), event.payload(), "the payload");
        assert_eq!(arrived, event);
    }
}

/// The whole envelope arrives: ids, times, sequence number, trace, attributes and headers.
pub async fn an_event_arrives_with_its_whole_envelope<F: BrokerFixture>(fixture: F) {
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let trace = TraceContext::new(parent, Some("vendor=a:b, other=c%20d")).expect("a trace");
    let full = Event::builder("acme", "order.placed.v2", "https://shop.example/orders?a=b#c")
        .about("order", "ord_1")
        .payload(Event::JSON, r#"{"order":"ord_1","cents":1999}"#)
        .trace(trace)
        .correlation_id("01ARZ3NDEKTSV4RRFFQ69G5FAV")
        .causation_id("a cause with spaces")
        .attribute("region", "eu-1")
        .attribute("a1", "x")
        .attribute("longest0123456789abc", &"v".repeat(1_024))
        .headers_json(r#"{"X-Shop":["a",{"b":1.0}],"traceId":"0af7 \"x\" 50% 订单\n🎉"}"#)
        .occurred_at(Timestamp::from_micros(1_700_000_000_123_456));
    let full = built(full).with_sequence(42);
    assert_eq!(full.header("traceId").as_deref(), Some("0af7 \"x\" 50% 订单\n🎉"));
    let many = (0..MAX_HEADERS).map(|at| (format!("Header {at}"), "v".repeat(200)));
    let many = many.fold(Event::builder("acme", KIND, "/orders"), |event, (name, value)| {
        event.header(&name, &value)
    });
    let many = built(many);
    let largest = built(Event::builder("acme", KIND, "/orders")).with_sequence(u64::MAX);
    arrive(&fixture, vec![full, many, largest]).await;
}

/// Absent fields stay absent.
pub async fn an_event_without_anything_optional_arrives<F: BrokerFixture>(fixture: F) {
    let bare = built(Event::builder("t", "e", "s"));
    assert!(bare.aggregate().is_none() && bare.correlation_id().is_none());
    arrive(&fixture, vec![bare]).await;
}

/// Values that a broker's encoding could decode, cut or trim arrive unchanged.
pub async fn values_that_look_like_escapes_arrive_as_they_are<F: BrokerFixture>(fixture: F) {
    let hard = [
        "100%",
        "%41",
        "%",
        "%%",
        "%E2%82%AC",
        "a+b",
        "\"quoted\"",
        "back\\slash",
        " padded ",
        "a:b",
        "a;b=c",
        "a,b",
        "{}",
        "ünïcödé",
        "😀 emoji",
        "日本語",
        "*",
        ">",
        "a.b.c",
        "#",
        "e\u{301}",
        "\u{e9}",
        "null",
        "true",
        "42",
    ];
    let mut sent = Vec::new();
    for value in hard {
        let event = Event::builder(value, value, value)
            .about(value, value)
            .correlation_id(value)
            .causation_id(value)
            .attribute("hard", value);
        sent.push(built(event));
    }
    arrive(&fixture, sent).await;
}

/// A payload is never interpreted, so none of its bytes changes.
pub async fn payloads_of_any_bytes_arrive_as_they_are<F: BrokerFixture>(fixture: F) {
    let every_byte: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
    let payloads: [(&str, &[u8]); 10] = [
        ("application/octet-stream", b""),
        ("application/json", b""),
        ("application/octet-stream", &every_byte),
        ("application/octet-stream", b"\r\n\r\n"),
        ("application/json", b"{\"a\":1, \"a\" : 1.0e2,\n \"b\":18446744073709551615}"),
        ("application/json", b" {\"padded\":true} \n"),
        ("application/json", b"\"\\u0000\\ud83d\\ude00 %\""),
        ("application/json", b"no json at all"),
        ("application/vnd.shop+json; charset=utf-8", b"[null]"),
        ("text/plain; charset=\"utf-8\"", "100% 😀".as_bytes()),
    ];
    let build = |(kind, payload): &(&str, &[u8])| {
        built(Event::builder("acme", KIND, "/orders").payload(kind, payload.to_vec()))
    };
    arrive(&fixture, payloads.iter().map(build).collect()).await;
}

/// A payload of 256 KiB, which every broker accepts by default, arrives.
pub async fn a_payload_of_a_quarter_mebibyte_arrives<F: BrokerFixture>(fixture: F) {
    let bytes: Vec<u8> = (0..256 * 1_024_u32).map(|at| (at.wrapping_mul(31) >> 3) as u8).collect();
    let large = Event::builder("acme", KIND, "/orders").payload("application/pdf", bytes);
    arrive(&fixture, vec![built(large)]).await;
}

/// Batches of zero, one, two and many events get one result per event, and all events arrive.
pub async fn every_event_of_a_batch_is_answered<F: BrokerFixture>(fixture: F) {
    let source = fixture.source(GROUP, false).await;
    let publisher = fixture.publisher().await;
    assert_eq!(publisher.publish(&[]).await, []);
    for count in [1, 2, 500] {
        let batch = events(count);
        publish(&publisher, &batch).await;
        take_all(&source, &ids(&batch)).await;
    }
}

/// Concurrent callers of one publisher get their own results, and all their events arrive.
pub async fn publishers_at_once_are_each_answered<F: BrokerFixture>(fixture: F) {
    let source = fixture.source(GROUP, false).await;
    let publisher = fixture.publisher().await;
    let batches: Vec<Vec<Event>> = (1..=20).map(events).collect();
    let answers = join_all(batches.iter().map(|batch| publisher.publish(batch)));
    for (batch, answers) in batches.iter().zip(confirmed(answers).await) {
        assert_eq!(answers, vec![Ok(()); batch.len()]);
    }
    publish(&publisher, &[event()]).await;
    let sent = ids(batches.iter().flatten());
    let mut missing = sent.clone();
    while !missing.is_empty() {
        missing.remove(&take(&source).await.id());
    }
}

async fn confirmed<T>(answers: impl Future<Output = T>) -> T {
    within("the broker confirms to all callers", answers).await
}
