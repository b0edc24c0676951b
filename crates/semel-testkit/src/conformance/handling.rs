//! Events that each consumer group handles once: an inbox on this store.
//!
//! Replies to brokers are tested in [`broker`](crate::broker); these behaviours test what the
//! ledger records.

use std::sync::Arc;
use std::time::Duration;

use semel_core::inbox::{
    BrokerReply, Failure, Group, HandleError, Handled, Inbox, OperatedRecords, Stored,
    UnhandledEvent,
};
use semel_core::store::{Filter, Inspect, Store as _};
use semel_core::{
    Event, Executor, Key, Kind, OnFailure, Operated, Outcome, Principal, Record, State, Timestamp,
    Wait,
};
use tokio::sync::oneshot;

use super::test_store;
use super::work::{PAST_LEASE, SOON, Work, executor};
use crate::Fixture;

type Result<T> = std::result::Result<T, HandleError>;

pub(super) fn event() -> Arc<Event> {
    Arc::new(of_kind("order.placed"))
}

pub(super) fn of_kind(kind: &str) -> Event {
    let id = "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().expect("an id");
    Event::builder("acme", kind, "/orders")
        .header("traceId", "0af7 \"x\" 订单")
        .id(id)
        .about("order", "ord_1")
        .payload(Event::JSON, r#"{"cents":1999,"note":"naïve 🦀"}"#)
        .attribute("region", "eu")
        .occurred_at(Timestamp::from_micros(1_600_000_000_123_456))
        .build()
        .expect("an event")
}

pub(super) fn key(group: &str) -> Key {
    let event = event();
    let id = event.id().to_string();
    Key::new(Kind::Event, event.tenant(), group, Principal::global(), &id).expect("a key")
}

async fn record<F: Fixture>(executor: &Executor<F::Store>, group: &str) -> Record {
    let found = executor.peek(&key(group)).await.expect("a store");
    found.expect("a record of the event").record
}

/// The first backoff: longer than a busy machine takes from one step to the next.
const REST: Duration = Duration::from_secs(100);

fn resting<F: Fixture>(wait: Wait) -> semel_core::Policy {
    let on_failure = OnFailure::Backoff { base: REST, cap: REST * 100 };
    semel_core::Policy { wait, on_failure, ..Inbox::<F::Store>::default_policy() }
}

/// Returns a group whose only handler fails `failures` times, and counts its runs in `work`.
fn failing<F: Fixture>(
    executor: &Executor<F::Store>,
    failures: u32,
    work: &Work,
) -> Group<F::Store> {
    let (work, inbox) = (work.clone(), Inbox::new(executor.clone()).policy(resting::<F>(Wait::No)));
    inbox.group("INVENTORY").on_fenced("order.placed", move |_, _| {
        let run = work.start();
        async move { if run <= failures { Err(format!("no stock {run}")) } else { Ok(()) } }
    })
}

async fn one<S: semel_core::Store>(group: &Group<S>) -> Result<Handled> {
    let mut results = group.handle(&event()).await;
    assert_eq!(results.len(), 1, "{results:?}");
    results.remove(0).1
}

/// Returns all dead events of the group. An empty page may still have a next page.
async fn dead<S: Inspect>(group: &Group<S>) -> Vec<UnhandledEvent> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = group.failures(State::Dead, after.as_ref(), 10).await.expect("a list");
        all.extend(page.entries);
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
}

/// The first delivery runs the handler, and the record keeps only the mark.
pub async fn the_first_delivery_is_handled_and_marked<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let handled = one(&failing::<F>(&executor, 0, &work)).await.expect("handled");
    assert_eq!(handled, Handled::Done { attempt: 1 });
    assert_eq!((handled.succeeded(), handled.retry_count()), (true, Some(0)));
    let record = record::<F>(&executor, "INVENTORY").await;
    assert_eq!((record.state, record.attempt, record.retry_payload), (State::Succeeded, 1, None));
}

