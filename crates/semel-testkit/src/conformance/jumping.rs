//! A clock that is set a day ahead and back again: kept records are not lost, and records written
//! meanwhile do not last a day longer than they should.

use std::time::Duration;

use semel_core::judge::Verdict;
use semel_core::store::{Filter, Settled, Settlement};
use semel_core::{Command, Error, ErrorText, Execution, OnFailure, Outcome, State};

use super::test_store::{KEEP, TestStore, draft, key, success};
use super::work::{LEASE, PAST_LEASE, Work, command, executor, value};
use crate::Fixture;

/// Longer than any retention here.
const JUMP: Duration = Duration::from_secs(25 * 60 * 60);

/// The sweeper removes nothing while the clock has jumped ahead, and continues once it is right
/// again.
pub async fn nothing_is_swept_by_a_clock_that_has_jumped<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let done = test.claim(&draft(&key("done"))).await;
    test.end(&done, &success("1")).await;
    let brief = test.claim(&draft(&key("brief"))).await;
    let outcome = super::test_store::answer("2");
    test.end(&brief, &Settlement::Succeeded { outcome, keep: Duration::from_secs(1) }).await;
    assert!(!test.sweep(100).await.clock_suspect);
    if !test.fixture.sweep_respects_watermark() {
        return;
    }
    let jumped = test.fixture.jump(JUMP, true).await;
    for _ in 0..3 {
        let swept = test.sweep(100).await;
        assert_eq!((swept.clock_suspect, swept.removed), (jumped, 0), "{swept:?}");
    }
    test.fixture.jump(JUMP, false).await;
    test.fixture.advance(Duration::from_secs(2)).await;
    let swept = test.sweep(100).await;
    assert!(!swept.clock_suspect && swept.removed <= 1, "{swept:?}");
    assert!(test.peek(&key("brief")).await.is_none(), "an expired record is still there");
    assert_eq!(test.record(&key("done")).await.state, State::Succeeded);
}

/// A success is replayed after the jump as before it.
pub async fn a_success_survives_a_jump<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let kept = || command().keep(KEEP);
    assert_eq!(value(&work.run(&executor, kept()).await), "run 1");
    if !fixture.sweep_respects_watermark() {
        return;
    }
    fixture.jump(JUMP, true).await;
    executor.sweep(100).await.expect("swept");
    fixture.jump(JUMP, false).await;
    assert_eq!(value(&work.run(&executor, kept()).await), "run 1");
    assert_eq!(work.runs(), 1);
}

fn left(execution: &Execution<String>) -> Duration {
    let Execution::InProgress { lease_remaining, .. } = execution else {
        panic!("not in progress: {execution:?}");
    };
    lease_remaining.expect("a lease")
}

/// A claim made while the clock was ahead, whose holder is gone, is free after one lease.
pub async fn a_claim_made_during_a_jump_lasts_for_its_lease<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let test = TestStore::set(fixture).await;
    test.fixture.jump(JUMP, true).await;
    test.claim(&draft(&super::work::key())).await;
    test.fixture.jump(JUMP, false).await;
    test.fixture.advance(Duration::from_secs(1)).await;
    let plain = || Command::new(super::work::key()).lease(LEASE);
    let first = work.run(&executor, plain()).await.expect("an answer");
    assert!(left(&first) <= LEASE, "{:?} are left of {LEASE:?}", left(&first));
    test.fixture.advance(LEASE / 2).await;
    let second = work.run(&executor, plain()).await.expect("an answer");
    assert!(left(&second) <= LEASE, "{:?}", left(&second));
    test.fixture.advance(PAST_LEASE / 2 + Duration::from_secs(1)).await;
    let third = work.run(&executor, plain()).await;
    assert_eq!(value(&third), "run 1", "not free after one lease: {third:?}");
}

/// A live holder keeps its claim: its lease starts again with its own length.
pub async fn a_holder_keeps_its_claim_over_a_jump<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let test = TestStore::set(fixture).await;
    test.fixture.jump(JUMP, true).await;
    let held = test.claim(&draft(&super::work::key())).await;
    test.fixture.jump(JUMP, false).await;
    let rival = work.run(&executor, command()).await.expect("an answer");
    assert!(left(&rival) <= LEASE, "{:?} are left of {LEASE:?}", left(&rival));
    assert_eq!(test.settle(&held, &success("\"held\"")).await, Settled::Done);
    assert_eq!(value(&work.run(&executor, command()).await), "held");
    assert_eq!(work.runs(), 0);
}

/// A failure backs off for its own time, whatever the clock was when it failed; a failure that is
/// due at once is due at once.
pub async fn a_failure_during_a_jump_backs_off_for_its_time<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let pause = Duration::from_secs(60);
    let backoff = || command().on_failure(OnFailure::Backoff { base: pause, cap: pause });
    fixture.jump(JUMP, true).await;
    assert!(matches!(work.fail(&executor, backoff()).await, Err(Error::Work(_))));
    fixture.jump(JUMP, false).await;
    match work.run(&executor, backoff()).await {
        Err(Error::Backoff { retry_after, .. }) => assert!(retry_after <= pause, "{retry_after:?}"),
        other => panic!("no backoff: {other:?}"),
    }
    fixture.advance(pause + Duration::from_secs(1)).await;
    assert_eq!(value(&work.run(&executor, backoff()).await), "run 2");
}

/// A search for due records also finds those written while the clock was ahead, so that their times
/// are corrected.
pub async fn what_a_jump_has_put_off_is_found<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let retry_payload = Some(Outcome::new(Outcome::JSON, "{}"));
    test.fixture.jump(JUMP, true).await;
    test.claim(&semel_core::store::Draft { retry_payload, ..draft(&key("running")) }).await;
    let failed = test.claim(&draft(&key("failed"))).await;
    let error = ErrorText::new("no");
    let retry_after = Some(Duration::from_secs(60));
    test.end(&failed, &Settlement::Failed { error, retry_after, keep: KEEP }).await;
    let moved = test.fixture.jump(JUMP, false).await;
    let due = Filter { due: true, ..Filter::default() };
    assert_eq!(test.list(&due, 10).await.len(), if moved { 2 } else { 0 });
    for id in ["running", "failed"] {
        let verdict = test.verdict(&draft(&key(id)), None).await;
        assert_eq!(matches!(verdict, Verdict::Redate { .. }), moved, "{verdict:?}");
        test.change(&key(id), &semel_core::store::Change::Redate).await;
    }
    assert!(test.list(&due, 10).await.is_empty());
}
