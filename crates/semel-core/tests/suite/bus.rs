//! Tests the bus inside a process, alone and as the publisher of a relay: one result for each
//! consumer, and no consumer affects another.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::bus::Bus;
use semel_core::event::{Event, EventId};
use semel_core::inbox::{Failure, Group, HandleError, Handled, Inbox, InvalidGroup};
use semel_core::outbox::memory::MemoryOutbox;
use semel_core::outbox::{Outbox, PublishError, Publisher, Relay, Row, Selection, Status};
use semel_core::store::memory::MemoryStore;
use semel_core::{Executor, OnFailure, Policy, State};

/// Records each handled event with its consumer.
#[derive(Clone, Default)]
struct Handlings(Arc<Mutex<Vec<(String, EventId)>>>);

impl Handlings {
    fn record(&self, consumer: &str, event: &Event) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.push((consumer.to_owned(), event.id()));
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns how often each consumer handled each event.
    fn times(&self) -> BTreeMap<(String, EventId), usize> {
        let mut times = BTreeMap::new();
        for entry in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            *times.entry(entry.clone()).or_default() += 1;
        }
        times
    }
}

fn inbox() -> Inbox<MemoryStore> {
    let soon = Duration::from_millis(10);
    let on_failure = OnFailure::Backoff { base: soon, cap: soon };
    let policy = Policy { on_failure, ..Inbox::<MemoryStore>::default_policy() };
    Inbox::new(Executor::new(MemoryStore::new())).policy(policy)
}

const KIND: &str = "order.placed";

fn placed() -> Event {
    Event::builder("acme", KIND, "/orders").build().expect("a valid event")
}

/// Adds a handler to `group` that records the events that it handles.
fn recording(
    group: Group<MemoryStore>,
    handler: &str,
    handlings: &Handlings,
) -> Group<MemoryStore> {
    let (handlings, name) = (handlings.clone(), format!("{}/{handler}", group.name()));
    group.on_fenced_named(handler, KIND, move |event, _| {
        handlings.record(&name, &event);
        async { Ok::<_, String>(()) }
    })
}

fn failing(group: Group<MemoryStore>) -> Group<MemoryStore> {
    group.on_fenced(KIND, |_, _| async { Err::<(), _>("out of stock") })
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future)
        .await
        .expect("the future ended within a minute")
}

#[tokio::test]
async fn every_consumer_gives_one_result() {
    let (bus, inbox, handlings) =
        (Bus::new().retry_every(Duration::MAX), inbox(), Handlings::default());
    bus.register(recording(
        recording(inbox.group("MAIL"), "to-buyer", &handlings),
        "to-seller",
        &handlings,
    ))
    .unwrap();
    bus.register(recording(inbox.group("INVENTORY"), "", &handlings)).unwrap();
    bus.register(
        inbox.group("OTHER").on_fenced("order.sent", |_, _| async { Ok::<_, String>(()) }),
    )
    .unwrap();
    let event = placed();
    for replayed in [false, true] {
        let mut results = bus.publish(event.clone()).await;
        results.sort_by(|(a, _), (b, _)| a.cmp(b));
        let names: Vec<&str> = results.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["INVENTORY", "MAIL/to-buyer", "MAIL/to-seller"]);
        for (name, result) in results {
            assert_eq!(result.unwrap().replayed(), replayed, "{name}");
        }
    }
    assert_eq!(handlings.count(), 3);
}

