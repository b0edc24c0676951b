//! Ordered sources: no event overtakes an earlier one of its aggregate, whatever fails or dies.

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

/// Takes and acks these events of one aggregate, and checks their order.
async fn take_in_order<S: Source>(source: &S, events: &[Event]) {
    for event in events {
        assert_eq!(take(source).await.id(), event.id());
    }
}

/// Checks for `span`, while `message` is kept, that the source delivers only `message` again or
/// nothing.
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

/// The second event of an aggregate comes after the ack of the first, and not before.
pub async fn the_next_of_an_aggregate_comes_after_the_ack<F: BrokerFixture>(fixture: F) {
    let source = fixture.source(GROUP, true).await;
    let sent: Vec<Event> = (0..4).map(|_| about("ord_1")).collect();
    publish(&fixture.publisher().await, &sent).await;
    let first = next(&source).await;
    assert_eq!(opened(&first), sent[0]);
    only_again(&source, &first, fixture.patience() / 2).await;
    // Another source of the group gets no event of this aggregate either.
    let other = fixture.source(GROUP, true).await;
    only_again(&other, &first, fixture.patience() / 2).await;
    drop(other);
    answer(&first, BrokerReply::Ack).await;
    take_in_order(&source, &sent[1..]).await;
    nothing(&source, fixture.patience()).await;
}

/// An event whose redelivery is delayed is delivered before later events of its aggregate.
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

/// Returns two events whose aggregates are in different partitions.
fn apart(partitions: u16) -> (Event, Event) {
    let first = about("ord_0");
    let others = (1..10_000).map(|number| about(&format!("ord_{number}")));
    let mut apart =
        others.filter(|other| partition(other, partitions) != partition(&first, partitions));
    let other = apart.next().expect("there is more than one partition");
    (first, other)
}

/// An aggregate whose event is delayed delays only the aggregates of the same partition.
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

/// An ordered source also delivers events without an aggregate.
pub async fn an_ordered_source_brings_what_has_no_aggregate<F: BrokerFixture>(fixture: F) {
    let source = fixture.source(GROUP, true).await;
    let sent = events(40);
    publish(&fixture.publisher().await, &sent).await;
    take_all(&source, &ids(&sent)).await;
}

/// Numbers of the handled events of each aggregate, in the order in which they succeeded.
type Handled = Arc<Mutex<BTreeMap<String, Vec<u32>>>>;

const AGGREGATES: u32 = 6;
const LENGTH: u32 = 15;

/// Starts a consumer on a runtime of its own. Shutting the runtime down stands in for a crash of
/// the process: it drops every running handler.
async fn start<F: BrokerFixture>(
    fixture: &Arc<F>,
    store: &MemoryStore,
    handled: &Handled,
    seed: u64,
) -> (Runtime, semel_core::inbox::Consuming) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("the operating system gives a consumer its thread");
    let (fixture, store, handled) = (Arc::clone(fixture), store.clone(), Arc::clone(handled));
    let starting = runtime.spawn(async move {
        let source = fixture.source(GROUP, true).await;
        let inbox = Inbox::new(Executor::new(store)).policy(Policy {
            // A crash is noticed earlier than that; only an attempt that hangs lasts until its
            // lease ends.
            lease: Duration::from_secs(6),
            on_failure: OnFailure::Backoff { base: RETRY_EVERY, cap: RETRY_EVERY * 3 },
            max_attempts: None,
            ..Inbox::<MemoryStore>::default_policy()
        });
        let chance = Mutex::new(fastrand::Rng::with_seed(seed));
        let group = inbox.group(GROUP).ordered().on_fenced(KIND, move |event, _| {
            let handled = Arc::clone(&handled);
            let (fails, pause) = {
                let mut chance = chance.lock().unwrap_or_else(PoisonError::into_inner);
                (chance.u8(..100) < 20, Duration::from_millis(chance.u64(..15)))
            };
            async move {
                tokio::time::sleep(pause).await;
                if fails {
                    return Err("random failure");
                }
                let order = event.aggregate().expect("the event has an aggregate").id.to_string();
                let number = event.attribute("number").and_then(|text| text.parse().ok());
                let mut handled = handled.lock().unwrap_or_else(PoisonError::into_inner);
                handled.entry(order).or_default().push(number.expect("the event has a number"));
                Ok(())
            }
        });
        Consumer::new(group, source).expect("a sound group").retry_every(RETRY_EVERY * 5).start()
    });
    let consuming = within("a consumer starts", starting).await.expect("no panic");
    (runtime, consuming)
}

/// Handlers fail at random, and consumers stop or die in the middle: the events of each aggregate
/// are handled in their order, and none is skipped.
pub async fn aggregates_keep_their_order_over_failures_and_crashes<F: BrokerFixture>(fixture: F) {
    let (fixture, store) = (Arc::new(fixture), MemoryStore::new());
    let handled = Handled::default();
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
        let (doomed, _) = start(&fixture, &store, &handled, round as u64).await;
        let (polite, consuming) = start(&fixture, &store, &handled, 100 + round as u64).await;
        publish(&publisher, batch).await;
        tokio::time::sleep(Duration::from_millis(150)).await;
        doomed.shutdown_background();
        tokio::time::sleep(Duration::from_millis(150)).await;
        within("a consumer stops", polite.spawn(async move { consuming.stop().await }))
            .await
            .expect("no panic");
        polite.shutdown_background();
    }
    let (last, consuming) = start(&fixture, &store, &handled, 1_000).await;
    let whole = async {
        loop {
            let ends = |aggregate: &Vec<u32>| aggregate.contains(&(LENGTH - 1));
            let done = {
                let handled = handled.lock().unwrap_or_else(PoisonError::into_inner);
                handled.len() == AGGREGATES as usize && handled.values().all(ends)
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
    let handled = handled.lock().unwrap_or_else(PoisonError::into_inner);
    for (order, numbers) in &*handled {
        // An event whose handler died between its effect and its record is handled again right
        // away.
        let mut distinct = numbers.clone();
        distinct.dedup();
        assert_eq!(distinct, (0..LENGTH).collect::<Vec<_>>(), "{order}: {numbers:?}");
    }
}
