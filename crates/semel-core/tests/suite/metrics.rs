//! Tests the metrics of executor, outbox and inbox with a recorder.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use semel_core::event::Event;
use semel_core::inbox::{BrokerReply, Failure, Group, Inbox, Waiting};
use semel_core::outbox::memory::MemoryOutbox;
use semel_core::outbox::{ClaimRequest, Outbox, PublishError, Publisher, Relay, Selection};
use semel_core::store::memory::MemoryStore;
use semel_core::{
    Clock, Executor, Kind, Operate as _, Operated, Policy, Principal, State, Timestamp, Wait,
};
use semel_testkit::faulty::{Fault, FaultyStore, StoreCall};
use tokio::sync::Notify;

/// A recorder that keeps the value of each metric by its name and labels, in the format of
/// Prometheus. For a histogram it keeps the number of samples. Clones share the values.
#[derive(Clone, Default)]
struct TestRecorder(Arc<Mutex<BTreeMap<String, f64>>>);

struct Metric(TestRecorder, String);

impl TestRecorder {
    fn values(&self) -> MutexGuard<'_, BTreeMap<String, f64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn metric(&self, key: &Key) -> Arc<Metric> {
        let labels: Vec<String> =
            key.labels().map(|label| format!("{}={:?}", label.key(), label.value())).collect();
        let name = match labels[..] {
            [] => key.name().to_owned(),
            _ => format!("{}{{{}}}", key.name(), labels.join(",")),
        };
        Arc::new(Metric(self.clone(), name))
    }

    /// Returns the value of a metric; `None` if it was not set.
    fn get(&self, name: &str) -> Option<f64> {
        self.values().get(name).copied()
    }

    /// Returns all metrics whose names begin with `prefix`.
    fn all(&self, prefix: &str) -> Vec<(String, f64)> {
        let values = self.values();
        let matching = values.iter().filter(|(name, _)| name.starts_with(prefix));
        matching.map(|(name, number)| (name.clone(), *number)).collect()
    }

    /// Waits until a metric has this value.
    async fn wait_for(&self, name: &str, number: f64) {
        let polling = async {
            while self.get(name) != Some(number) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let shown = tokio::time::timeout(Duration::from_secs(60), polling).await;
        assert!(shown.is_ok(), "{name} is {:?} and not {number}", self.get(name));
    }
}

impl CounterFn for Metric {
    fn increment(&self, value: u64) {
        *self.0.values().entry(self.1.clone()).or_default() += value as f64;
    }

    fn absolute(&self, value: u64) {
        self.0.values().insert(self.1.clone(), value as f64);
    }
}

impl GaugeFn for Metric {
    fn increment(&self, value: f64) {
        *self.0.values().entry(self.1.clone()).or_default() += value;
    }

    fn decrement(&self, value: f64) {
        *self.0.values().entry(self.1.clone()).or_default() -= value;
    }

    fn set(&self, value: f64) {
        self.0.values().insert(self.1.clone(), value);
    }
}

impl HistogramFn for Metric {
    fn record(&self, _: f64) {
        *self.0.values().entry(self.1.clone()).or_default() += 1.0;
    }
}

impl Recorder for TestRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.metric(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.metric(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.metric(key))
    }
}

const PAST_LEASE: Duration = Duration::from_secs(31);

fn event(kind: &str) -> Event {
    Event::builder("acme", kind, "/orders").build().expect("a valid event")
}

fn outbox() -> (MemoryOutbox, Clock) {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    (MemoryOutbox::with_clock(clock.clone()), clock)
}

async fn append(outbox: &MemoryOutbox, kinds: &[&str]) {
    let events: Vec<Event> = kinds.iter().map(|kind| event(kind)).collect();
    outbox.append(&mut outbox.clone(), &events).await.expect("memory answers");
}

/// A publisher whose result depends on the event's type.
struct ByType(MemoryOutbox, Clock);

