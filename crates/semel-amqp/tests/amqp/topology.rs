//! Tests what is declared, and the errors if something else exists.

use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use semel_amqp::{AmqpSource, SetupError};

use crate::fixture::{GROUP, Place};

#[tokio::test]
async fn an_exchange_of_another_type_is_a_typed_error() {
    let place = Place::new().await;
    let client = place.client().await;
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let name = place.exchange.as_str();
    let declared = client.channel.exchange_declare(
        name.into(),
        ExchangeKind::Fanout,
        durable,
        FieldTable::default(),
    );
    declared.await.expect("the broker is there");
    let error = place.publisher().connect().await.expect_err("it differs");
    assert!(matches!(error, SetupError::Differs { .. }), "{error:?}");
    assert!(error.to_string().contains(name), "{error}");
    let looked = place.publisher().check().await.expect_err("a check without declaring fails, too");
    assert!(matches!(looked, SetupError::Differs { .. }), "{looked:?}");
}

#[tokio::test]
async fn checking_an_exchange_creates_none() {
    let place = Place::new().await;
    place.publisher().check().await.expect("what is not there yet is no fault");
    let client = place.client().await;
    let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    let (name, none) = (place.exchange.as_str(), FieldTable::default());
    let there = client.channel.exchange_declare(name.into(), ExchangeKind::Topic, passive, none);
    there.await.expect_err("it was not created");
    drop(place.publisher().connect().await.expect("the broker is there"));
    place.publisher().check().await.expect("and what is there is ours");
}

#[tokio::test]
async fn a_queue_with_other_properties_is_a_typed_error() {
    let place = Place::new().await;
    let client = place.client().await;
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let queue = place.queue(GROUP, "");
    let classic =
        client.channel.queue_declare(queue.as_str().into(), durable, FieldTable::default());
    classic.await.expect("the broker is there");
    let error = place.source(GROUP, false).connect().await.expect_err("it differs");
    assert!(matches!(error, SetupError::Differs { .. }), "{error:?}");
    assert!(error.to_string().contains(&queue), "{error}");
}

#[tokio::test]
async fn a_group_cannot_change_its_delivery_limit_unnoticed() {
    let place = Place::new().await;
    drop(place.source(GROUP, false).connect().await.expect("the broker is there"));
    drop(place.source(GROUP, false).connect().await.expect("equal things may be declared again"));
    let changed = place.source(GROUP, false).delivery_limit(7).connect().await;
    let error = changed.expect_err("it differs");
    assert!(error.to_string().contains("x-delivery-limit"), "{error}");
}

#[tokio::test]
async fn without_declaring_a_missing_queue_is_an_error_and_nothing_is_created() {
    let place = Place::new().await;
    let error = place.source(GROUP, false).declare(false).connect().await.expect_err("no queue");
    assert!(matches!(error, SetupError::Unavailable { .. }), "{error:?}");
    drop(place.source(GROUP, false).connect().await.expect("the broker is there"));
    let plain = place.source(GROUP, false).declare(false).connect().await;
    plain.expect("now everything is there");
}

#[test]
fn settings_that_cannot_work_are_refused_before_anything_is_connected() {
    let url = "amqp://guest:guest@127.0.0.1:1/%2f";
    let refused = |builder: semel_amqp::SourceBuilder| match builder.build() {
        Err(SetupError::Setting { name, .. }) => name,
        other => panic!("expected a setting to be refused, got {other:?}"),
    };
    assert_eq!(refused(AmqpSource::builder("nonsense", GROUP)), "url");
    assert_eq!(refused(AmqpSource::builder(url, "a.b")), "group");
    assert_eq!(refused(AmqpSource::builder(url, GROUP).prefetch(0)), "prefetch");
    assert_eq!(refused(AmqpSource::builder(url, GROUP).exchange("")), "exchange");
    assert_eq!(refused(AmqpSource::builder(url, GROUP).ordered(65)), "ordered");
    assert_eq!(
        refused(AmqpSource::builder(url, GROUP).timeout(std::time::Duration::ZERO)),
        "timeout"
    );
}
