//! A consumer with an inbox on top: each event is handled once, whatever the broker brings.

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
    GROUP, KIND, RETRY_EVERY, Seen, built, event, events, ids, inbox, nothing, noting, publish,
    take, within,
};
use super::watched::Watched;
use crate::faulty::{Fault, FaultyStore, StoreCall};

/// What is dead in a group, as text.
pub(super) async fn dead(group: &Group<MemoryStore>) -> Vec<String> {
    let page = group.failures(State::Dead, None, 100).await.expect("memory answers");
    let errors = page.entries.iter().map(|entry| entry.record.error.clone());
    errors.map(|error| error.expect("the dead have a reason").to_string()).collect()
}

/// Waits until so many are dead.
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
    within("what cannot be handled is buried", looking).await
}

/// Lets a consumer take whatever the broker would still bring, and finds that nothing is left. What
/// was brought twice is recognised meanwhile, so that only what cannot be acked would stay.
pub(super) async fn drained<F: BrokerFixture>(fixture: &F, group: Group<MemoryStore>) {
    let source = fixture.source(GROUP, false).await;
    let consuming = Consumer::new(group, source).expect("a sound group").start();
    tokio::time::sleep(fixture.patience() * 2).await;
    consuming.stop().await;
    nothing(&fixture.source(GROUP, false).await, fixture.patience() * 2).await;
}

/// Two hundred events, two consumers, sixteen at once in each: nothing is left out, nothing doubled.
pub async fn every_event_is_handled_once_by_consumers_at_once<F: BrokerFixture>(fixture: F) {
    let (inbox, seen) = (inbox(), Seen::default());
    let mut consumers = Vec::new();
    for _ in 0..2 {
        let source = fixture.source(GROUP, false).await;
        let consumer = Consumer::new(noting(&inbox, &seen), source).expect("a sound group");
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
    drained(&fixture, noting(&inbox, &seen)).await;
    seen.exactly(&ids(&sent)).await;
}

/// A relay that crashed after publishing publishes again. The broker may recognise it or not.
pub async fn an_event_published_twice_is_handled_once<F: BrokerFixture>(fixture: F) {
    let (inbox, seen) = (inbox(), Seen::default());
    let source = fixture.source(GROUP, false).await;
    let consuming = Consumer::new(noting(&inbox, &seen), source).expect("a sound group").start();
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
    drained(&fixture, noting(&inbox, &seen)).await;
    seen.exactly(&all).await;
}

/// A failure is the ledger's: the broker hears an ack and brings nothing again.
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

/// The consumer keeps a message that is being handled, so that it is not redelivered.
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
    assert_eq!(begun.load(Ordering::SeqCst), 1, "it was begun once");
}

/// Plays an event of a type without a handler and one with; gives the answers that it got.
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
    within("both are answered", answered).await;
    consuming.stop().await;
    assert_eq!(log.answers(), [BrokerReply::Ack; 2]);
}

/// A forgotten handler loses nothing: the event waits for an operator, and the broker is free of it.
pub async fn an_event_of_an_unknown_type_is_buried<F: BrokerFixture>(fixture: F) {
    let (inbox, seen) = (inbox(), Seen::default());
    let group = noting(&inbox, &seen);
    unknown(fixture, group.clone(), seen).await;
    let dead = dead(&group).await;
    assert_eq!(dead.len(), 1, "{dead:?}");
    assert!(dead[0].starts_with("no-handler"), "{dead:?}");
}

/// A group that said so has nothing to do with it.
pub async fn an_event_of_an_unknown_type_can_be_ignored<F: BrokerFixture>(fixture: F) {
    let (inbox, seen) = (inbox(), Seen::default());
    let group = noting(&inbox, &seen).ignore_unknown();
    unknown(fixture, group.clone(), seen).await;
    assert_eq!(dead(&group).await, Vec::<String>::new());
}

/// An id that was used before for something else is not taken for a repeat. A broker that recognises
/// ids may have swallowed it; one that brought it has brought it to a grave.
pub async fn a_conflicting_event_is_buried_beside_the_first<F: BrokerFixture>(fixture: F) {
    let (inbox, seen) = (inbox(), Seen::default());
    let group = noting(&inbox, &seen);
    let (source, log) = Watched::new(fixture.source(GROUP, false).await);
    let consuming = Consumer::new(group.clone(), source).expect("a sound group").at_once(1).start();
    let first = event();
    let publisher = fixture.publisher().await;
    publish(&publisher, std::slice::from_ref(&first)).await;
    seen.count(1).await;
    let other = Event::builder("acme", KIND, "/somebody-else").id(first.id());
    publish(&publisher, &[built(other)]).await;
    let last = event();
    publish(&publisher, std::slice::from_ref(&last)).await;
    seen.exactly(&BTreeSet::from([first.id(), last.id()])).await;
    let came = async {
        while log.answers().len() < log.deliveries() {
            tokio::time::sleep(RETRY_EVERY).await;
        }
    };
    within("all are answered", came).await;
    consuming.stop().await;
    let brought = log.deliveries() > 2;
    drained(&fixture, group.clone()).await;
    let dead = dead(&group).await;
    assert!(dead.len() <= 1 && (!brought || dead.len() == 1), "{dead:?}");
    assert!(dead.iter().all(|error| error.starts_with("conflict")), "{dead:?}");
}

/// A consumer that is stopped ends after its handlers, with their events acknowledged.
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
    // Polled once, so that the stop comes before the end of the handler.
    tokio::select! {
        biased;
        () = &mut stopping => panic!("the handler is still at it"),
        () = std::future::ready(()) => {}
    }
    let later = event();
    publish(&publisher, std::slice::from_ref(&later)).await;
    go.notify_one();
    within("the consumer ends", stopping).await;
    assert_eq!(seen.all(), [first.id()]);
    assert_eq!(log.answers(), [BrokerReply::Ack]);
    // What came afterwards is for the next one.
    let next = fixture.source(GROUP, false).await;
    assert_eq!(take(&next).await.id(), later.id());
    nothing(&next, fixture.patience() * 2).await;
}

/// Three at once are three at once, and never four.
pub async fn no_more_is_under_way_than_was_allowed<F: BrokerFixture>(fixture: F) {
    const AT_ONCE: usize = 3;
    let (inbox, seen) = (inbox(), Seen::default());
    // Continues when three are there.
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

/// Where nothing could be written down the broker keeps the event, and brings it again.
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
    within("it is brought again", twice).await;
    assert_eq!((seen.all(), log.answers()), (vec![], vec![]), "nothing is known to be stored");
    store.faults().heal();
    seen.exactly(&BTreeSet::from([sent.id()])).await;
    consuming.stop().await;
    nothing(&fixture.source(GROUP, false).await, fixture.patience() * 2).await;
}
