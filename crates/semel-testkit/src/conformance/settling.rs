//! Settling a claim under its lease: what is written, with which times, and that it is written
//! once.
//!
//! Leases of former holders are in [`fencing`](super::fencing).

use std::time::Duration;

use semel_core::store::{Settled, Settlement};
use semel_core::{ErrorText, Outcome, Record, Recorded, Reference, State};

use super::test_store::{
    BRIEF, KEEP, TestStore, answer, brief, draft, failure, key, next, settlements, success,
};
use crate::fixture::Fixture;

/// Checks the fields that settling must not change.
fn assert_same_grant(after: &Record, before: &Record) {
    assert_eq!(after.number, before.number + 1, "every write counts");
    assert_eq!(after.fingerprint, before.fingerprint);
    assert_eq!(after.operation_id, before.operation_id);
    assert_eq!(after.attempt_id, before.attempt_id);
    assert_eq!(after.attempt, before.attempt);
    assert_eq!(after.fence, before.fence);
    assert_eq!(after.owner, before.owner);
    assert_eq!(after.on_crash, before.on_crash);
    assert_eq!(after.keep, before.keep);
    assert_eq!(after.created_at, before.created_at);
    assert!(after.updated_at >= before.updated_at);
    assert_eq!(after.completed_at, Some(after.updated_at), "one reading of the clock");
    assert_eq!(after.lease_until, None);
}

async fn settled<F: Fixture>(
    test: &TestStore<F>,
    id: &str,
    settlement: &Settlement,
) -> (Record, Record) {
    let held = test.claim(&draft(&key(id))).await;
    let before = test.record(&key(id)).await;
    test.end(&held, settlement).await;
    (before, test.record(&key(id)).await)
}

/// A success is stored with its whole outcome, and its retention starts with its completion.
pub async fn a_success_is_stored_whole_and_expires_after_its_keep<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let reference = Reference::new("ord_01J").expect("valid");
    let outcome = Outcome::new("application/json", "{\"id\":1}").with_reference(reference);
    let keep = Duration::from_secs(3_600);
    let settlement = Settlement::Succeeded { outcome: Recorded::Whole(outcome.clone()), keep };
    let (before, after) = settled(&test, "k", &settlement).await;
    assert_same_grant(&after, &before);
    assert_eq!(after.state, State::Succeeded);
    assert_eq!(after.outcome, Some(Recorded::Whole(outcome)));
    assert_eq!(after.error, None);
    assert_eq!(after.retry_at, None);
    assert_eq!(
        after.expires_at,
        Some(after.updated_at.after(keep)),
        "the settlement's keep counts"
    );
}

/// A failure is stored with its error, its due time and its own retention.
pub async fn a_failure_is_stored_with_its_words_and_its_due_time<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let error = ErrorText::new("upstream said 503");
    let (delay, keep) = (Duration::from_millis(1_500), Duration::from_secs(77));
    let settlement = Settlement::Failed { error: error.clone(), retry_after: Some(delay), keep };
    let (before, after) = settled(&test, "k", &settlement).await;
    assert_same_grant(&after, &before);
    assert_eq!(after.state, State::Failed);
    assert_eq!(after.error, Some(error));
    assert_eq!(after.outcome, None);
    assert_eq!(after.retry_at, Some(after.updated_at.after(delay)));
    assert_eq!(after.expires_at, Some(after.updated_at.after(keep)));
}

/// A failure that is due at once has the current time as its due time; one that is never due has
/// none.
pub async fn a_failure_may_be_due_at_once_or_never<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let (_, at_once) = settled(&test, "once", &failure("x")).await;
    assert_eq!(at_once.retry_at, Some(at_once.updated_at));
    let never = Settlement::Failed { error: ErrorText::new("x"), retry_after: None, keep: KEEP };
    let (_, never) = settled(&test, "never", &never).await;
    assert_eq!(never.retry_at, None);
    assert_eq!(never.state, State::Failed);
    assert!(never.expires_at.is_some());
}

