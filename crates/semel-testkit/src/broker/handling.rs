//! A consumer with an inbox: each event is handled once, whatever the broker redelivers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use semel_core::event::Event;
use semel_core::inbox::{BrokerReply, Consumer, Group, Inbox};
use semel_core::store::memory::MemoryStore;
use semel_core::{Executor, State};
use tokio::sync::{Barrier, Notify};

use super::BrokerFixture;
use super::shorthand::{
    GROUP, KIND, RETRY_EVERY, Seen, built, event, events, ids, inbox, nothing, publish, recording,
    take, within,
};
use super::watched::Watched;
use crate::faulty::{Fault, FaultyStore, StoreCall};

/// Returns the errors of the dead events of a group.
pub(super) async fn dead(group: &Group<MemoryStore>) -> Vec<String> {
    let page = group.failures(State::Dead, None, 100).await.expect("memory answers");
    let errors = page.entries.iter().map(|entry| entry.record.error.clone());
    errors.map(|error| error.expect("a dead event has an error").to_string()).collect()
}

/// Waits until the group has at least `count` dead events, and returns their errors.
pub(super) async fn buried(group: &Group<MemoryStore>, count: usize) -> Vec<String> {
    let looking = async {
        loop {
            let found = dead(group).await;
            if found.len() >= count {
                return found;
            }
            tokio::time::sleep(RETRY_EVERY).await;
        }
    };
    within("events that cannot be handled become dead", looking).await
}

/// Runs a consumer until the broker has nothing left to redeliver, and checks that no message
/// remains. The inbox recognises events that were handled before and acks them, so only a message
/// that cannot be acked would remain.
pub(super) async fn drained<F: BrokerFixture>(fixture: &F, group: Group<MemoryStore>) {
    let source = fixture.source(GROUP, false).await;
    let consuming = Consumer::new(group, source).expect("a sound group").start();
    tokio::time::sleep(fixture.patience() * 2).await;
    consuming.stop().await;
    nothing(&fixture.source(GROUP, false).await, fixture.patience() * 2).await;
}

/// Two consumers handle 200 events, 16 at a time each: every event is handled exactly once.
pub async fn every_event_is_handled_once_by_consumers_at_once<F: BrokerFixture>(fixture: F) {
    let (inbox, seen) = (inbox(), Seen::default());
    let mut consumers = Vec::new();
    for _ in 0..2 {
        let source = fixture.source(GROUP, false).await;
        let consumer = Consumer::new(recording(&inbox, &seen), source).expect("a sound group");
        consumers.push(consumer.at_once(16).start());
    }
    let sent = events(200);
    let publisher = fixture.publisher().await;
    for batch in sent.chunks(25) {
        publish(&publisher, batch).await;
    }
    seen.exactly(&ids(&sent)).await;
    for consumer in consumers {
        consumer.stop().await;
    }
    drained(&fixture, recording(&inbox, &seen)).await;
    seen.exactly(&ids(&sent)).await;
}

/// A relay that crashed after publishing publishes again; the event is handled once whether or not
/// the broker removes duplicates.
pub async fn an_event_published_twice_is_handled_once<F: BrokerFixture>(fixture: F) {
    let (inbox, seen) = (inbox(), Seen::default());
    let source = fixture.source(GROUP, false).await;
    let consuming = Consumer::new(recording(&inbox, &seen), source).expect("a sound group").start();
    let sent = events(20);
    let publisher = fixture.publisher().await;
    for _ in 0..3 {
        publish(&publisher, &sent).await;
    }
    let last = event();
    publish(&fixture.publisher().await, std::slice::from_ref(&last)).await;
    let mut all = ids(&sent);
    all.insert(last.id());
    seen.exactly(&all).await;
    consuming.stop().await;
    drained(&fixture, recording(&inbox, &seen)).await;
    seen.exactly(&all).await;
}

/// A failure is stored in the ledger and retried from there: the broker gets an ack and does not
/// redeliver.
pub async fn a_failure_is_retried_from_the_ledger_without_the_broker<F: BrokerFixture>(fixture: F) {
    let (inbox, seen) = (inbox(), Seen::default());
    let tries = Arc::new(AtomicUsize::new(0));
    let group = inbox.group(GROUP).on_fenced(KIND, {
        let (seen, tries) = (seen.clone(), Arc::clone(&tries));
        move |event, _| {
            let failed = tries.fetch_add(1, Ordering::SeqCst) < 3;
            if !failed {
                seen.add(event.id());
            }
            async move { if failed { Err("not yet") } else { Ok(()) } }
        }
    });
    let (source, log) = Watched::new(fixture.source(GROUP, false).await);
    let consumer = Consumer::new(group, source).expect("a sound group");
    let consuming = consumer.retry_every(RETRY_EVERY).start();
    let sent = event();
    publish(&fixture.publisher().await, std::slice::from_ref(&sent)).await;
    seen.exactly(&BTreeSet::from([sent.id()])).await;
    consuming.stop().await;
    assert_eq!(tries.load(Ordering::SeqCst), 4);
    assert_eq!((log.deliveries(), log.answers()), (1, vec![BrokerReply::Ack]));
    nothing(&fixture.source(GROUP, false).await, fixture.patience() * 2).await;
}

