//! Subscriptions: events that are stored before they are handled, each aggregate in its order, also behind an
//! event that failed or is dead.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::inbox::{Failure, HandleError, Inbox, OnDead, Subscription, SubscriptionBuilder};
use semel_core::store::{Draft, Filter, Inspect, Opened, Store};
use semel_core::{
    AttemptId, Event, Executor, Key, Kind, OnFailure, Operated, OperationId, Policy, Principal,
    State,
};

use super::work::{PAST_LEASE, executor};
use crate::Fixture;

/// The backoff: longer than a busy machine takes from one step to the next.
const REST: Duration = Duration::from_secs(100);
const GROUP: &str = "SHIPPING";

/// What the handler has been given, and what it is to answer.
#[derive(Clone, Default)]
struct Endpoint {
    seen: Arc<Mutex<Vec<String>>>,
    failing: Arc<Mutex<Vec<(&'static str, Answer)>>>,
}

#[derive(Clone, Copy)]
enum Answer {
    Retry,
    RetryAfter(Duration),
    Dead,
}

impl Endpoint {
    /// Answers this event so from now on.
    fn fail(&self, name: &'static str, answer: Answer) {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner).push((name, answer));
    }

    fn mend(&self) {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Returns the events that were handled or tried since the last call, in order.
    fn seen(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn answer(&self, name: String) -> Result<(), Failure> {
        let failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = failing.iter().find(|(failing, _)| *failing == name).map(|(_, with)| *with);
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(name);
        match answer {
            None => Ok(()),
            Some(Answer::Retry) => Err(Failure::retry("away")),
            Some(Answer::RetryAfter(after)) => Err(Failure::retry_after("away", after)),
            Some(Answer::Dead) => Err(Failure::hopeless("refused")),
        }
    }

    fn builder<S: Store>(&self, executor: &Executor<S>) -> SubscriptionBuilder<S> {
        let on_failure = OnFailure::Backoff { base: REST, cap: REST * 100 };
        let policy = Policy { on_failure, ..Inbox::<S>::default_policy() };
        let endpoint = self.clone();
        Inbox::new(executor.clone()).policy(policy).subscription(GROUP, move |event, _| {
            let name = String::from_utf8_lossy(event.payload()).into_owned();
            let answer = endpoint.answer(name);
            async move { answer }
        })
    }
}

async fn subscription<F: Fixture>(
    fixture: &F,
    ordered: Option<OnDead>,
) -> (Subscription<F::Store>, Endpoint, Executor<F::Store>) {
    let (executor, endpoint) = (executor(fixture).await, Endpoint::default());
    let builder = endpoint.builder(&executor);
    let builder = match ordered {
        Some(on_dead) => builder.ordered(on_dead),
        None => builder,
    };
    (builder.build().expect("valid"), endpoint, executor)
}

/// Returns an event about this aggregate whose payload is its name.
fn event(about: &str, name: &str, sequence: u64) -> Arc<Event> {
    let builder = Event::builder("acme", "order.paid", "/orders").about("order", about);
    let built = builder.payload("text/plain", name.to_owned()).build();
    Arc::new(built.expect("an event").with_sequence(sequence))
}

/// Returns the record of an event; its scope depends on whether the subscription is ordered.
async fn state<S: Inspect>(executor: &Executor<S>, event: &Event) -> Option<(State, u32)> {
    let mut after = None;
    loop {
        let filter = Filter {
            kind: Some(Kind::Event),
            scope: Some(GROUP.to_owned()),
            below: true,
            id: Some(event.id().to_string()),
            ..Filter::default()
        };
        let page = executor.store().survey(&filter, after.as_ref(), 100).await.expect("a list");
        if let Some(found) = page.entries.first() {
            return Some((found.record.state, found.record.attempt));
        }
        after = page.next;
        after.as_ref()?;
    }
}

/// An event that is stored has not been tried, and is handled by the next pass, once, however often it is
/// stored.
pub async fn a_stored_event_is_handled_once_and_by_a_pass<F: Fixture>(fixture: F) {
    let (subscription, endpoint, executor) = subscription(&fixture, None).await;
    let event = event("ord_1", "a", 1);
    for _ in 0..2 {
        subscription.store(&event).await.expect("stored");
    }
    assert_eq!(state(&executor, &event).await, Some((State::Failed, 0)), "no attempt is counted");
    assert!(endpoint.seen().is_empty(), "nothing runs while it is stored");
    assert_eq!(subscription.pass().await.expect("a pass").handled, 1);
    subscription.store(&event).await.expect("stored");
    assert_eq!(subscription.pass().await.expect("a pass").due, 0);
    assert_eq!(endpoint.seen(), ["a"]);
    assert_eq!(state(&executor, &event).await, Some((State::Succeeded, 1)));
}

/// An event whose id another event has used is stored as dead, beside the first.
pub async fn a_stored_event_with_a_used_id_is_dead<F: Fixture>(fixture: F) {
    let (subscription, endpoint, _) = subscription(&fixture, Some(OnDead::Hold)).await;
    let first = event("ord_1", "a", 1);
    let other = Event::builder("acme", "order.other", "/orders").about("order", "ord_1");
    let other = other.id(first.id()).payload("text/plain", "b").build().expect("an event");
    subscription.store(&first).await.expect("stored");
    let refused = subscription.store(&Arc::new(other)).await;
    assert!(matches!(refused, Err(HandleError::Conflict)), "{refused:?}");
    assert_eq!(subscription.pass().await.expect("a pass").handled, 1);
    assert_eq!(endpoint.seen(), ["a"]);
    assert_eq!(subscription.group().waiting().await.expect("a count").dead, 1);
}

/// A process that ends between the two writes of storing leaves an event that is handled when its claim has
/// lapsed, without an attempt more.
pub async fn an_event_that_was_stored_by_half_is_handled<F: Fixture>(fixture: F) {
    let (subscription, endpoint, executor) = subscription(&fixture, None).await;
    let event = event("ord_1", "a", 1);
    let draft = Draft {
        key: Key::new(Kind::Event, "acme", GROUP, Principal::global(), &event.id().to_string())
            .expect("a key"),
        fingerprint: semel_core::Fingerprint::opaque("order.paid\0/orders"),
        operation_id: OperationId::generate(),
        attempt_id: AttemptId::generate(),
        attempt: 1,
        owner: "a process that ended".into(),
        lease: Duration::from_secs(5),
        on_crash: semel_core::OnCrash::Rerun,
        keep: Duration::MAX,
        retry_payload: Some(semel_core::Outcome::new(semel_core::event::PACKED, event.pack())),
    };
    let opened = executor.store().open(&draft).await.expect("opened");
    assert!(matches!(opened, Opened::Inserted { .. }));
    subscription.store(&event).await.expect("stored");
    fixture.advance(PAST_LEASE).await;
    assert_eq!(subscription.pass().await.expect("a pass").handled, 1);
    assert_eq!(
        (endpoint.seen(), state(&executor, &event).await),
        (vec!["a".to_owned()], Some((State::Succeeded, 1)))
    );
}

/// A failure may say when its event is due again, instead of the backoff.
pub async fn a_failure_may_name_its_own_delay<F: Fixture>(fixture: F) {
    let (subscription, endpoint, _) = subscription(&fixture, None).await;
    endpoint.fail("a", Answer::RetryAfter(REST * 10));
    subscription.store(&event("ord_1", "a", 1)).await.expect("stored");
    assert_eq!(subscription.pass().await.expect("a pass").failed, 1);
    endpoint.mend();
    fixture.advance(REST * 9).await;
    assert_eq!(subscription.pass().await.expect("a pass").due, 0);
    fixture.advance(REST * 2).await;
    assert_eq!(subscription.pass().await.expect("a pass").handled, 1);
}

/// The events of an aggregate are handled in the order of their numbers, whatever the order of their storing.
pub async fn an_aggregate_is_handled_in_order<F: Fixture>(fixture: F) {
    let (subscription, endpoint, _) = subscription(&fixture, Some(OnDead::Hold)).await;
    for (name, sequence) in [("c", 30), ("a", 10), ("d", 40), ("b", 20)] {
        subscription.store(&event("ord_1", name, sequence)).await.expect("stored");
    }
    assert_eq!(subscription.pass().await.expect("a pass").handled, 4);
    assert_eq!(endpoint.seen(), ["a", "b", "c", "d"]);
}

/// Later events of an aggregate wait behind one that failed; other aggregates do not.
pub async fn an_aggregate_waits_behind_a_failure<F: Fixture>(fixture: F) {
    let (subscription, endpoint, _) = subscription(&fixture, Some(OnDead::Pass)).await;
    endpoint.fail("a", Answer::Retry);
    for (about, name, sequence) in [("ord_1", "a", 1), ("ord_1", "b", 2), ("ord_2", "x", 3)] {
        subscription.store(&event(about, name, sequence)).await.expect("stored");
    }
    let _ = subscription.pass().await.expect("a pass");
    let mut seen = endpoint.seen();
    seen.sort();
    assert_eq!(seen, ["a", "x"]);
    endpoint.mend();
    let _ = subscription.pass().await.expect("a pass");
    assert!(endpoint.seen().is_empty(), "the failed event is not due");
    fixture.advance(REST * 2).await;
    let _ = subscription.pass().await.expect("a pass");
    assert_eq!(endpoint.seen(), ["a", "b"]);
}

/// Later events of an aggregate wait behind a dead one until it is redriven and handled, or discarded, in
/// whatever process they are stored and handled.
pub async fn an_aggregate_waits_behind_a_dead_event<F: Fixture>(fixture: F) {
    let (subscription, endpoint, executor) = subscription(&fixture, Some(OnDead::Hold)).await;
    endpoint.fail("a", Answer::Dead);
    endpoint.fail("x", Answer::Dead);
    let [a, x] = [event("ord_1", "a", 1), event("ord_2", "x", 4)];
    for event in [&a, &event("ord_1", "b", 2), &x, &event("ord_2", "y", 5)] {
        subscription.store(event).await.expect("stored");
    }
    let _ = subscription.pass().await.expect("a pass");
    let mut seen = endpoint.seen();
    seen.sort();
    assert_eq!((seen, subscription.held()), (vec!["a".to_owned(), "x".to_owned()], 2));
    endpoint.mend();
    let elsewhere = endpoint.builder(&executor).ordered(OnDead::Hold).build().expect("valid");
    elsewhere.store(&event("ord_1", "c", 3)).await.expect("stored");
    for subscription in [&subscription, &elsewhere] {
        fixture.advance(REST).await;
        let _ = subscription.pass().await.expect("a pass");
    }
    assert!(endpoint.seen().is_empty(), "nothing passes a dead event");
    let redriven = subscription.group().redrive("acme", a.id()).await.expect("a verb");
    assert_eq!(redriven.into_iter().map(|(_, done)| done).collect::<Vec<_>>(), [Operated::Done]);
    let _ = elsewhere.pass().await.expect("a pass");
    assert_eq!(endpoint.seen(), ["a", "b", "c"]);
    let discarded = subscription.group().discard("acme", x.id(), "refunded").await.expect("a verb");
    assert_eq!(discarded.len(), 1);
    let _ = subscription.pass().await.expect("a pass");
    assert_eq!((endpoint.seen(), subscription.held()), (vec!["y".to_owned()], 0));
}

/// Where that is set, later events of an aggregate pass a dead one, and the dead one follows when it is redriven.
pub async fn an_aggregate_passes_a_dead_event_if_that_is_set<F: Fixture>(fixture: F) {
    let (subscription, endpoint, _) = subscription(&fixture, Some(OnDead::Pass)).await;
    endpoint.fail("a", Answer::Dead);
    let a = event("ord_1", "a", 1);
    subscription.store(&a).await.expect("stored");
    subscription.store(&event("ord_1", "b", 2)).await.expect("stored");
    let _ = subscription.pass().await.expect("a pass");
    assert_eq!((endpoint.seen(), subscription.held()), (vec!["a".to_owned(), "b".to_owned()], 0));
    endpoint.mend();
    assert_eq!(subscription.group().redrive("acme", a.id()).await.expect("a verb").len(), 1);
    let _ = subscription.pass().await.expect("a pass");
    assert_eq!(endpoint.seen(), ["a"]);
}

/// While a subscription takes nothing, events are stored, and handled when it takes them again.
pub async fn a_subscription_that_takes_nothing_keeps_its_events<F: Fixture>(fixture: F) {
    let (executor, endpoint) = (executor(&fixture).await, Endpoint::default());
    let open = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let takes = Arc::clone(&open);
    let builder = endpoint.builder(&executor);
    let builder = builder.takes_while(move || takes.load(std::sync::atomic::Ordering::SeqCst));
    let subscription = builder.build().expect("valid");
    subscription.store(&event("ord_1", "a", 1)).await.expect("stored");
    assert_eq!(subscription.pass().await.expect("a pass").due, 0);
    open.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(subscription.pass().await.expect("a pass").handled, 1);
}
