//! Swaps over the version that was judged: re-grants, replacements, settlements without a holder,
//! and redrives.

use std::time::Duration;

use semel_core::store::{Change, Draft, Settlement, Swapped};
use semel_core::{AttemptId, ErrorText, Fingerprint, OnCrash, State, Version};

use super::test_store::{
    KEEP, LEASE, TestStore, answer, assert_granted, brief, draft, failure, key, next, settlements,
    success,
};
use crate::fixture::Fixture;

fn changes(after: &Draft) -> Vec<Change> {
    let mut all =
        vec![Change::Regrant(next(after)), Change::Replace(draft(&after.key)), Change::Redrive];
    all.extend(settlements().map(Change::Settle));
    all
}

/// A re-grant keeps the record's `created_at`; all other fields are the new draft's.
pub async fn a_regrant_keeps_created_at_and_nothing_else<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    test.end(&held, &failure("no stock")).await;
    let before = test.record(&first.key).await;
    let second = Draft {
        on_crash: OnCrash::Hold,
        keep: Duration::from_secs(5),
        fingerprint: Fingerprint::opaque("seen anew"),
        lease: LEASE * 2,
        ..next(&first)
    };
    let again = test.regrant(&second).await;
    let after = test.record(&first.key).await;
    assert_granted(&after, &second, again.fence);
    assert_eq!(after.created_at, before.created_at);
    assert_eq!(after.number, before.number + 1);
    assert!(after.updated_at >= before.updated_at);
}

/// A replacement keeps nothing of the old record.
pub async fn a_replacement_keeps_nothing_of_the_old_record<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = Draft { attempt: 4, ..draft(&key("k")) };
    let held = test.claim(&first).await;
    test.end(&held, &success("\"old\"")).await;
    test.outlive_brief().await;
    let before = test.record(&first.key).await;
    let second = Draft { fingerprint: Fingerprint::opaque("another"), ..draft(&first.key) };
    let fence = test.change(&first.key, &Change::Replace(second.clone())).await;
    let after = test.record(&first.key).await;
    assert_granted(&after, &second, fence);
    assert_eq!((after.attempt, after.number), (1, 1));
    assert_eq!(after.created_at, after.updated_at, "a replacement is created now");
    assert!(after.created_at > before.created_at);
    assert_ne!(after.operation_id, before.operation_id);
}

/// A swap with an older version of the record is lost.
pub async fn a_swap_over_an_older_write_is_lost<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    let judged = test.record(&first.key).await.version();
    let _ = test.renew(&held, LEASE).await;
    let before = test.record(&first.key).await;
    for change in changes(&first) {
        assert_eq!(test.swap(&first.key, judged, &change).await, Swapped::Lost, "{change:?}");
    }
    assert_eq!(test.record(&first.key).await, before, "a lost swap wrote something");
}

/// The number of a write does not identify it: the attempt id must match too.
pub async fn a_swap_over_another_attempts_write_is_lost<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    test.claim(&first).await;
    let before = test.record(&first.key).await;
    let forged = Version { attempt_id: AttemptId::generate(), number: before.number };
    let ahead = Version { number: before.number + 1, ..before.version() };
    let behind = Version { number: before.number - 1, ..before.version() };
    for judged in [forged, ahead, behind] {
        for change in changes(&first) {
            assert_eq!(test.swap(&first.key, judged, &change).await, Swapped::Lost, "{change:?}");
        }
    }
    assert_eq!(test.record(&first.key).await, before);
}

/// A version from before a key was released and claimed again does not match the new record.
pub async fn a_swap_judged_in_an_earlier_life_is_lost<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    let judged = test.record(&first.key).await.version();
    test.end(&held, &Settlement::Removed).await;
    for change in changes(&first) {
        assert_eq!(test.swap(&first.key, judged, &change).await, Swapped::Lost, "{change:?}");
    }
    assert!(test.peek(&first.key).await.is_none(), "a swap restored a removed record");
    let second = draft(&first.key);
    let live = test.claim(&second).await;
    assert_eq!(test.record(&first.key).await.number, judged.number, "the numbers are equal");
    for change in changes(&first) {
        assert_eq!(test.swap(&first.key, judged, &change).await, Swapped::Lost, "{change:?}");
    }
    assert_granted(&test.record(&first.key).await, &second, live.fence);
}

/// A takeover that was judged before the holder settled is lost: the outcome stays.
pub async fn a_takeover_judged_before_a_completion_is_lost<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = brief(&key("k"));
    let held = test.claim(&first).await;
    test.outlive_brief().await;
    let (lapsed, _) = test.existing(&draft(&first.key)).await;
    test.end(&held, &success("\"in time\"")).await;
    let rival = Change::Regrant(next(&first));
    assert_eq!(test.swap(&first.key, lapsed.version(), &rival).await, Swapped::Lost);
    assert_eq!(test.record(&first.key).await.outcome, Some(answer("\"in time\"")));
}

/// Of two takeovers that judged the same write, the second is lost.
pub async fn the_second_of_two_takeovers_is_lost<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = brief(&key("k"));
    test.claim(&first).await;
    test.outlive_brief().await;
    let (lapsed, _) = test.existing(&draft(&first.key)).await;
    let (one, two) = (next(&first), next(&first));
    let won = test.swap(&first.key, lapsed.version(), &Change::Regrant(one.clone())).await;
    let Swapped::Done { fence } = won else { panic!("the first takeover was lost") };
    let lost = test.swap(&first.key, lapsed.version(), &Change::Regrant(two)).await;
    assert_eq!(lost, Swapped::Lost);
    assert_granted(&test.record(&first.key).await, &one, fence);
}

