//! Tests what the source does with pulled messages, and which messages it reads.

use std::collections::BTreeSet;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::{self, consumer};
use semel_core::event::{Event, STRUCTURED};
use semel_core::inbox::{BrokerReply, Message as _};
use semel_core::outbox::Publisher as _;
use semel_nats::{NatsMessage, async_nats};
use semel_testkit::BrokerFixture as _;

use crate::place::{
    PATIENCE, Place, event, events, next, publish, publish_until_confirmed, take, within,
};

/// Longer than any test: a message that is delivered again did not wait for this.
const FOREVER: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn messages_that_a_dropped_source_had_pulled_go_to_another_at_once() {
    let place = Place::shared().await;
    let sent = events(20);
    let answers = within("answers", place.publisher().await.publish(&sent)).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    let source = place.source("G").await.ack_wait(FOREVER).build().expect("sound settings");
    let mut taken = BTreeSet::from([take(&source).await.id()]);
    wait_until_pulled(&place, 19).await;
    drop(source);
    let other = place.source("G").await.ack_wait(FOREVER).build().expect("sound settings");
    // Not all: if a waiting source is gone, a server of version 2.9 keeps the message meant for it
    // until `ack_wait` ends.
    while taken.len() < 15 {
        taken.insert(take(&other).await.id());
    }
}