/// Dead, uncertain and discarded records keep their errors and do not expire.
pub async fn dead_and_uncertain_records_do_not_expire<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let error = ErrorText::new("exceeded maxRetry (20): x");
    for (id, settlement, state) in [
        ("dead", Settlement::Dead { error: error.clone() }, State::Dead),
        ("uncertain", Settlement::Uncertain { error: error.clone() }, State::Uncertain),
        ("discarded", Settlement::Discarded { error: error.clone() }, State::Discarded),
    ] {
        let (before, after) = settled(&test, id, &settlement).await;
        assert_same_grant(&after, &before);
        assert_eq!(after.state, state);
        assert_eq!(after.error, Some(error.clone()));
        assert_eq!((after.outcome, after.retry_at, after.expires_at), (None, None, None));
    }
}

/// A released claim leaves no record.
pub async fn a_release_leaves_nothing_behind<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    test.end(&held, &Settlement::Removed).await;
    assert!(test.peek(&first.key).await.is_none());
    assert!(test.list(&semel_core::store::Filter::default(), 10).await.is_empty());
}

/// A recorded settlement is final for its holder: any second settlement is refused.
pub async fn a_settled_claim_cannot_be_settled_again<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for (at, first) in settlements().iter().enumerate() {
        let key = key(&format!("k{at}"));
        let held = test.claim(&draft(&key)).await;
        test.end(&held, first).await;
        let before = test.peek(&key).await.map(|peeked| peeked.record);
        for second in &settlements() {
            assert_eq!(test.settle(&held, second).await, Settled::Lost, "{first:?}, {second:?}");
        }
        let after = test.peek(&key).await.map(|peeked| peeked.record);
        assert_eq!(before, after, "after {first:?} a second settle was refused, but wrote");
    }
}

/// A success after a failed attempt keeps nothing of the failure.
pub async fn a_success_after_a_failure_carries_no_trace_of_it<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    test.end(&held, &failure("no stock")).await;
    let second = next(&first);
    let again = test.regrant(&second).await;
    test.end(&again, &success("\"ok\"")).await;
    let record = test.record(&first.key).await;
    assert_eq!((record.state, record.error, record.retry_at), (State::Succeeded, None, None));
    assert_eq!((record.attempt, record.operation_id), (2, first.operation_id));
    assert_eq!(record.number, 4, "grant, failure, grant, success");
}

/// A holder whose lease lapsed without a takeover can still settle.
pub async fn a_late_holder_whom_nobody_replaced_may_still_settle<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = brief(&key("k"));
    let held = test.claim(&first).await;
    test.outlive_brief().await;
    test.end(&held, &success("\"late\"")).await;
    assert_eq!(test.record(&first.key).await.outcome, Some(answer("\"late\"")));
}

/// The retention starts with the completion, not with the claim.
pub async fn retention_counts_from_the_completion<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    test.outlive_brief().await;
    let keep = Duration::from_secs(60);
    test.end(&held, &Settlement::Succeeded { outcome: answer("1"), keep }).await;
    let record = test.record(&first.key).await;
    let ran = record.updated_at.as_micros() - record.created_at.as_micros();
    assert!(ran >= semel_core::clock::micros(BRIEF), "completion is dated when it happened");
    assert_eq!(record.expires_at, record.completed_at.map(|at| at.after(keep)));
}

/// Settling one key does not change other keys.
pub async fn settling_one_key_leaves_its_neighbour_alone<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let (one, two) = (draft(&key("k1")), draft(&key("k2")));
    let first = test.claim(&one).await;
    test.claim(&two).await;
    let before = test.record(&two.key).await;
    test.end(&first, &success("1")).await;
    assert_eq!(test.record(&two.key).await, before);
}

/// Settling a claim that does not exist is lost, and creates nothing.
pub async fn settling_what_was_never_claimed_is_lost<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let never = super::test_store::lease(&draft(&key("never")), semel_core::Fence(1));
    for settlement in &settlements() {
        assert_eq!(test.settle(&never, settlement).await, Settled::Lost);
    }
    assert!(test.peek(&key("never")).await.is_none());
}
