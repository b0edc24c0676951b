//! A broker that is down for a whole minute while a relay and a consumer run: what an operator sees
//! meanwhile, and that everything recovers by itself.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel_core::event::{Event, EventId};
use semel_core::inbox::{Consumer, Group, Inbox};
use semel_core::outbox::memory::MemoryOutbox;
use semel_core::outbox::{Outbox, Relay, Relaying, Row, Selection, Status};
use semel_core::store::memory::MemoryStore;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::BrokerFixture;
use super::handling::drained;
use super::shorthand::{GROUP, KIND, Seen, about, event, events, ids, inbox, within};

/// How long an outage lasts, in milliseconds.
static OUTAGE: AtomicU64 = AtomicU64::new(60_000);

/// Sets how long the broker stays down in the behaviours of `outage`, for the whole process.
/// Default a minute. A shorter time is for tests that the suite finds a wrong broker.
pub fn leave_dead_for(span: Duration) {
    OUTAGE.store(u64::try_from(span.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

fn outage() -> Duration {
    Duration::from_millis(OUTAGE.load(Ordering::Relaxed))
}

async fn append(outbox: &MemoryOutbox, events: &[Event]) {
    outbox.append(&mut outbox.clone(), events).await.expect("memory answers");
}

async fn rows(outbox: &MemoryOutbox, status: Option<Status>) -> Vec<Row> {
    let selection = Selection { status, ..Selection::default() };
    outbox.list(&selection, None, 10_000).await.expect("memory answers")
}

/// Waits until every row of the outbox is published.
async fn all_published(outbox: &MemoryOutbox) {
    let looking = async {
        while outbox.backlog().await.expect("memory answers").waiting > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within("everything is published", looking).await;
}

/// Checks what an operator sees while the broker is down: `waiting` events wait, the oldest for at
/// least `age`, and none has used an attempt, failed or been given up.
async fn shows_an_outage(
    outbox: &MemoryOutbox,
    relaying: &Relaying,
    waiting: usize,
    age: Duration,
) {
    let backlog = outbox.backlog().await.expect("memory answers");
    assert_eq!((backlog.waiting, backlog.dead), (waiting as u64, 0));
    let oldest = backlog.oldest.expect("an event waits");
    assert!(oldest >= age, "the oldest event has waited for {oldest:?}, expected {age:?}");
    for row in rows(outbox, None).await.iter().filter(|row| row.status != Status::Published) {
        assert!(matches!(row.status, Status::Pending | Status::Leased), "{row:?}");
        // An attempt in progress counts until the relay gives it back.
        assert!(row.attempts <= u32::from(row.status == Status::Leased), "{row:?}");
        assert_eq!(row.error, None, "{row:?}");
    }
    let status = relaying.status();
    assert_eq!((status.failed, status.dead, status.paused), (0, 0, false));
}

/// Returns a group that records the events that it handles. The handler of the event `held`
/// notifies `begun` and waits for `go`.
fn holding(
    inbox: &Inbox<MemoryStore>,
    seen: &Seen,
    held: EventId,
    (begun, go): (&Arc<Notify>, &Arc<Notify>),
) -> Group<MemoryStore> {
    let (seen, begun, go) = (seen.clone(), Arc::clone(begun), Arc::clone(go));
    inbox.group(GROUP).on_fenced(KIND, move |event, _| {
        let (seen, begun, go) = (seen.clone(), Arc::clone(&begun), Arc::clone(&go));
        async move {
            if event.id() == held {
                begun.notify_one();
                go.notified().await;
            }
            seen.add(event.id());
            Ok::<_, String>(())
        }
    })
}

/// An outage of a minute delays events and does nothing else: no event loses an attempt, events
/// appended meanwhile wait, a running handler finishes, and after the restart every event is
/// published and handled once.
pub async fn a_minute_without_the_broker_costs_nothing_but_time<F: BrokerFixture>(fixture: F) {
    let (inbox, seen, outbox) = (inbox(), Seen::default(), MemoryOutbox::new());
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let in_flight = event();
    let group = holding(&inbox, &seen, in_flight.id(), (&begun, &go));
    let source = fixture.source(GROUP, false).await;
    let consuming = Consumer::new(group.clone(), source).expect("a sound group").start();
    // Three attempts would be used up many times within a minute.
    let relay = Relay::builder(outbox.clone(), fixture.publisher().await).max_attempts(3);
    let relaying = relay.build().expect("sound settings").start();

    let mut sent = events(20);
    append(&outbox, &sent).await;
    append(&outbox, std::slice::from_ref(&in_flight)).await;
    all_published(&outbox).await;
    seen.exactly(&ids(&sent)).await;
    within("the handler begins", begun.notified()).await;
    let before = sent.len() + 1;
    let published = relaying.status().published;
    assert_eq!(published, before as u64);

    fixture.kill().await;
    let (mut began, mut waiting) = (None, Vec::new());
    // Appends during the whole outage: some events with an aggregate, some without.
    loop {
        let more = [event(), about("ord_1"), about("ord_2")];
        append(&outbox, &more).await;
        waiting.extend(more);
        let since = *began.get_or_insert_with(Instant::now);
        let age = since.elapsed().saturating_sub(Duration::from_secs(1));
        shows_an_outage(&outbox, &relaying, waiting.len(), age).await;
        if since.elapsed() >= outage() {
            break;
        }
        tokio::time::sleep((outage() / 12).max(Duration::from_millis(50))).await;
    }
    assert_eq!(relaying.status().published, published, "nothing was confirmed meanwhile");
    assert_eq!(seen.all().len(), sent.len(), "nothing was delivered meanwhile");
    // A message in flight is handled although the broker cannot receive its ack.
    go.notify_one();
    seen.count(sent.len() + 1).await;

    fixture.revive().await;
    sent.extend(waiting);
    sent.push(in_flight);
    let wanted: BTreeSet<EventId> = ids(&sent);
    all_published(&outbox).await;
    seen.exactly(&wanted).await;
    let status = relaying.stop().await;
    assert_eq!((status.published, status.failed, status.dead), (sent.len() as u64, 0, 0));
    consuming.stop().await;
    // The ack of the event in flight was lost: the broker redelivers it, and the inbox recognises
    // it.
    drained(&fixture, group).await;
    seen.exactly(&wanted).await;
}