/// The type of a handled event stays in its record, whether the first attempt succeeded or a later
/// one, and can be searched for.
pub async fn a_handled_event_keeps_its_type<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let group = failing::<F>(&executor, 1, &work);
    one(&group).await.expect_err("the first attempt fails");
    assert!(matches!(group.redrive("acme", event().id()).await, Ok(reached) if reached.len() == 1));
    assert_eq!(one(&group).await.expect("handled"), Handled::Done { attempt: 1 });
    let audit = Inbox::new(executor.clone()).group("AUDIT");
    let audit = audit.on_fenced("order.placed", |_, _| async { Ok::<_, Failure>(()) });
    assert_eq!(one(&audit).await.expect("handled"), Handled::Done { attempt: 1 });
    for group in ["INVENTORY", "AUDIT"] {
        let record = record::<F>(&executor, group).await;
        let Some(semel_core::Recorded::Whole(mark)) = record.outcome else { panic!("no success") };
        assert_eq!(mark.reference().map(semel_core::Reference::as_str), Some("order.placed"));
        assert!(mark.body().is_empty() && record.retry_payload.is_none(), "nothing else is stored");
    }
    let filter = Filter {
        state: Some(State::Succeeded),
        reference: Some("order.placed".into()),
        ..Filter::default()
    };
    assert_eq!(executor.store().tally(&filter).await.expect("a count").records, 2);
}

/// A repeated delivery does not run the handler.
pub async fn a_repeat_is_replayed<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let group = failing::<F>(&executor, 0, &work);
    let _ = one(&group).await.expect("handled");
    for _ in 0..3 {
        let again = one(&group).await.expect("replayed");
        assert!(again.replayed() && again.succeeded() && !again.in_progress(), "{again:?}");
        assert_eq!(group.receive(&event()).await, BrokerReply::Ack);
    }
    assert_eq!(work.runs(), 1);
}

/// Two types under one event id are a conflict: the first record stays, and the second event is
/// stored as dead beside it.
pub async fn another_type_under_the_same_id_is_a_conflict<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let _ = one(&failing::<F>(&executor, 0, &work)).await.expect("handled");
    let before = record::<F>(&executor, "INVENTORY").await;
    let group = Inbox::new(executor.clone())
        .group("INVENTORY")
        .on_fenced("order.paid", |_, _| async { Ok::<_, Failure>(()) });
    let other = Arc::new(of_kind("order.paid"));
    for _ in 0..2 {
        let mut results = group.handle(&other).await;
        let result = results.remove(0).1;
        assert!(matches!(result, Err(HandleError::Conflict)), "{result:?}");
        assert_eq!(
            BrokerReply::to(&result, false),
            BrokerReply::Ack,
            "a redelivery would change nothing"
        );
    }
    assert_eq!(record::<F>(&executor, "INVENTORY").await, before);
    let dead = dead(&group).await;
    assert_eq!(dead.len(), 1, "stored once");
    let retry_payload = dead[0].record.retry_payload.as_ref().expect("the whole event");
    assert_eq!(retry_payload.reference().map(|kind| kind.as_str()), Some("order.paid"));
    assert!(dead[0].record.error.as_ref().is_some_and(|e| e.as_str().starts_with("conflict")));
}

/// Each group, tenant and named handler handles an event independently of the others.
pub async fn consumers_are_independent<F: Fixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let inbox = Inbox::new(executor.clone());
    let (a, b, c) = (Work::default(), Work::default(), Work::default());
    let count = |work: &Work| {
        let work = work.clone();
        move |_: Arc<Event>, _: semel_core::Context| {
            work.start();
            async { Ok::<_, Failure>(()) }
        }
    };
    let fails = |_: Arc<Event>, _: semel_core::Context| async { Err::<(), _>("never") };
    let inventory = inbox
        .group("INVENTORY")
        .on_fenced("order.placed", count(&a))
        .on_fenced_named("audit", "order.placed", count(&b))
        .on_fenced_named("broken", "order.placed", fails);
    let billing = inbox.group("BILLING").on_fenced("order.placed", count(&c));
    let results = inventory.handle(&event()).await;
    let ended: Vec<bool> = results.iter().map(|(_, result)| result.is_ok()).collect();
    assert_eq!(ended, [true, true, false]);
    billing.handle(&event()).await[0].1.as_ref().expect("handled");
    inventory.handle(&event()).await;
    let elsewhere = Event::builder("other", "order.placed", "/orders").id(event().id());
    inventory.handle(&Arc::new(elsewhere.build().expect("an event"))).await;
    assert_eq!(
        (a.runs(), b.runs(), c.runs()),
        (2, 2, 1),
        "each handler once, and once for another tenant"
    );
    assert_eq!(record::<F>(&executor, "INVENTORY/broken").await.state, State::Failed);
}

