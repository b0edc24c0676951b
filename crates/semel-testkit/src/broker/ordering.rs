//! Ordered sources: within an aggregate nothing overtakes, whatever fails or dies.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::event::Event;
use semel_core::inbox::{BrokerReply, Consumer, Inbox, Message, Source};
use semel_core::outbox::partition;
use semel_core::store::memory::MemoryStore;
use semel_core::{Executor, OnFailure, Policy};
use tokio::runtime::Runtime;

use super::BrokerFixture;
use super::shorthand::{
    GROUP, KIND, RETRY_EVERY, about, answer, built, events, ids, next, nothing, opened, publish,
    take, take_all, within,
};

/// Takes and acks the events of one aggregate, each when its turn has come.
async fn take_in_order<S: Source>(source: &S, events: &[Event]) {
    for event in events {
        assert_eq!(take(source).await.id(), event.id());
    }
}

/// What comes while a message is in hands is that message again, or nothing.
async fn only_again<S: Source>(source: &S, message: &S::Message, span: Duration) {
    let watching = async {
        loop {
            let Ok(other) = source.next().await else { continue };
            assert_eq!(opened(&other).id(), opened(message).id(), "overtaken");
        }
    };
    let keeping = async {
        loop {
            tokio::time::sleep(message.keep_every().unwrap_or(span)).await;
            let _ = message.keep().await;
        }
    };
    let _ = tokio::time::timeout(span, async { tokio::join!(watching, keeping) }).await;
}

/// The second comes after the ack of the first, and not before.
pub async fn the_next_of_an_aggregate_comes_after_the_ack<F: BrokerFixture>(fixture: F) {
    let source = fixture.source(GROUP, true).await;
    let sent: Vec<Event> = (0..4).map(|_| about("ord_1")).collect();
    publish(&fixture.publisher().await, &sent).await;
    let first = next(&source).await;
    assert_eq!(opened(&first), sent[0]);
    only_again(&source, &first, fixture.patience() / 2).await;
    // Another process of the group gets none of this aggregate either.
    let other = fixture.source(GROUP, true).await;
    only_again(&other, &first, fixture.patience() / 2).await;
    drop(other);
    answer(&first, BrokerReply::Ack).await;
    take_in_order(&source, &sent[1..]).await;
    nothing(&source, fixture.patience()).await;
}

/// An event that waits for its retry is waited for.
pub async fn an_event_put_off_holds_its_aggregate<F: BrokerFixture>(fixture: F) {
    let source = fixture.source(GROUP, true).await;
    let sent: Vec<Event> = (0..3).map(|_| about("ord_1")).collect();
    publish(&fixture.publisher().await, &sent).await;
    for span in [0, 100, 800] {
        let first = next(&source).await;
        assert_eq!(opened(&first), sent[0], "overtaken");
        answer(&first, BrokerReply::Later(Duration::from_millis(span))).await;
    }
    take_in_order(&source, &sent).await;
}

/// An event without a reply is redelivered before later events of its aggregate.
pub async fn an_unanswered_event_holds_its_aggregate<F: BrokerFixture>(fixture: F) {
    let source = fixture.source(GROUP, true).await;
    let sent: Vec<Event> = (0..3).map(|_| about("ord_1")).collect();
    publish(&fixture.publisher().await, &sent).await;
    assert_eq!(opened(&next(&source).await), sent[0]);
    assert_eq!(opened(&next(&source).await), sent[0], "overtaken");
    drop(source);
    take_in_order(&fixture.source(GROUP, true).await, &sent).await;
}

/// Two orders whose aggregates go through different partitions.
fn apart(partitions: u16) -> (Event, Event) {
    let first = about("ord_0");
    let others = (1..10_000).map(|number| about(&format!("ord_{number}")));
    let mut apart =
        others.filter(|other| partition(other, partitions) != partition(&first, partitions));
    let other = apart.next().expect("there is more than one partition");
    (first, other)
}

/// An aggregate that is held up holds up only what shares its partition.
pub async fn another_aggregate_goes_on_meanwhile<F: BrokerFixture>(fixture: F) {
    let source = fixture.source(GROUP, true).await;
    let publisher = fixture.publisher().await;
    let (held, free) = apart(fixture.partitions());
    publish(&publisher, std::slice::from_ref(&held)).await;
    let message = next(&source).await;
    answer(&message, BrokerReply::Later(Duration::from_secs(600))).await;
    publish(&publisher, std::slice::from_ref(&free)).await;
    assert_eq!(take(&source).await.id(), free.id());
}

/// Events about nothing in particular come through an ordered source too.
pub async fn an_ordered_source_brings_what_has_no_aggregate<F: BrokerFixture>(fixture: F) {
    let source = fixture.source(GROUP, true).await;
    let sent = events(40);
    publish(&fixture.publisher().await, &sent).await;
    take_all(&source, &ids(&sent)).await;
}