/// Every settlement can be written without the holder, over any state, with the same fields as a
/// settle.
pub async fn a_record_can_be_ended_without_its_holder<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for (at, settlement) in settlements().into_iter().enumerate() {
        let (one, two) = (key(&format!("settled{at}")), key(&format!("swapped{at}")));
        let held = test.claim(&draft(&one)).await;
        test.end(&held, &settlement).await;
        let claimed = test.claim(&draft(&two)).await;
        let fence = test.change(&two, &Change::Settle(settlement.clone())).await;
        assert_eq!(fence, claimed.fence, "{settlement:?}: a settlement is not a grant");
        let settled = test.peek(&one).await.map(|peeked| peeked.record);
        let swapped = test.peek(&two).await.map(|peeked| peeked.record);
        assert_eq!(settled.is_some(), swapped.is_some(), "{settlement:?}");
        let (Some(settled), Some(swapped)) = (settled, swapped) else {
            continue;
        };
        assert_eq!(swapped.state, settled.state);
        assert_eq!(swapped.outcome, settled.outcome);
        assert_eq!(swapped.error, settled.error);
        assert_eq!(swapped.number, 2);
        assert_eq!(swapped.lease_until, None);
        assert_eq!(swapped.completed_at, Some(swapped.updated_at));
        let spans = |record: &semel_core::Record| {
            let from = record.updated_at.as_micros();
            [record.retry_at, record.expires_at].map(|at| at.map(|at| at.as_micros() - from))
        };
        assert_eq!(spans(&swapped), spans(&settled), "{settlement:?}");
    }
}

/// Settlements can follow one another: a dead record can be resolved as done, or be discarded.
pub async fn an_operator_may_resolve_what_is_dead_or_uncertain<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let error = ErrorText::new("unknown");
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    test.end(&held, &Settlement::Uncertain { error: error.clone() }).await;
    test.change(&first.key, &Change::Settle(success("\"it did happen\""))).await;
    let record = test.record(&first.key).await;
    assert_eq!((record.state, record.error), (State::Succeeded, None));
    assert_eq!(record.outcome, Some(answer("\"it did happen\"")));
    assert_eq!(record.expires_at, Some(record.updated_at.after(KEEP)));
    test.change(&first.key, &Change::Settle(Settlement::Dead { error })).await;
    let record = test.record(&first.key).await;
    assert_eq!((record.outcome, record.expires_at, record.number), (None, None, 4));
    test.change(&first.key, &Change::Settle(Settlement::Removed)).await;
    assert!(test.peek(&first.key).await.is_none());
}

/// A redriven record is failed and due, with no attempts; its earlier error stays readable.
pub async fn a_redriven_record_is_due_with_its_attempts_at_zero<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let error = ErrorText::new("given up");
    let failed = Settlement::Failed { error: error.clone(), retry_after: None, keep: KEEP };
    for (id, settlement) in [
        ("failed", failed),
        ("dead", Settlement::Dead { error: error.clone() }),
        ("uncertain", Settlement::Uncertain { error: error.clone() }),
        ("discarded", Settlement::Discarded { error: error.clone() }),
    ] {
        let first = Draft { attempt: 20, keep: Duration::from_secs(90), ..draft(&key(id)) };
        let held = test.claim(&first).await;
        test.end(&held, &settlement).await;
        let before = test.record(&first.key).await;
        let fence = test.change(&first.key, &Change::Redrive).await;
        let after = test.record(&first.key).await;
        assert_eq!((after.state, after.attempt), (State::Failed, 0), "{id}");
        assert_eq!(after.error, Some(error.clone()), "{id}");
        assert_eq!(after.retry_at, Some(after.updated_at), "{id}");
        assert_eq!(after.completed_at, Some(after.updated_at), "{id}");
        assert_eq!(after.expires_at, Some(after.updated_at.after(first.keep)), "{id}");
        assert_eq!((after.outcome, after.lease_until), (None, None), "{id}");
        assert_eq!(after.number, before.number + 1, "{id}");
        assert_eq!(after.created_at, before.created_at, "{id}");
        assert_eq!((after.attempt_id, after.fence), (before.attempt_id, fence), "{id}");
        assert_eq!(fence, before.fence, "{id}: only a grant takes a new fence");
        assert_eq!(after.operation_id, before.operation_id, "{id}");
    }
}

/// A swap on a key that was never used is lost and creates nothing.
pub async fn a_swap_on_an_unused_key_is_lost<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let never = draft(&key("never"));
    let judged = Version { attempt_id: never.attempt_id, number: 1 };
    for change in changes(&never) {
        assert_eq!(test.swap(&never.key, judged, &change).await, Swapped::Lost, "{change:?}");
    }
    assert!(test.peek(&never.key).await.is_none());
}

/// A swap changes the record of its key and no other.
pub async fn a_swap_leaves_the_neighbours_alone<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let (one, two) = (draft(&key("k1")), draft(&key("k2")));
    test.claim(&one).await;
    test.claim(&two).await;
    let before = test.record(&two.key).await;
    let judged = test.record(&one.key).await.version();
    assert_eq!(test.swap(&two.key, judged, &Change::Redrive).await, Swapped::Lost);
    test.change(&one.key, &Change::Settle(success("1"))).await;
    assert_eq!(test.record(&two.key).await, before);
}