/// Starts a handler that waits until it is released; returns the task and the sender that releases
/// it.
async fn held<F: Fixture>(
    executor: &Executor<F::Store>,
) -> (tokio::task::JoinHandle<Result<Handled>>, oneshot::Sender<std::result::Result<(), String>>) {
    let (release, released) = oneshot::channel::<std::result::Result<(), String>>();
    let (running, started) = oneshot::channel();
    let inbox = Inbox::new(executor.clone()).policy(resting::<F>(Wait::No));
    let first = tokio::spawn(async move {
        let handler = move |_, _| async move {
            let _ = running.send(());
            released.await.unwrap_or_else(|_| Err("never released".to_owned()))
        };
        inbox.handle("INVENTORY", &event(), handler).await
    });
    tokio::time::timeout(SOON, started).await.expect("in time").expect("the handler starts");
    (first, release)
}

/// A delivery that does not wait gets "in progress" at once.
pub async fn a_rival_gets_in_progress<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let (first, release) = held::<F>(&executor).await;
    let rival = one(&failing::<F>(&executor, 0, &work)).await.expect("an answer");
    assert!(rival.in_progress() && !rival.succeeded(), "{rival:?}");
    assert!(
        matches!(BrokerReply::to(&Ok(rival), false), BrokerReply::Later(_)),
        "the broker redelivers"
    );
    release.send(Ok(())).expect("the handler waits");
    assert!(first.await.expect("no panic").expect("handled").succeeded());
    assert_eq!(work.runs(), 0);
}

fn waiting<F: Fixture>(executor: &Executor<F::Store>, span: Duration) -> Inbox<F::Store> {
    Inbox::new(executor.clone()).policy(resting::<F>(Wait::UpTo(span)))
}

/// A delivery that waits replays the holder's success.
pub async fn a_waiter_replays_the_success<F: Fixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let (first, release) = held::<F>(&executor).await;
    let inbox = waiting::<F>(&executor, SOON);
    let waiter = tokio::spawn(async move {
        inbox.handle("INVENTORY", &event(), |_, _| async { Err::<(), _>("runs twice") }).await
    });
    release.send(Ok(())).expect("the handler waits");
    let waited = tokio::time::timeout(SOON, waiter).await.expect("in time").expect("no panic");
    assert!(waited.expect("an answer").succeeded());
    assert!(first.await.expect("no panic").is_ok());
}

/// A delivery that waits gets the holder's failure, and runs nothing.
pub async fn a_waiter_gets_the_failure<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let (first, release) = held::<F>(&executor).await;
    let (inbox, runs) = (waiting::<F>(&executor, SOON), work.clone());
    let waiter = tokio::spawn(async move {
        let handler = move |_, _| {
            runs.start();
            async { Ok::<_, Failure>(()) }
        };
        inbox.handle("INVENTORY", &event(), handler).await
    });
    // A waiter that starts only now finds the failure itself, and is deferred.
    release.send(Err("no stock".to_owned())).expect("the handler waits");
    let response = tokio::time::timeout(SOON, waiter).await.expect("in time").expect("no panic");
    let error = match response {
        Err(HandleError::HolderFailed { error, attempt: 1 }) => error,
        Ok(Handled::Deferred { error, attempt: 1, .. }) => error,
        other => panic!("the holder's failure, not {other:?}"),
    };
    assert_eq!(error.as_str(), "no stock");
    assert_eq!(work.runs(), 0);
    assert!(first.await.expect("no panic").is_err());
}

/// A delivery whose wait is over gets "in progress".
pub async fn a_waiter_gives_up_after_its_time<F: Fixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let (first, release) = held::<F>(&executor).await;
    let inbox = waiting::<F>(&executor, Duration::from_millis(30));
    let handler = |_, _| async { Ok::<_, Failure>(()) };
    let waited = inbox.handle("INVENTORY", &event(), handler).await.expect("an answer");
    assert!(waited.in_progress(), "{waited:?}");
    release.send(Ok(())).expect("the handler waits");
    let _ = first.await.expect("no panic").expect("handled");
}

