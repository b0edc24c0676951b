//! Events, shorthands for publisher and source, and a group whose handler records its events.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel_core::event::{Builder, Event, EventId};
use semel_core::inbox::{BrokerReply, Group, Inbox, Message, Source};
use semel_core::outbox::Publisher;
use semel_core::store::memory::MemoryStore;
use semel_core::{Executor, OnFailure, Policy};
use tokio::sync::watch;

/// How long [`within`] waits, in milliseconds.
static LIMIT: AtomicU64 = AtomicU64::new(90_000);

/// Sets how long a behaviour of brokers waits before it fails, for the whole process. Default 90 s,
/// for correct brokers on slow machines. A shorter time is for tests that the suite finds a wrong
/// broker.
pub fn give_up_after(limit: Duration) {
    LIMIT.store(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// The type of every event that has a handler.
pub(super) const KIND: &str = "order.placed";
/// The consumer group of behaviours that use only one.
pub(super) const GROUP: &str = "INVENTORY";

/// Awaits `future`; panics with `what` after the limit of [`give_up_after`].
pub(super) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let limit = Duration::from_millis(LIMIT.load(Ordering::Relaxed));
    match tokio::time::timeout(limit, future).await {
        Ok(done) => done,
        Err(_) => panic!("not within {limit:?}: {what}"),
    }
}

pub(super) fn built(builder: Builder) -> Event {
    builder.build().expect("a valid event")
}

/// Returns an event without an aggregate, whose order does not matter.
pub(super) fn event() -> Event {
    built(Event::builder("acme", KIND, "/orders").json(&"once"))
}

pub(super) fn events(count: usize) -> Vec<Event> {
    (0..count).map(|_| event()).collect()
}

/// Returns an event about an order.
pub(super) fn about(order: &str) -> Event {
    built(Event::builder("acme", KIND, "/orders").about("order", order))
}

pub(super) fn ids<'a>(events: impl IntoIterator<Item = &'a Event>) -> BTreeSet<EventId> {
    events.into_iter().map(Event::id).collect()
}

/// Publishes events and checks that the broker confirms all of them.
pub(super) async fn publish<P: Publisher>(publisher: &P, events: &[Event]) {
    let answers = within("the broker confirms", publisher.publish(events)).await;
    assert_eq!(answers, vec![Ok(()); events.len()]);
}

/// Returns the next message; retries while the broker is unreachable.
pub(super) async fn next<S: Source>(source: &S) -> S::Message {
    let asking = async {
        loop {
            match source.next().await {
                Ok(message) => return message,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    within("a message comes", asking).await
}

/// Returns the event in a message.
pub(super) fn opened(message: &impl Message) -> Event {
    message.envelope().expect("the message is an event")
}

/// Answers a message and checks that the broker accepts the reply.
pub(super) async fn answer(message: &impl Message, answer: BrokerReply) {
    within("the broker accepts a reply", message.answer(answer))
        .await
        .expect("the broker accepts the reply");
}

/// Takes the next message and acks it.
pub(super) async fn take<S: Source>(source: &S) -> Event {
    let message = next(source).await;
    answer(&message, BrokerReply::Ack).await;
    opened(&message)
}

/// Takes and acks messages until all `wanted` events were seen. Panics on any other event.
pub(super) async fn take_all<S: Source>(source: &S, wanted: &BTreeSet<EventId>) {
    let mut missing = wanted.clone();
    while !missing.is_empty() {
        let id = take(source).await.id();
        assert!(wanted.contains(&id), "{id} was not published by this test");
        missing.remove(&id);
    }
}

/// Checks that no message comes for `span`.
pub(super) async fn nothing<S: Source>(source: &S, span: Duration) {
    if let Ok(Ok(message)) = tokio::time::timeout(span, source.next()).await {
        panic!("no message was expected, got {:?}", message.envelope());
    }
}

/// A list of events that a test can wait for. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Seen(watch::Sender<Vec<EventId>>);

impl Default for Seen {
    fn default() -> Self {
        Self(watch::Sender::new(Vec::new()))
    }
}

impl Seen {
    pub(super) fn add(&self, id: EventId) {
        self.0.send_modify(|seen| seen.push(id));
    }

    pub(super) fn all(&self) -> Vec<EventId> {
        self.0.borrow().clone()
    }

    /// Waits until `count` events were recorded, repeats included.
    pub(super) async fn count(&self, count: usize) {
        let mut seen = self.0.subscribe();
        let waiting = seen.wait_for(|seen| seen.len() >= count);
        let found = within(&format!("{count} events are handled"), waiting).await;
        drop(found.expect("we hold the sender"));
    }

    /// Waits for as many events as `wanted` has, and checks that each of them was recorded once and
    /// no other event was.
    pub(super) async fn exactly(&self, wanted: &BTreeSet<EventId>) {
        self.count(wanted.len()).await;
        let all = self.all();
        let distinct: BTreeSet<EventId> = all.iter().copied().collect();
        assert_eq!(&distinct, wanted, "every event is handled, and no other");
        assert_eq!(all.len(), wanted.len(), "no event is handled twice");
    }
}

/// Returns an inbox in memory with short retry delays.
pub(super) fn inbox() -> Inbox<MemoryStore> {
    inbox_on(MemoryStore::new())
}

pub(super) fn inbox_on(store: MemoryStore) -> Inbox<MemoryStore> {
    let on_failure =
        OnFailure::Backoff { base: Duration::from_millis(20), cap: Duration::from_millis(100) };
    let policy = Policy { on_failure, ..Inbox::<MemoryStore>::default_policy() };
    Inbox::new(Executor::new(store)).policy(policy)
}

/// Returns a group that records the events that it handles.
pub(super) fn recording(inbox: &Inbox<MemoryStore>, seen: &Seen) -> Group<MemoryStore> {
    let seen = seen.clone();
    inbox.group(GROUP).on_fenced(KIND, move |event, _| {
        seen.add(event.id());
        async { Ok::<_, String>(()) }
    })
}

/// How often the consumers of these tests look for due failures.
pub(super) const RETRY_EVERY: Duration = Duration::from_millis(20);