#[tokio::test]
async fn a_group_that_fails_does_not_affect_the_others() {
    let (bus, inbox, handlings) =
        (Bus::new().retry_every(Duration::MAX), inbox(), Handlings::default());
    let broken = failing(inbox.group("BROKEN"));
    bus.register(broken.clone()).unwrap();
    bus.register(inbox.group("PANICS").on_fenced(KIND, |_, _| async {
        if true {
            panic!("this handler panics on purpose");
        }
        Ok::<_, String>(())
    }))
    .unwrap();
    bus.register(recording(inbox.group("SOUND"), "", &handlings)).unwrap();
    let results: BTreeMap<_, _> = bus.publish(placed()).await.into_iter().collect();
    assert!(matches!(results["SOUND"], Ok(Handled::Done { .. })), "{results:?}");
    for name in ["BROKEN", "PANICS"] {
        assert!(matches!(results[name], Err(HandleError::Failed { .. })), "{results:?}");
    }
    assert_eq!(handlings.count(), 1);
    let failed = broken.failures(State::Failed, None, 10).await.unwrap();
    assert_eq!(failed.entries.len(), 1, "the failure and its event are stored");
}

#[tokio::test]
async fn an_event_without_a_handler_has_no_results() {
    let bus: Bus<MemoryStore> = Bus::new().retry_every(Duration::MAX);
    assert!(bus.publish(placed()).await.is_empty());
    // A relay may be started before the first group is registered.
    let early = Publisher::publish(&bus, &[placed()]).await;
    assert!(matches!(early[..], [Err(PublishError::Unrouted(_))]), "{early:?}");
    bus.register(
        inbox().group("OTHER").on_fenced("another.type", |_, _| async { Ok::<_, String>(()) }),
    )
    .unwrap();
    let refused = Publisher::publish(&bus, &[placed()]).await;
    let [Err(PublishError::Refused(text))] = &refused[..] else { panic!("{refused:?}") };
    assert!(text.starts_with("no-handler"), "{text}");
    let dropped = Publisher::publish(&bus.clone().drop_unhandled(), &[placed()]).await;
    assert_eq!(dropped, [Ok(())]);
}

/// An ordered group waits for an event that is retried, but not for a dead one: a dead event that
/// is redriven is handled last.
#[tokio::test]
async fn a_dead_event_that_is_redriven_in_an_ordered_group_comes_after_its_successors() {
    let of = |order: u32| {
        let event = Event::builder("acme", KIND, "/orders").about("order", "ord_1");
        event.json(&order).build().unwrap()
    };
    let (first, second) = (of(1), of(2));
    let handled: Arc<Mutex<Vec<u32>>> = Arc::default();
    let (repaired, seen) = (Arc::new(Mutex::new(false)), Arc::clone(&handled));
    let is_repaired = Arc::clone(&repaired);
    let group = inbox().group("G").ordered().on_fenced(KIND, move |event, _| {
        let order: u32 = event.parse().unwrap();
        let fails = order == 1 && !*is_repaired.lock().unwrap();
        if !fails {
            seen.lock().unwrap().push(order);
        }
        async move { if fails { Err(Failure::hopeless("not yet")) } else { Ok(()) } }
    });
    for event in [&first, &second] {
        let _ = group.handle(&Arc::new(event.clone())).await;
    }
    assert_eq!(*handled.lock().unwrap(), [2], "a dead event does not delay later events");
    *repaired.lock().unwrap() = true;
    assert_eq!(group.redrive("acme", first.id()).await.unwrap().len(), 1);
    assert_eq!(group.retry_due().await.unwrap().handled, 1);
    assert_eq!(*handled.lock().unwrap(), [2, 1]);
}

/// A handled event is remembered for 30 days, longer than the 7 days in which its row can be
/// published again.
#[test]
fn handled_events_are_kept_for_30_days_and_published_rows_for_7() {
    let day = Duration::from_secs(24 * 60 * 60);
    assert_eq!(Inbox::<MemoryStore>::default_policy().keep, 30 * day);
    let relay = Relay::new(MemoryOutbox::new(), Bus::<MemoryStore>::new());
    assert_eq!(relay.keep(), 7 * day);
}

