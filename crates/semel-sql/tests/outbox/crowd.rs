//! Tests any outbox with a large backlog: several claimers share it, and a resting partition hides
//! no other.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::event::Event;
use semel_core::outbox::{ClaimRequest, Disposition, Leased, Marked, Outbox, Partition, Selection};
use semel_testkit::OutboxFixture;
use tokio::task::JoinSet;

const LEASE: Duration = Duration::from_secs(600);

pub(crate) fn about(id: &str) -> Event {
    let builder = Event::builder("acme", "order.placed", "/orders").about("order", id);
    builder.build().expect("a valid event")
}

pub(crate) async fn put<F: OutboxFixture>(fixture: &F, outbox: &F::Outbox, events: &[Event]) {
    let mut transaction = fixture.begin(outbox).await;
    outbox.append(F::connection(&mut transaction), events).await.expect("written");
    fixture.commit(outbox, transaction).await;
}

/// The events that all claimers published.
#[derive(Default)]
struct Log {
    in_hand: HashSet<u64>,
    published: Vec<(Partition, u64)>,
}

/// Handles the rows of one claim: most are published one after another; now and then one is given
/// back, with the later rows of its partition.
async fn publish_some<O: Outbox>(outbox: &O, leased: Vec<Leased>, log: &Mutex<Log>) {
    let mut held: HashSet<Partition> = HashSet::new();
    let mut marks = Vec::new();
    for row in leased {
        let envelope = row.envelope.expect("it can be read");
        let partition = Partition::of(&envelope).expect("it has an aggregate");
        let sequence = row.ticket.sequence;
        let mut log = log.lock().expect("sound");
        if held.contains(&partition) || fastrand::u8(..) < 20 {
            held.insert(partition);
            log.in_hand.remove(&sequence);
            marks.push((row.ticket, Disposition::Untried));
        } else {
            log.published.push((partition, sequence));
            marks.push((row.ticket, Disposition::Published));
        }
    }
    let marked = outbox.mark(&marks).await.expect("marked");
    assert_eq!(marked, vec![Marked::Done; marks.len()]);
}

/// Lets several claimers with their own handles publish these events, a few at a time, and asserts
/// that no row is leased twice and every partition is published in order.
async fn share<F: OutboxFixture>(fixture: &F, events: &[Event], claimers: usize, most: u32) {
    let rows = events.len();
    let log: Arc<Mutex<Log>> = Arc::default();
    let mut crowd = JoinSet::new();
    for _ in 0..claimers {
        let (outbox, log) = (fixture.outbox().await, Arc::clone(&log));
        crowd.spawn(async move {
            while log.lock().expect("sound").published.len() < rows {
                let limit = fastrand::u32(1..=most);
                let leased = outbox.claim(ClaimRequest::new(limit, LEASE)).await.expect("a claim");
                {
                    let mut log = log.lock().expect("sound");
                    let twice = leased.iter().any(|row| !log.in_hand.insert(row.ticket.sequence));
                    assert!(!twice, "a row was leased twice");
                }
                if leased.is_empty() {
                    tokio::task::yield_now().await;
                } else {
                    publish_some(&outbox, leased, &log).await;
                }
            }
        });
    }
    crowd.join_all().await;
    let log = log.lock().expect("sound");
    assert_eq!(log.published.len(), rows);
    let mut last: HashMap<Partition, u64> = HashMap::new();
    for (partition, sequence) in &log.published {
        let before = last.insert(*partition, *sequence);
        assert!(before.is_none_or(|before| before < *sequence), "a partition is out of order");
    }
    let partitions: HashSet<Partition> = events.iter().filter_map(Partition::of).collect();
    assert_eq!(last.len(), partitions.len());
}

/// Eight claimers publish 2,000 events of 50 partitions.
pub(crate) async fn claimers_share_a_backlog<F: OutboxFixture>(fixture: F) {
    let partitions: Vec<String> = (0..50).map(|n| format!("ord_{n}")).collect();
    let events: Vec<Event> = (0..2_000).map(|n| about(&partitions[n % partitions.len()])).collect();
    put(&fixture, &fixture.outbox().await, &events).await;
    share(&fixture, &events, 8, 40).await;
}

/// Three partitions, one behind the other, each with more rows than a small claim scans: waiting
/// rows are put off and woken all the time, beside claims and marks, and none is forgotten.
pub(crate) async fn claimers_share_what_is_put_off<F: OutboxFixture>(fixture: F) {
    let outbox = fixture.outbox().await;
    let mut events = Vec::new();
    for name in ["first", "second", "third"] {
        let followers: Vec<Event> = (0..400).map(|_| about(name)).collect();
        put(&fixture, &outbox, &followers).await;
        events.extend(followers);
    }
    share(&fixture, &events, 6, 4).await;
}

