//! Envelopes through both modes of CloudEvents, and what is refused on the way.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::*;

fn event() -> Envelope {
    Envelope::builder("acme", "order.placed", "/orders")
        .about("order", "ord_1")
        .json(&serde_json::json!({ "cents": 9_007_199_254_740_993_u64 }))
        .attribute("region", "eu")
        .correlation_id("c-1")
        .causation_id("c-2")
        .trace(TraceContext::new(PARENT, Some("vendor=1")).expect("a trace"))
        .build()
        .expect("an event")
        .with_sequence(7)
}

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn through_attributes(event: &Envelope) -> Envelope {
    let attributes: BTreeMap<_, _> =
        event.cloud_attributes().into_iter().map(|(name, v)| (Cow::from(name), v)).collect();
    let payload = event.payload().clone();
    Envelope::from_cloud(Carried { attributes, payload, ..Carried::default() }).expect("an event")
}

#[test]
fn an_event_survives_both_modes_byte_by_byte() {
    let odd = Envelope::builder("acme", "blob", "/b").payload("image/png", vec![0, 159, 146, 150]);
    let spaced = Envelope::builder("acme", "j", "/b").payload(Envelope::JSON, " {\"a\" : 1.0} ");
    let empty = Envelope::builder("acme", "empty", "/b");
    for event in [event(), odd.build().unwrap(), spaced.build().unwrap(), empty.build().unwrap()] {
        assert_eq!(through_attributes(&event), event);
        let document = event.to_json();
        assert_eq!(Envelope::from_json(&document, None), Ok(event.clone()));
    }
}

#[test]
fn a_structured_document_is_readable_by_people() {
    let document = String::from_utf8(event().to_json()).expect("text");
    assert!(document.contains(r#""data":{"cents":9007199254740993}"#), "{document}");
    for part in
        [r#""specversion":"1.0""#, r#""tenantid":"acme""#, r#""sequence":"00000000000000000007""#]
    {
        assert!(document.contains(part), "{part} in {document}");
    }
}

#[test]
fn a_foreign_event_is_named_by_its_source_and_id_together() {
    let foreign = |source: &str, id: &str| {
        let document = format!(
            r#"{{"specversion":"1.0","id":"{id}","source":"{source}","type":"t","data":[1],"odd_name":1,"n":5}}"#
        );
        Envelope::from_json(document.as_bytes(), Some("acme")).expect("an event")
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
        ("acme", Envelope::JSON, &b"[1]"[..])
    );
    assert_eq!((one.attribute("n"), one.attribute("odd_name")), (Some("5"), None));
}

#[test]
fn what_is_no_event_says_what_is_missing() {
    let read = |document: &str| Envelope::from_json(document.as_bytes(), None).unwrap_err();
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
fn bad_parts_are_named_with_their_limits() {
    let build = |builder: Builder| builder.build().map(|_| ()).unwrap_err().to_string();
    let of = |kind: &str| Envelope::builder("acme", kind, "/s");
    assert!(build(of(" ")).contains("type"));
    assert!(build(of(&"t".repeat(129))).contains("128"));
    assert!(build(of("t").attribute("Region", "eu")).contains("Region"));
    assert!(build(of("t").attribute("tenantid", "x")).contains("tenantid"));
    assert!(build(of("t").attribute("region", "a\nb")).contains("attribute"));
    assert!(build(of("t").about("order", "")).contains("aggregate id"));
    assert!(build(of("t").payload("x/y", vec![0; MAX_PAYLOAD + 1])).contains("16777217"));
}

#[test]
fn an_event_derived_from_an_operation_has_one_name() {
    let operation = OperationId::generate();
    assert_eq!(EventId::derived(operation, "paid"), EventId::derived(operation, "paid"));
    assert_ne!(EventId::derived(operation, "paid"), EventId::derived(operation, "sent"));
    assert_ne!(
        EventId::derived(OperationId::generate(), "paid"),
        EventId::derived(operation, "paid")
    );
}

#[test]
fn a_consequence_knows_what_it_comes_from() {
    let first = Envelope::builder("acme", "a", "/s").build().unwrap();
    let second = first.followed_by("b", "/s").build().unwrap();
    let third = second.followed_by("c", "/s").build().unwrap();
    assert_eq!(second.causation_id(), Some(&*first.id().to_string()));
    assert_eq!(third.causation_id(), Some(&*second.id().to_string()));
    assert_eq!(third.correlation_id(), Some(&*first.id().to_string()));
    let operation = OperationId::generate();
    assert_eq!(first.caused_by(operation).causation_id(), Some(&*operation.to_string()));
}

#[test]
fn only_a_trace_parent_is_one() {
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
