//! Verdicts of the judge on records that the store reads back, for every rule of the judge.

use std::time::Duration;

use semel_core::judge::{Grant, Verdict};
use semel_core::store::{Change, Draft, Settlement};
use semel_core::{ErrorText, Fingerprint, OnCrash, Origin, Recorded};

use super::test_store::{
    BRIEF, KEEP, LEASE, TestStore, answer, brief, draft, failure, key, success,
};
use crate::fixture::Fixture;

fn takeover(of: &Draft, verify: bool) -> Verdict {
    again(of, Origin::Takeover, verify)
}

fn again(of: &Draft, origin: Origin, verify: bool) -> Verdict {
    Verdict::Granted(Grant {
        origin,
        attempt: of.attempt + 1,
        operation_id: Some(of.operation_id),
        verify,
    })
}

fn fresh() -> Verdict {
    let origin = Origin::Fresh;
    Verdict::Granted(Grant { origin, attempt: 1, operation_id: None, verify: false })
}

/// A repeat of a finished request gets the recorded outcome.
pub async fn a_repeat_is_answered_from_the_record<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    test.end(&held, &success("\"done\"")).await;
    let verdict = test.verdict(&first, None).await;
    let Verdict::Completed { outcome, fresh_for } = &verdict else {
        panic!("a finished request was judged {verdict:?}")
    };
    assert_eq!(*outcome, answer("\"done\""));
    assert!(*fresh_for <= KEEP && *fresh_for > KEEP - Duration::from_secs(600));
}

/// Another request under the same key is refused, before and after the first one finished.
pub async fn another_request_under_the_key_is_a_mismatch<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let other = Draft { fingerprint: Fingerprint::opaque("other"), ..draft(&first.key) };
    let held = test.claim(&first).await;
    assert_eq!(test.verdict(&other, None).await, Verdict::Mismatch, "422 beats 409");
    test.end(&held, &success("1")).await;
    assert_eq!(test.verdict(&other, None).await, Verdict::Mismatch);
    let any = Draft { fingerprint: Fingerprint::none(), ..draft(&first.key) };
    assert!(matches!(test.verdict(&any, None).await, Verdict::Completed { .. }));
}

/// While the holder's lease runs, other callers get `Running` with the time left.
pub async fn a_live_claim_is_judged_running<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    test.claim(&first).await;
    let verdict = test.verdict(&first, None).await;
    let Verdict::Running { lease_remaining: Some(left) } = &verdict else {
        panic!("a live claim was judged {verdict:?}")
    };
    assert!(*left <= LEASE && !left.is_zero());
}

/// A crashed attempt is taken over under its own operation id.
pub async fn a_lapsed_claim_is_judged_a_takeover<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = brief(&key("k"));
    test.claim(&first).await;
    test.outlive_brief().await;
    assert_eq!(test.verdict(&first, None).await, takeover(&first, false));
}

/// The crash policy of the stored claim decides, not the caller's.
pub async fn a_lapsed_claim_is_judged_by_its_own_crash_policy<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let hold = Draft { on_crash: OnCrash::Hold, ..brief(&key("hold")) };
    let verify = Draft { on_crash: OnCrash::Verify, ..brief(&key("verify")) };
    test.claim(&hold).await;
    test.claim(&verify).await;
    test.outlive_brief().await;
    let caller = |first: &Draft| Draft { on_crash: OnCrash::Rerun, ..draft(&first.key) };
    let held = test.judged(&caller(&hold), None, true).await;
    assert!(matches!(held, Verdict::Suspend { .. }), "{held:?}");
    assert_eq!(test.judged(&caller(&verify), None, true).await, takeover(&verify, true));
    let blind = test.judged(&caller(&verify), None, false).await;
    assert!(matches!(blind, Verdict::Suspend { .. }), "{blind:?}");
}

/// A due failure is granted again under the same operation id.
pub async fn a_due_failure_is_judged_a_retry<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    test.end(&held, &failure("no stock")).await;
    assert_eq!(test.verdict(&first, None).await, again(&first, Origin::AfterFailure, false));
}

