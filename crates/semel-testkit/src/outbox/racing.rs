//! Concurrent calls on separate handles: no row is claimed twice, and none is forgotten.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::event::{Event, EventId};
use semel_core::outbox::{
    ClaimRequest, Disposition, Marked, Outbox, Partition, RowAction, Selection, Status,
};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::OutboxFixture;
use super::shorthand::*;

const CROWD: usize = 6;

/// Runs `act` on `CROWD` handles at once and returns all results.
async fn crowd<F, T, D, Fut>(fixture: &F, act: D) -> Vec<T>
where
    F: OutboxFixture,
    T: Send + 'static,
    D: Fn(usize, Arc<F::Outbox>) -> Fut,
    Fut: Future<Output = T> + Send + 'static,
{
    let start = Arc::new(Barrier::new(CROWD));
    let mut racing = JoinSet::new();
    for at in 0..CROWD {
        let start = Arc::clone(&start);
        let acting = act(at, Arc::new(fixture.outbox().await));
        racing.spawn(async move {
            start.wait().await;
            acting.await
        });
    }
    racing.join_all().await
}

/// Claims `limit` rows at a time until claims stay empty.
async fn claim_until_empty<O: Outbox>(outbox: &O, limit: u32) -> Vec<EventId> {
    let (mut mine, mut empty) = (Vec::new(), 0);
    // A claim may return nothing while other callers hold the rows. The bound on `mine` is for an
    // outbox whose claims never end.
    while empty < 20 && mine.len() < 1_000 {
        let leased = claim(outbox, limit).await;
        empty = if leased.is_empty() { empty + 1 } else { 0 };
        mine.extend(leased_ids(&leased));
        tokio::task::yield_now().await;
    }
    mine
}

/// No two concurrent claimers get the same row, and together they get all rows.
pub async fn claimers_never_share_a_row<F: OutboxFixture>(fixture: F) {
    let events = events(200);
    let outbox = outbox_with(&fixture, &events).await;
    let taken =
        crowd(&fixture, |_, outbox| async move { claim_until_empty(&*outbox, 7).await }).await;
    let mut all: Vec<EventId> = taken.into_iter().flatten().collect();
    let different: HashSet<EventId> = all.iter().copied().collect();
    assert_eq!(all.len(), different.len(), "a row was claimed twice");
    all.extend(leased_ids(&claim_all(&outbox).await));
    assert_eq!(sorted(all), sorted(ids(&events)), "a row was never claimed");
}

/// Publishes all claimable rows. The first attempt of every fifth row fails, and the later rows of
/// its partition are given back.
async fn publish_until_empty<O: Outbox>(outbox: &O, log: &Mutex<Vec<Event>>) {
    let mut empty = 0;
    while empty < 20 {
        let leased = claim(outbox, 5).await;
        empty = if leased.is_empty() { empty + 1 } else { 0 };
        let mut failed: HashSet<Option<Partition>> = HashSet::new();
        for row in leased {
            let envelope = row.envelope.expect("the row can be read");
            let disposition = if failed.contains(&Partition::of(&envelope)) {
                Disposition::Untried
            } else if row.attempt == 1 && row.ticket.sequence.is_multiple_of(5) {
                failed.insert(Partition::of(&envelope));
                retry(Duration::ZERO)
            } else {
                log.lock().expect("sound").push(envelope);
                Disposition::Published
            };
            assert_eq!(mark(outbox, row.ticket, disposition).await, Marked::Done);
        }
    }
}

/// Concurrent claimers with occasional failures keep the order within each partition.
pub async fn claimers_keep_partitions_in_order<F: OutboxFixture>(fixture: F) {
    let partitions: Vec<String> = (0..8).map(|at| format!("order-{at}")).collect();
    let events: Vec<Event> =
        (0..15).flat_map(|_| partitions.iter().map(|partition| about(partition))).collect();
    let outbox = outbox_with(&fixture, &events).await;
    let log: Arc<Mutex<Vec<Event>>> = Arc::default();
    let work = |_, outbox: Arc<F::Outbox>| {
        let log = Arc::clone(&log);
        async move { publish_until_empty(&*outbox, &log).await }
    };
    crowd(&fixture, work).await;
    // Publishes rows that the others left because they competed for them too often.
    publish_until_empty(&outbox, &log).await;
    let mut published: HashMap<String, Vec<EventId>> = HashMap::new();
    for envelope in log.lock().expect("sound").iter() {
        let partition = envelope.aggregate().expect("every event has an aggregate").id.to_string();
        published.entry(partition).or_default().push(envelope.id());
    }
    for partition in &partitions {
        let appended: Vec<EventId> = events
            .iter()
            .filter(|event| event.aggregate().is_some_and(|about| *about.id == **partition))
            .map(Event::id)
            .collect();
        assert_eq!(published.get(partition), Some(&appended), "{partition}");
    }
}

