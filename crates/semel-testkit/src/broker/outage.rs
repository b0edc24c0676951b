//! A broker that is away for a whole minute, with a relay and a consumer at it all the time: what an
//! operator sees meanwhile, and that everything recovers by itself.

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

/// In milliseconds.
static OUTAGE: AtomicU64 = AtomicU64::new(60_000);

/// For how long the behaviours of outages leave a broker dead, in this process from now on. Default
/// a minute; less is for tests that a wrong one is found.
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

/// Waits until nothing waits to be published.
async fn all_published(outbox: &MemoryOutbox) {
    let looking = async {
        while outbox.backlog().await.expect("memory answers").waiting > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within("everything is published", looking).await;
}

/// What an operator sees while the broker is away: so many events wait and grow old, and not one has
/// used up a try, failed or been given up.
async fn shows_an_outage(
    outbox: &MemoryOutbox,
    relaying: &Relaying,
    waiting: usize,
    age: Duration,
) {
    let backlog = outbox.backlog().await.expect("memory answers");
    assert_eq!((backlog.waiting, backlog.dead), (waiting as u64, 0));
    let oldest = backlog.oldest.expect("something waits");
    assert!(oldest >= age, "the oldest has waited for {oldest:?} and not {age:?}");
    for row in rows(outbox, None).await.iter().filter(|row| row.status != Status::Published) {
        assert!(matches!(row.status, Status::Pending | Status::Leased), "{row:?}");
        // A try that is under way is counted until it is given back.
        assert!(row.attempts <= u32::from(row.status == Status::Leased), "{row:?}");
        assert_eq!(row.error, None, "{row:?}");
    }
    let standing = relaying.standing();
    assert_eq!((standing.failed, standing.dead, standing.paused), (0, 0, false));
}

/// A group that notes what it handles. The event that `held` names is noted once it is let go.
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

/// A minute without a broker costs nothing but time: no event loses a try, what is appended waits,
/// what was in hands is finished, and when the broker is back everything is delivered and handled
/// once.
pub async fn a_minute_without_the_broker_costs_nothing_but_time<F: BrokerFixture>(fixture: F) {
    let (inbox, seen, outbox) = (inbox(), Seen::default(), MemoryOutbox::new());
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let in_hands = event();
    let group = holding(&inbox, &seen, in_hands.id(), (&begun, &go));
    let source = fixture.source(GROUP, false).await;
    let consuming = Consumer::new(group.clone(), source).expect("a sound group").start();
    // Three tries: in a minute they would be used up many times over.
    let relay = Relay::builder(outbox.clone(), fixture.publisher().await).max_attempts(3);
    let relaying = relay.build().expect("sound settings").start();

    let mut sent = events(20);
    append(&outbox, &sent).await;
    append(&outbox, std::slice::from_ref(&in_hands)).await;
    all_published(&outbox).await;
    seen.exactly(&ids(&sent)).await;
    within("the handler begins", begun.notified()).await;
    let before = sent.len() + 1;
    let published = relaying.standing().published;
    assert_eq!(published, before as u64);

    fixture.kill().await;
    let (mut began, mut waiting) = (None, Vec::new());
    // The whole time long: some about one thing, some about nothing in particular.
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
    assert_eq!(relaying.standing().published, published, "nothing was confirmed meanwhile");
    assert_eq!(seen.all().len(), sent.len(), "nothing was brought meanwhile");
    // Messages in flight are handled although the broker cannot be told.
    go.notify_one();
    seen.count(sent.len() + 1).await;

    fixture.revive().await;
    sent.extend(waiting);
    sent.push(in_hands);
    let wanted: BTreeSet<EventId> = ids(&sent);
    all_published(&outbox).await;
    seen.exactly(&wanted).await;
    let standing = relaying.stop().await;
    assert_eq!((standing.published, standing.failed, standing.dead), (sent.len() as u64, 0, 0));
    consuming.stop().await;
    // The ack of what was in hands was lost: it comes again, and is recognised.
    drained(&fixture, group).await;
    seen.exactly(&wanted).await;
}
