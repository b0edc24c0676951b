//! Tests servers that die, hang and come back.

use std::time::Duration;

use semel_core::inbox::Source as _;
use semel_core::outbox::{PublishError, Publisher as _};
use semel_nats::{NatsPublisher, NatsSource, TopologyError};

use crate::place::{Place, event, events, publish, publish_until_confirmed, take, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_server_is_an_outage_and_the_same_publisher_works_when_it_is_back() {
    let place = Place::private().await;
    let publisher = place.publisher().await;
    let before = event();
    assert_eq!(publish(&publisher, &before).await, Ok(()));
    place.to_server(|server| server.kill9().expect("it dies"));
    for answer in within("answers", publisher.publish(&events(300))).await {
        assert!(matches!(answer, Err(PublishError::Unavailable(_))), "{answer:?}");
    }
    place.to_server(|server| server.restart().expect("it starts again"));
    publish_until_confirmed(&publisher, &event()).await;
    // The repeat is recognised although the server died in between.
    let stored = place.stored().await;
    publish_until_confirmed(&publisher, &before).await;
    assert_eq!(place.stored().await, stored);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_is_an_outage_within_the_timeout() {
    let place = Place::private().await;
    let publisher = NatsPublisher::builder(place.client().await, place.topology.clone())
        .timeout(Duration::from_millis(300))
        .at_once(8)
        .build()
        .expect("sound settings");
    place.to_server(|server| server.pause().expect("it stops"));
    // More events than the connection's buffer and the batch hold.
    for answer in within("answers", publisher.publish(&events(3_000))).await {
        assert!(matches!(answer, Err(PublishError::Unavailable(_))), "{answer:?}");
    }
    place.to_server(|server| server.resume().expect("it goes on"));
    publish_until_confirmed(&publisher, &event()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_reports_that_the_server_is_away_and_continues_when_it_is_back() {
    let place = Place::private().await;
    let source = place.source("INVENTORY").await.build().expect("sound settings");
    let first = event();
    publish_until_confirmed(&place.publisher().await, &first).await;
    assert_eq!(take(&source).await, first);
    place.to_server(|server| server.kill9().expect("it dies"));
    let away = async { while source.next().await.is_ok() {} };
    within("the source says so", away).await;
    place.to_server(|server| server.restart().expect("it starts again"));
    let second = event();
    publish_until_confirmed(&place.publisher().await, &second).await;
    // The first event may come again too, if its ack was not written to disk yet.
    while take(&source).await != second {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_lost_its_stream_is_distinguished_from_one_that_is_away() {
    let place = Place::private().await;
    let publisher = place.publisher().await;
    let source = place.source("INVENTORY").await.build().expect("sound settings");
    publish_until_confirmed(&publisher, &event()).await;
    take(&source).await;
    place.to_server(|server| {
        server.kill9().expect("it dies");
        let data = server.directory().join("data");
        std::fs::remove_dir_all(data.join("jetstream")).expect("its data");
        server.restart().expect("it starts again");
    });
    let says = async {
        loop {
            match publish(&publisher, &event()).await {
                Err(PublishError::Unavailable(reason)) if reason.contains("does not exist") => {
                    break;
                }
                Err(PublishError::Unavailable(_)) => {}
                other => panic!("{other:?}"),
            }
        }
        loop {
            match source.next().await {
                Err(error) if error.to_string().contains("does not exist") => break,
                Err(_) => {}
                Ok(message) => panic!("{message:?}"),
            }
        }
    };
    within("both say that the stream is gone", says).await;
    place.topology.ensure(&place.client().await).await.expect("it is made again");
    let after = event();
    publish_until_confirmed(&publisher, &after).await;
    while take(&source).await != after {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_starts_before_its_server_delivers_once_the_server_is_there() {
    let place = Place::private().await;
    place.to_server(|server| {
        server.kill9().expect("it dies");
        let data = server.directory().join("data");
        std::fs::remove_dir_all(data.join("jetstream")).expect("its data");
    });
    let client = semel_nats::connect_lazy(&place.url).await.expect("no server is needed");
    let publisher = NatsPublisher::builder(client.clone(), place.topology.clone());
    let publisher = publisher.declare(true).build().expect("sound settings");
    let source = NatsSource::builder(client, place.topology.clone(), "INVENTORY");
    let source = source.declare(true).build().expect("sound settings");
    let event = event();
    let away = publish(&publisher, &event).await;
    assert!(matches!(away, Err(PublishError::Unavailable(_))), "{away:?}");
    let away = publisher.check().await.expect_err("there is no server");
    assert!(matches!(away, TopologyError::Unavailable(_)), "{away}");
    within("the source says so", source.next()).await.expect_err("there is no server");
    place.to_server(|server| server.restart().expect("it starts"));
    publish_until_confirmed(&publisher, &event).await;
    assert_eq!(take(&source).await, event);
    publisher.check().await.expect("the server is there");
}