/// The record of a failure has its error, its attempt, its due time and the whole event.
pub async fn a_failure_is_stored_with_the_event<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let group = failing::<F>(&executor, 9, &work);
    let failed = one(&group).await;
    let Err(HandleError::Failed { error, attempt: 1, stored: Stored::Retry(after) }) = &failed
    else {
        panic!("a stored failure, not {failed:?}")
    };
    assert_eq!(error.as_str(), "no stock 1");
    assert!(*after <= REST, "{after:?}");
    assert_eq!(BrokerReply::to(&failed, false), BrokerReply::Ack, "the ledger retries");
    assert!(
        matches!(BrokerReply::to(&failed, true), BrokerReply::Later(_)),
        "no later event may overtake it"
    );
    let record = record::<F>(&executor, "INVENTORY").await;
    assert_eq!((record.state, record.attempt), (State::Failed, 1));
    assert_eq!(record.error.as_ref().map(|e| e.as_str()), Some("no stock 1"));
    assert!(record.retry_at.is_some() && record.lease_until.is_none());
    let retry_payload = record.retry_payload.expect("the event");
    let kept = Event::unpack(retry_payload.body()).expect("an envelope");
    assert_eq!(kept, *event(), "byte for byte");
}

/// A failed event is deferred until it is due and then runs again; each backoff is twice as long.
pub async fn a_failed_event_waits_for_its_time<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let group = failing::<F>(&executor, 2, &work);
    one(&group).await.expect_err("the first failure");
    for (attempt, wait) in [(1, REST), (2, REST * 2)] {
        let deferred = one(&group).await.expect("an answer");
        let Handled::Deferred { retry_after, attempt: so_far, .. } = &deferred else {
            panic!("deferred, not {deferred:?}")
        };
        assert_eq!((*so_far, work.runs()), (attempt, attempt));
        assert!(*retry_after <= wait, "{retry_after:?}");
        assert_eq!(BrokerReply::to(&Ok(deferred), false), BrokerReply::Ack);
        fixture.advance(wait).await;
        let _ = one(&group).await;
    }
    assert_eq!(work.runs(), 3);
    let done = one(&group).await.expect("an answer");
    assert_eq!((done.replayed(), done.retry_count()), (true, Some(2)));
}

/// After the last allowed attempt the event is dead, with an error that operators can search for.
pub async fn after_the_last_attempt_it_is_dead<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let policy =
        semel_core::Policy { max_attempts: Some(3), ..Inbox::<F::Store>::default_policy() };
    let runs = work.clone();
    let group = Inbox::new(executor.clone()).policy(policy).group("INVENTORY").on_fenced(
        "order.placed",
        move |_, _| {
            let run = runs.start();
            async move { Err::<(), _>(format!("no stock {run}")) }
        },
    );
    for _ in 0..2 {
        assert!(matches!(
            one(&group).await,
            Err(HandleError::Failed { stored: Stored::Retry(_), .. })
        ));
        fixture.advance(Duration::from_secs(5)).await;
    }
    let last = one(&group).await;
    assert!(
        matches!(last, Err(HandleError::Failed { stored: Stored::Dead, attempt: 3, .. })),
        "{last:?}"
    );
    let record = record::<F>(&executor, "INVENTORY").await;
    let error = record.error.as_ref().map_or("", |error| error.as_str());
    assert_eq!((record.state, error), (State::Dead, "exceeded maxRetry (3): no stock 3"));
    assert!(record.retry_payload.is_some(), "an operator can redrive the event");
    assert!(matches!(one(&group).await, Ok(Handled::Dead { .. })));
    assert_eq!((group.receive(&event()).await, work.runs()), (BrokerReply::Ack, 3));
}

/// If a handler returns a failure that no retry can help, the event is dead at once.
pub async fn a_hopeless_event_is_dead_at_once<F: Fixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let group =
        Inbox::new(executor.clone()).group("INVENTORY").on_fenced("order.placed", |_, _| async {
            Err::<(), _>(Failure::hopeless("not an order"))
        });
    let failed = one(&group).await;
    assert!(matches!(failed, Err(HandleError::Failed { stored: Stored::Dead, .. })), "{failed:?}");
    let record = record::<F>(&executor, "INVENTORY").await;
    let error = record.error.as_ref().map(|error| error.as_str());
    assert_eq!((record.state, error), (State::Dead, Some("not an order")));
}

/// A handler that panics has failed.
pub async fn a_panic_is_a_failure<F: Fixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let group =
        Inbox::new(executor.clone()).group("INVENTORY").on_fenced("order.placed", |_, _| async {
            if true {
                panic!("boom");
            }
            Ok::<_, Failure>(())
        });
    let failed = one(&group).await;
    assert!(
        matches!(failed, Err(HandleError::Failed { stored: Stored::Retry(_), .. })),
        "{failed:?}"
    );
    let error = record::<F>(&executor, "INVENTORY").await.error;
    assert!(error.is_some_and(|error| error.as_str().contains("boom")));
}

