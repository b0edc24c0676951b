//! Opening a key: it is written if it is free, and read if it is not, in one step.
//!
//! What the answer *means* is the judge's business; see [`reading`](super::reading).

use semel_core::store::{Draft, Opened, Settlement, Store};
use semel_core::{ErrorText, Fingerprint, OnCrash, State};

use super::scene::{
    BRIEF, KEEP, Scene, answer, assert_granted, brief, claim, draft, key, lease, next, success,
};
use crate::fixture::Fixture;

/// One caller gets a free key; the next one is shown the first one's claim.
pub async fn a_free_key_is_granted_and_the_next_caller_reads_the_claim<F: Fixture>(fixture: F) {
    let scene = Scene::set(fixture).await;
    let first = draft(&key("k"));
    let held = scene.claim(&first).await;
    let (record, _) = scene.existing(&draft(&first.key)).await;
    assert_granted(&record, &first, held.fence);
}

/// Every field of a fresh claim reads back as it was drafted.
pub async fn a_fresh_claim_reads_back_as_it_was_drafted<F: Fixture>(fixture: F) {
    let scene = Scene::set(fixture).await;
    for (id, on_crash) in [("a", OnCrash::Rerun), ("b", OnCrash::Hold), ("c", OnCrash::Verify)] {
        let first = Draft { on_crash, ..draft(&key(id)) };
        let held = scene.claim(&first).await;
        let record = scene.record(&first.key).await;
        assert_granted(&record, &first, held.fence);
        assert_eq!(record.number, 1, "the first write is number 1");
        assert_eq!(record.created_at, record.updated_at, "one reading of the clock");
    }
}

/// Nothing of a second caller's draft reaches the record.
pub async fn a_second_open_writes_nothing<F: Fixture>(fixture: F) {
    let scene = Scene::set(fixture).await;
    let first = draft(&key("k"));
    scene.claim(&first).await;
    let before = scene.record(&first.key).await;
    let rival = Draft {
        fingerprint: Fingerprint::opaque("another request"),
        owner: "rival:9:z".into(),
        on_crash: OnCrash::Hold,
        keep: BRIEF,
        lease: BRIEF,
        ..draft(&first.key)
    };
    let (shown, _) = scene.existing(&rival).await;
    assert_eq!(shown, before);
    assert_eq!(scene.record(&first.key).await, before);
}

/// The record and the clock come from the same step.
pub async fn an_open_shows_the_stores_clock_beside_the_record<F: Fixture>(fixture: F) {
    let scene = Scene::set(fixture).await;
    let first = draft(&key("k"));
    scene.claim(&first).await;
    let (record, one) = scene.existing(&first).await;
    assert!(record.updated_at <= one, "a write lies in the future of the store's own clock");
    let (_, two) = scene.existing(&first).await;
    assert!(one <= two, "the store's clock went back");
    let later = scene.handle().await.peek(&first.key).await.expect("peek").expect("it is there");
    assert!(two <= later.now, "two handles read different clocks");
    scene.outlive_brief().await;
    let (aged, now) = scene.existing(&first).await;
    let age = now.as_micros() - aged.created_at.as_micros();
    assert!(
        age >= semel_core::clock::micros(BRIEF),
        "time passed, but not for the store: {age} us"
    );
}

/// Times of a grant lie between the store's own readings before and after it.
pub async fn a_grant_is_dated_by_the_stores_clock<F: Fixture>(fixture: F) {
    let scene = Scene::set(fixture).await;
    let clock = draft(&key("clock"));
    scene.claim(&clock).await;
    let (_, before) = scene.existing(&clock).await;
    let first = draft(&key("k"));
    let held = scene.claim(&first).await;
    let (_, after) = scene.existing(&clock).await;
    let record = scene.record(&first.key).await;
    assert!(before <= record.created_at && record.created_at <= after);
    let stamped = u64::try_from(record.created_at.as_micros()).expect("after 1970");
    assert!(held.fence.0 >= stamped, "a fence is never behind the store's clock");
}

/// A key whose holder let the lease lapse is still taken: the judge decides what happens to it.
pub async fn a_lapsed_claim_is_still_there<F: Fixture>(fixture: F) {
    let scene = Scene::set(fixture).await;
    let first = brief(&key("k"));
    let held = scene.claim(&first).await;
    scene.outlive_brief().await;
    let (record, now) = scene.existing(&draft(&first.key)).await;
    assert_granted(&record, &first, held.fence);
    assert!(!record.held(now), "the lease is over");
}

/// No state makes a key free.
pub async fn a_record_of_any_state_is_existing<F: Fixture>(fixture: F) {
    let scene = Scene::set(fixture).await;
    for (at, settlement) in super::scene::settlements().into_iter().enumerate() {
        if settlement == Settlement::Removed {
            continue;
        }
        let first = draft(&key(&format!("k{at}")));
        let held = scene.claim(&first).await;
        scene.end(&held, &settlement).await;
        let (record, _) = scene.existing(&draft(&first.key)).await;
        assert_eq!(record.attempt_id, first.attempt_id, "{settlement:?}");
        assert_ne!(record.state, State::Running, "{settlement:?}");
    }
}

