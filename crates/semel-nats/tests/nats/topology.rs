//! Tests the stream: created if it is missing, unchanged if it exists.

use std::time::Duration;

use async_nats::jetstream::{self, stream};
use semel_nats::{NatsPublisher, NatsSource, Topology, TopologyError, async_nats};

use crate::place::{Place, name, topology};

#[tokio::test]
async fn a_stream_is_made_once_on_disk_and_forgets_nothing_unread() {
    let place = Place::shared().await;
    place.topology.ensure(&place.client().await).await.expect("what was made will do");
    let config = place.stream().await.cached_info().config.clone();
    assert_eq!(config.storage, stream::StorageType::File);
    assert_eq!(config.discard, stream::DiscardPolicy::New);
    assert_eq!(config.duplicate_window, Duration::from_secs(120));
    assert_eq!(config.subjects, place.topology.subjects());
}

#[tokio::test]
async fn many_may_make_the_same_stream_at_once() {
    let place = Place::shared().await;
    let (topology, client) = (topology(), place.client().await);
    let making = (0..8).map(|_| topology.ensure(&client));
    for made in futures_util::future::join_all(making).await {
        assert_eq!(made, Ok(()));
    }
}

#[tokio::test]
async fn a_stream_that_would_lose_events_is_named_with_what_to_change_and_left_alone() {
    let place = Place::shared().await;
    let client = place.client().await;
    let topology = topology();
    let unfit = stream::Config {
        name: name(&topology),
        subjects: topology.subjects()[..4].to_vec(),
        storage: stream::StorageType::Memory,
        max_messages: 10,
        discard: stream::DiscardPolicy::Old,
        no_ack: true,
        duplicate_window: Duration::from_secs(1),
        ..stream::Config::default()
    };
    let context = jetstream::new(client.clone());
    let made = context.create_stream(unfit).await.expect("it is made");
    let error = topology.ensure(&client).await.expect_err("it will not do");
    let TopologyError::Differs { differences, .. } = &error else { panic!("{error}") };
    let what: Vec<_> = differences.iter().map(|difference| difference.what).collect();
    assert_eq!(what, ["subjects", "storage", "discard", "no_ack", "duplicate_window"]);
    assert!(error.to_string().contains("nats stream edit"), "{error}");
    let still = context.get_stream(name(&topology)).await.expect("it is there");
    assert_eq!(still.cached_info().config, made.cached_info().config);
}

#[tokio::test]
async fn another_count_of_partitions_is_a_difference() {
    let place = Place::shared().await;
    let other = place.topology.clone().partitions(8);
    let error = other.ensure(&place.client().await).await.expect_err("it will not do");
    assert!(matches!(error, TopologyError::Differs { .. }), "{error}");
}

#[tokio::test]
async fn subjects_that_another_stream_has_are_refused() {
    let place = Place::shared().await;
    let other = place.topology.clone().stream(&format!("{}_2", name(&place.topology)));
    let error = other.ensure(&place.client().await).await.expect_err("they are taken");
    assert!(matches!(error, TopologyError::Refused { .. }), "{error}");
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_before_anything_is_sent() {
    let place = Place::shared().await;
    let client = place.client().await;
    for (unfit, setting) in [
        (Topology::default().stream("a.b"), "stream"),
        (Topology::default().stream(""), "stream"),
        (Topology::default().prefix("a..b"), "prefix"),
        (Topology::default().prefix("a.*"), "prefix"),
        (Topology::default().prefix("$JS.API"), "prefix"),
        (Topology::default().partitions(0), "partitions"),
        (Topology::default().partitions(1_025), "partitions"),
    ] {
        let error = unfit.ensure(&client).await.expect_err("it cannot work");
        assert!(matches!(&error, TopologyError::Setting(it) if it.setting.contains(setting)));
        assert!(NatsPublisher::new(client.clone(), unfit.clone()).is_err());
        assert!(NatsSource::builder(client.clone(), unfit, "G").build().is_err());
    }
    let source = || NatsSource::builder(client.clone(), place.topology.clone(), "G");
    assert!(source().ordered(true).filter("t.>").build().is_err());
    assert!(source().ack_wait(Duration::ZERO).build().is_err());
    assert!(source().prefetch(0).build().is_err());
    assert!(NatsSource::builder(client, place.topology.clone(), " ").build().is_err());
}
