//! Tests what only a source of RabbitMQ does with messages.

use std::time::Duration;

use lapin::options::QueueDeleteOptions;
use semel_core::inbox::{BrokerReply, Message as _, Source as _};
use semel_core::outbox::Publisher as _;

use crate::fixture::{GROUP, Place, about, next, take, within};

#[tokio::test]
async fn a_message_that_was_put_off_is_delivered_once() {
    let place = Place::new().await;
    let source = place.source(GROUP, false).connect().await.expect("the broker is there");
    let publisher = place.publisher().connect().await.expect("the broker is there");
    let sent: Vec<_> = (0..10).map(|it| about(&format!("ord_{it}"))).collect();
    assert_eq!(publisher.publish(&sent).await, vec![Ok(()); sent.len()]);
    for _ in &sent {
        let message = next(&source).await;
        message
            .answer(BrokerReply::Later(Duration::from_millis(300)))
            .await
            .expect("it is put off");
    }
    let mut missing: Vec<_> = sent.iter().map(semel_core::event::Event::id).collect();
    while !missing.is_empty() {
        let event = take(&source).await;
        assert!(missing.contains(&event.id()), "it came twice");
        assert!(sent.contains(&event), "it came changed");
        missing.retain(|id| *id != event.id());
    }
    let more = tokio::time::timeout(Duration::from_secs(2), source.next()).await;
    assert!(more.is_err(), "nothing more comes");
}

/// The broker drops a message that expires in a cycle of queues, unless the cycle is broken.
#[tokio::test]
async fn a_message_can_be_put_off_again_and_again() {
    let place = Place::new().await;
    let source = place.source(GROUP, false).connect().await.expect("the broker is there");
    let publisher = place.publisher().connect().await.expect("the broker is there");
    let sent = about("ord_1");
    assert_eq!(publisher.publish(std::slice::from_ref(&sent)).await, [Ok(())]);
    for _ in 0..5 {
        let message = next(&source).await;
        assert_eq!(message.envelope().expect("an event"), sent);
        message.answer(BrokerReply::Later(Duration::from_millis(20))).await.expect("it is put off");
    }
    assert_eq!(take(&source).await, sent);
}

/// A retry queue was deleted: the message must not be acknowledged.
#[tokio::test]
async fn a_message_that_cannot_be_put_off_is_not_lost() {
    let place = Place::new().await;
    let source = place.source(GROUP, false).connect().await.expect("the broker is there");
    let publisher = place.publisher().connect().await.expect("the broker is there");
    let client = place.client().await;
    let sent = about("ord_1");
    assert_eq!(publisher.publish(std::slice::from_ref(&sent)).await, [Ok(())]);
    // At the first use the source remembers that the queue exists.
    let message = next(&source).await;
    message.answer(BrokerReply::Later(Duration::from_millis(10))).await.expect("it is put off");
    let message = next(&source).await;
    let queue = place.queue(GROUP, ".retry.1s");
    let gone = client.channel.queue_delete(queue.into(), QueueDeleteOptions::default());
    gone.await.expect("the broker is there");
    message
        .answer(BrokerReply::Later(Duration::from_millis(10)))
        .await
        .expect_err("nowhere to put it");
    drop(message);
    assert_eq!(take(&source).await, sent);
}

#[tokio::test]
async fn a_message_past_its_delivery_limit_is_in_the_dead_queue() {
    let place = Place::new().await;
    let source = place.source(GROUP, false).delivery_limit(2).patience(Duration::ZERO);
    let source = source.connect().await.expect("the broker is there");
    let publisher = place.publisher().connect().await.expect("the broker is there");
    let sent = about("ord_1");
    assert_eq!(publisher.publish(std::slice::from_ref(&sent)).await, [Ok(())]);
    for _ in 0..3 {
        drop(next(&source).await);
    }
    let dead = place.client().await.get(&place.queue(GROUP, ".dead")).await;
    let id = dead.delivery.properties.message_id().as_ref().map(ToString::to_string);
    assert_eq!(id, Some(sent.id().to_string()));
}