/// What handlers did, aggregate by aggregate: the numbers of the events in the order of their success.
type Story = Arc<Mutex<BTreeMap<String, Vec<u32>>>>;

const AGGREGATES: u32 = 6;
const LENGTH: u32 = 15;

/// A consumer in a process of its own, as far as one process can have another: its runtime is torn
/// down with everything that is under way on it.
async fn start<F: BrokerFixture>(
    fixture: &Arc<F>,
    store: &MemoryStore,
    story: &Story,
    seed: u64,
) -> (Runtime, semel_core::inbox::Consuming) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("the operating system gives a consumer its thread");
    let (fixture, store, story) = (Arc::clone(fixture), store.clone(), Arc::clone(story));
    let starting = runtime.spawn(async move {
        let source = fixture.source(GROUP, true).await;
        let inbox = Inbox::new(Executor::new(store)).policy(Policy {
            // A crash is noticed soon; only what hangs takes this long.
            lease: Duration::from_secs(6),
            on_failure: OnFailure::Backoff { base: RETRY_EVERY, cap: RETRY_EVERY * 3 },
            max_attempts: None,
            ..Inbox::<MemoryStore>::default_policy()
        });
        let chance = Mutex::new(fastrand::Rng::with_seed(seed));
        let group = inbox.group(GROUP).ordered().on_fenced(KIND, move |event, _| {
            let story = Arc::clone(&story);
            let (fails, pause) = {
                let mut chance = chance.lock().unwrap_or_else(PoisonError::into_inner);
                (chance.u8(..100) < 20, Duration::from_millis(chance.u64(..15)))
            };
            async move {
                tokio::time::sleep(pause).await;
                if fails {
                    return Err("bad luck");
                }
                let order = event.aggregate().expect("it is about an order").id.to_string();
                let number = event.attribute("number").and_then(|text| text.parse().ok());
                let mut story = story.lock().unwrap_or_else(PoisonError::into_inner);
                story.entry(order).or_default().push(number.expect("it is numbered"));
                Ok(())
            }
        });
        Consumer::new(group, source).expect("a sound group").retry_every(RETRY_EVERY * 5).start()
    });
    let consuming = within("a consumer starts", starting).await.expect("no panic");
    (runtime, consuming)
}

/// Random failures, consumers that stop and consumers that die in the middle: each aggregate is handled
/// from its first event to its last, none left out, none before its time.
pub async fn aggregates_keep_their_order_over_failures_and_crashes<F: BrokerFixture>(fixture: F) {
    let (fixture, store) = (Arc::new(fixture), MemoryStore::new());
    let story = Story::default();
    drop(fixture.source(GROUP, true).await);
    let aggregate = |number: u32| format!("ord_{}", number % AGGREGATES);
    let sent: Vec<Event> = (0..AGGREGATES * LENGTH)
        .map(|at| {
            let number = (at / AGGREGATES).to_string();
            let event = Event::builder("acme", KIND, "/orders").about("order", &aggregate(at));
            built(event.attribute("number", &number))
        })
        .collect();
    let publisher = fixture.publisher().await;
    for (round, batch) in sent.chunks(sent.len().div_ceil(3)).enumerate() {
        let (doomed, _) = start(&fixture, &store, &story, round as u64).await;
        let (polite, consuming) = start(&fixture, &store, &story, 100 + round as u64).await;
        publish(&publisher, batch).await;
        tokio::time::sleep(Duration::from_millis(150)).await;
        doomed.shutdown_background();
        tokio::time::sleep(Duration::from_millis(150)).await;
        within("a consumer stops", polite.spawn(async move { consuming.stop().await }))
            .await
            .expect("no panic");
        polite.shutdown_background();
    }
    let (last, consuming) = start(&fixture, &store, &story, 1_000).await;
    let whole = async {
        loop {
            let ends = |aggregate: &Vec<u32>| aggregate.contains(&(LENGTH - 1));
            let done = {
                let story = story.lock().unwrap_or_else(PoisonError::into_inner);
                story.len() == AGGREGATES as usize && story.values().all(ends)
            };
            if done {
                return;
            }
            tokio::time::sleep(RETRY_EVERY).await;
        }
    };
    within("every aggregate is handled to its end", whole).await;
    last.spawn(async move { consuming.stop().await }).await.expect("no panic");
    last.shutdown_background();
    let story = story.lock().unwrap_or_else(PoisonError::into_inner);
    for (order, numbers) in &*story {
        // One that died after its effect and before its record is handled again: at once.
        let mut told = numbers.clone();
        told.dedup();
        assert_eq!(told, (0..LENGTH).collect::<Vec<_>>(), "{order}: {numbers:?}");
    }
}
