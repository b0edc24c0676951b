//! Batches of a relay: how large they are, and what holds however large they are and however many are in
//! progress at once.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::event::EventId;
use semel_core::outbox::memory::MemoryOutbox;
use semel_core::outbox::{
    Applied, Backlog, Bell, ClaimRequest, Cleaned, Disposition, Leased, Marked, Outbox, Partition,
    PublishError, Publisher, Relay, Row, RowAction, Selection, Status, Ticket,
};
use semel_core::store::Result;
use semel_core::{Clock, Event, Timestamp};
use tokio::sync::Notify;

const LEASE: Duration = Duration::from_secs(600);

fn event(aggregate: Option<usize>, bytes: usize) -> Event {
    let builder = Event::builder("acme", "order.placed", "/orders");
    let builder = match aggregate {
        Some(id) => builder.about("order", &id.to_string()),
        None => builder,
    };
    builder.payload("application/octet-stream", vec![7; bytes]).build().expect("an event")
}

/// What the broker was given, with a pause before each confirm.
#[derive(Clone, Default)]
struct Log {
    state: Arc<Mutex<Published>>,
    pause: Duration,
}

#[derive(Default)]
struct Published {
    calls: Vec<Vec<Event>>,
    in_flight: HashSet<Partition>,
    confirmed: Vec<Event>,
}

impl Log {
    fn calls(&self) -> Vec<usize> {
        self.state.lock().expect("sound").calls.iter().map(Vec::len).collect()
    }

    fn confirmed(&self) -> Vec<EventId> {
        self.state.lock().expect("sound").confirmed.iter().map(Event::id).collect()
    }

    /// That the first confirms of every partition are in the order of `appended`, and none is missing.
    fn assert_complete_and_in_order(&self, appended: &[Event]) {
        let orders = |events: &mut dyn Iterator<Item = &Event>| {
            let (mut seen, mut orders) = (HashSet::new(), HashMap::<_, Vec<EventId>>::new());
            for event in events.filter(|event| seen.insert(event.id())) {
                orders.entry(Partition::of(event)).or_default().push(event.id());
            }
            orders
        };
        let state = self.state.lock().expect("sound");
        assert_eq!(orders(&mut state.confirmed.iter()), orders(&mut appended.iter()));
    }
}

impl Publisher for Log {
    async fn publish(&self, events: &[Event]) -> Vec<std::result::Result<(), PublishError>> {
        let partitions: Vec<Partition> = events.iter().filter_map(Partition::of).collect();
        {
            let mut state = self.state.lock().expect("sound");
            state.calls.push(events.to_vec());
            for partition in &partitions {
                let free = state.in_flight.insert(*partition);
                assert!(free, "two events of a partition are in flight");
            }
        }
        if self.pause.is_zero() {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(self.pause).await;
        }
        let mut state = self.state.lock().expect("sound");
        state.in_flight.retain(|partition| !partitions.contains(partition));
        state.confirmed.extend(events.iter().cloned());
        vec![Ok(()); events.len()]
    }
}

/// An outbox that notes what it is asked for, and whose marks can be held.
struct Noted {
    outbox: MemoryOutbox,
    asks: Mutex<Vec<(ClaimRequest, usize)>>,
    holds_marks: AtomicBool,
    held: Notify,
}

impl Noted {
    fn new(outbox: &MemoryOutbox) -> Arc<Self> {
        Arc::new(Self {
            outbox: outbox.clone(),
            asks: Mutex::default(),
            holds_marks: AtomicBool::new(false),
            held: Notify::new(),
        })
    }
}

impl Outbox for Noted {
    type Connection = MemoryOutbox;

    async fn append(&self, connection: &mut MemoryOutbox, events: &[Event]) -> Result<()> {
        self.outbox.append(connection, events).await
    }

    async fn claim(&self, ask: ClaimRequest) -> Result<Vec<Leased>> {
        let leased = self.outbox.claim(ask).await?;
        self.asks.lock().expect("sound").push((ask, leased.len()));
        Ok(leased)
    }

