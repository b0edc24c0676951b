//! Tests what only streams do: they fill, shrink, lose their groups, and remove idle consumers.

use std::time::Duration;

use semel_core::event::Event;
use semel_core::inbox::{BrokerReply, Message, Source};
use semel_core::outbox::{PublishError, Publisher};
use semel_core::store::Severity;
use semel_redis::{StreamSource, Streams};

use crate::fixture::{LONG, PATIENCE, Place};

const URL: &str = "SEMEL_TEST_REDIS_URL";

fn events(count: usize) -> Vec<Event> {
    let event = |_| Event::builder("acme", "order.placed", "/orders").about("order", "1");
    (0..count).map(|at| event(at).build().expect("the server answers")).collect()
}

/// Connects with a single partition, so that all entries are in one stream.
async fn narrow(place: &Place) -> Streams {
    let builder = Streams::builder().prefix(&place.prefix).partitions(1);
    let builder = builder.connect_timeout(LONG).response_timeout(LONG);
    builder.connect(&place.url).await.expect("the server answers")
}

async fn join(streams: &Streams, group: &str) -> StreamSource {
    streams.source(group).patience(PATIENCE).open().await.expect("the server answers")
}

async fn take(source: &StreamSource, count: usize) {
    for _ in 0..count {
        let message = within(source.next()).await.expect("the server answers");
        message.answer(BrokerReply::Ack).await.expect("the server answers");
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("within a minute")
}

async fn length(place: &Place) -> usize {
    place.raw(redis::cmd("XLEN").arg(place.key(0))).await
}

async fn published(streams: &Streams, count: usize) {
    assert_eq!(streams.publisher().publish(&events(count)).await, vec![Ok(()); count]);
}

#[tokio::test(flavor = "multi_thread")]
async fn trimming_removes_only_what_every_group_has_acked() {
    let place = Place::at(URL).await;
    let streams = narrow(&place).await;
    published(&streams, 10).await;
    assert_eq!(
        streams.trim(Duration::ZERO).await.expect("the server answers"),
        0,
        "no group has read an entry"
    );
    let (fast, slow) = (join(&streams, "FAST").await, join(&streams, "SLOW").await);
    take(&fast, 10).await;
    take(&slow, 4).await;
    assert_eq!(
        streams.trim(Duration::from_secs(3_600)).await.expect("the server answers"),
        0,
        "all are young"
    );
    assert_eq!(streams.trim(Duration::ZERO).await.expect("the server answers"), 4);
    take(&slow, 6).await;
    assert_eq!(streams.trim(Duration::ZERO).await.expect("the server answers"), 6);
    assert_eq!(length(&place).await, 0);
    published(&streams, 1).await;
    take(&fast, 1).await;
    take(&slow, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_can_be_deleted_with_its_ack() {
    let place = Place::at(URL).await;
    let streams = narrow(&place).await;
    let source = streams.source("ONLY").delete_acked().open().await.expect("the server answers");
    published(&streams, 5).await;
    take(&source, 5).await;
    assert_eq!(length(&place).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_begins_at_the_beginning_or_now() {
    let place = Place::at(URL).await;
    let streams = narrow(&place).await;
    published(&streams, 3).await;
    let now = streams.source("NOW").from_now().open().await.expect("the server answers");
    let all = join(&streams, "ALL").await;
    published(&streams, 1).await;
    take(&now, 1).await;
    take(&all, 4).await;
    let more = tokio::time::timeout(Duration::from_millis(300), now.next()).await;
    assert!(more.is_err(), "{more:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_was_destroyed_is_created_again() {
    let place = Place::at(URL).await;
    let streams = narrow(&place).await;
    let source = join(&streams, "GROUP").await;
    published(&streams, 1).await;
    take(&source, 1).await;
    let _: i64 = place.raw(redis::cmd("DEL").arg(place.key(0))).await;
    published(&streams, 1).await;
    take(&source, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_dropped_leaves_the_group_and_gives_back_what_it_fetched() {
    let place = Place::at(URL).await;
    let streams = narrow(&place).await;
    // A patience longer than any test: only entries that are given back can go to another source.
    let patient = || streams.source("GROUP").patience(Duration::from_secs(600)).prefetch(10);
    let source = patient().open().await.expect("the server answers");
    published(&streams, 5).await;
    take(&source, 1).await;
    drop(source);
    let heir = patient().open().await.expect("the server answers");
    take(&heir, 4).await;
    let two = async {
        loop {
            let mut consumers = redis::cmd("XINFO");
            consumers.arg("CONSUMERS").arg(place.key(0)).arg("GROUP");
            let consumers: Vec<redis::Value> = place.raw(&mut consumers).await;
            // The second source, and the consumer that owns entries that were given back.
            if consumers.len() == 2 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within(two).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_is_too_large_is_refused_and_the_others_are_not() {
    let place = Place::at(URL).await;
    let builder = Streams::builder().prefix(&place.prefix).largest(2_000);
    let streams = builder.connect(&place.url).await.expect("the server answers");
    let large = Event::builder("acme", "order.placed", "/orders")
        .payload("text/plain", [b'x'; 2_000].to_vec());
    let mut batch = events(3);
    batch[1] = large.build().expect("the server answers");
    let answers = streams.publisher().publish(&batch).await;
    assert_eq!((&answers[0], &answers[2]), (&Ok(()), &Ok(())));
    assert!(matches!(answers[1], Err(PublishError::Refused(_))), "{answers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_counts_as_away_and_what_is_there_can_still_be_read() {
    let place = Place::private().await;
    let streams = narrow(&place).await;
    published(&streams, 3).await;
    let source = join(&streams, "GROUP").await;
    let _: () = place.raw(redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("1")).await;
    let answers = streams.publisher().publish(&events(2)).await;
    for answer in &answers {
        let Err(PublishError::Unavailable(text)) = answer else { panic!("{answers:?}") };
        assert!(text.contains("OOM"), "{text}");
    }
    take(&source, 3).await;
    let _: () = place.raw(redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("0")).await;
    published(&streams, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_costs_no_attempt_and_loses_no_order() {
    let place = Place::private().await;
    let streams = narrow(&place).await;
    published(&streams, 1).await;
    place.with_server(|server| server.kill9().expect("the server answers")).await;
    let answers = streams.publisher().publish(&events(300)).await;
    assert_eq!(answers.len(), 300);
    assert!(answers.iter().all(|answer| matches!(answer, Err(PublishError::Unavailable(_)))));
    place.with_server(|server| server.restart().expect("the server answers")).await;
    published(&streams, 1).await;
    assert_eq!(length(&place).await, 2, "nothing of what failed is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_without_an_event_is_shown_with_its_fields() {
    let place = Place::at(URL).await;
    let streams = narrow(&place).await;
    let source = join(&streams, "GROUP").await;
    let mut add = redis::cmd("XADD");
    let _: String = place.raw(add.arg(place.key(0)).arg("*").arg("other").arg("text")).await;
    let message = within(source.next()).await.expect("the server answers");
    assert!(message.envelope().is_err());
    assert_eq!(&message.raw()[..], b"other\ntext");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_can_lose_events_is_reported() {
    let place = Place::private().await;
    let streams = place.streams().await;
    assert!(streams.check().await.expect("the server answers").is_empty());
    let _: () = place.raw(redis::cmd("CONFIG").arg("SET").arg("appendonly").arg("no")).await;
    let found = streams.check().await.expect("the server answers");
    assert!(found.iter().any(|finding| finding.severity == Severity::Error), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_cannot_work_are_refused() {
    let place = Place::at(URL).await;
    for prefix in ["", "a{b", "a}b"] {
        assert!(Streams::builder().prefix(prefix).connect(&place.url).await.is_err(), "{prefix}");
    }
    assert!(Streams::builder().partitions(0).connect(&place.url).await.is_err());
    let streams = place.streams().await;
    assert!(streams.source("").open().await.is_err());
    assert!(streams.source("G").patience(Duration::from_millis(99)).open().await.is_err());
}
