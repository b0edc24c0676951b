//! Tests a publisher's answers for events that the broker does not accept.

use std::collections::BTreeSet;

use lapin::options::{ExchangeDeclareOptions, ExchangeDeleteOptions};
use lapin::types::FieldTable;
use semel_core::event::Event;
use semel_core::outbox::memory::MemoryOutbox;
use semel_core::outbox::{Outbox as _, PublishError, Publisher as _, Relay, Selection, Status};
use semel_servers::Options;

use crate::fixture::{GROUP, Place, about, publish_until_confirmed, take};

fn of(kind: &str) -> Event {
    Event::builder("acme", kind, "/orders").build().expect("a valid event")
}

fn is_refused(answer: &Result<(), PublishError>, why: &str) -> bool {
    matches!(answer, Err(PublishError::Refused(reason)) if reason.contains(why))
}

fn is_unrouted(answer: &Result<(), PublishError>, why: &str) -> bool {
    matches!(answer, Err(PublishError::Unrouted(reason)) if reason.contains(why))
}

#[tokio::test]
async fn an_event_that_no_queue_is_bound_for_has_no_route_yet() {
    let place = Place::new().await;
    let publisher = place.publisher().connect().await.expect("the broker is there");
    let event = about("ord_1");
    let answers = publisher.publish(std::slice::from_ref(&event)).await;
    assert!(is_unrouted(&answers[0], "no queue is bound"), "{answers:?}");

    // With a queue, the same publisher publishes the same event.
    let source = place.source(GROUP, false).connect().await.expect("the broker is there");
    assert_eq!(publisher.publish(std::slice::from_ref(&event)).await, [Ok(())]);
    assert_eq!(take(&source).await, event);
}

/// Returned messages may come with the confirm of any event; the answers must not depend on that.
#[tokio::test]
async fn in_a_batch_exactly_the_unroutable_events_have_no_route() {
    let place = Place::new().await;
    let source = place.source(GROUP, false).kinds(["routed"]);
    let source = source.connect().await.expect("the broker is there");
    let publisher = place.publisher().connect().await.expect("the broker is there");
    for round in 0..20_usize {
        let batch: Vec<_> = (0..60)
            .map(|at| of(if (at * 7 + round) % 3 == 0 { "lost" } else { "routed" }))
            .collect();
        let answers = publisher.publish(&batch).await;
        for (event, answer) in batch.iter().zip(&answers) {
            match event.kind() {
                "routed" => assert_eq!(answer, &Ok(()), "round {round}"),
                _ => assert!(is_unrouted(answer, "no queue is bound"), "round {round}: {answer:?}"),
            }
        }
        for event in batch.iter().filter(|event| event.kind() == "routed") {
            assert_eq!(take(&source).await.id(), event.id());
        }
    }
}

/// The broker closes the channel without telling which event was the cause.
#[tokio::test]
async fn an_event_that_is_too_large_for_the_broker_is_refused_and_the_others_are_not() {
    let most = ["-rabbit", "max_message_size", "65536"];
    let place = Place::alone_with(Options::new().flags(most)).await;
    let source = place.source(GROUP, false).connect().await.expect("the broker is there");
    let publisher = place.publisher().connect().await.expect("the broker is there");
    let sized = |bytes: usize| {
        let event = Event::builder("acme", "order.placed", "/orders");
        event.payload("application/octet-stream", vec![7; bytes]).build().expect("a valid event")
    };
    let batch = [sized(1), sized(65_537), sized(65_536), sized(100_000), sized(2)];
    let answers = publisher.publish(&batch).await;
    let refused: Vec<_> = answers.iter().map(|answer| is_refused(answer, "size")).collect();
    assert_eq!(refused, [false, true, false, true, false], "{answers:?}");
    let mut expected: Vec<_> = [0, 2, 4].map(|at| batch[at].id()).into();
    while !expected.is_empty() {
        // An event that was sent again may be delivered twice.
        let id = take(&source).await.id();
        expected.retain(|wanted| *wanted != id);
    }
}

/// No event can be published until the exchange is declared.
#[tokio::test]
async fn an_exchange_that_is_not_there_is_an_outage() {
    let place = Place::new().await;
    let publisher = place.publisher().declare(false).connect().await.expect("the broker is there");
    let answers = publisher.publish(&[about("ord_1"), about("ord_2")]).await;
    let away = |answer: &Result<(), PublishError>| matches!(answer, Err(PublishError::Unavailable(reason)) if reason.contains("NOT_FOUND"));
    assert!(answers.iter().all(away), "{answers:?}");

    let source = place.source(GROUP, false).connect().await.expect("it makes the exchange");
    publish_until_confirmed(&publisher, &about("ord_3")).await;
    take(&source).await;
}