    async fn mark(&self, marks: &[(Ticket, Disposition)]) -> Result<Vec<Marked>> {
        if self.holds_marks.load(Ordering::Relaxed) {
            self.held.notify_one();
            std::future::pending::<()>().await;
        }
        self.outbox.mark(marks).await
    }

    async fn backlog(&self) -> Result<Backlog> {
        self.outbox.backlog().await
    }

    async fn list(&self, chosen: &Selection, after: Option<u64>, limit: u32) -> Result<Vec<Row>> {
        self.outbox.list(chosen, after, limit).await
    }

    async fn count(&self, selection: &Selection, verb: &RowAction) -> Result<u64> {
        self.outbox.count(selection, verb).await
    }

    async fn apply(
        &self,
        selection: &Selection,
        verb: &RowAction,
        after: Option<u64>,
        limit: u32,
    ) -> Result<Applied> {
        self.outbox.apply(selection, verb, after, limit).await
    }

    async fn clean(&self, keep: Duration, limit: u32) -> Result<Cleaned> {
        self.outbox.clean(keep, limit).await
    }

    fn bell(&self) -> &Bell {
        self.outbox.bell()
    }
}

async fn holding(events: &[Event]) -> (MemoryOutbox, Clock) {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let outbox = MemoryOutbox::with_clock(clock.clone());
    outbox.append(&mut outbox.clone(), events).await.expect("appended");
    (outbox, clock)
}

async fn published(outbox: &MemoryOutbox) -> usize {
    let selection = Selection { status: Some(Status::Published), ..Selection::default() };
    outbox.list(&selection, None, u32::MAX).await.expect("a list").len()
}

async fn until_empty(outbox: &MemoryOutbox) {
    let empty = async {
        while outbox.backlog().await.expect("a backlog").waiting > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), empty).await.expect("in time");
}

#[tokio::test]
async fn batches_grow_while_the_backlog_lasts_and_shrink_at_its_end() {
    let events: Vec<Event> = (0..3_550).map(|_| event(None, 1)).collect();
    let ((outbox, _), log) = (holding(&events).await, Log::default());
    let relay = Relay::builder(outbox.clone(), log.clone()).lease(LEASE).build().expect("valid");
    assert_eq!(relay.drain().await.expect("drained").published, 3_550);
    assert_eq!(log.calls(), [100, 200, 400, 800, 1_000, 1_000, 50]);
    let more: Vec<Event> = (0..1_000).map(|_| event(None, 1)).collect();
    outbox.append(&mut outbox.clone(), &more).await.expect("appended");
    relay.pass().await.expect("a pass");
    let last = *log.calls().last().expect("a batch");
    assert!(
        (100..=250).contains(&last),
        "it was halved with every claim that was not full: {last}"
    );
}