impl Publisher for ByType {
    async fn publish(&self, events: &[Event]) -> Vec<Result<(), PublishError>> {
        let mut answers = Vec::new();
        for event in events {
            let reason = || "because".to_owned();
            answers.push(match event.kind() {
                "fails" => Err(PublishError::Failed(reason())),
                "refused" => Err(PublishError::Refused(reason())),
                "unavailable" => Err(PublishError::Unavailable(reason())),
                "slow" => {
                    self.1.advance(PAST_LEASE);
                    let ask = ClaimRequest::new(1, PAST_LEASE);
                    let taken = self.0.claim(ask).await.expect("memory answers");
                    assert_eq!(taken.len(), 1, "another relay has claimed the row");
                    Ok(())
                }
                _ => Ok(()),
            });
        }
        answers
    }
}

/// Returns the values of one counter by its last label.
fn results(recorder: &TestRecorder, counter: &str) -> BTreeMap<String, f64> {
    let last = |name: &str| name.rsplit('"').nth(1).map(str::to_owned);
    recorder.all(counter).into_iter().filter_map(|(name, n)| Some((last(&name)?, n))).collect()
}

#[tokio::test]
async fn the_disposition_of_each_row_is_counted() {
    let recorder = TestRecorder::default();
    let _here = metrics::set_default_local_recorder(&recorder);
    let (outbox, clock) = outbox();
    let relay = Relay::new(outbox.clone(), ByType(outbox.clone(), clock));
    append(&outbox, &["taken", "taken", "fails", "refused", "unavailable"]).await;
    let _ = relay.pass().await.expect("a pass");
    let counted = || results(&recorder, "semel_outbox_published_total{result=");
    let number = |result: &str| counted().get(result).copied();
    assert_eq!((number("published"), number("failed")), (Some(2.0), Some(1.0)));
    assert_eq!((number("dead"), number("untried")), (Some(1.0), Some(1.0)));
    assert_eq!(
        recorder.get("semel_outbox_publish_delay_seconds"),
        Some(5.0),
        "one sample for the age of each claimed row"
    );
    // While a relay takes longer than its lease, another relay claims the row.
    let (outbox, clock) = self::outbox();
    append(&outbox, &["slow"]).await;
    let relay = Relay::new(outbox.clone(), ByType(outbox.clone(), clock));
    let _ = relay.pass().await.expect("a pass");
    assert_eq!((number("lost"), number("published")), (Some(1.0), Some(2.0)));
}

/// A publisher whose broker is unreachable until the flag is set.
#[derive(Clone, Default)]
struct Unreachable(Arc<Mutex<bool>>);

impl Publisher for Unreachable {
    async fn publish(&self, events: &[Event]) -> Vec<Result<(), PublishError>> {
        let reachable = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = |event: &Event| match (event.kind(), reachable) {
            ("refused", _) => Err(PublishError::Refused("refused".to_owned())),
            (_, false) => Err(PublishError::Unavailable("unreachable".to_owned())),
            (_, true) => Ok(()),
        };
        events.iter().map(answer).collect()
    }
}

#[tokio::test]
async fn the_gauges_of_the_backlog_show_the_start_and_the_end_of_an_outage() {
    let recorder = TestRecorder::default();
    let _here = metrics::set_default_local_recorder(&recorder);
    let ((outbox, clock), broker) = (outbox(), Unreachable::default());
    append(&outbox, &["refused", "a", "b", "c"]).await;
    clock.advance(Duration::from_secs(90));
    let relay = Relay::builder(outbox.clone(), broker.clone());
    let relay = relay.clean_every(Duration::from_millis(10)).build().expect("valid settings");
    let relaying = relay.start();
    recorder.wait_for("semel_outbox_dead", 1.0).await;
    assert_eq!(recorder.get("semel_outbox_pending"), Some(3.0));
    assert_eq!(recorder.get("semel_outbox_oldest_age_seconds"), Some(90.0));
    clock.advance(Duration::from_secs(10));
    recorder.wait_for("semel_outbox_oldest_age_seconds", 100.0).await;
    *broker.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
    recorder.wait_for("semel_outbox_pending", 0.0).await;
    assert_eq!(recorder.get("semel_outbox_oldest_age_seconds"), Some(0.0));
    assert_eq!(recorder.get("semel_outbox_dead"), Some(1.0), "dead until an operator acts");
    let verb = semel_core::outbox::RowAction::Discard { reason: "a test".to_owned() };
    let applied = outbox.apply(&Selection::default(), &verb, None, 10).await;
    assert_eq!(applied.expect("a verb").changed, 1);
    recorder.wait_for("semel_outbox_dead", 0.0).await;
    relaying.stop().await;
}

