//! Sweeping removes expired records and no others, and keeps to its limit.

use std::time::Duration;

use semel_core::store::{Draft, Filter, Settlement};
use semel_core::{ErrorText, OnCrash, State};

use super::test_store::{BRIEF, KEEP, TestStore, answer, brief, draft, key, success};
use crate::fixture::Fixture;

fn expiring(body: &'static str) -> Settlement {
    Settlement::Succeeded { outcome: answer(body), keep: BRIEF }
}

impl<F: Fixture> TestStore<F> {
    /// Sweeps everything and checks that `count` records are removed and none is suspended.
    async fn sweeps(&self, count: u32) {
        let (removed, suspended) = self.sweep_all(100).await;
        assert_eq!(suspended, 0);
        if self.fixture.forgets_by_itself() {
            assert!(removed <= count, "{removed} records removed, {count} were due");
        } else {
            assert_eq!(removed, count, "records removed");
        }
    }
}

/// Successes and failures are removed after their retention.
pub async fn expired_successes_and_failures_are_swept<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let done = test.claim(&draft(&key("done"))).await;
    test.end(&done, &expiring("1")).await;
    for (id, retry_after) in [("final", None), ("due", Some(Duration::ZERO)), ("later", Some(KEEP))]
    {
        let failed = test.claim(&draft(&key(id))).await;
        let error = ErrorText::new("x");
        test.end(&failed, &Settlement::Failed { error, retry_after, keep: BRIEF }).await;
    }
    test.outlive_brief().await;
    test.sweeps(4).await;
    for id in ["done", "final", "due", "later"] {
        assert!(test.peek(&key(id)).await.is_none(), "{id} is still there");
    }
}

/// Records inside their retention stay.
pub async fn records_inside_their_retention_stay<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let done = test.claim(&draft(&key("done"))).await;
    test.end(&done, &success("1")).await;
    let failed = test.claim(&draft(&key("failed"))).await;
    test.end(&failed, &super::test_store::failure("x")).await;
    test.outlive_brief().await;
    test.sweeps(0).await;
    assert_eq!(test.record(&key("done")).await.outcome, Some(answer("1")));
    assert_eq!(test.record(&key("failed")).await.state, State::Failed);
}

/// Dead and uncertain records stay until an operator resolves them, whatever the retention of their
/// claim; discarded ones, which keep their keys from being used again, stay until an operator
/// purges them.
pub async fn dead_and_uncertain_records_are_never_swept<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for (id, settlement) in [
        ("dead", Settlement::Dead { error: ErrorText::new("x") }),
        ("uncertain", Settlement::Uncertain { error: ErrorText::new("x") }),
        ("discarded", Settlement::Discarded { error: ErrorText::new("x") }),
    ] {
        let held = test.claim(&Draft { keep: BRIEF, ..brief(&key(id)) }).await;
        test.end(&held, &settlement).await;
    }
    test.outlive_brief().await;
    test.outlive_brief().await;
    test.sweeps(0).await;
    assert_eq!(test.record(&key("dead")).await.state, State::Dead);
    assert_eq!(test.record(&key("uncertain")).await.state, State::Uncertain);
    assert_eq!(test.record(&key("discarded")).await.state, State::Discarded);
}

/// A claim with a live lease is never swept, however short its retention.
pub async fn a_live_claim_is_never_swept<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for (id, on_crash) in
        [("rerun", OnCrash::Rerun), ("hold", OnCrash::Hold), ("verify", OnCrash::Verify)]
    {
        test.claim(&Draft { keep: BRIEF, on_crash, ..draft(&key(id)) }).await;
    }
    test.outlive_brief().await;
    test.sweeps(0).await;
    for id in ["rerun", "hold", "verify"] {
        let (record, now) = test.existing(&draft(&key(id))).await;
        assert!(record.held(now), "{id}");
    }
}

/// A lapsed claim stays for its retention, so that the next grant is recognised as a takeover.
pub async fn a_lapsed_claim_stays_for_its_retention<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let rerun = brief(&key("rerun"));
    let verify = Draft { on_crash: OnCrash::Verify, ..brief(&key("verify")) };
    test.claim(&rerun).await;
    test.claim(&verify).await;
    test.outlive_brief().await;
    test.sweeps(0).await;
    for first in [rerun, verify] {
        let record = test.record(&first.key).await;
        assert_eq!((record.state, record.attempt_id), (State::Running, first.attempt_id));
    }
}

/// A claim that lapsed longer ago than its retention is removed, or becomes uncertain if it was to
/// be verified.
pub async fn a_claim_that_lapsed_long_ago_is_swept<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    test.claim(&Draft { keep: BRIEF, ..brief(&key("rerun")) }).await;
    let verify = Draft { keep: BRIEF, on_crash: OnCrash::Verify, ..brief(&key("verify")) };
    test.claim(&verify).await;
    test.outlive_brief().await;
    test.outlive_brief().await;
    let (removed, suspended) = test.sweep_all(100).await;
    assert!(removed <= 1, "{removed} removed");
    assert_eq!(suspended, 1);
    assert!(test.peek(&key("rerun")).await.is_none());
    assert_eq!(test.record(&verify.key).await.state, State::Uncertain);
}