/// A lapsed row is claimed by exactly one of many.
pub async fn a_lapsed_row_goes_to_one_of_many<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &[event()]).await;
    for attempt in [2, 4, 6] {
        claim_all(&outbox).await;
        fixture.advance(PAST_LEASE).await;
        let successors =
            crowd(&fixture, |_, outbox| async move { claim_all(&*outbox).await }).await;
        let successors: Vec<_> = successors.into_iter().flatten().collect();
        assert_eq!(successors.len(), 1, "{successors:?}");
        assert_eq!(successors[0].attempt, attempt);
        mark_all(&outbox, &successors, &retry(Duration::ZERO)).await;
    }
}

/// Of many concurrent marks of one lease, exactly one is accepted.
pub async fn of_many_marks_exactly_one_is_done<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &[event()]).await;
    let ticket = claim_one(&outbox).await.ticket;
    let dispositions = every_disposition();
    let marked = crowd(&fixture, |at, outbox| {
        let disposition = dispositions[at % dispositions.len()].clone();
        async move { mark(&*outbox, ticket, disposition).await }
    })
    .await;
    let done = marked.iter().filter(|marked| **marked == Marked::Done).count();
    assert_eq!(done, 1, "{marked:?}");
}

/// If a late mark races a new claim of the row, exactly one of them succeeds.
pub async fn a_mark_racing_a_takeover_has_one_winner<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &[event()]).await;
    for _ in 0..10 {
        let leased = claim_one(&outbox).await;
        fixture.advance(PAST_LEASE).await;
        let (there, ask) = (fixture.outbox().await, ClaimRequest::new(1, LEASE));
        let (marked, successors) =
            tokio::join!(mark(&outbox, leased.ticket, retry(LEASE)), there.claim(ask));
        let successors = successors.expect("a claim");
        assert_eq!(marked == Marked::Done, successors.is_empty(), "{marked:?}, {successors:?}");
        mark_all(&outbox, &successors, &retry(LEASE)).await;
        fixture.advance(PAST_LEASE).await;
    }
}

/// All events that are appended concurrently are there; an event that all callers append is there
/// once.
pub async fn what_many_append_is_all_there<F: OutboxFixture>(fixture: F) {
    let fixture = Arc::new(fixture);
    let (shared, own): (Event, Vec<Event>) = (event(), events(CROWD * 5));
    let appended = |at: usize, outbox: Arc<F::Outbox>| {
        let (fixture, shared) = (Arc::clone(&fixture), shared.clone());
        let own = own[at * 5..][..5].to_vec();
        async move {
            for event in own {
                put(&*fixture, &*outbox, &[shared.clone(), event]).await;
            }
        }
    };
    crowd(&*fixture, appended).await;
    let outbox = fixture.outbox().await;
    let mut expected = ids(&own);
    expected.push(shared.id());
    assert_eq!(sorted(leased_ids(&claim_all(&outbox).await)), sorted(expected));
}

/// Claims and marks run concurrently with cleaning, counting and redrives, and no event is lost.
pub async fn nothing_is_lost_beside_an_operator<F: OutboxFixture>(fixture: F) {
    let events = events(120);
    let outbox = outbox_with(&fixture, &events).await;
    let work = |at: usize, outbox: Arc<F::Outbox>| async move {
        let mut confirmed = Vec::new();
        for _ in 0..40 {
            if at == 0 {
                let _ = outbox.clean(Duration::ZERO, 5).await.expect("a cleaning");
                let failed = in_status(Status::Failed);
                apply(&*outbox, &failed, &RowAction::Redrive, 3).await;
                outbox.backlog().await.expect("a backlog");
                continue;
            }
            for (nth, row) in claim(&*outbox, 3).await.into_iter().enumerate() {
                let disposition = if nth == 2 { retry(LEASE) } else { Disposition::Published };
                assert_eq!(mark(&*outbox, row.ticket, disposition.clone()).await, Marked::Done);
                confirmed.extend((disposition == Disposition::Published).then(|| id_of(&row)));
            }
        }
        confirmed
    };
    let mut confirmed: Vec<EventId> = crowd(&fixture, work).await.into_iter().flatten().collect();
    apply(&outbox, &Selection::default(), &RowAction::Redrive, ALL).await;
    confirmed.extend(settle(&outbox, &Disposition::Published).await);
    assert_eq!(sorted(confirmed), sorted(ids(&events)), "each event once, none lost");
}