type Store = FaultyStore<MemoryStore>;

/// Returns an inbox whose clock stands still: failures do not become due.
fn inbox() -> (Inbox<Store>, Store) {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = FaultyStore::new(MemoryStore::with(1_000, clock));
    (Inbox::new(Executor::new(store.clone())), store)
}

/// Returns a group whose handlers succeed or fail depending on the event's type.
fn by_type(inbox: &Inbox<Store>) -> Group<Store> {
    let fails = |_, _| async { Err::<(), _>("no") };
    inbox
        .group("INVENTORY")
        .on_fenced("good", |_, _| async { Ok::<_, Failure>(()) })
        .on_fenced_named("audit", "good", |_, _| async { Ok::<_, Failure>(()) })
        .on_fenced("bad", fails)
        .on_fenced("hopeless", |_, _| async { Err::<(), _>(Failure::hopeless("never")) })
}

fn of_group(recorder: &TestRecorder, group: &str) -> BTreeMap<String, f64> {
    results(recorder, &format!("semel_inbox_deliveries_total{{group={group:?},result="))
}

fn counts(numbers: &[(&str, f64)]) -> BTreeMap<String, f64> {
    numbers.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect()
}

#[tokio::test]
async fn the_result_of_each_delivery_is_counted_by_consumer() {
    let recorder = TestRecorder::default();
    let _here = metrics::set_default_local_recorder(&recorder);
    let (inbox, store) = inbox();
    let group = by_type(&inbox);
    let good = Arc::new(event("good"));
    for _ in 0..3 {
        assert_eq!(group.receive(&good).await, BrokerReply::Ack);
    }
    let audit = counts(&[("done", 1.0), ("replayed", 2.0)]);
    assert_eq!(of_group(&recorder, "INVENTORY/audit"), audit);
    assert_eq!(of_group(&recorder, "INVENTORY"), audit);
    // The handler fails, and the event is not due when it is delivered again.
    let bad = Arc::new(event("bad"));
    for _ in 0..2 {
        assert_eq!(group.receive(&bad).await, BrokerReply::Ack);
    }
    // The event is dead after the first delivery, and still dead at the second.
    let hopeless = Arc::new(event("hopeless"));
    for _ in 0..2 {
        assert_eq!(group.receive(&hopeless).await, BrokerReply::Ack);
    }
    assert_eq!(group.receive(&Arc::new(event("unknown"))).await, BrokerReply::Ack);
    let stranger = Event::builder("acme", "bad", "/others").id(good.id());
    assert_eq!(
        group.receive(&Arc::new(stranger.build().expect("an event"))).await,
        BrokerReply::Ack
    );
    store.faults().next(StoreCall::Open, Fault::Refuse);
    assert_eq!(group.receive(&Arc::new(event("bad"))).await, BrokerReply::Nothing);
    let all = counts(&[
        ("done", 1.0),
        ("replayed", 2.0),
        ("failed", 1.0),
        ("deferred", 1.0),
        ("dead", 3.0),
        ("conflict", 1.0),
        ("error", 1.0),
    ]);
    assert_eq!(of_group(&recorder, "INVENTORY"), all);
    assert_eq!(
        of_group(&recorder, "INVENTORY/audit"),
        audit,
        "the counts of one handler do not include those of another"
    );
}