/// An expired record is shown with its expiry, or is gone where the backend forgets by itself;
/// it is never shown as live.
pub async fn an_expired_record_is_shown_as_expired<F: Fixture>(fixture: F) {
    let scene = Scene::set(fixture).await;
    let first = draft(&key("k"));
    let held = scene.claim(&first).await;
    scene.end(&held, &Settlement::Succeeded { outcome: answer("1"), keep: BRIEF }).await;
    scene.outlive_brief().await;
    match scene.open(&draft(&first.key)).await {
        Opened::Existing { record, now } => {
            assert_eq!(record.attempt_id, first.attempt_id);
            assert!(record.expired(now), "the record outlived its retention");
        }
        Opened::Inserted { fence } => {
            assert!(scene.fixture.forgets_by_itself(), "an expired record was written over");
            assert!(fence > held.fence);
        }
        Opened::Contended => unreachable!("opening asks again while contended"),
    }
}

/// Claims on different keys do not meet.
pub async fn two_keys_are_granted_side_by_side<F: Fixture>(fixture: F) {
    let scene = Scene::set(fixture).await;
    let (one, two) = (draft(&key("k1")), draft(&key("k2")));
    let first = scene.claim(&one).await;
    let second = scene.claim(&two).await;
    assert_granted(&scene.record(&one.key).await, &one, first.fence);
    assert_granted(&scene.record(&two.key).await, &two, second.fence);
}

/// Reading an unused key gives nothing and leaves nothing.
pub async fn an_unused_key_reads_as_nothing<F: Fixture>(fixture: F) {
    let scene = Scene::set(fixture).await;
    let unused = key("unused");
    assert!(scene.peek(&unused).await.is_none());
    assert!(scene.peek(&unused).await.is_none());
    scene.claim(&draft(&unused)).await;
}

/// What one handle wrote, the other reads and guards.
pub async fn another_handle_meets_the_same_records<F: Fixture>(fixture: F) {
    let scene = Scene::set(fixture).await;
    let other = scene.handle().await;
    let first = draft(&key("k"));
    let held = scene.claim(&first).await;
    match super::scene::open(&*other, &draft(&first.key)).await {
        Opened::Existing { record, .. } => assert_granted(&record, &first, held.fence),
        granted @ (Opened::Inserted { .. } | Opened::Contended) => {
            panic!("the second handle was granted a taken key: {granted:?}")
        }
    }
    let second = draft(&key("l"));
    let theirs = claim(&*other, &second).await;
    assert_granted(&scene.record(&second.key).await, &second, theirs.fence);
    assert_eq!(other.guarantee(), scene.store.guarantee());
}

/// A released key starts at the beginning: its own operation, attempt 1, write 1.
pub async fn a_released_key_starts_anew<F: Fixture>(fixture: F) {
    let scene = Scene::set(fixture).await;
    let first = Draft { attempt: 7, ..draft(&key("k")) };
    let held = scene.claim(&first).await;
    scene.end(&held, &Settlement::Removed).await;
    let second = draft(&first.key);
    let again = scene.claim(&second).await;
    let record = scene.record(&first.key).await;
    assert_granted(&record, &second, again.fence);
    assert_eq!((record.number, record.attempt), (1, 1));
    assert_eq!(record.created_at, record.updated_at);
}

/// A caller who looked before another one finished, and claims after it, finds the answer and
/// leaves no claim behind.
pub async fn a_completion_between_a_miss_and_a_claim_is_found_by_the_claim<F: Fixture>(fixture: F) {
    let scene = Scene::set(fixture).await;
    let winner = draft(&key("k"));
    assert!(scene.peek(&winner.key).await.is_none(), "the loser looks and finds nothing");
    let other = scene.handle().await;
    let held = claim(&*other, &winner).await;
    scene.end(&held, &success("\"won\"")).await;
    let (record, _) = scene.existing(&draft(&winner.key)).await;
    assert_eq!(record.state, State::Succeeded);
    assert_eq!(record.outcome, Some(answer("\"won\"")));
    assert_eq!(scene.record(&winner.key).await, record, "no redundant claim remains");
}

/// The whole answer comes with the open, so that a repeat costs one trip.
pub async fn an_open_brings_the_answer_along<F: Fixture>(fixture: F) {
    let scene = Scene::set(fixture).await;
    let first = draft(&key("k"));
    let held = scene.claim(&first).await;
    scene.end(&held, &success("{\"order\":\"o-1\"}")).await;
    let (record, _) = scene.existing(&draft(&first.key)).await;
    assert_eq!(record.outcome, Some(answer("{\"order\":\"o-1\"}")));
    assert_eq!(record, scene.record(&first.key).await, "open and peek show one record");
}

/// A repeat of the very same draft (a request that was sent twice) is not granted twice.
pub async fn a_draft_that_arrives_twice_is_granted_once<F: Fixture>(fixture: F) {
    let scene = Scene::set(fixture).await;
    let first = draft(&key("k"));
    let held = scene.claim(&first).await;
    let (record, _) = scene.existing(&first).await;
    assert_granted(&record, &first, held.fence);
    assert_eq!(record.number, 1);
    assert_eq!(record.lease(first.key.digest()), lease(&first, held.fence));
}

/// A failed record keeps its words until the next attempt is granted, and no longer.
pub async fn a_grant_after_a_failure_starts_with_a_clean_record<F: Fixture>(fixture: F) {
    let scene = Scene::set(fixture).await;
    let first = draft(&key("k"));
    let held = scene.claim(&first).await;
    let words = ErrorText::new("no stock");
    let settlement = Settlement::Failed { error: words.clone(), retry_after: None, keep: KEEP };
    scene.end(&held, &settlement).await;
    let (failed, _) = scene.existing(&draft(&first.key)).await;
    assert_eq!(failed.error, Some(words));
    let second = next(&first);
    let again = scene.regrant(&second).await;
    assert_granted(&scene.record(&first.key).await, &second, again.fence);
}
