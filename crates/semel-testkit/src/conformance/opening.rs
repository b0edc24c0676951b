//! Opening a key writes it if it is free and reads it if it is not, in one step.
//!
//! The verdict on the record that was read is tested in [`reading`](super::reading).

use semel_core::store::{Draft, Opened, Settlement, Store};
use semel_core::{ErrorText, Fingerprint, OnCrash, State};

use super::test_store::{
    BRIEF, KEEP, TestStore, answer, assert_granted, brief, claim, draft, key, lease, next, success,
};
use crate::fixture::Fixture;

/// One caller is granted a free key; the next caller reads the first one's claim.
pub async fn a_free_key_is_granted_and_the_next_caller_reads_the_claim<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    let (record, _) = test.existing(&draft(&first.key)).await;
    assert_granted(&record, &first, held.fence);
}

/// Every field of a new claim reads back as it was drafted.
pub async fn a_fresh_claim_reads_back_as_it_was_drafted<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for (id, on_crash) in [("a", OnCrash::Rerun), ("b", OnCrash::Hold), ("c", OnCrash::Verify)] {
        let first = Draft { on_crash, ..draft(&key(id)) };
        let held = test.claim(&first).await;
        let record = test.record(&first.key).await;
        assert_granted(&record, &first, held.fence);
        assert_eq!(record.number, 1, "the first write is number 1");
        assert_eq!(record.created_at, record.updated_at, "one reading of the clock");
    }
}

/// The draft of a second caller changes nothing in the record.
pub async fn a_second_open_writes_nothing<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    test.claim(&first).await;
    let before = test.record(&first.key).await;
    let rival = Draft {
        fingerprint: Fingerprint::opaque("another request"),
        owner: "rival:9:z".into(),
        on_crash: OnCrash::Hold,
        keep: BRIEF,
        lease: BRIEF,
        ..draft(&first.key)
    };
    let (shown, _) = test.existing(&rival).await;
    assert_eq!(shown, before);
    assert_eq!(test.record(&first.key).await, before);
}

/// Opening returns the record and the store's clock from the same step.
pub async fn an_open_shows_the_stores_clock_beside_the_record<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    test.claim(&first).await;
    let (record, one) = test.existing(&first).await;
    assert!(record.updated_at <= one, "a write lies in the future of the store's own clock");
    let (_, two) = test.existing(&first).await;
    assert!(one <= two, "the store's clock went back");
    let later =
        test.handle().await.peek(&first.key).await.expect("peek").expect("the record is there");
    assert!(two <= later.now, "two handles read different clocks");
    test.outlive_brief().await;
    let (aged, now) = test.existing(&first).await;
    let age = now.as_micros() - aged.created_at.as_micros();
    assert!(age >= semel_core::clock::micros(BRIEF), "the store's clock did not advance: {age} us");
}

/// The times of a grant lie between the store's clock before and after it.
pub async fn a_grant_is_dated_by_the_stores_clock<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let clock = draft(&key("clock"));
    test.claim(&clock).await;
    let (_, before) = test.existing(&clock).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    let (_, after) = test.existing(&clock).await;
    let record = test.record(&first.key).await;
    assert!(before <= record.created_at && record.created_at <= after);
    let stamped = u64::try_from(record.created_at.as_micros()).expect("after 1970");
    assert!(held.fence.0 >= stamped, "a fence is never behind the store's clock");
}

/// A key whose lease lapsed is still taken: the judge decides what happens to it.
pub async fn a_lapsed_claim_is_still_there<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = brief(&key("k"));
    let held = test.claim(&first).await;
    test.outlive_brief().await;
    let (record, now) = test.existing(&draft(&first.key)).await;
    assert_granted(&record, &first, held.fence);
    assert!(!record.held(now), "the lease is over");
}

/// A record of any state makes its key taken.
pub async fn a_record_of_any_state_is_existing<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for (at, settlement) in super::test_store::settlements().into_iter().enumerate() {
        if settlement == Settlement::Removed {
            continue;
        }
        let first = draft(&key(&format!("k{at}")));
        let held = test.claim(&first).await;
        test.end(&held, &settlement).await;
        let (record, _) = test.existing(&draft(&first.key)).await;
        assert_eq!(record.attempt_id, first.attempt_id, "{settlement:?}");
        assert_ne!(record.state, State::Running, "{settlement:?}");
    }
}