#[tokio::test]
async fn a_delivery_while_an_event_is_handled_is_counted() {
    let recorder = TestRecorder::default();
    let _here = metrics::set_default_local_recorder(&recorder);
    let (inbox, _) = inbox();
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (starts, goes) = (Arc::clone(&begun), Arc::clone(&go));
    let event = Arc::new(event("slow"));
    let (holder, held) = (inbox.clone(), Arc::clone(&event));
    let handler = move |_, _| async move {
        starts.notify_one();
        goes.notified().await;
        Err::<(), _>("the handler failed")
    };
    let handling = tokio::spawn(async move { holder.handle("INVENTORY", &held, handler).await });
    begun.notified().await;
    let rival = inbox.handle("INVENTORY", &event, |_, _| async { Ok::<_, Failure>(()) }).await;
    assert!(rival.expect("an answer").in_progress());
    assert_eq!(of_group(&recorder, "INVENTORY"), counts(&[("in_progress", 1.0)]));
    let wait = Wait::UpTo(Duration::from_secs(60));
    let patient = inbox.clone().policy(Policy { wait, ..Inbox::<Store>::default_policy() });
    let waiting = tokio::spawn(async move {
        patient.handle("INVENTORY", &event, |_, _| async { Ok::<_, Failure>(()) }).await
    });
    // On one thread, the other task waits after so many yields.
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    go.notify_one();
    assert!(
        handling.await.expect("no panic").is_err() && waiting.await.expect("no panic").is_err()
    );
    let all = counts(&[("in_progress", 1.0), ("failed", 1.0), ("holder_failed", 1.0)]);
    assert_eq!(of_group(&recorder, "INVENTORY"), all);
}

#[tokio::test]
async fn the_gauges_of_a_group_show_the_events_that_it_has_not_handled() {
    let recorder = TestRecorder::default();
    let _here = metrics::set_default_local_recorder(&recorder);
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = FaultyStore::new(MemoryStore::with(1_000, clock.clone()));
    let inbox = Inbox::new(Executor::new(store));
    let group =
        by_type(&inbox).on_fenced_named("audit", "bad", |_, _| async { Err::<(), _>("no") });
    let bad = Arc::new(event("bad"));
    for attempt in 0..3_u32 {
        group.handle(&bad).await;
        clock.advance(Duration::from_secs(1 << attempt));
    }
    for kind in ["bad", "good", "hopeless", "hopeless", "unknown"] {
        group.handle(&Arc::new(event(kind))).await;
    }
    // Failures are counted at the start; none is retried so soon.
    let retrying = group.keep_retrying(Duration::MAX);
    recorder.wait_for("semel_inbox_failed{group=\"INVENTORY\"}", 4.0).await;
    assert_eq!(recorder.get("semel_inbox_max_attempts{group=\"INVENTORY\"}"), Some(3.0));
    assert_eq!(recorder.get("semel_inbox_dead{group=\"INVENTORY\"}"), Some(3.0));
    retrying.stop().await;
    for kept in group.failures(State::Dead, None, 10).await.expect("a list").entries {
        let operated = inbox.executor().discard(&kept.key, "refunded").await.expect("a verb");
        assert_eq!(operated, Operated::Done);
    }
    let retrying = group.keep_retrying(Duration::MAX);
    recorder.wait_for("semel_inbox_dead{group=\"INVENTORY\"}", 0.0).await;
    assert_eq!(recorder.get("semel_inbox_failed{group=\"INVENTORY\"}"), Some(4.0));
    retrying.stop().await;
    // Another group has separate gauges.
    let other = inbox.group("INVENTOR").keep_retrying(Duration::MAX);
    recorder.wait_for("semel_inbox_failed{group=\"INVENTOR\"}", 0.0).await;
    other.stop().await;
    let attempts = recorder.get("semel_inbox_max_attempts{group=\"INVENTOR\"}");
    assert_eq!(
        (attempts, recorder.get("semel_inbox_dead{group=\"INVENTOR\"}")),
        (Some(0.0), Some(0.0))
    );
}

