//! Tests brokers that die or hang.

use std::time::Duration;

use semel_amqp::SetupError;
use semel_core::inbox::{BrokerReply, Message as _};
use semel_core::outbox::{PublishError, Publisher as _};
use semel_testkit::BrokerFixture as _;

use crate::fixture::{GROUP, Place, about, next, publish_until_confirmed, take, within};

/// A message is being handled when the broker dies: it was not acked, so it is delivered again, in
/// order.
#[tokio::test]
async fn faults_an_ordered_partition_keeps_its_order_when_the_broker_is_killed() {
    let place = Place::alone().await;
    let source = place.source(GROUP, true).connect().await.expect("the broker is there");
    let publisher = place.publisher().connect().await.expect("the broker is there");
    let sent: Vec<_> = (0..6).map(|_| about("ord_1")).collect();
    assert_eq!(publisher.publish(&sent).await, vec![Ok(()); sent.len()]);
    assert_eq!(take(&source).await.id(), sent[0].id());
    let in_hands = next(&source).await;
    assert_eq!(in_hands.envelope().expect("an event").id(), sent[1].id());
    place.kill_and_restart().await;
    in_hands.answer(BrokerReply::Ack).await.expect_err("its channel is gone");
    // The ack of the first message may be lost with the broker.
    let mut seen = Vec::new();
    while seen.last() != Some(&sent[5].id()) {
        seen.push(take(&source).await.id());
    }
    seen.dedup();
    let wanted: Vec<_> = sent.iter().map(semel_core::event::Event::id).collect();
    let from = wanted.len() - seen.len();
    assert!(from <= 1, "the unacked message is delivered again: {seen:?}");
    assert_eq!(seen, wanted[from..]);
}

/// A message that was put off survives in any queue.
#[tokio::test]
async fn faults_what_waits_for_later_survives_a_kill() {
    let place = Place::alone().await;
    let source = place.source(GROUP, false).connect().await.expect("the broker is there");
    let publisher = place.publisher().connect().await.expect("the broker is there");
    let sent: Vec<_> = (0..20).map(|it| about(&format!("ord_{it}"))).collect();
    assert_eq!(publisher.publish(&sent).await, vec![Ok(()); sent.len()]);
    for _ in &sent {
        let message = next(&source).await;
        message
            .answer(BrokerReply::Later(Duration::from_millis(900)))
            .await
            .expect("it is put off");
    }
    place.kill_and_restart().await;
    let mut missing: Vec<_> = sent.iter().map(semel_core::event::Event::id).collect();
    while !missing.is_empty() {
        let id = take(&source).await.id();
        missing.retain(|other| *other != id);
    }
    publish_until_confirmed(&publisher, &about("after")).await;
}

/// The publisher must answer, with `Unavailable`: the outcome is unknown.
#[tokio::test]
async fn faults_a_broker_that_hangs_is_unavailable_and_then_accepts_events_again() {
    let place = Place::alone().await;
    let _source = place.source(GROUP, false).connect().await.expect("the broker is there");
    let publisher = place.publisher().connect().await.expect("the broker is there");
    place.pause().await;
    let answers = within("it gives up", publisher.publish(&[about("1"), about("2")])).await;
    for answer in answers {
        assert!(matches!(answer, Err(PublishError::Unavailable(_))), "{answer:?}");
    }
    place.resume().await;
    publish_until_confirmed(&publisher, &about("3")).await;
}

/// Publisher and source are built while there is no broker, and need nothing more when it comes.
#[tokio::test]
async fn faults_a_service_that_starts_before_its_broker_delivers_once_the_broker_is_there() {
    let place = Place::alone().await;
    place.kill().await;
    let publisher = place.publisher().build().expect("no broker is needed");
    let source = place.source(GROUP, false).build().expect("no broker is needed");
    let event = [about("ord_1")];
    let answers = within("it gives up", publisher.publish(&event)).await;
    assert!(matches!(answers[..], [Err(PublishError::Unavailable(_))]), "{answers:?}");
    let away = within("it gives up", publisher.check()).await.expect_err("there is no broker");
    assert!(matches!(away, SetupError::Unavailable { .. }), "{away}");
    let taking = tokio::spawn(async move { take(&source).await });
    place.revive().await;
    let publishing = async {
        loop {
            match &publisher.publish(&event).await[..] {
                [Ok(())] => return,
                // Until the source has declared its queue.
                [Err(PublishError::Unavailable(_) | PublishError::Unrouted(_))] => {
                    tokio::task::yield_now().await;
                }
                other => panic!("a broker that is away costs no attempt: {other:?}"),
            }
        }
    };
    within("the broker confirms", publishing).await;
    let taken = within("a message comes", taking).await.expect("no panic");
    assert_eq!(taken.id(), event[0].id());
    publisher.check().await.expect("the broker is there");
}
