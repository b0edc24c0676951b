//! Races between many callers, and between two operations on one key: exactly one wins each time.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel_core::store::{
    Change, Draft, Opened, Renewed, Renewer, Settled, Settlement, Store, Swapped,
};
use semel_core::{Lease, OnCrash, State};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::test_store::{
    BRIEF, LEASE, TestStore, answer, assert_granted, brief, draft, failure, key, lease, next, open,
    settle, success, swap,
};
use crate::fixture::Fixture;

/// The number of concurrent callers in races of many.
const CROWD: usize = 64;
/// The number of rounds in races of two: enough that each side wins some on a two-core machine.
const ROUNDS: usize = 20;

impl<F: Fixture> TestStore<F> {
    /// Runs `count` tasks that start together, spread over two handles, and returns their results.
    async fn crowd<T, Fut>(
        &self,
        count: usize,
        task: impl Fn(usize, Arc<F::Store>) -> Fut,
    ) -> Vec<T>
    where
        T: Send + 'static,
        Fut: Future<Output = T> + Send + 'static,
    {
        let handles = [Arc::clone(&self.store), self.handle().await];
        let start = Arc::new(Barrier::new(count));
        let mut tasks = JoinSet::new();
        for at in 0..count {
            let work = task(at, Arc::clone(&handles[at % 2]));
            let start = Arc::clone(&start);
            tasks.spawn(async move {
                start.wait().await;
                work.await
            });
        }
        let mut answers = Vec::with_capacity(count);
        while let Some(answer) = tasks.join_next().await {
            answers.push(answer.expect("a racing task panicked"));
        }
        answers
    }

    /// Returns one lapsed claim per round; the clock is advanced once for all of them.
    async fn lapsed(&self) -> Vec<(Draft, Lease)> {
        let mut claims = Vec::new();
        for round in 0..ROUNDS {
            let first = brief(&key(&format!("k{round}")));
            let held = self.claim(&first).await;
            claims.push((first, held));
        }
        self.outlive_brief().await;
        claims
    }
}

async fn renew<S: Store>(store: &S, held: &Lease) -> Renewed {
    let mut renewer = store.renewer().await.expect("a renewer");
    loop {
        // Another caller may hold the row for a moment; a heartbeat tries again, and so does this
        // loop.
        match renewer.renew(&[(*held, LEASE)]).await.expect("renew")[0] {
            Renewed::Unknown => tokio::time::sleep(Duration::from_millis(5)).await,
            told @ (Renewed::Extended | Renewed::Lost) => return told,
        }
    }
}

/// Exactly one of many callers is granted a key, and all others read that caller's claim.
pub async fn of_many_opens_exactly_one_is_granted<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for round in 0..3 {
        let key = key(&format!("k{round}"));
        let answers = test
            .crowd(CROWD, |_, store| {
                let mine = draft(&key);
                async move { (mine.clone(), open(&*store, &mine).await) }
            })
            .await;
        let mut granted = answers.iter().filter_map(|(mine, opened)| match opened {
            Opened::Inserted { fence } => Some((mine, *fence)),
            Opened::Existing { .. } | Opened::Contended => None,
        });
        let (winner, fence) = granted.next().expect("one caller is granted a free key");
        assert_eq!(granted.count(), 0, "a second caller was granted the key");
        for (_, opened) in &answers {
            if let Opened::Existing { record, now } = opened {
                assert_granted(record, winner, fence);
                assert!(record.held(*now));
            }
        }
        assert_granted(&test.record(&key).await, winner, fence);
    }
}

/// Opens of different keys all succeed together.
pub async fn opens_of_different_keys_do_not_hinder_each_other<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let answers = test
        .crowd(CROWD, |at, store| async move {
            let mine = draft(&key(&format!("k{at}")));
            (mine.clone(), open(&*store, &mine).await)
        })
        .await;
    for (mine, opened) in answers {
        let Opened::Inserted { fence } = opened else {
            panic!("a key without another caller was not granted: {opened:?}")
        };
        assert_granted(&test.record(&mine.key).await, &mine, fence);
    }
}