/// A resting partition with more rows than a claim scans at first does not hide the rows behind
/// them; and when it continues, it continues in order.
pub(crate) async fn rows_beyond_the_window_are_found<F: OutboxFixture>(fixture: F) {
    let outbox = fixture.outbox().await;
    put(&fixture, &outbox, &[about("resting")]).await;
    let one = ClaimRequest::new(1, LEASE);
    let head = outbox.claim(one).await.expect("a claim").remove(0);
    let rest = Disposition::Retry { after: LEASE, error: semel_core::ErrorText::new("no luck") };
    assert_eq!(outbox.mark(&[(head.ticket, rest)]).await.expect("marked"), [Marked::Done]);
    let followers: Vec<Event> = (0..1_100).map(|_| about("resting")).collect();
    put(&fixture, &outbox, &followers).await;
    let behind = about("other");
    put(&fixture, &outbox, std::slice::from_ref(&behind)).await;
    let leased = outbox.claim(one).await.expect("a claim");
    let ids: Vec<_> = leased.iter().map(|row| row.envelope.as_ref().expect("read").id()).collect();
    assert_eq!(ids, [behind.id()]);
    assert!(outbox.claim(one).await.expect("a claim").is_empty());
    fixture.advance(LEASE + Duration::from_secs(1)).await;
    let leased = outbox.claim(ClaimRequest::new(50, LEASE)).await.expect("a claim");
    let lapsed = leased.iter().filter(|row| row.ticket.sequence != head.ticket.sequence);
    let mut run: Vec<u64> = lapsed.map(|row| row.ticket.sequence).collect();
    assert_eq!(leased[0].ticket.sequence, head.ticket.sequence);
    assert_eq!(run.len(), 49);
    run.dedup_by_key(|sequence| *sequence);
    assert!(run.is_sorted() && run.len() == 49);
}

/// A claim that is not to look further puts off nothing and finds what is there at first, which may be
/// nothing.
pub(crate) async fn a_claim_that_looks_no_further_writes_nothing<F: OutboxFixture>(fixture: F) {
    let outbox = fixture.outbox().await;
    put(&fixture, &outbox, &[about("leased")]).await;
    let one = ClaimRequest::new(1, LEASE);
    let head = outbox.claim(one).await.expect("a claim").remove(0);
    let followers: Vec<Event> = (0..1_100).map(|_| about("leased")).collect();
    put(&fixture, &outbox, &followers).await;
    put(&fixture, &outbox, &[about("other")]).await;
    let rows = || async { outbox.list(&Selection::default(), None, 2_000).await.expect("a list") };
    let before = rows().await;
    let near = ClaimRequest { look_further: false, ..one };
    assert!(outbox.claim(near).await.expect("a claim").is_empty());
    assert!(rows().await == before, "rows were put off");
    let marked = outbox.mark(&[(head.ticket, Disposition::Published)]).await.expect("marked");
    assert_eq!(marked, [Marked::Done]);
    assert_eq!(outbox.claim(near).await.expect("a claim").len(), 1, "its partition goes on");
    assert_eq!(outbox.claim(one).await.expect("a claim").len(), 1, "and so does the other");
    assert!(rows().await != before);
}

/// A claim of a thousand rows takes the first of every partition, and those that follow without a gap; one that
/// is marked as a whole lets the rest go on.
pub(crate) async fn a_big_claim_leaves_no_gap<F: OutboxFixture>(fixture: F) {
    let outbox = fixture.outbox().await;
    let orders: Vec<String> = (0..700).map(|order| format!("ord_{order}")).collect();
    let events: Vec<Event> = (0..1_900).map(|at| about(&orders[at % orders.len()])).collect();
    put(&fixture, &outbox, &events).await;
    let mut published: HashMap<Partition, Vec<u64>> = HashMap::new();
    for expected in [1_000, 900, 0] {
        let leased = outbox.claim(ClaimRequest::new(1_000, LEASE)).await.expect("a claim");
        assert_eq!(leased.len(), expected);
        let mut marks = Vec::with_capacity(expected);
        for row in leased {
            let partition = Partition::of(&row.envelope.expect("read")).expect("it has one");
            published.entry(partition).or_default().push(row.ticket.sequence);
            marks.push((row.ticket, Disposition::Published));
        }
        assert!(expected == 0 || published.len() == orders.len(), "{}", published.len());
        let marked = outbox.mark(&marks).await.expect("marked");
        assert!(marked.iter().all(|marked| *marked == Marked::Done));
    }
    let stored = outbox.list(&Selection::default(), None, 2_000).await.expect("a list");
    let mut expected: HashMap<Partition, Vec<u64>> = HashMap::new();
    for row in stored {
        let partition = Partition::of(&row.envelope.expect("read")).expect("it has one");
        expected.entry(partition).or_default().push(row.sequence);
    }
    assert!(published == expected, "a partition has a gap or is out of order");
}
