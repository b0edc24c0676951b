//! Tests events in both modes of CloudEvents, and the events and headers that are refused.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::*;

fn event() -> Event {
    Event::builder("acme", "order.placed", "/orders")
        .about("order", "ord_1")
        .json(&serde_json::json!({ "cents": 9_007_199_254_740_993_u64 }))
        .attribute("region", "eu")
        .header("traceId", "0af7 \"quoted\" 订单")
        .correlation_id("c-1")
        .causation_id("c-2")
        .trace(TraceContext::new(PARENT, Some("vendor=1")).expect("a trace"))
        .build()
        .expect("an event")
        .with_sequence(7)
}

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn through_binary_mode(event: &Event) -> Event {
    let attributes: BTreeMap<_, _> =
        event.cloud_attributes().into_iter().map(|(name, v)| (Cow::from(name), v)).collect();
    let payload = event.payload().clone();
    Event::from_cloud(BinaryMessage { attributes, payload, ..BinaryMessage::default() })
        .expect("an event")
}

#[test]
fn an_event_survives_both_modes_byte_by_byte() {
    let odd = Event::builder("acme", "blob", "/b").payload("image/png", vec![0, 159, 146, 150]);
    let spaced = Event::builder("acme", "j", "/b").payload(Event::JSON, " {\"a\" : 1.0} ");
    let empty = Event::builder("acme", "empty", "/b");
    for event in [event(), odd.build().unwrap(), spaced.build().unwrap(), empty.build().unwrap()] {
        assert_eq!(through_binary_mode(&event), event);
        let document = event.to_json();
        assert_eq!(Event::from_json(&document, None), Ok(event.clone()));
    }
}

#[test]
fn a_packed_event_is_hardly_larger_than_the_event_and_survives_byte_by_byte() {
    let lines = Event::builder("acme", "blob", "/b").payload("text/csv", "a,b\n1,\"2\"\n");
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|i| (i % 256) as u8).collect();
    let odd = Event::builder("acme", "blob", "/b").payload("image/png", bytes);
    let values = (0..MAX_ATTRIBUTES).fold(Event::builder("t", "k", "/s"), |event, i| {
        event.attribute(&format!("a{i}"), &"\"".repeat(MAX_VALUE))
    });
    for event in [event(), lines.build().unwrap(), odd.build().unwrap(), values.build().unwrap()] {
        let packed = bytes::Bytes::from(event.pack());
        assert_eq!(packed.len(), event.packed_size());
        assert!(packed.len() <= event.payload().len() + MAX_PACKED_ATTRIBUTES);
        assert!(event.fits(packed.len()) && !event.fits(packed.len() - 1));
        assert_eq!(Event::unpack(&packed), Ok(event.clone()));
    }
    for damaged in ["", "{}", "{\n", "[]\nx", "{}\nx"] {
        let damaged = bytes::Bytes::from_static(damaged.as_bytes());
        assert!(Event::unpack(&damaged).is_err(), "{damaged:?}");
    }
}