/// Of many takeovers that judged the same write, exactly one succeeds.
pub async fn of_many_takeovers_exactly_one_is_done<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for (first, _) in test.lapsed().await.into_iter().take(3) {
        let judged = test.record(&first.key).await.version();
        let answers = test
            .crowd(CROWD / 2, |_, store| {
                let mine = next(&first);
                async move {
                    let change = Change::Regrant(mine.clone());
                    (mine.clone(), swap(&*store, &mine.key, judged, &change).await)
                }
            })
            .await;
        let mut done = answers.iter().filter_map(|(mine, swapped)| match swapped {
            Swapped::Done { fence } => Some((mine, *fence)),
            Swapped::Lost => None,
        });
        let (winner, fence) = done.next().expect("one caller takes a lapsed claim over");
        assert_eq!(done.count(), 0, "two callers took the claim over");
        assert_granted(&test.record(&first.key).await, winner, fence);
    }
}

/// Of many settles under one lease, exactly one succeeds, and its outcome is recorded.
pub async fn of_many_settles_exactly_one_is_done<F: Fixture>(fixture: F) {
    const ANSWERS: [&str; 4] = ["\"a\"", "\"b\"", "\"c\"", "\"d\""];
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    let answers = test
        .crowd(CROWD / 2, |at, store| async move {
            let body = ANSWERS[at % ANSWERS.len()];
            (body, settle(&*store, &held, &success(body)).await)
        })
        .await;
    let done: Vec<_> = answers.iter().filter(|(_, settled)| *settled == Settled::Done).collect();
    assert_eq!(done.len(), 1, "one settle is recorded");
    let record = test.record(&first.key).await;
    assert_eq!(record.outcome, Some(answer(done[0].0)));
    assert_eq!(record.number, 2);
}

/// If a settle races a takeover, exactly one succeeds, and the record is the winner's.
pub async fn a_settle_racing_a_takeover_has_one_winner<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for (round, (first, held)) in test.lapsed().await.into_iter().enumerate() {
        let judged = test.record(&first.key).await.version();
        let second = next(&first);
        let answers = test
            .crowd(2, |at, store| {
                let mine = second.clone();
                async move {
                    // The two sides alternate between the two handles.
                    if (at + round).is_multiple_of(2) {
                        settle(&*store, &held, &success("\"old\"")).await == Settled::Done
                    } else {
                        let change = Change::Regrant(mine.clone());
                        swap(&*store, &mine.key, judged, &change).await != Swapped::Lost
                    }
                }
            })
            .await;
        let wins = answers.iter().filter(|won| **won).count();
        assert_eq!(wins, 1, "round {round}: {wins} winners");
        let record = test.record(&first.key).await;
        assert_eq!(record.number, 2, "one write");
        match record.state {
            State::Succeeded => assert_eq!(record.attempt_id, first.attempt_id),
            State::Running => assert_granted(&record, &second, record.fence),
            State::Failed | State::Dead | State::Uncertain | State::Discarded => {
                panic!("{:?}", record.state)
            }
        }
    }
}

/// If a renewal races a takeover, exactly one succeeds, and a holder that loses gets `Lost`.
pub async fn a_renewal_racing_a_takeover_has_one_winner<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for (round, (first, held)) in test.lapsed().await.into_iter().enumerate() {
        let judged = test.record(&first.key).await.version();
        let second = next(&first);
        let answers = test
            .crowd(2, |at, store| {
                let mine = second.clone();
                async move {
                    if (at + round).is_multiple_of(2) {
                        renew(&*store, &held).await == Renewed::Extended
                    } else {
                        let change = Change::Regrant(mine.clone());
                        swap(&*store, &mine.key, judged, &change).await != Swapped::Lost
                    }
                }
            })
            .await;
        let wins = answers.iter().filter(|won| **won).count();
        assert_eq!(wins, 1, "round {round}: {wins} winners");
        let (record, now) = test.existing(&draft(&first.key)).await;
        assert!(record.held(now) && record.number == 2, "round {round}: {record:?}");
    }
}

