//! Tests messages of other publishers.

use std::collections::BTreeSet;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use semel_core::inbox::{BrokerReply, Message as _};

use crate::fixture::{GROUP, Place, next, take};

fn headers(all: &[(&str, AMQPValue)]) -> BasicProperties {
    let mut table = FieldTable::default();
    for (name, value) in all {
        table.insert((*name).into(), value.clone());
    }
    BasicProperties::default().with_headers(table)
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

#[tokio::test]
async fn a_structured_event_of_another_publisher_is_read_and_gets_the_default_tenant() {
    let place = Place::new().await;
    let source = place.source(GROUP, false).connect().await.expect("the broker is there");
    let document = r#"{"specversion":"1.0","id":"x-1","source":"urn:them","type":"thing.done",
        "data":{"emoji":"🦀"},"note":"🎉","count":7}"#;
    let media = "application/cloudevents+json; charset=utf-8";
    let properties = BasicProperties::default().with_content_type(media.into());
    let client = place.client().await;
    for _ in 0..2 {
        client.put(&place.exchange, document.as_bytes(), properties.clone()).await;
    }
    let event = take(&source).await;
    assert_eq!(
        (event.tenant(), event.kind(), event.source()),
        ("foreign", "thing.done", "urn:them")
    );
    assert_eq!(event.attribute("note"), Some("🎉"));
    assert_eq!(event.attribute("count"), Some("7"));
    assert_eq!(&event.payload()[..], r#"{"emoji":"🦀"}"#.as_bytes());
    assert_eq!(take(&source).await.id(), event.id(), "the same event has the same id");
}

#[tokio::test]
async fn binary_events_with_either_prefix_and_any_type_of_value_are_read() {
    let place = Place::new().await;
    let source = place.source(GROUP, false).connect().await.expect("the broker is there");
    let client = place.client().await;
    for prefix in ["cloudEvents:", "cloudEvents_"] {
        let named = |name: &str| format!("{prefix}{name}");
        let all = [
            (named("specversion"), text("1.0")),
            (named("id"), text("42")),
            (named("source"), text("urn:them")),
            (named("type"), text("thing.done")),
            (named("time"), AMQPValue::Timestamp(1_700_000_000)),
            (named("urgent"), AMQPValue::Boolean(true)),
            (named("count"), AMQPValue::LongInt(-3)),
            (named("odd"), text("☃ 🦀")),
            ("traceId".to_owned(), text("t-1")),
        ];
        let all: Vec<_> = all.iter().map(|(name, value)| (&**name, value.clone())).collect();
        let properties = headers(&all).with_content_type("text/plain".into());
        client.put(&place.exchange, b"hello", properties).await;
        let event = take(&source).await;
        assert_eq!(event.kind(), "thing.done");
        assert_eq!(event.occurred_at().as_micros(), 1_700_000_000_000_000);
        assert_eq!(event.content_type(), "text/plain");
        let kept: Vec<_> = event.attributes().collect();
        assert_eq!(kept, [("count", "-3"), ("odd", "☃ 🦀"), ("urgent", "true")]);
        assert_eq!(event.headers_json(), Some(r#"{"traceId":"t-1"}"#));
    }
}

#[tokio::test]
async fn a_message_that_is_no_event_is_delivered_unchanged() {
    let place = Place::new().await;
    let source = place.source(GROUP, false).connect().await.expect("the broker is there");
    let client = place.client().await;
    let batch = "application/cloudevents-batch+json";
    let broken = AMQPValue::LongString(vec![0xff, 0xfe].into());
    let strange = [
        BasicProperties::default(),
        BasicProperties::default().with_content_type("application/cloudevents+json".into()),
        BasicProperties::default().with_content_type(batch.into()),
        headers(&[
            ("cloudEvents:specversion", text("1.0")),
            ("cloudEvents:id", broken),
            ("cloudEvents:source", text("urn:them")),
            ("cloudEvents:type", text("thing.done")),
        ]),
    ];
    let (mut shown, count) = (BTreeSet::new(), strange.len());
    for properties in strange {
        client.put(&place.exchange, b"\xffnothing", properties).await;
        let message = next(&source).await;
        message.envelope().expect_err("it is no event");
        assert!(message.raw().ends_with(b"\n\xffnothing"), "{message:?}");
        shown.insert(message.raw());
        message.answer(BrokerReply::Ack).await.expect("the broker is there");
    }
    assert_eq!(shown.len(), count, "their bodies are equal, and they are not: {shown:?}");
}

/// `CC` would send the copy to other queues as well, and the id of another user would close the
/// channel.
#[tokio::test]
async fn a_message_of_another_publisher_can_be_put_off_and_reaches_no_other_queue() {
    let place = Place::new().await;
    let source = place.source(GROUP, false).connect().await.expect("the broker is there");
    let other = place.source("other", false).kinds(["never"]);
    let other = other.connect().await.expect("the broker is there");
    let client = place.client().await;
    let mut copies = lapin::types::FieldArray::default();
    copies.push(text("1.never"));
    let properties = headers(&[("CC", AMQPValue::FieldArray(copies)), ("x-kept", text("yes"))])
        .with_user_id("guest".into())
        .with_message_id("m-1".into());
    client.put(&place.exchange, b"any", properties).await;
    next(&other).await.answer(BrokerReply::Ack).await.expect("the first went to both");
    let message = next(&source).await;
    assert_eq!(&message.raw()[..], b"message-id: m-1\nx-kept: yes\n\nany");
    message
        .answer(BrokerReply::Later(std::time::Duration::from_millis(10)))
        .await
        .expect("put off");
    let again = next(&source).await;
    assert_eq!(again.raw(), message.raw());
    again.answer(BrokerReply::Ack).await.expect("the broker is there");
    use semel_core::inbox::Source as _;
    let more = tokio::time::timeout(std::time::Duration::from_secs(1), other.next()).await;
    assert!(more.is_err(), "the copy went to another queue");
}