/// The consumer keeps a message while it is handled, so that the broker does not redeliver it.
pub async fn a_handler_slower_than_the_brokers_patience_runs_once<F: BrokerFixture>(fixture: F) {
    let (inbox, seen, begun) = (inbox(), Seen::default(), Arc::new(AtomicUsize::new(0)));
    let slow = fixture.patience() * 5 / 2;
    let mut consumers = Vec::new();
    for _ in 0..2 {
        let group = inbox.group(GROUP).on_fenced(KIND, {
            let (seen, begun) = (seen.clone(), Arc::clone(&begun));
            move |event, _| {
                begun.fetch_add(1, Ordering::SeqCst);
                let seen = seen.clone();
                async move {
                    tokio::time::sleep(slow).await;
                    seen.add(event.id());
                    Ok::<_, String>(())
                }
            }
        });
        let source = fixture.source(GROUP, false).await;
        consumers.push(Consumer::new(group, source).expect("a sound group").start());
    }
    let sent = event();
    publish(&fixture.publisher().await, std::slice::from_ref(&sent)).await;
    seen.exactly(&BTreeSet::from([sent.id()])).await;
    for consumer in consumers {
        consumer.stop().await;
    }
    nothing(&fixture.source(GROUP, false).await, fixture.patience() * 2).await;
    assert_eq!(begun.load(Ordering::SeqCst), 1, "the handler ran once");
}

/// Publishes an event of a type without a handler and an event with one, and checks that both are
/// acked.
async fn unknown<F: BrokerFixture>(fixture: F, group: Group<MemoryStore>, seen: Seen) {
    let (source, log) = Watched::new(fixture.source(GROUP, false).await);
    let consuming = Consumer::new(group, source).expect("a sound group").start();
    let strange = built(Event::builder("acme", "order.unheard-of", "/orders"));
    let known = event();
    publish(&fixture.publisher().await, &[strange, known.clone()]).await;
    seen.exactly(&BTreeSet::from([known.id()])).await;
    let answered = async {
        while log.answers().len() < 2 {
            tokio::time::sleep(RETRY_EVERY).await;
        }
    };
    within("both events are answered", answered).await;
    consuming.stop().await;
    assert_eq!(log.answers(), [BrokerReply::Ack; 2]);
}

/// An event without a handler is not lost: it is stored as dead for an operator, and the broker
/// gets an ack.
pub async fn an_event_of_an_unknown_type_is_buried<F: BrokerFixture>(fixture: F) {
    let (inbox, seen) = (inbox(), Seen::default());
    let group = recording(&inbox, &seen);
    unknown(fixture, group.clone(), seen).await;
    let dead = dead(&group).await;
    assert_eq!(dead.len(), 1, "{dead:?}");
    assert!(dead[0].starts_with("no-handler"), "{dead:?}");
}

/// A group can be set to ignore events of types that it has no handler for.
pub async fn an_event_of_an_unknown_type_can_be_ignored<F: BrokerFixture>(fixture: F) {
    let (inbox, seen) = (inbox(), Seen::default());
    let group = recording(&inbox, &seen).ignore_unknown();
    unknown(fixture, group.clone(), seen).await;
    assert_eq!(dead(&group).await, Vec::<String>::new());
}

/// An event with the id of another event is not treated as its repeat but stored as dead. A broker
/// that removes duplicates by id may not deliver it at all.
pub async fn a_conflicting_event_is_buried_beside_the_first<F: BrokerFixture>(fixture: F) {
    let (inbox, seen) = (inbox(), Seen::default());
    let group = recording(&inbox, &seen);
    let (source, log) = Watched::new(fixture.source(GROUP, false).await);
    let consuming = Consumer::new(group.clone(), source).expect("a sound group").at_once(1).start();
    let first = event();
    let publisher = fixture.publisher().await;
    publish(&publisher, std::slice::from_ref(&first)).await;
    seen.count(1).await;
    let other = Event::builder("acme", KIND, "/another-source").id(first.id());
    publish(&publisher, &[built(other)]).await;
    let last = event();
    publish(&publisher, std::slice::from_ref(&last)).await;
    seen.exactly(&BTreeSet::from([first.id(), last.id()])).await;
    let came = async {
        while log.answers().len() < log.deliveries() {
            tokio::time::sleep(RETRY_EVERY).await;
        }
    };
    within("all events are answered", came).await;
    consuming.stop().await;
    let brought = log.deliveries() > 2;
    drained(&fixture, group.clone()).await;
    let dead = dead(&group).await;
    assert!(dead.len() <= 1 && (!brought || dead.len() == 1), "{dead:?}");
    assert!(dead.iter().all(|error| error.starts_with("conflict")), "{dead:?}");
}