/// If sweeps race renewals of lapsed claims, every claim whose renewal returned `Extended` exists
/// and is live.
pub async fn a_sweep_never_takes_a_renewed_claim<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let mut claims = Vec::new();
    for at in 0..ROUNDS {
        let on_crash = if at % 2 == 0 { OnCrash::Rerun } else { OnCrash::Hold };
        let first = Draft { on_crash, keep: BRIEF, ..brief(&key(&format!("k{at}"))) };
        claims.push((first.key.clone(), test.claim(&first).await));
    }
    test.outlive_brief().await;
    test.outlive_brief().await;
    let answers = test
        .crowd(ROUNDS + 2, |at, store| {
            let claim = claims.get(at).cloned();
            async move {
                let Some((key, held)) = claim else {
                    while store.sweep(3).await.expect("sweep").more {}
                    return None;
                };
                Some((key, renew(&*store, &held).await))
            }
        })
        .await;
    for (key, renewed) in answers.into_iter().flatten() {
        let there = test.peek(&key).await;
        match renewed {
            Renewed::Extended => {
                let there = there.expect("an extended claim was swept");
                assert!(there.record.held(there.now), "{:?}", there.record);
            }
            Renewed::Lost => {
                let state = there.map(|peeked| peeked.record.state);
                assert!(matches!(state, None | Some(State::Uncertain)), "{state:?}");
            }
            Renewed::Unknown => unreachable!("repeated until answered"),
        }
    }
}

/// If sweeps race opens of expired keys, every grant is a live claim.
pub async fn a_sweep_never_takes_a_fresh_claim<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for round in 0..5 {
        let keys: Vec<_> = (0..8).map(|at| key(&format!("k{round}-{at}"))).collect();
        for key in &keys {
            let held = test.claim(&draft(key)).await;
            test.end(&held, &Settlement::Succeeded { outcome: answer("1"), keep: BRIEF }).await;
        }
        test.outlive_brief().await;
        let answers = test
            .crowd(keys.len() + 2, |at, store| {
                let mine = keys.get(at).map(draft);
                async move {
                    let Some(mine) = mine else {
                        store.sweep(3).await.expect("sweep");
                        return None;
                    };
                    let fence = match open(&*store, &mine).await {
                        Opened::Inserted { fence } => Some(fence),
                        Opened::Existing { record, .. } => {
                            let change = Change::Replace(mine.clone());
                            match swap(&*store, &mine.key, record.version(), &change).await {
                                Swapped::Done { fence } => Some(fence),
                                Swapped::Lost => None,
                            }
                        }
                        Opened::Contended => None,
                    };
                    fence.map(|fence| (mine, fence))
                }
            })
            .await;
        for (mine, fence) in answers.into_iter().flatten() {
            assert_granted(&test.record(&mine.key).await, &mine, fence);
        }
    }
}

/// A record is never missing during a re-grant: a re-grant is one write, not a removal and an
/// insert.
pub async fn a_record_never_vanishes_while_it_is_regranted<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    let over = Arc::new(AtomicBool::new(false));
    let answers = test
        .crowd(4, |at, store| {
            let (first, over) = (first.clone(), Arc::clone(&over));
            async move {
                if at == 0 {
                    let wrong = grant_over_and_over(&*store, &first, held).await;
                    over.store(true, Ordering::SeqCst);
                    wrong
                } else {
                    watch(&*store, &first, &over).await
                }
            }
        })
        .await;
    let wrong: usize = answers.iter().sum();
    assert_eq!(wrong, 0, "the record was missing or older than before, {wrong} times");
}

/// Fails and re-grants repeatedly; returns how often a re-grant was lost to another write.
async fn grant_over_and_over<S: Store>(store: &S, first: &Draft, mut held: Lease) -> usize {
    let (mut last, mut wrong) = (first.clone(), 0);
    for _ in 0..50 {
        wrong += usize::from(settle(store, &held, &failure("again")).await == Settled::Lost);
        let Some(peeked) = store.peek(&last.key).await.expect("peek") else { return wrong + 1 };
        last = next(&last);
        let change = Change::Regrant(last.clone());
        match swap(store, &last.key, peeked.record.version(), &change).await {
            Swapped::Done { fence } => held = lease(&last, fence),
            Swapped::Lost => wrong += 1,
        }
    }
    wrong
}

