//! Tests the publisher's answer for each event.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream::{self, consumer, stream};
use metrics::{
    Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use semel_core::Executor;
use semel_core::event::Event;
use semel_core::inbox::{Consumer, Inbox};
use semel_core::outbox::{PublishError, Publisher as _, partition};
use semel_core::store::memory::MemoryStore;
use semel_nats::{NatsPublisher, async_nats};

use crate::place::{Place, event, events, publish, publish_until_confirmed, take, within};

/// Records one counter.
struct Duplicates(Arc<AtomicU64>);

struct Adding(Arc<AtomicU64>);

impl CounterFn for Adding {
    fn increment(&self, value: u64) {
        self.0.fetch_add(value, Ordering::Relaxed);
    }

    fn absolute(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

impl Recorder for Duplicates {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match key.name() {
            "semel_nats_duplicates_total" => Counter::from_arc(Arc::new(Adding(self.0.clone()))),
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[tokio::test]
async fn a_repeat_is_stored_once_answered_as_success_and_counted() {
    let counted = Arc::new(AtomicU64::new(0));
    let recorder = Duplicates(Arc::clone(&counted));
    let _here = metrics::set_default_local_recorder(&recorder);
    let place = Place::shared().await;
    let publisher = place.publisher().await;
    let event = event();
    assert_eq!(publish(&publisher, &event).await, Ok(()));
    assert_eq!(counted.load(Ordering::Relaxed), 0);
    assert_eq!(publish(&place.publisher().await, &event).await, Ok(()));
    assert_eq!(counted.load(Ordering::Relaxed), 1);
    assert_eq!(place.stored().await, 1);
}

/// The server remembers ids for two minutes, even after a purge.
#[tokio::test]
async fn an_event_that_was_purged_is_published_again() {
    let place = Place::shared().await;
    let publisher = place.publisher().await;
    let events = events(3);
    for event in &events {
        assert_eq!(publish(&publisher, event).await, Ok(()));
    }
    place.stream().await.purge().await.expect("it is emptied");
    assert_eq!(place.stored().await, 0);
    for round in 0..2 {
        // The second time the stream has it, under another message id.
        let answers = within("answers", publisher.publish(&events)).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        assert!(place.stored().await >= 3, "round {round}");
    }
    let source = place.source("g").await.build().expect("sound settings");
    let mut expected: Vec<_> = events.iter().map(Event::id).collect();
    while !expected.is_empty() {
        let id = take(&source).await.id();
        expected.retain(|wanted| *wanted != id);
    }
}

/// A repeat that comes after the server's duplicate window is stored twice, and handled once.
#[tokio::test]
async fn a_repeat_that_the_server_has_forgotten_is_handled_once() {
    let mut place = Place::shared().await;
    place.topology = crate::place::topology().duplicate_window(Duration::from_millis(100));
    place.topology.ensure(&place.client().await).await.expect("the stream is made");
    let (publisher, event) = (place.publisher().await, event());
    assert_eq!(publish(&publisher, &event).await, Ok(()));
    let repeating = async {
        while place.stored().await < 2 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(publish(&publisher, &event).await, Ok(()));
        }
    };
    within("it is stored twice", repeating).await;
    let handled = Arc::new(AtomicU64::new(0));
    let inbox = Inbox::new(Executor::new(MemoryStore::new()));
    let group = inbox.group("g").on_fenced("order.placed", {
        let handled = Arc::clone(&handled);
        move |_, _| {
            handled.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, String>(()) }
        }
    });
    let source = place.source("g").await.build().expect("sound settings");
    let consuming = Consumer::new(group, source).expect("a sound group").start();
    let stored = place.stored().await;
    let acked = async {
        loop {
            let found = place.stream().await.get_consumer("g").await;
            if let Ok(mut found) = found {
                let found: &mut consumer::PullConsumer = &mut found;
                let info = found.info().await.expect("the server answers");
                if info.ack_floor.stream_sequence >= stored {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within("all are acked", acked).await;
    consuming.stop().await;
    assert_eq!(handled.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn the_same_id_of_another_tenant_is_another_event() {
    let place = Place::shared().await;
    let publisher = place.publisher().await;
    let first = event();
    let second = Event::builder("other", "order.placed", "/orders").id(first.id());
    let both = [first, second.build().unwrap()];
    assert_eq!(within("answers", publisher.publish(&both)).await, [Ok(()), Ok(())]);
    assert_eq!(place.stored().await, 2);
}

#[tokio::test]
async fn an_event_larger_than_the_server_takes_is_refused_with_both_sizes() {
    let place = Place::shared().await;
    let publisher = place.publisher().await;
    let most = place.client().await.server_info().max_payload;
    // The headers count too: the payload alone would do.
    let large = Event::builder("acme", "blob", "/b").payload("image/png", vec![0; most]);
    let batch = [event(), large.build().unwrap(), event()];
    let answers = within("answers", publisher.publish(&batch)).await;
    let [Ok(()), Err(PublishError::Refused(reason)), Ok(())] = &answers[..] else {
        panic!("{answers:?}");
    };
    assert!(reason.contains(&most.to_string()), "{reason}");
    assert!(reason.contains("max_payload"), "{reason}");
    assert_eq!(place.stored().await, 2);
}

#[tokio::test]
async fn an_event_larger_than_the_stream_takes_is_refused() {
    let place = Place::shared().await;
    let context = jetstream::new(place.client().await);
    let found = place.stream().await.cached_info().config.clone();
    let smaller = stream::Config { max_message_size: 4_096, ..found };
    context.update_stream(smaller).await.expect("the server takes the change");
    let large = Event::builder("acme", "blob", "/b").payload("image/png", vec![0; 8_192]);
    let answer = publish(&place.publisher().await, &large.build().unwrap()).await;
    assert!(matches!(answer, Err(PublishError::Refused(_))), "{answer:?}");
}

#[tokio::test]
async fn an_event_for_which_the_stream_has_no_subject_waits_and_reports_the_subject() {
    let place = Place::shared().await;
    // A publisher with more partitions than the stream has.
    let topology = place.topology.clone().partitions(1_024);
    let publisher = NatsPublisher::new(place.client().await, topology).expect("sound settings");
    let (inside, outside): (Vec<_>, Vec<_>) =
        events(400).into_iter().partition(|event| partition(event, 1_024) < 16);
    assert!(!inside.is_empty() && !outside.is_empty(), "400 events go everywhere");
    for answer in within("answers", publisher.publish(&outside)).await {
        let Err(PublishError::Unrouted(reason)) = answer else { panic!("{answer:?}") };
        assert!(reason.contains(".order.placed"), "{reason}");
        assert!(reason.contains(&place.topology.subjects()[0]), "{reason}");
    }
    let answers = within("answers", publisher.publish(&inside)).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

#[tokio::test]
async fn a_stream_that_is_missing_is_an_outage_until_it_is_made_again() {
    let place = Place::shared().await;
    let publisher = place.publisher().await;
    place.stream().await;
    let context = jetstream::new(place.client().await);
    context.delete_stream(crate::place::name(&place.topology)).await.expect("it goes");
    let lost = publish(&publisher, &event()).await;
    let Err(PublishError::Unavailable(reason)) = &lost else { panic!("{lost:?}") };
    assert!(reason.contains("does not exist") && reason.contains("ensure"), "{reason}");
    place.topology.ensure(&place.client().await).await.expect("it is made again");
    publish_until_confirmed(&publisher, &event()).await;
}

#[tokio::test]
async fn subjects_that_are_another_streams_are_an_outage() {
    let place = Place::shared().await;
    let topology = place.topology.clone().stream("T_nobody");
    let publisher = NatsPublisher::new(place.client().await, topology).expect("sound settings");
    let answer = publish(&publisher, &event()).await;
    assert!(matches!(answer, Err(PublishError::Unavailable(_))), "{answer:?}");
    assert_eq!(place.stored().await, 0, "it is not stored in another stream");
}

#[tokio::test]
async fn a_full_stream_is_an_outage_and_forgets_nothing() {
    let place = Place::shared().await;
    let context = jetstream::new(place.client().await);
    let found = place.stream().await.cached_info().config.clone();
    context.update_stream(stream::Config { max_messages: 2, ..found }).await.expect("it changes");
    let publisher = place.publisher().await;
    for _ in 0..2 {
        assert_eq!(publish(&publisher, &event()).await, Ok(()));
    }
    let full = publish(&publisher, &event()).await;
    assert!(matches!(full, Err(PublishError::Unavailable(_))), "{full:?}");
    assert_eq!(place.stored().await, 2);
}