#[tokio::test]
async fn a_batch_is_bounded_by_its_bytes_however_many_rows_wait() {
    let events: Vec<Event> = (0..400).map(|_| event(None, 10_000)).collect();
    let ((outbox, _), log) = (holding(&events).await, Log::default());
    let relay = Relay::builder(outbox, log.clone()).lease(LEASE).batch_bytes(1 << 20);
    relay.build().expect("valid").drain().await.expect("drained");
    let calls = log.calls();
    assert_eq!(calls.iter().sum::<usize>(), 400);
    assert!(calls.contains(&104), "{calls:?}");
    assert!(calls.iter().all(|events| events * 10_000 <= 1 << 20), "{calls:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_stay_in_order_across_batches_and_relays() {
    let events: Vec<Event> = (0..12_000).map(|at| event(Some(at * 7 % 190), 1)).collect();
    let ((outbox, _), log) = (holding(&events).await, Log::default());
    let relays: Vec<_> = (0..2)
        .map(|_| {
            let relay = Relay::builder(outbox.clone(), log.clone()).lease(LEASE).at_once(3);
            relay.build().expect("valid").start()
        })
        .collect();
    until_empty(&outbox).await;
    for relay in relays {
        relay.stop().await;
    }
    log.assert_complete_and_in_order(&events);
    assert_eq!(log.confirmed().len(), events.len(), "each once");
}

#[tokio::test]
async fn a_relay_killed_between_confirm_and_mark_of_a_big_batch_loses_nothing() {
    let events: Vec<Event> = (0..1_500).map(|at| event(Some(at % 600), 1)).collect();
    let ((outbox, clock), log) = (holding(&events).await, Log::default());
    let noted = Noted::new(&outbox);
    let doomed = Relay::<Noted, _>::builder(Arc::clone(&noted), log.clone()).lease(LEASE).build();
    let doomed = doomed.expect("valid");
    for _ in 0..2 {
        doomed.pass().await.expect("a pass");
    }
    noted.holds_marks.store(true, Ordering::Relaxed);
    let killed = tokio::spawn(async move { doomed.pass().await });
    noted.held.notified().await;
    killed.abort();
    assert!(killed.await.expect_err("killed").is_cancelled());
    assert_eq!(log.confirmed().len(), 700, "the third batch was confirmed");
    assert_eq!(published(&outbox).await, 300, "and not marked");
    let next = Relay::builder(outbox.clone(), log.clone()).lease(LEASE).build().expect("valid");
    next.drain().await.expect("drained");
    assert!(published(&outbox).await < 1_500, "its partitions wait for its leases");
    clock.advance(LEASE + Duration::from_secs(1));
    next.drain().await.expect("drained");
    assert_eq!(published(&outbox).await, 1_500);
    log.assert_complete_and_in_order(&events);
    let twice = log.confirmed().len() - 1_500;
    assert_eq!(twice, 400, "only what was confirmed and not marked is published again");
}

#[tokio::test]
async fn a_big_batch_that_outlasts_its_lease_is_given_back_in_time() {
    let events: Vec<Event> = (0..100).map(|_| event(Some(1), 1)).collect();
    let (outbox, _) = holding(&events).await;
    let log = Log { pause: Duration::from_millis(100), ..Log::default() };
    let lease = Duration::from_secs(2);
    let relay = Relay::builder(outbox.clone(), log.clone()).lease(lease).build().expect("valid");
    let since = std::time::Instant::now();
    let pass = relay.pass().await.expect("a pass");
    assert!(since.elapsed() < lease, "{:?}", since.elapsed());
    assert_eq!((pass.claimed, pass.lost, pass.retried), (100, 0, 0));
    assert!((1..=10).contains(&pass.published) && pass.published + pass.untried == 100, "{pass:?}");
    let rows = outbox.list(&Selection::default(), None, 100).await.expect("a list");
    let untried = rows.iter().filter(|row| (row.status, row.attempts) == (Status::Pending, 0));
    assert_eq!(untried.count(), pass.untried as usize);
}

#[tokio::test]
async fn a_claim_beside_a_batch_in_progress_leaves_what_may_wait_for_it() {
    let events: Vec<Event> = (0..50).map(|at| event(Some(at % 5), 1)).collect();
    let (outbox, _) = holding(&events).await;
    let log = Log { pause: Duration::from_millis(20), ..Log::default() };
    let noted = Noted::new(&outbox);
    let relay = Relay::<Noted, _>::builder(Arc::clone(&noted), log.clone())
        .lease(LEASE)
        .batch(10)
        .at_once(2);
    let relaying = relay.build().expect("valid").start();
    until_empty(&outbox).await;
    relaying.stop().await;
    log.assert_complete_and_in_order(&events);
    let asks = noted.asks.lock().expect("sound");
    let first = asks.iter().position(|(_, got)| *got > 0).expect("a batch");
    let last = asks.iter().rposition(|(_, got)| *got > 0).expect("a batch");
    let beside = asks[first + 1..last].iter().filter(|(_, got)| *got == 0);
    assert!(beside.clone().count() > 0, "no claim met a batch in progress: {asks:?}");
    let further = beside.filter(|(ask, _)| ask.look_further).count();
    assert_eq!(further, 0, "{asks:?}");
}