/// A consumer that is stopped finishes its running handlers and acks their events first.
pub async fn a_stop_finishes_what_is_under_way<F: BrokerFixture>(fixture: F) {
    let (inbox, seen) = (inbox(), Seen::default());
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let group = inbox.group(GROUP).on_fenced(KIND, {
        let (seen, begun, go) = (seen.clone(), Arc::clone(&begun), Arc::clone(&go));
        move |event, _| {
            let (seen, begun, go) = (seen.clone(), Arc::clone(&begun), Arc::clone(&go));
            async move {
                begun.notify_one();
                go.notified().await;
                seen.add(event.id());
                Ok::<_, String>(())
            }
        }
    });
    let (source, log) = Watched::new(fixture.source(GROUP, false).await);
    let consuming = Consumer::new(group, source).expect("a sound group").at_once(1).start();
    let publisher = fixture.publisher().await;
    let first = event();
    publish(&publisher, std::slice::from_ref(&first)).await;
    within("the handler begins", begun.notified()).await;
    let mut stopping = std::pin::pin!(consuming.stop());
    // Polled once, so that the stop begins before the handler ends.
    tokio::select! {
        biased;
        () = &mut stopping => panic!("the consumer stopped before its handler ended"),
        () = std::future::ready(()) => {}
    }
    let later = event();
    publish(&publisher, std::slice::from_ref(&later)).await;
    go.notify_one();
    within("the consumer ends", stopping).await;
    assert_eq!(seen.all(), [first.id()]);
    assert_eq!(log.answers(), [BrokerReply::Ack]);
    // The event published after the stop goes to the next source.
    let next = fixture.source(GROUP, false).await;
    assert_eq!(take(&next).await.id(), later.id());
    nothing(&next, fixture.patience() * 2).await;
}

/// A consumer with `at_once(3)` runs three handlers at a time, and never four.
pub async fn no_more_is_under_way_than_was_allowed<F: BrokerFixture>(fixture: F) {
    const AT_ONCE: usize = 3;
    let (inbox, seen) = (inbox(), Seen::default());
    // Releases the handlers once three of them run.
    let together = Arc::new(Barrier::new(AT_ONCE));
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let group = inbox.group(GROUP).on_fenced(KIND, {
        let (seen, now, most) = (seen.clone(), Arc::clone(&now), Arc::clone(&most));
        move |event, _| {
            let (seen, together) = (seen.clone(), Arc::clone(&together));
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                together.wait().await;
                tokio::task::yield_now().await;
                now.fetch_sub(1, Ordering::SeqCst);
                seen.add(event.id());
                Ok::<_, String>(())
            }
        }
    });
    let source = fixture.source(GROUP, false).await;
    let consumer = Consumer::new(group, source).expect("a sound group");
    let consuming = consumer.at_once(AT_ONCE).start();
    let sent = events(AT_ONCE * 10);
    publish(&fixture.publisher().await, &sent).await;
    seen.exactly(&ids(&sent)).await;
    consuming.stop().await;
    assert_eq!(most.load(Ordering::SeqCst), AT_ONCE);
}

/// While the ledger cannot store an event, the broker keeps and redelivers it.
pub async fn an_event_is_brought_again_while_the_ledger_is_away<F: BrokerFixture>(fixture: F) {
    let (store, seen) = (FaultyStore::new(MemoryStore::new()), Seen::default());
    store.faults().always(StoreCall::Open, Fault::Refuse);
    let group = Inbox::new(Executor::new(store.clone())).group(GROUP).on_fenced(KIND, {
        let seen = seen.clone();
        move |event, _| {
            seen.add(event.id());
            async { Ok::<_, String>(()) }
        }
    });
    let (source, log) = Watched::new(fixture.source(GROUP, false).await);
    let consuming = Consumer::new(group, source).expect("a sound group").start();
    let sent = event();
    publish(&fixture.publisher().await, std::slice::from_ref(&sent)).await;
    let twice = async {
        while log.deliveries() < 2 {
            tokio::time::sleep(RETRY_EVERY).await;
        }
    };
    within("the event is redelivered", twice).await;
    assert_eq!((seen.all(), log.answers()), (vec![], vec![]), "no event was handled or answered");
    store.faults().heal();
    seen.exactly(&BTreeSet::from([sent.id()])).await;
    consuming.stop().await;
    nothing(&fixture.source(GROUP, false).await, fixture.patience() * 2).await;
}