/// Reads the record until `over` is set; returns how often it was missing or older than before.
async fn watch<S: Store>(store: &S, first: &Draft, over: &AtomicBool) -> usize {
    let (mut wrong, mut fence, mut number) = (0, None, 0);
    let mut look = 0_usize;
    while !over.load(Ordering::SeqCst) {
        look += 1;
        let seen = if look.is_multiple_of(2) {
            store.peek(&first.key).await.expect("peek").map(|peeked| peeked.record)
        } else {
            match open(store, &draft(&first.key)).await {
                Opened::Existing { record, .. } => Some(*record),
                Opened::Inserted { .. } | Opened::Contended => None,
            }
        };
        match seen {
            Some(record) => {
                wrong += usize::from(Some(record.fence) < fence || record.number < number);
                (fence, number) = (Some(record.fence), record.number);
            }
            None => wrong += 1,
        }
        // A store that never waits would keep this thread busy.
        tokio::task::yield_now().await;
    }
    wrong
}

/// Many callers complete, fail and take over one key: the record counts exactly the writes that
/// were reported as successful, and its fence is the largest granted.
pub async fn a_crowd_of_holders_leaves_one_history<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let shared = key("k");
    let answers = test
        .crowd(8, |at, store| {
            let shared = shared.clone();
            async move {
                let mut writes = 0;
                let mut fences = Vec::new();
                for round in 0..15 {
                    let mine = draft(&shared);
                    let fence = match open(&*store, &mine).await {
                        Opened::Inserted { fence } => Some(fence),
                        Opened::Existing { record, .. } if record.state == State::Failed => {
                            let change = Change::Regrant(mine.clone());
                            match swap(&*store, &shared, record.version(), &change).await {
                                Swapped::Done { fence } => Some(fence),
                                Swapped::Lost => None,
                            }
                        }
                        Opened::Existing { .. } | Opened::Contended => None,
                    };
                    let Some(fence) = fence else {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        continue;
                    };
                    fences.push(fence);
                    let text = format!("{at}-{round}");
                    let settled = settle(&*store, &lease(&mine, fence), &failure(&text)).await;
                    assert_eq!(settled, Settled::Done, "a live holder was refused");
                    writes += 2;
                }
                (writes, fences)
            }
        })
        .await;
    let writes: u64 = answers.iter().map(|(writes, _)| *writes).sum();
    let mut fences: Vec<_> = answers.into_iter().flat_map(|(_, fences)| fences).collect();
    let granted = fences.len();
    fences.sort();
    fences.dedup();
    assert_eq!(fences.len(), granted, "a fence was given twice");
    let record = test.record(&shared).await;
    assert_eq!(record.number, writes, "the record counts other writes than were reported");
    assert_eq!(Some(&record.fence), fences.last());
}

/// Concurrent settles of many keys all succeed, whatever a store batches.
pub async fn settles_of_different_keys_do_not_hinder_each_other<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let mut claims = Vec::new();
    for at in 0..CROWD {
        claims.push(test.claim(&draft(&key(&format!("k{at}")))).await);
    }
    let answers = test
        .crowd(CROWD, |at, store| {
            let held = claims[at];
            // Every fourth settle is stale, in the middle of the others' batch.
            let stale = Lease { fence: semel_core::Fence(held.fence.0 + 1), ..held };
            async move {
                let lease = if at % 4 == 3 { stale } else { held };
                (at, settle(&*store, &lease, &failure(&format!("of {at}"))).await)
            }
        })
        .await;
    for (at, settled) in answers {
        let record = test.record(&key(&format!("k{at}"))).await;
        if at % 4 == 3 {
            assert_eq!((settled, record.state), (Settled::Lost, State::Running), "k{at}");
        } else {
            assert_eq!((settled, record.state), (Settled::Done, State::Failed), "k{at}");
            let words = record.error.expect("a failure has an error");
            assert_eq!(words.as_str(), format!("of {at}"), "an error of another key");
        }
    }
}