/// A lapsed claim under Hold becomes uncertain, with the reason as its error.
pub async fn a_lapsed_claim_under_hold_turns_uncertain<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = Draft { on_crash: OnCrash::Hold, keep: BRIEF, ..brief(&key("k")) };
    let held = test.claim(&first).await;
    test.outlive_brief().await;
    test.outlive_brief().await;
    let before = test.record(&first.key).await;
    assert_eq!(test.sweep_all(100).await, (0, 1));
    let after = test.record(&first.key).await;
    assert_eq!(after.state, State::Uncertain);
    assert!(
        after.error.as_ref().is_some_and(|text| !text.as_str().is_empty()),
        "the record has an error"
    );
    assert_eq!(after.number, before.number + 1);
    assert_eq!((after.attempt_id, after.fence), (first.attempt_id, held.fence));
    assert_eq!(after.operation_id, first.operation_id);
    assert_eq!((after.lease_until, after.expires_at), (None, None));
    assert_eq!(after.completed_at, Some(after.updated_at));
    assert_eq!(test.sweep_all(100).await, (0, 0), "once");
}

/// A sweep does no more than its limit, and returns whether there is more to do.
pub async fn a_sweep_keeps_to_its_limit_and_says_when_there_is_more<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for at in 0..7 {
        let held = test.claim(&draft(&key(&format!("k{at}")))).await;
        test.end(&held, &expiring("1")).await;
    }
    for at in 0..4 {
        let first = Draft { on_crash: OnCrash::Hold, ..brief(&key(&format!("hold{at}"))) };
        test.claim(&first).await;
    }
    test.outlive_brief().await;
    let (mut removed, mut suspended, mut more) = (0, 0, true);
    for _ in 0..50 {
        let swept = test.sweep(2).await;
        let did = swept.removed + swept.suspended;
        assert!(did <= 2, "a sweep of at most 2 did {did}");
        removed += swept.removed;
        suspended += swept.suspended;
        more = swept.more;
        if !more {
            break;
        }
    }
    assert!(!more, "the sweep does not come to an end");
    assert_eq!(suspended, 4);
    assert!(removed == 7 || test.fixture.forgets_by_itself(), "{removed} of 7 removed");
    assert_eq!(test.list(&Filter::default(), 100).await.len(), 4, "only the held ones are left");
}

/// A sweep with nothing to do changes nothing and returns that nothing is left.
pub async fn a_sweep_with_nothing_to_do_says_so<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let empty = test.sweep(100).await;
    assert_eq!((empty.removed, empty.suspended, empty.more), (0, 0, false));
    test.claim(&draft(&key("k"))).await;
    let before = test.record(&key("k")).await;
    let idle = test.sweep(100).await;
    assert_eq!((idle.removed, idle.suspended, idle.more), (0, 0, false));
    assert_eq!(test.record(&key("k")).await, before);
}

/// A swept key is free, and its next record starts with attempt 1.
pub async fn a_swept_key_is_free_again<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = Draft { attempt: 5, ..draft(&key("k")) };
    let held = test.claim(&first).await;
    test.end(&held, &expiring("1")).await;
    test.outlive_brief().await;
    test.sweeps(1).await;
    let second = draft(&first.key);
    let again = test.claim(&second).await;
    let record = test.record(&first.key).await;
    super::test_store::assert_granted(&record, &second, again.fence);
    assert_eq!((record.number, record.attempt), (1, 1));
}

/// A retention of centuries saturates, and the record is never swept.
pub async fn a_retention_of_centuries_is_never_swept<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let centuries = Duration::from_secs(60 * 60 * 24 * 365 * 10_000);
    for (id, keep) in [("ages", centuries), ("ever", Duration::MAX)] {
        let held = test.claim(&Draft { keep, ..draft(&key(id)) }).await;
        test.end(&held, &Settlement::Succeeded { outcome: answer("1"), keep }).await;
        let lapsed = Draft { keep, ..brief(&key(&format!("lapsed-{id}"))) };
        test.claim(&lapsed).await;
    }
    test.outlive_brief().await;
    test.sweeps(0).await;
    for id in ["ages", "ever"] {
        let (record, now) = test.existing(&draft(&key(id))).await;
        assert!(!record.expired(now), "{id}");
        assert_eq!(record.outcome, Some(answer("1")), "{id}");
        let lapsed = test.record(&key(&format!("lapsed-{id}"))).await;
        assert_eq!(lapsed.state, State::Running, "{id}");
    }
}

/// A lease or a delay without end does not wrap round into the past.
pub async fn a_lease_without_end_never_lapses<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = Draft { lease: Duration::MAX, on_crash: OnCrash::Hold, ..draft(&key("k")) };
    let held = test.claim(&first).await;
    test.outlive_brief().await;
    let (record, now) = test.existing(&first).await;
    assert!(record.held(now));
    test.sweeps(0).await;
    assert_eq!(test.renew(&held, Duration::MAX).await, semel_core::store::Renewed::Extended);
    let error = ErrorText::new("x");
    let never = Settlement::Failed { error, retry_after: Some(Duration::MAX), keep: Duration::MAX };
    test.end(&held, &never).await;
    let (record, now) = test.existing(&first).await;
    assert!(record.retry_at.is_some_and(|at| at > now), "{:?}", record.retry_at);
    assert!(!record.expired(now));
}