/// A failure that is not due is returned with its error and the time to wait; later it is due.
pub async fn a_failure_backs_off_until_it_is_due<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for (id, delay) in [("long", LEASE), ("short", BRIEF)] {
        let held = test.claim(&draft(&key(id))).await;
        let error = ErrorText::new("no stock");
        test.end(&held, &Settlement::Failed { error, retry_after: Some(delay), keep: KEEP }).await;
    }
    test.outlive_brief().await;
    let verdict = test.verdict(&draft(&key("long")), None).await;
    let Verdict::Backoff { retry_after, attempt, error } = &verdict else {
        panic!("a failure that is not due was judged {verdict:?}")
    };
    assert!(*retry_after < LEASE && !retry_after.is_zero());
    assert_eq!((*attempt, error.as_str()), (1, "no stock"));
    let due = test.verdict(&draft(&key("short")), None).await;
    assert!(
        matches!(&due, Verdict::Granted(Grant { origin: Origin::AfterFailure, .. })),
        "{due:?}"
    );
}

/// A failure without a retry is final.
pub async fn a_failure_without_a_retry_is_final<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    let error = ErrorText::new("card refused");
    test.end(&held, &Settlement::Failed { error: error.clone(), retry_after: None, keep: KEEP })
        .await;
    assert_eq!(test.verdict(&first, None).await, Verdict::FailedFinal { error });
}

/// Crashes and failures both count as attempts, and after the last one the record is to be buried.
pub async fn used_up_attempts_are_judged_for_burial<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let failing = Draft { attempt: 20, ..draft(&key("failing")) };
    let held = test.claim(&failing).await;
    test.end(&held, &failure("no stock")).await;
    let verdict = test.verdict(&failing, Some(20)).await;
    let Verdict::Bury { error } = &verdict else {
        panic!("attempt 20 of 20 was judged {verdict:?}")
    };
    assert_eq!(error.as_str(), "exceeded maxRetry (20): no stock");
    assert_eq!(
        test.verdict(&failing, Some(21)).await,
        again(&failing, Origin::AfterFailure, false)
    );
    let crashing = Draft { attempt: 3, ..brief(&key("crashing")) };
    test.claim(&crashing).await;
    test.outlive_brief().await;
    assert!(matches!(test.verdict(&crashing, Some(3)).await, Verdict::Bury { .. }));
}

/// Dead and uncertain records return their error until an operator resolves them.
pub async fn dead_and_uncertain_records_stay_what_they_are<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let error = ErrorText::new("given up");
    let (dead, uncertain) = (draft(&key("dead")), draft(&key("uncertain")));
    let held = test.claim(&dead).await;
    test.end(&held, &Settlement::Dead { error: error.clone() }).await;
    test.claim(&uncertain).await;
    let change = Change::Settle(Settlement::Uncertain { error: error.clone() });
    test.change(&uncertain.key, &change).await;
    test.outlive_brief().await;
    assert_eq!(test.verdict(&dead, None).await, Verdict::Dead { error: error.clone() });
    assert_eq!(test.verdict(&uncertain, None).await, Verdict::Uncertain { error });
}

/// A repeat of a discarded operation gets the reason.
pub async fn a_discarded_record_is_given_up_and_says_why<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    test.end(&held, &Settlement::Dead { error: ErrorText::new("no stock") }).await;
    let error = ErrorText::new("refunded by hand");
    test.change(&first.key, &Change::Settle(Settlement::Discarded { error })).await;
    test.outlive_brief().await;
    let error = ErrorText::new("discarded: refunded by hand");
    assert_eq!(test.verdict(&first, None).await, Verdict::Dead { error });
}

/// A key whose outcome expired can be used for another request.
pub async fn an_expired_key_may_be_used_for_another_request<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    test.end(&held, &Settlement::Succeeded { outcome: answer("1"), keep: BRIEF }).await;
    test.outlive_brief().await;
    let other = Draft { fingerprint: Fingerprint::opaque("other"), ..draft(&first.key) };
    if test.fixture.forgets_by_itself() && test.peek(&first.key).await.is_none() {
        test.claim(&other).await;
    } else {
        assert_eq!(test.verdict(&other, None).await, fresh(), "expiry is judged first");
    }
}

/// An outcome that was too large to keep still prevents a second execution, and its size is
/// returned.
pub async fn an_omitted_answer_still_blocks_a_second_execution<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    let outcome = Recorded::Omitted { bytes: 5 << 20 };
    test.end(&held, &Settlement::Succeeded { outcome: outcome.clone(), keep: KEEP }).await;
    let verdict = test.verdict(&first, None).await;
    let Verdict::Completed { outcome: shown, .. } = &verdict else {
        panic!("a finished request was judged {verdict:?}")
    };
    assert_eq!(*shown, outcome);
}
