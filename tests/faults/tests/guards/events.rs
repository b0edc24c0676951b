//! Events: when rows are marked, how they are claimed, and when a broker gets its reply.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use semel_core::event::Unreadable;
use semel_core::inbox::{BrokerReply, Consumer, Failure, Inbox, Message, Source, SourceError};
use semel_core::outbox::memory::MemoryOutbox;
use semel_core::outbox::{Outbox, PublishError, Publisher, Relay};
use semel_core::store::TransactionalStore;
use semel_core::store::memory::MemoryStore;
use semel_core::{Event, Executor};
use semel_faults::events::{EventStore, Visitor, visit};
use semel_faults::on_stores;
use semel_stores::PrivateStore;

fn event(name: &str) -> Event {
    Event::builder("acme", "thing.moved", "/proof").json(&name).build().expect("an event")
}

/// A publisher that is unavailable at its first call, and confirms everything afterwards.
#[derive(Clone, Default)]
struct UnavailableAtFirst {
    asked: Arc<AtomicU32>,
    taken: Arc<Mutex<Vec<Event>>>,
}

impl UnavailableAtFirst {
    fn count(&self) -> usize {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Publisher for UnavailableAtFirst {
    async fn publish(&self, events: &[Event]) -> Vec<Result<(), PublishError>> {
        if self.asked.fetch_add(1, Ordering::SeqCst) == 0 {
            let down = || Err(PublishError::Unavailable("not yet".to_owned()));
            return events.iter().map(|_| down()).collect();
        }
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(events);
        events.iter().map(|_| Ok(())).collect()
    }
}

#[test]
fn an_event_is_marked_after_the_broker_confirmed_it() {
    semel_testkit::fixture::run(async {
        let (outbox, publisher) = (MemoryOutbox::new(), UnavailableAtFirst::default());
        outbox.append(&mut outbox.clone(), &[event("a")]).await.expect("appended");
        let relay = Relay::new(outbox, publisher.clone());
        assert!(relay.pass().await.expect("a pass").away, "the broker was away");
        let _ = relay.drain().await.expect("a pass");
        assert_eq!(publisher.count(), 1, "events that were lost: {}", 1 - publisher.count());
    });
}

/// Two transactions are open; the one that appended later commits first.
struct OutOfOrder(UnavailableAtFirst);

impl Visitor for OutOfOrder {
    type Output = ();

    async fn visit<S: EventStore>(self, store: S) {
        let relay = Relay::new(store.clone(), self.0.clone());
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        let mut first = store.begin().await.expect("a transaction");
        let connection = S::connection(&mut first);
        Outbox::append(&store, connection, &[event("first")]).await.expect("appended");
        let mut second = store.begin().await.expect("a transaction");
        let connection = S::connection(&mut second);
        Outbox::append(&store, connection, &[event("second")]).await.expect("appended");
        TransactionalStore::commit(&store, second).await.expect("committed");
        assert_eq!(relay.drain().await.expect("a pass").published, 1);
        TransactionalStore::commit(&store, first).await.expect("committed");
        let _ = relay.drain().await.expect("a pass");
        assert_eq!(self.0.count(), 2, "events that were lost: {}", 2 - self.0.count());
    }
}

async fn an_event_that_commits_late_is_published(private: Arc<PrivateStore>) {
    visit(private.backend(), OutOfOrder(UnavailableAtFirst::default())).await.expect("a store");
}

on_stores!(an_event_that_commits_late_is_published: postgres mysql);

/// A row that was given back is claimed again, although a cursor would have passed it.
struct GivenBack(UnavailableAtFirst);

impl Visitor for GivenBack {
    type Output = ();

    async fn visit<S: EventStore>(self, store: S) {
        let relay = Relay::new(store.clone(), self.0.clone());
        let mut transaction = store.begin().await.expect("a transaction");
        let connection = S::connection(&mut transaction);
        Outbox::append(&store, connection, &[event("a")]).await.expect("appended");
        TransactionalStore::commit(&store, transaction).await.expect("committed");
        assert!(relay.pass().await.expect("a pass").away, "the broker was away");
        let _ = relay.drain().await.expect("a pass");
        assert_eq!(self.0.count(), 1, "events that were lost: {}", 1 - self.0.count());
    }
}

async fn an_event_that_was_given_back_is_published(private: Arc<PrivateStore>) {
    visit(private.backend(), GivenBack(UnavailableAtFirst::default())).await.expect("a store");
}

on_stores!(an_event_that_was_given_back_is_published: sqlite postgres mysql);

/// A broker in this process. It can redeliver messages that were delivered and not acknowledged.
#[derive(Clone, Default)]
struct Queue {
    waiting: Arc<Mutex<VecDeque<Event>>>,
    brought: Arc<Mutex<Vec<Event>>>,
    came: Arc<tokio::sync::Notify>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    fn put(&self, event: Event) {
        locked(&self.waiting).push_back(event);
        self.came.notify_one();
    }

    /// Redelivers unacknowledged messages, as if their consumers had died.
    fn bring_again(&self) {
        locked(&self.waiting).extend(locked(&self.brought).drain(..));
        self.came.notify_one();
    }
}

struct Delivered {
    event: Event,
    queue: Queue,
}

impl Source for Queue {
    type Message = Delivered;

    fn is_ordered(&self) -> bool {
        false
    }

    async fn next(&self) -> Result<Delivered, SourceError> {
        loop {
            let next = locked(&self.waiting).pop_front();
            if let Some(event) = next {
                locked(&self.brought).push(event.clone());
                return Ok(Delivered { event, queue: self.clone() });
            }
            self.came.notified().await;
        }
    }
}

impl Message for Delivered {
    fn envelope(&self) -> Result<Event, Unreadable> {
        Ok(self.event.clone())
    }

    fn raw(&self) -> Bytes {
        self.event.payload().clone()
    }

    fn redelivered(&self) -> bool {
        false
    }

    async fn answer(&self, answer: BrokerReply) -> Result<(), SourceError> {
        if answer == BrokerReply::Ack {
            locked(&self.queue.brought).retain(|event| event.id() != self.event.id());
        }
        Ok(())
    }
}

#[test]
fn a_broker_hears_of_an_event_after_the_ledger_has_it() {
    semel_testkit::fixture::run(async {
        let (queue, handled) = (Queue::default(), Arc::new(AtomicU32::new(0)));
        let consumer = |executor: &Executor<MemoryStore>| {
            let handled = Arc::clone(&handled);
            let group = Inbox::new(executor.clone()).group("BILLING").on_fenced(
                "thing.moved",
                move |_, _| {
                    handled.fetch_add(1, Ordering::SeqCst);
                    async { Ok::<_, Failure>(()) }
                },
            );
            Consumer::new(group, queue.clone()).expect("a group")
        };
        // A consumer whose ledger is unreachable takes the message and cannot handle it.
        let broken = Executor::new(MemoryStore::new());
        broken.shutdown(Duration::ZERO).await;
        let first = consumer(&broken).start();
        queue.put(event("a"));
        let taken = async {
            while !locked(&queue.waiting).is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), taken).await.expect("the message is taken");
        first.stop().await;
        assert_eq!(handled.load(Ordering::SeqCst), 0);
        // That consumer dies, and the broker redelivers its message to another.
        queue.bring_again();
        let sound = Executor::new(MemoryStore::new());
        let second = consumer(&sound).start();
        let done = async {
            while handled.load(Ordering::SeqCst) == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let done = tokio::time::timeout(Duration::from_secs(60), done).await;
        second.stop().await;
        assert!(done.is_ok(), "events that were lost: 1");
    });
}