/// Waits until the group's consumer has delivered `messages` messages.
async fn wait_until_pulled(place: &Place, messages: usize) {
    let pulled = async {
        loop {
            let mut consumer: consumer::PullConsumer =
                place.stream().await.get_consumer("G").await.expect("a consumer");
            if consumer.info().await.expect("the server answers").num_ack_pending >= messages {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within("the source pulls", pulled).await;
    // The messages that the server has delivered may still be on their way; there is no signal for
    // their arrival.
    tokio::time::sleep(Duration::from_secs(2)).await;
}

#[tokio::test]
async fn messages_that_no_caller_takes_go_to_another_source_in_the_end() {
    let place = Place::shared().await;
    let idle = place.source("G").await.ack_wait(Duration::from_secs(1)).build().expect("settings");
    let sent = events(10);
    let answers = within("answers", place.publisher().await.publish(&sent)).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    wait_until_pulled(&place, 10).await;
    let other = place.source("G").await.ack_wait(Duration::from_secs(1)).build().expect("settings");
    let mut missing: BTreeSet<_> = sent.iter().map(Event::id).collect();
    while !missing.is_empty() {
        missing.remove(&take(&other).await.id());
    }
    drop(idle);
}

/// A slow worker acks while another has its message: the message is done, and is not delivered
/// again.
#[tokio::test]
async fn a_late_ack_while_another_has_the_message_settles_it() {
    let place = Place::shared().await;
    let short = Duration::from_secs(1);
    let slow = place.source("G").await.ack_wait(short).build().expect("sound settings");
    publish_until_confirmed(&place.publisher().await, &event()).await;
    // Taken, without reporting progress.
    let late = next(&slow).await;
    let other = place.source("G").await.ack_wait(short).build().expect("sound settings");
    let again = next(&other).await;
    let id = |message: &NatsMessage| message.envelope().expect("an event").id();
    assert_eq!(id(&late), id(&again));
    within("an answer", late.answer(BrokerReply::Ack)).await.expect("the server takes a late ack");
    let _ = within("an answer", again.answer(BrokerReply::Ack)).await;
    let settled = async {
        loop {
            let mut consumer: consumer::PullConsumer =
                place.stream().await.get_consumer("G").await.expect("a consumer");
            let info = consumer.info().await.expect("the server answers");
            if info.num_ack_pending == 0 && info.ack_floor.stream_sequence == 1 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within("it is settled", settled).await;
}

#[tokio::test]
async fn an_ack_without_a_consumer_is_an_error() {
    let place = Place::shared().await;
    let source = place.source("G").await.build().expect("sound settings");
    publish_until_confirmed(&place.publisher().await, &event()).await;
    let message = next(&source).await;
    place.stream().await.delete_consumer("G").await.expect("the server answers");
    let lost = within("an answer", message.answer(BrokerReply::Ack)).await;
    assert!(lost.is_err(), "a consumer that is gone confirms nothing");
    // The source creates its consumer again, and the event is delivered again.
    take(&source).await;
}

#[tokio::test]
async fn an_event_that_is_never_acked_comes_more_often_than_any_limit() {
    let place = Place::shared().await;
    let source = place.source("G").await.build().expect("sound settings");
    let sent = event();
    publish_until_confirmed(&place.publisher().await, &sent).await;
    for _ in 0..50 {
        let message = next(&source).await;
        assert_eq!(message.envelope().expect("an event"), sent);
        message.answer(BrokerReply::Later(Duration::ZERO)).await.expect("the server is there");
    }
    assert_eq!(take(&source).await, sent);
}

#[tokio::test]
async fn a_group_has_one_consumer_and_an_ordered_one_has_one_per_partition() {
    let place = Place::shared().await;
    let _plain = place.source("orders / billing").await.build().expect("sound settings");
    let _ordered = place.source("ORDERED").await.ordered(true).build().expect("sound settings");
    let made = async {
        while place.stream().await.cached_info().state.consumer_count < 17 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within("the consumers are made", made).await;
    let stream = place.stream().await;
    let mut consumer: consumer::PullConsumer =
        stream.get_consumer("ORDERED__7").await.expect("a consumer");
    let config = consumer.info().await.expect("the server answers").config.clone();
    assert_eq!((config.max_ack_pending, config.max_deliver), (1, -1));
    assert_eq!(config.ack_wait, PATIENCE);
    assert_eq!(config.filter_subject, place.topology.subjects()[7]);
}

#[tokio::test]
async fn a_foreign_event_in_structured_mode_is_read_with_the_default_tenant() {
    let place = Place::shared().await;
    let context = jetstream::new(place.client().await);
    let source = place.source("G").await.default_tenant("acme").build().expect("sound settings");
    let mut headers = HeaderMap::new();
    headers.insert("Content-Type", STRUCTURED);
    let document = r#"{"specversion":"1.0","id":"17","source":"/legacy","type":"order.placed",
        "datacontenttype":"application/json","data":{"order":"ord_1","note":"🎉 100%"}}"#;
    let subject = place.topology.subjects()[3].replace('>', "order.placed");
    let sent = context.publish_with_headers(subject, headers, document.into()).await;
    sent.expect("the server answers").await.expect("the stream takes it");
    let event = take(&source).await;
    assert_eq!((event.tenant(), event.kind(), event.source()), ("acme", "order.placed", "/legacy"));
    assert_eq!(event.parse::<serde_json::Value>().expect("JSON")["note"], "🎉 100%");
}

#[tokio::test]
async fn an_event_with_emoji_and_percent_signs_in_its_headers_arrives_as_it_was() {
    let place = Place::shared().await;
    let source = place.source("G").await.build().expect("sound settings");
    let sent = Event::builder("acme 🏢", "order.🎉 placed*", "/orders?q=100%25&r=%")
        .about("order", "№ 7 \"seven\" %41")
        .attribute("note", " 50% off: 日本 ")
        .build()
        .expect("an event");
    assert_eq!(publish(&place.publisher().await, &sent).await, Ok(()));
    assert_eq!(take(&source).await, sent);
}

#[tokio::test]
async fn a_filtered_source_gets_the_subjects_that_it_asked_for() {
    let place = Place::shared().await;
    let context = jetstream::new(place.client().await);
    let wanted = place.topology.subjects()[0].replace('>', "invoice.>");
    let source = place.source("G").await.filter(&wanted).build().expect("sound settings");
    for kind in ["order.placed", "invoice.sent", "order.paid"] {
        let event = Event::builder("acme", kind, "/billing").build().expect("an event");
        let subject = place.topology.subjects()[0].replace('>', kind);
        let sent = context.publish(subject, event.to_json().into()).await;
        sent.expect("the server answers").await.expect("the stream takes it");
    }
    assert_eq!(take(&source).await.kind(), "invoice.sent");
    let mut consumer: consumer::PullConsumer =
        place.stream().await.get_consumer("G").await.expect("a consumer");
    let info = consumer.info().await.expect("the server answers");
    assert_eq!((info.num_pending, info.num_ack_pending), (0, 0), "nothing else is meant for it");
}

#[tokio::test]
async fn bytes_that_are_no_event_come_with_the_reason_and_as_they_were() {
    let place = Place::shared().await;
    let source = place.source("G").await.build().expect("sound settings");
    place.put_raw("\u{0}no event".into()).await;
    let message = next(&source).await;
    assert!(message.envelope().is_err());
    assert_eq!(message.raw(), "\n\u{0}no event", "no header, an empty line, the payload");
    assert!(message.subject().ends_with(".0.raw"), "{}", message.subject());
}