#[tokio::test]
async fn two_handlers_of_one_name_are_refused() {
    let (bus, handlings) = (Bus::new().retry_every(Duration::MAX), Handlings::default());
    let twice =
        recording(recording(inbox().group("MAIL"), "to-buyer", &handlings), "to-buyer", &handlings);
    let refused = bus.register(twice).unwrap_err();
    assert!(matches!(refused, InvalidGroup::Twice { .. }), "{refused}");
    assert!(bus.publish(placed()).await.is_empty(), "the group was not registered");
}

#[tokio::test]
async fn the_bus_as_a_publisher_returns_one_result_per_event() {
    let (bus, handlings) = (Bus::new().retry_every(Duration::MAX), Handlings::default());
    bus.register(recording(inbox().group("MAIL"), "", &handlings)).unwrap();
    let strange = Event::builder("acme", "order.unknown", "/orders").build().unwrap();
    let answers = Publisher::publish(&bus, &[placed(), strange, placed()]).await;
    assert!(matches!(answers[..], [Ok(()), Err(PublishError::Refused(_)), Ok(())]), "{answers:?}");
    assert_eq!(Publisher::publish(&bus, &[]).await, []);
}

#[tokio::test]
async fn an_event_that_an_ordered_group_defers_is_not_counted_as_an_attempt() {
    let (bus, outbox) = (Bus::new().retry_every(Duration::MAX), MemoryOutbox::new());
    bus.register(failing(inbox().group("BROKEN").ordered())).unwrap();
    let answers = Publisher::publish(&bus, &[placed()]).await;
    assert!(matches!(answers[..], [Err(PublishError::Later { .. })]), "{answers:?}");
    outbox.append(&mut outbox.clone(), &[placed()]).await.unwrap();
    let relay = Relay::builder(outbox.clone(), bus).max_attempts(2).build().unwrap();
    let deferring = async {
        let mut deferred = 0;
        while deferred < 5 {
            let pass = relay.pass().await.unwrap();
            assert_eq!((pass.published, pass.retried, pass.buried), (0, 0, 0));
            deferred += pass.untried;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(deferring).await;
    let rows = outbox.list(&Selection::default(), None, 10).await.unwrap();
    let [Row { status: Status::Failed, attempts: 0, error: Some(error), .. }] = &rows[..] else {
        panic!("{rows:?}")
    };
    assert!(error.as_str().contains("BROKEN"), "{error}");
}

#[tokio::test]
async fn a_failure_that_is_stored_is_published() {
    let bus = Bus::new().retry_every(Duration::MAX);
    let group = failing(inbox().group("BROKEN"));
    bus.register(group.clone()).unwrap();
    assert_eq!(Publisher::publish(&bus, &[placed()]).await, [Ok(())]);
    assert_eq!(group.failures(State::Failed, None, 10).await.unwrap().entries.len(), 1);
}

async fn append(outbox: &MemoryOutbox, events: &[Event]) {
    outbox.append(&mut outbox.clone(), events).await.expect("memory answers");
}

async fn rows(outbox: &MemoryOutbox) -> Vec<Row> {
    outbox.list(&Selection::default(), None, 1_000).await.expect("memory answers")
}

/// Waits until every row has one of the statuses in `ends`.
async fn settled(outbox: &MemoryOutbox, ends: &[Status]) {
    let waiting = async {
        while !rows(outbox).await.iter().all(|row| ends.contains(&row.status)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(waiting).await;
}

#[tokio::test]
async fn through_a_relay_every_group_handles_every_event_once() {
    let (bus, inbox, handlings) =
        (Bus::new().retry_every(Duration::MAX), inbox(), Handlings::default());
    for group in ["INVENTORY", "BILLING", "MAIL"] {
        bus.register(recording(inbox.group(group), "", &handlings)).unwrap();
    }
    let outbox = MemoryOutbox::new();
    // Two relays share the rows.
    let relays = [(); 2].map(|()| Relay::builder(outbox.clone(), bus.clone()).build().unwrap());
    let relaying = relays.map(|relay| relay.start());
    let sent: Vec<Event> = (0..100).map(|_| placed()).collect();
    for batch in sent.chunks(7) {
        append(&outbox, batch).await;
    }
    settled(&outbox, &[Status::Published]).await;
    for relaying in relaying {
        within(relaying.stop()).await;
    }
    let times = handlings.times();
    assert_eq!(times.len(), 300, "every group, every event");
    assert!(times.values().all(|times| *times == 1), "{times:?}");
}

#[tokio::test]
async fn through_a_relay_an_event_without_a_handler_is_dead_or_dropped() {
    for (drops, status) in [(false, Status::Dead), (true, Status::Published)] {
        let (bus, handlings) = (Bus::new().retry_every(Duration::MAX), Handlings::default());
        let bus = if drops { bus.drop_unhandled() } else { bus };
        bus.register(recording(inbox().group("MAIL"), "", &handlings)).unwrap();
        let outbox = MemoryOutbox::new();
        let relaying = Relay::builder(outbox.clone(), bus).build().unwrap().start();
        let strange = Event::builder("acme", "order.unknown", "/orders").build().unwrap();
        append(&outbox, &[strange.clone(), placed()]).await;
        settled(&outbox, &[Status::Published, Status::Dead]).await;
        within(relaying.stop()).await;
        let only = Selection { ids: vec![strange.id()], ..Selection::default() };
        let row = outbox.list(&only, None, 10).await.unwrap().remove(0);
        assert_eq!(row.status, status);
        if status == Status::Dead {
            let error = row.error.expect("a dead row has a reason").to_string();
            assert!(error.contains("no-handler"), "{error}");
        }
        assert_eq!(handlings.count(), 1, "the other event was handled");
    }
}

#[tokio::test]
async fn through_a_relay_a_failure_is_retried_from_the_ledger() {
    let (bus, handlings) = (Bus::new().retry_every(Duration::MAX), Handlings::default());
    let group = {
        let (handlings, tries) = (handlings.clone(), Arc::new(Mutex::new(0)));
        inbox().group("MAIL").on_fenced(KIND, move |event, _| {
            let mut tries = tries.lock().unwrap_or_else(PoisonError::into_inner);
            *tries += 1;
            let result = if *tries < 4 { Err("not yet") } else { Ok(()) };
            if result.is_ok() {
                handlings.record("MAIL", &event);
            }
            async move { result }
        })
    };
    bus.register(group.clone()).unwrap();
    let outbox = MemoryOutbox::new();
    let relaying = Relay::builder(outbox.clone(), bus).build().unwrap().start();
    append(&outbox, &[placed()]).await;
    settled(&outbox, &[Status::Published]).await;
    within(relaying.stop()).await;
    assert_eq!(handlings.count(), 0, "the handler failed, and the event is stored in the ledger");
    let retrying = group.keep_retrying(Duration::from_millis(5));
    let handled = async {
        while handlings.count() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(handled).await;
    within(retrying.stop()).await;
    assert_eq!(handlings.count(), 1);
}

#[tokio::test]
async fn a_failure_on_the_bus_is_retried_automatically() {
    let backoff =
        OnFailure::Backoff { base: Duration::from_millis(5), cap: Duration::from_secs(1) };
    let policy = Policy { on_failure: backoff, ..Inbox::<MemoryStore>::default_policy() };
    let runs = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&runs);
    let group = inbox().policy(policy).group("MAIL").on_fenced(KIND, move |_, _| {
        let mut runs = counted.lock().unwrap_or_else(PoisonError::into_inner);
        *runs += 1;
        let first = *runs == 1;
        async move { if first { Err("not yet") } else { Ok(()) } }
    });
    let bus = Bus::new().retry_every(Duration::from_millis(5));
    bus.register(group).unwrap();
    let event = Event::builder("acme", KIND, "/orders").build().unwrap();
    assert!(bus.publish(event).await[0].1.is_err());
    let again = async {
        while *runs.lock().unwrap_or_else(PoisonError::into_inner) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), again).await.expect("the event is handled again");
}