/// The producer may be deployed first: its events wait in its outbox for the first consumer,
/// without counting attempts, and do not become dead.
#[tokio::test]
async fn a_producer_that_starts_before_any_consumer_loses_nothing() {
    for declares in [true, false] {
        let place = Place::new().await;
        let publisher = place.publisher().declare(declares).connect().await.expect("it is there");
        let outbox = MemoryOutbox::new();
        let events: Vec<_> = (0..30).map(|at| about(&format!("ord_{}", at % 7))).collect();
        outbox.append(&mut outbox.clone(), &events).await.expect("memory");
        let relay = Relay::builder(outbox.clone(), publisher).max_attempts(1).build();
        let relay = relay.expect("sound settings");
        for _ in 0..3 {
            let pass = relay.drain().await.expect("memory");
            assert_eq!((pass.published, pass.retried, pass.buried), (0, 0, 0), "{pass:?}");
        }
        let relaying = relay.start();
        let source = place.source(GROUP, false).connect().await.expect("the broker is there");
        let mut expected: BTreeSet<_> = events.iter().map(Event::id).collect();
        while !expected.is_empty() {
            expected.remove(&take(&source).await.id());
        }
        relaying.stop().await;
        let rows = outbox.list(&Selection::default(), None, 100).await.expect("memory");
        assert!(rows.iter().all(|row| row.status == Status::Published), "{rows:?}");
    }
}

/// No user may publish to an internal exchange, whatever the permissions.
#[tokio::test]
async fn events_that_may_not_be_published_have_no_route() {
    let place = Place::new().await;
    let internal = ExchangeDeclareOptions {
        durable: true,
        internal: true,
        ..ExchangeDeclareOptions::default()
    };
    let client = place.client().await;
    let name = place.exchange.as_str().into();
    let topic = lapin::ExchangeKind::Topic;
    let declared = client.channel.exchange_declare(name, topic, internal, FieldTable::default());
    declared.await.expect("the broker is there");
    let publisher = place.publisher().declare(false).connect().await.expect("the broker is there");
    let answers = publisher.publish(&[about("ord_1"), about("ord_2")]).await;
    assert!(answers.iter().all(|answer| is_unrouted(answer, "ACCESS_REFUSED")), "{answers:?}");
}

/// The publisher's channel was opened before and is closed; a new one declares the exchange.
#[tokio::test]
async fn an_exchange_that_was_deleted_is_declared_again() {
    let place = Place::new().await;
    let publisher = place.publisher().connect().await.expect("the broker is there");
    let client = place.client().await;
    let name = place.exchange.as_str().into();
    let gone = client.channel.exchange_delete(name, ExchangeDeleteOptions::default());
    gone.await.expect("the broker is there");
    let answers = publisher.publish(&[about("ord_1")]).await;
    assert!(is_unrouted(&answers[0], "no queue is bound"), "{answers:?}");
}

/// A frame cannot be split: sending it would close the connection for all.
#[tokio::test]
async fn attributes_that_do_not_fit_into_a_frame_are_refused() {
    let place = Place::new().await;
    let source = place.source(GROUP, false).connect().await.expect("the broker is there");
    let url = format!("{}?frame_max=8192", place.url);
    let publisher = semel_amqp::AmqpPublisher::builder(&url).exchange(&place.exchange);
    let publisher = publisher.connect().await.expect("the broker is there");
    let with = |count: usize| {
        let event = Event::builder("acme", "order.placed", "/orders");
        let named = (0..count).map(|at| format!("a{at}"));
        let full = named.fold(event, |event, name| event.attribute(&name, &"v".repeat(1_000)));
        full.build().expect("a valid event")
    };
    let batch = [with(1), with(20), with(7)];
    let answers = publisher.publish(&batch).await;
    assert_eq!([&answers[0], &answers[2]], [&Ok(()), &Ok(())]);
    assert!(is_refused(&answers[1], "attributes"), "{answers:?}");
    assert_eq!(take(&source).await, batch[0]);
    assert_eq!(take(&source).await, batch[2]);
}

#[tokio::test]
async fn a_broker_that_is_not_there_is_unavailable() {
    // Bound but not listening: no server answers there, and no other process can take the port.
    let nobody = tokio::net::TcpSocket::new_v4().expect("a socket");
    nobody.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    let address = nobody.local_addr().expect("it is bound");
    let url = format!("amqp://guest:guest@{address}/%2f");
    let publisher = semel_amqp::AmqpPublisher::builder(&url).build().expect("valid settings");
    for _ in 0..3 {
        let answers = publisher.publish(&[about("ord_1"), about("ord_2")]).await;
        assert_eq!(answers.len(), 2);
        for answer in answers {
            assert!(matches!(answer, Err(PublishError::Unavailable(_))), "{answer:?}");
        }
    }
}

/// The peer accepts connections and never answers.
#[tokio::test]
async fn a_silent_broker_is_unavailable_in_time() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let url = format!("amqp://guest:guest@{address}/%2f");
    let limit = std::time::Duration::from_millis(300);
    let publisher = semel_amqp::AmqpPublisher::builder(&url).timeout(limit);
    let publisher = publisher.build().expect("valid settings");
    let answers = crate::fixture::within("it gives up", publisher.publish(&[about("1")])).await;
    assert!(matches!(answers[0], Err(PublishError::Unavailable(_))), "{answers:?}");
}