#[test]
fn a_structured_document_contains_json_and_plain_attributes() {
    let document = String::from_utf8(event().to_json()).expect("text");
    assert!(document.contains(r#""data":{"cents":9007199254740993}"#), "{document}");
    for part in
        [r#""specversion":"1.0""#, r#""tenantid":"acme""#, r#""sequence":"00000000000000000007""#]
    {
        assert!(document.contains(part), "{part} in {document}");
    }
}

#[test]
fn the_id_of_a_foreign_event_depends_on_its_source_and_id() {
    let foreign = |source: &str, id: &str| {
        let document = format!(
            r#"{{"specversion":"1.0","id":"{id}","source":"{source}","type":"t","data":[1],"odd_name":1,"n":5}}"#
        );
        Event::from_json(document.as_bytes(), Some("acme")).expect("an event")
    };
    let one = foreign("/a", "1");
    assert_eq!(one.id(), foreign("/a", "1").id());
    assert_ne!(one.id(), foreign("/b", "1").id());
    assert_ne!(one.id(), foreign("/a", "2").id());
    assert_ne!(foreign("/a1", "2").id(), foreign("/a", "12").id());
    let ulid = EventId::generate();
    assert_eq!(foreign("/a", &ulid.to_string()).id(), ulid);
    assert_eq!(
        (one.tenant(), one.content_type(), &one.payload()[..]),
        ("acme", Event::JSON, &b"[1]"[..])
    );
    assert_eq!((one.attribute("n"), one.attribute("odd_name")), (Some("5"), None));
    assert_eq!(
        one.header("odd_name").as_deref(),
        Some("1"),
        "a name that is not valid for an attribute becomes a header"
    );
}

#[test]
fn headers_have_any_names_and_any_values() {
    let document = r#"{"X-Shop":["a",1],"deep":{"b":1.0},"traceId":"t-1"}"#;
    let event = Event::builder("acme", "t", "/s").headers_json(document);
    let event = event.header("Über Länge", "50 %").header("traceId", "t-2").build().unwrap();
    assert_eq!(event.header("traceId").as_deref(), Some("t-2"));
    assert_eq!(event.header("Über Länge").as_deref(), Some("50 %"));
    assert_eq!(event.header("deep").as_deref(), Some(r#"{"b":1.0}"#));
    assert_eq!(event.header("traceid"), None);
    assert_eq!(event.headers().len(), 4);
    assert_eq!(event.headers()["X-Shop"], serde_json::json!(["a", 1]));
    assert_eq!(through_binary_mode(&event), event);
    assert_eq!(Event::from_json(&event.to_json(), None), Ok(event.clone()));
    assert_eq!(event.clone().without_payload().headers_json(), event.headers_json());

    let none = Event::builder("acme", "t", "/s").headers_json("{}").build().unwrap();
    assert_eq!((none.headers_json(), none.headers().len()), (None, 0));
    assert!(!String::from_utf8(none.to_json()).unwrap().contains("headers"));
}

#[test]
fn headers_beyond_their_limits_are_refused() {
    let of = || Event::builder("acme", "t", "/s");
    let refused = |builder: Builder| {
        let error = builder.build().map(|_| ()).unwrap_err();
        assert!(matches!(error, InvalidEvent::Headers { .. }), "{error}");
    };
    refused(of().headers_json("[]"));
    refused(of().headers_json("{"));
    refused(of().headers_json("{").header("a", "b"));
    refused(of().header("", "x"));
    refused(of().header("a\nb", "x"));
    refused(of().header(&"n".repeat(MAX_HEADER_NAME + 1), "x"));
    refused(of().header("large", &"x".repeat(MAX_HEADERS_BYTES)));
    let named = |count: usize| (0..count).fold(of(), |it, at| it.header(&format!("h{at}"), "v"));
    refused(named(MAX_HEADERS + 1));
    assert_eq!(named(MAX_HEADERS).build().unwrap().headers().len(), MAX_HEADERS);

    // Headers of a foreign sender are kept up to the limit, and the event is read without the
    // others.
    let beside = (0..MAX_HEADERS + 9).map(|at| (format!("h{at}").into(), "v".into())).collect();
    let attributes = [("specversion", "1.0"), ("id", "1"), ("source", "/s"), ("type", "t")];
    let attributes = attributes.map(|(name, value)| (name.into(), value.into())).into();
    let carried = BinaryMessage {
        attributes,
        headers: beside,
        tenant: Some("acme".into()),
        ..BinaryMessage::default()
    };
    assert_eq!(Event::from_cloud(carried.clone()).unwrap().headers().len(), MAX_HEADERS);
    let mut wrong = carried;
    wrong.attributes.insert("headersjson".into(), "7".into());
    let error = Event::from_cloud(wrong).unwrap_err();
    assert!(matches!(error, Unreadable::Invalid(InvalidEvent::Headers { .. })), "{error}");
}

#[test]
fn an_unreadable_document_is_refused_with_the_part_that_is_wrong() {
    let read = |document: &str| Event::from_json(document.as_bytes(), None).unwrap_err();
    assert!(matches!(read("{"), Unreadable::Document(_)));
    assert!(matches!(read("[]"), Unreadable::Document(_)));
    assert_eq!(read(r#"{"id":"1"}"#), Unreadable::Missing("specversion"));
    let start = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t""#;
    assert_eq!(read(&format!("{start}}}")), Unreadable::Missing("tenantid"));
    let late = read(&format!(r#"{start},"tenantid":"a","time":"yesterday"}}"#));
    assert!(matches!(late, Unreadable::Attribute { name: "time", .. }), "{late}");
    let bad = read(&format!(r#"{start},"tenantid":"a","data_base64":"%"}}"#));
    assert!(matches!(bad, Unreadable::Attribute { name: "data_base64", .. }), "{bad}");
    let long = read(&format!(r#"{start},"tenantid":"{}"}}"#, "a".repeat(65)));
    assert!(matches!(long, Unreadable::Invalid(InvalidEvent::Text { part: "tenant", .. })));
}

#[test]
fn the_error_of_an_invalid_part_contains_its_name_or_limit() {
    let build = |builder: Builder| builder.build().map(|_| ()).unwrap_err().to_string();
    let of = |kind: &str| Event::builder("acme", kind, "/s");
    assert!(build(of(" ")).contains("type"));
    assert!(build(of(&"t".repeat(129))).contains("128"));
    assert!(build(of("t").attribute("Region", "eu")).contains("Region"));
    assert!(build(of("t").attribute("tenantid", "x")).contains("tenantid"));
    assert!(build(of("t").attribute("region", "a\nb")).contains("attribute"));
    assert!(build(of("t").about("order", "")).contains("aggregate id"));
    assert!(build(of("t").payload("x/y", vec![0; MAX_PAYLOAD + 1])).contains("15728641"));
}

#[test]
fn a_derived_event_id_depends_on_the_operation_and_the_name() {
    let operation = OperationId::generate();
    assert_eq!(EventId::derived(operation, "paid"), EventId::derived(operation, "paid"));
    assert_ne!(EventId::derived(operation, "paid"), EventId::derived(operation, "sent"));
    assert_ne!(
        EventId::derived(OperationId::generate(), "paid"),
        EventId::derived(operation, "paid")
    );
}

#[test]
fn a_caused_event_has_a_causation_id_and_a_correlation_id() {
    let first = Event::builder("acme", "a", "/s").build().unwrap();
    let second = first.followed_by("b", "/s").build().unwrap();
    let third = second.followed_by("c", "/s").build().unwrap();
    assert_eq!(second.causation_id(), Some(&*first.id().to_string()));
    assert_eq!(third.causation_id(), Some(&*second.id().to_string()));
    assert_eq!(third.correlation_id(), Some(&*first.id().to_string()));
    let operation = OperationId::generate();
    assert_eq!(first.caused_by(operation).causation_id(), Some(&*operation.to_string()));
}

#[test]
fn an_invalid_traceparent_is_refused() {
    assert!(TraceContext::new(PARENT, None).is_some());
    for wrong in [
        "",
        "00",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
    ] {
        assert_eq!(TraceContext::new(wrong, None), None, "{wrong}");
    }
}