/// An expired record is returned with its expiry, or is gone if the backend removes it by itself;
/// it is never returned as live.
pub async fn an_expired_record_is_shown_as_expired<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    test.end(&held, &Settlement::Succeeded { outcome: answer("1"), keep: BRIEF }).await;
    test.outlive_brief().await;
    match test.open(&draft(&first.key)).await {
        Opened::Existing { record, now } => {
            assert_eq!(record.attempt_id, first.attempt_id);
            assert!(record.expired(now), "the record outlived its retention");
        }
        Opened::Inserted { fence } => {
            assert!(test.fixture.forgets_by_itself(), "an expired record was written over");
            assert!(fence > held.fence);
        }
        Opened::Contended => unreachable!("opening asks again while contended"),
    }
}

/// Claims on different keys are independent.
pub async fn two_keys_are_granted_side_by_side<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let (one, two) = (draft(&key("k1")), draft(&key("k2")));
    let first = test.claim(&one).await;
    let second = test.claim(&two).await;
    assert_granted(&test.record(&one.key).await, &one, first.fence);
    assert_granted(&test.record(&two.key).await, &two, second.fence);
}

/// Reading an unused key returns nothing and writes nothing.
pub async fn an_unused_key_reads_as_nothing<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let unused = key("unused");
    assert!(test.peek(&unused).await.is_none());
    assert!(test.peek(&unused).await.is_none());
    test.claim(&draft(&unused)).await;
}

/// A record that one handle wrote is read, and its key refused, through the other handle.
pub async fn another_handle_meets_the_same_records<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let other = test.handle().await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    match super::test_store::open(&*other, &draft(&first.key)).await {
        Opened::Existing { record, .. } => assert_granted(&record, &first, held.fence),
        granted @ (Opened::Inserted { .. } | Opened::Contended) => {
            panic!("the second handle was granted a taken key: {granted:?}")
        }
    }
    let second = draft(&key("l"));
    let theirs = claim(&*other, &second).await;
    assert_granted(&test.record(&second.key).await, &second, theirs.fence);
    assert_eq!(other.guarantee(), test.store.guarantee());
}

/// A released key starts anew: a new operation id, attempt 1, write 1.
pub async fn a_released_key_starts_anew<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = Draft { attempt: 7, ..draft(&key("k")) };
    let held = test.claim(&first).await;
    test.end(&held, &Settlement::Removed).await;
    let second = draft(&first.key);
    let again = test.claim(&second).await;
    let record = test.record(&first.key).await;
    assert_granted(&record, &second, again.fence);
    assert_eq!((record.number, record.attempt), (1, 1));
    assert_eq!(record.created_at, record.updated_at);
}

/// A caller that read the key before another caller finished, and claims it afterwards, gets the
/// outcome and leaves no claim.
pub async fn a_completion_between_a_miss_and_a_claim_is_found_by_the_claim<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let winner = draft(&key("k"));
    assert!(test.peek(&winner.key).await.is_none(), "the slower caller reads nothing");
    let other = test.handle().await;
    let held = claim(&*other, &winner).await;
    test.end(&held, &success("\"won\"")).await;
    let (record, _) = test.existing(&draft(&winner.key)).await;
    assert_eq!(record.state, State::Succeeded);
    assert_eq!(record.outcome, Some(answer("\"won\"")));
    assert_eq!(test.record(&winner.key).await, record, "no redundant claim remains");
}

/// Opening returns the whole outcome, so that a repeat costs one round trip.
pub async fn an_open_returns_the_outcome_too<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    test.end(&held, &success("{\"order\":\"o-1\"}")).await;
    let (record, _) = test.existing(&draft(&first.key)).await;
    assert_eq!(record.outcome, Some(answer("{\"order\":\"o-1\"}")));
    assert_eq!(record, test.record(&first.key).await, "open and peek show one record");
}

/// The same draft that arrives twice, because a request was sent twice, is granted once.
pub async fn a_draft_that_arrives_twice_is_granted_once<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    let (record, _) = test.existing(&first).await;
    assert_granted(&record, &first, held.fence);
    assert_eq!(record.number, 1);
    assert_eq!(record.lease(first.key.digest()), lease(&first, held.fence));
}

/// The error of a failed record is there until the next attempt is granted.
pub async fn a_grant_after_a_failure_starts_with_a_clean_record<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    let words = ErrorText::new("no stock");
    let settlement = Settlement::Failed { error: words.clone(), retry_after: None, keep: KEEP };
    test.end(&held, &settlement).await;
    let (failed, _) = test.existing(&draft(&first.key)).await;
    assert_eq!(failed.error, Some(words));
    let second = next(&first);
    let again = test.regrant(&second).await;
    assert_granted(&test.record(&first.key).await, &second, again.fence);
}