#[tokio::test]
async fn a_source_whose_queue_was_deleted_declares_it_again() {
    let place = Place::new().await;
    let source = place.source(GROUP, false).connect().await.expect("the broker is there");
    let queue = place.queue(GROUP, "");
    let client = place.client().await;
    let gone = client.channel.queue_delete(queue.into(), QueueDeleteOptions::default());
    gone.await.expect("the broker is there");
    within("it says so", source.next()).await.expect_err("the queue is gone");
    let publisher = place.publisher().connect().await.expect("the broker is there");
    let sent = about("ord_1");
    let publishing = async {
        // There is no route until the queue exists again; requesting a message declares it.
        while publisher.publish(std::slice::from_ref(&sent)).await != [Ok(())] {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let (taken, ()) = tokio::join!(take(&source), within("it is bound", publishing));
    assert_eq!(taken, sent);
}

/// A message that was taken but not returned to a caller is delivered again: `next` is dropped all
/// the time here.
#[tokio::test]
async fn nothing_is_lost_when_next_is_dropped() {
    let place = Place::new().await;
    let source = place.source(GROUP, false).connect().await.expect("the broker is there");
    let publisher = place.publisher().connect().await.expect("the broker is there");
    let sent: Vec<_> = (0..200).map(|it| about(&format!("ord_{it}"))).collect();
    let mut missing: Vec<_> = sent.iter().map(semel_core::event::Event::id).collect();
    let taking = async {
        while !missing.is_empty() {
            let limit = Duration::from_micros(300);
            let Ok(Ok(message)) = tokio::time::timeout(limit, source.next()).await else {
                tokio::task::yield_now().await;
                continue;
            };
            message.answer(BrokerReply::Ack).await.expect("the broker is there");
            let id = message.envelope().expect("an event").id();
            assert!(missing.contains(&id), "it came twice");
            missing.retain(|other| *other != id);
        }
    };
    let (answers, ()) = tokio::join!(publisher.publish(&sent), within("all are taken", taking));
    assert_eq!(answers, vec![Ok(()); sent.len()]);
}

#[tokio::test]
async fn a_group_takes_only_its_kinds() {
    let place = Place::new().await;
    let source = place.source(GROUP, true).kinds(["order.*"]);
    let source = source.connect().await.expect("the broker is there");
    let _all = place.source("audit", false).connect().await.expect("the broker is there");
    let publisher = place.publisher().connect().await.expect("the broker is there");
    let of = |kind: &str| {
        let event = semel_core::event::Event::builder("acme", kind, "/orders").about("order", "1");
        event.build().expect("a valid event")
    };
    let sent = [of("order.placed"), of("cart.filled"), of("order.line.added"), of("order.paid")];
    assert_eq!(publisher.publish(&sent).await, vec![Ok(()); 4]);
    assert_eq!(take(&source).await, sent[0]);
    assert_eq!(take(&source).await, sent[3]);
}

/// The broker confirms an event that one group has: it would not report that the other misses it.
#[tokio::test]
async fn groups_of_any_number_of_queues_get_every_event() {
    let place = Place::new().await;
    let three = place.source(GROUP, true).connect().await.expect("the broker is there");
    let all = place.source("audit", false).connect().await.expect("the broker is there");
    assert!(three.is_ordered() && !all.is_ordered());
    let publisher = place.publisher().connect().await.expect("the broker is there");
    let sent: Vec<_> = (0..200).map(|it| about(&format!("ord_{it}"))).collect();
    assert_eq!(publisher.publish(&sent).await, vec![Ok(()); sent.len()]);
    for source in [&three, &all] {
        let mut missing: Vec<_> = sent.iter().map(semel_core::event::Event::id).collect();
        while !missing.is_empty() {
            let id = take(source).await.id();
            missing.retain(|other| *other != id);
        }
    }
}

/// Otherwise its consumers stay active until the delay is over, which is minutes here.
#[tokio::test]
async fn an_ordered_source_gives_back_what_it_keeps_when_it_is_dropped() {
    let place = Place::new().await;
    let source = place.source(GROUP, true).connect().await.expect("the broker is there");
    let publisher = place.publisher().connect().await.expect("the broker is there");
    let sent = about("ord_1");
    assert_eq!(publisher.publish(std::slice::from_ref(&sent)).await, [Ok(())]);
    let message = next(&source).await;
    assert!(!message.redelivered());
    message.answer(BrokerReply::Later(Duration::from_secs(3_600))).await.expect("it is kept");
    drop((message, source));
    let heir = place.source(GROUP, true).connect().await.expect("the broker is there");
    assert_eq!(take(&heir).await, sent);
}

#[tokio::test]
async fn a_message_that_was_delivered_before_is_marked_redelivered() {
    let place = Place::new().await;
    let source = place.source(GROUP, false).patience(Duration::ZERO);
    let source = source.connect().await.expect("the broker is there");
    let publisher = place.publisher().connect().await.expect("the broker is there");
    assert_eq!(publisher.publish(&[about("ord_1")]).await, [Ok(())]);
    let message = next(&source).await;
    assert!(!message.redelivered());
    drop(message);
    let message = next(&source).await;
    assert!(message.redelivered());
    message.answer(BrokerReply::Ack).await.expect("the broker is there");
}
