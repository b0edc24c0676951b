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

/// So long that only what never happens takes it, in milliseconds.
static LIMIT: AtomicU64 = AtomicU64::new(90_000);

/// How long the behaviours of brokers wait, in this process from now on, for what never happens.
/// Default 90 s, for sound brokers on slow machines; less is for tests that a wrong one is found.
pub fn give_up_after(limit: Duration) {
    LIMIT.store(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// The type of every event that is handled.
pub(super) const KIND: &str = "order.placed";
/// The group of behaviours that need one.
pub(super) const GROUP: &str = "INVENTORY";

/// Waits for something that a sound broker does soon.
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

/// An event whose order does not matter.
pub(super) fn event() -> Event {
    built(Event::builder("acme", KIND, "/orders").json(&"once"))
}

pub(super) fn events(count: usize) -> Vec<Event> {
    (0..count).map(|_| event()).collect()
}

/// An event about an order.
pub(super) fn about(order: &str) -> Event {
    built(Event::builder("acme", KIND, "/orders").about("order", order))
}

pub(super) fn ids<'a>(events: impl IntoIterator<Item = &'a Event>) -> BTreeSet<EventId> {
    events.into_iter().map(Event::id).collect()
}

/// Publishes events that the broker takes all.
pub(super) async fn publish<P: Publisher>(publisher: &P, events: &[Event]) {
    let answers = within("the broker confirms", publisher.publish(events)).await;
    assert_eq!(answers, vec![Ok(()); events.len()]);
}

/// The next message; a broker that is away is asked again.
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

/// The event in a message.
pub(super) fn opened(message: &impl Message) -> Event {
    message.envelope().expect("the message is an event")
}

/// Answers, and the broker takes the answer.
pub(super) async fn answer(message: &impl Message, answer: BrokerReply) {
    within("the broker takes an answer", message.answer(answer)).await.expect("it is there");
}

/// Takes the next message and acks it.
pub(super) async fn take<S: Source>(source: &S) -> Event {
    let message = next(source).await;
    answer(&message, BrokerReply::Ack).await;
    opened(&message)
}

/// Takes and acks until every one of these was seen. Others must not be.
pub(super) async fn take_all<S: Source>(source: &S, wanted: &BTreeSet<EventId>) {
    let mut missing = wanted.clone();
    while !missing.is_empty() {
        let id = take(source).await.id();
        assert!(wanted.contains(&id), "{id} is none of ours");
        missing.remove(&id);
    }
}

/// Nothing comes for `span`.
pub(super) async fn nothing<S: Source>(source: &S, span: Duration) {
    if let Ok(Ok(message)) = tokio::time::timeout(span, source.next()).await {
        panic!("nothing should come, and this did: {:?}", message.envelope());
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

    /// Waits until so many were seen, counting repeats.
    pub(super) async fn count(&self, count: usize) {
        let mut seen = self.0.subscribe();
        let waiting = seen.wait_for(|seen| seen.len() >= count);
        let found = within(&format!("{count} events are handled"), waiting).await;
        drop(found.expect("we hold the sender"));
    }

    /// Waits until all of these were seen, and checks that each was seen once and nothing else.
    pub(super) async fn exactly(&self, wanted: &BTreeSet<EventId>) {
        self.count(wanted.len()).await;
        let all = self.all();
        let distinct: BTreeSet<EventId> = all.iter().copied().collect();
        assert_eq!(&distinct, wanted, "every event is handled, and no other");
        assert_eq!(all.len(), wanted.len(), "no event is handled twice");
    }
}

/// An inbox in memory that retries soon.
pub(super) fn inbox() -> Inbox<MemoryStore> {
    inbox_on(MemoryStore::new())
}

pub(super) fn inbox_on(store: MemoryStore) -> Inbox<MemoryStore> {
    let on_failure =
        OnFailure::Backoff { base: Duration::from_millis(20), cap: Duration::from_millis(100) };
    let policy = Policy { on_failure, ..Inbox::<MemoryStore>::default_policy() };
    Inbox::new(Executor::new(store)).policy(policy)
}

/// A group that writes down what it handles.
pub(super) fn noting(inbox: &Inbox<MemoryStore>, seen: &Seen) -> Group<MemoryStore> {
    let seen = seen.clone();
    inbox.group(GROUP).on_fenced(KIND, move |event, _| {
        seen.add(event.id());
        async { Ok::<_, String>(()) }
    })
}

/// How often a consumer of these tests looks for due failures.
pub(super) const RETRY_EVERY: Duration = Duration::from_millis(20);