/// The event with the most attempts is found among many failed events.
#[tokio::test]
async fn the_gauge_of_attempts_shows_the_event_with_the_most_attempts() {
    let recorder = TestRecorder::default();
    let _here = metrics::set_default_local_recorder(&recorder);
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = FaultyStore::new(MemoryStore::with(5_000, clock.clone()));
    let inbox = Inbox::new(Executor::new(store));
    let group = by_type(&inbox);
    let mut events: Vec<Arc<Event>> = (0..2_500).map(|_| Arc::new(event("bad"))).collect();
    for event in &events {
        group.handle(event).await;
    }
    // A listing by digest returns this event last.
    let digest = |event: &Event| {
        let id = event.id().to_string();
        let of = (event.tenant(), Principal::global());
        semel_core::Key::new(Kind::Event, of.0, "INVENTORY", of.1, &id).expect("a key").digest()
    };
    events.sort_by_key(|event| digest(event));
    let worst = events.pop().expect("there are many");
    for attempt in 1..15_u32 {
        clock.advance(Duration::from_secs(1 << attempt.min(9)));
        group.handle(&worst).await;
    }
    let waiting = group.waiting().await.expect("memory answers");
    assert_eq!(waiting, Waiting { failed: 2_500, attempts: 15, dead: 0 });
    let retrying = group.keep_retrying(Duration::MAX);
    recorder.wait_for("semel_inbox_failed{group=\"INVENTORY\"}", 2_500.0).await;
    assert_eq!(recorder.get("semel_inbox_max_attempts{group=\"INVENTORY\"}"), Some(15.0));
    retrying.stop().await;
}

#[tokio::test]
async fn the_gauges_of_the_ledger_show_held_claims_and_waiting_records() {
    let recorder = TestRecorder::default();
    let _here = metrics::set_default_local_recorder(&recorder);
    let executor = Executor::new(MemoryStore::new());
    let command = |id: &str| {
        semel_core::Command::new(semel_core::Key::command("acme", "PAY", id).expect("a key"))
    };
    let fail = |_| async { Err::<(), _>("the bank is unreachable") };
    assert!(executor.run(command("1"), fail).await.is_err());
    assert!(executor.run(command("2").max_attempts(1), fail).await.is_err());
    let held = executor.claim(command("3")).await.expect("memory answers");
    executor.sample_held();
    executor.sample_waiting().await.expect("memory answers");
    let number = |state: &str| recorder.get(&format!("semel_records{{state={state:?}}}"));
    assert_eq!(
        (number("running"), number("failed"), number("dead")),
        (Some(1.0), Some(1.0), Some(1.0))
    );
    assert_eq!((number("uncertain"), number("discarded")), (Some(0.0), Some(0.0)));
    assert!(recorder.get("semel_oldest_running_age_seconds").is_some_and(|age| age > 0.0));
    drop(held);
    executor.sample_held();
    assert_eq!(number("running"), Some(0.0));
    assert_eq!(recorder.get("semel_oldest_running_age_seconds"), Some(0.0));
}

#[tokio::test]
async fn no_label_contains_a_key_or_an_id() {
    let recorder = TestRecorder::default();
    let _here = metrics::set_default_local_recorder(&recorder);
    let (inbox, _) = inbox();
    let group = by_type(&inbox);
    let event = Arc::new(event("bad"));
    group.handle(&event).await;
    let _ = inbox
        .executor()
        .run(
            semel_core::Command::new(
                semel_core::Key::command("acme", "PAY", "secret-key").expect("a key"),
            ),
            |_| async { Ok::<_, String>(1) },
        )
        .await;
    let names = recorder.all("semel_");
    assert!(!names.is_empty());
    for (name, _) in names {
        for hidden in [&*event.id().to_string(), "secret-key", "acme"] {
            assert!(!name.contains(hidden), "{name}");
        }
    }
}