/// The scheduler handles due events from the ledger, without a redelivery.
pub async fn the_scheduler_handles_what_is_due<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let group = failing::<F>(&executor, 2, &work);
    one(&group).await.expect_err("the first failure");
    let early = group.retry_due().await.expect("a look");
    assert_eq!((early.due, work.runs()), (0, 1), "not before the event is due");
    fixture.advance(REST).await;
    let again = group.retry_due().await.expect("a look");
    assert_eq!((again.due, again.failed, work.runs()), (1, 1, 2));
    fixture.advance(REST * 2).await;
    let done = group.retry_due().await.expect("a look");
    assert_eq!((done.due, done.handled, work.runs()), (1, 1, 3));
    assert_eq!(group.retry_due().await.expect("a look").due, 0);
    assert_eq!(record::<F>(&executor, "INVENTORY").await.state, State::Succeeded);
}

/// The scheduler takes over an event whose consumer died, once its lease is over.
pub async fn the_scheduler_takes_over_what_crashed<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let retry_payload = Outcome::new(semel_core::event::PACKED, event().pack());
    let fingerprint = semel_core::Fingerprint::opaque("order.placed\0/orders");
    let crashed = semel_core::store::Draft {
        retry_payload: Some(retry_payload),
        fingerprint,
        ..test_store::draft(&key("INVENTORY"))
    };
    let lease = crashed.lease;
    let _ = executor.store().open(&crashed).await.expect("a claim");
    let group = failing::<F>(&executor, 0, &work);
    assert_eq!(group.retry_due().await.expect("a look").due, 0, "the lease still runs");
    fixture.advance(lease.max(PAST_LEASE) + Duration::from_secs(1)).await;
    let taken = group.retry_due().await.expect("a look");
    assert_eq!((taken.due, taken.handled, work.runs()), (1, 1, 1));
    assert_eq!(record::<F>(&executor, "INVENTORY").await.attempt, 2, "the crash counts");
}

/// An operator lists dead events, redrives them, or discards them for a reason.
pub async fn an_operator_redrives_and_discards<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let runs = work.clone();
    let group =
        Inbox::new(executor.clone()).group("INVENTORY").on_fenced("order.placed", move |_, _| {
            let run = runs.start();
            async move { if run == 1 { Err(Failure::hopeless("not yet")) } else { Ok(()) } }
        });
    one(&group).await.expect_err("dead at once");
    assert_eq!(dead(&group).await.len(), 1);
    let (tenant, id) = ("acme", event().id());
    let verb = |reached: semel_core::store::Result<OperatedRecords>| {
        let reached = reached.expect("a verb");
        assert!(reached.len() <= 1 && reached.iter().all(|(whose, _)| whose.handler.is_none()));
        reached.first().map(|(_, operated)| *operated)
    };
    assert_eq!(verb(group.discard(tenant, id, "test order").await), Some(Operated::Done));
    let record = record::<F>(&executor, "INVENTORY").await;
    let error = record.error.as_ref().map(|error| error.as_str());
    assert_eq!((record.state, error), (State::Discarded, Some("test order")));
    assert!(dead(&group).await.is_empty(), "a discarded event is not listed as dead");
    assert_eq!(verb(group.redrive(tenant, id).await), Some(Operated::Done));
    let retried = group.retry_due().await.expect("a look");
    assert_eq!((retried.handled, work.runs()), (1, 2));
    assert_eq!(verb(group.redrive(tenant, id).await), None, "the event is handled");
    assert_eq!(verb(group.redrive("other", id).await), None);
}

/// An event without a handler is stored as dead, or ignored if the group is set to ignore it.
pub async fn an_event_that_nobody_handles_is_kept<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let empty = Inbox::new(executor.clone()).group("INVENTORY");
    assert_eq!(empty.clone().ignore_unknown().receive(&event()).await, BrokerReply::Ack);
    assert!(executor.peek(&key("INVENTORY")).await.expect("a store").is_none());
    assert_eq!(empty.receive(&event()).await, BrokerReply::Ack);
    let record = record::<F>(&executor, "INVENTORY").await;
    assert_eq!(record.state, State::Dead);
    assert!(record.error.is_some_and(|error| error.as_str().starts_with("no-handler")));
    // The handler is deployed later, and an operator redrives the event.
    let group = failing::<F>(&executor, 0, &work);
    assert_eq!(group.redrive("acme", event().id()).await.expect("a verb").len(), 1);
    assert_eq!(group.retry_due().await.expect("a look").handled, 1);
}
