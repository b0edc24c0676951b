//! Fencing: after a takeover the old holder can write nothing, and fences only grow.

use semel_core::store::{Change, Draft, Renewed, Settled, Settlement};
use semel_core::{AttemptId, Fence, Lease, OnCrash, State};

use super::test_store::{
    BRIEF, LEASE, TestStore, answer, assert_granted, brief, draft, failure, key, next, settlements,
    success,
};
use crate::fixture::Fixture;

/// Returns a claim that lapsed and was taken over: the old lease, the new draft and the new lease.
async fn taken_over<F: Fixture>(test: &TestStore<F>, id: &str) -> (Lease, Draft, Lease) {
    let first = brief(&key(id));
    let stale = test.claim(&first).await;
    test.outlive_brief().await;
    let second = next(&first);
    let live = test.regrant(&second).await;
    (stale, second, live)
}

/// Every settlement of the old holder is refused, and the new holder's claim is unchanged.
pub async fn a_stale_holders_ending_is_refused<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let (stale, second, live) = taken_over(&test, "k").await;
    let before = test.record(&second.key).await;
    for settlement in &settlements() {
        assert_eq!(test.settle(&stale, settlement).await, Settled::Lost, "{settlement:?}");
    }
    assert_eq!(test.record(&second.key).await, before, "a refused settle wrote something");
    test.end(&live, &success("\"mine\"")).await;
    assert_eq!(test.record(&second.key).await.outcome, Some(answer("\"mine\"")));
}

/// The old holder's outcome never replaces the new holder's.
pub async fn a_stale_holder_cannot_change_a_recorded_answer<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let (stale, second, live) = taken_over(&test, "k").await;
    test.end(&live, &success("\"mine\"")).await;
    let before = test.record(&second.key).await;
    for settlement in &settlements() {
        assert_eq!(test.settle(&stale, settlement).await, Settled::Lost, "{settlement:?}");
    }
    assert_eq!(test.renew(&stale, LEASE).await, Renewed::Lost);
    assert_eq!(test.record(&second.key).await, before);
}

/// The old holder's renewal is refused and does not extend the new holder's lease.
pub async fn a_stale_holders_renewal_is_refused<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let (stale, second, live) = taken_over(&test, "k").await;
    let before = test.record(&second.key).await;
    assert_eq!(test.renew(&stale, LEASE * 100).await, Renewed::Lost);
    assert_eq!(test.record(&second.key).await, before);
    assert_granted(&before, &second, live.fence);
}

/// The right fence is not enough: the attempt id must match too.
pub async fn the_right_fence_with_another_attempt_is_refused<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let held = test.claim(&draft(&key("k"))).await;
    let before = test.record(&key("k")).await;
    let forged = Lease { attempt_id: AttemptId::generate(), ..held };
    for settlement in &settlements() {
        assert_eq!(test.settle(&forged, settlement).await, Settled::Lost, "{settlement:?}");
    }
    assert_eq!(test.renew(&forged, LEASE).await, Renewed::Lost);
    assert_eq!(test.record(&key("k")).await, before);
}

/// The right attempt id is not enough: the fence must match too, and older and newer ones do not.
pub async fn the_right_attempt_with_another_fence_is_refused<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let held = test.claim(&draft(&key("k"))).await;
    let before = test.record(&key("k")).await;
    for fence in [0, held.fence.0 - 1, held.fence.0 + 1] {
        let forged = Lease { fence: Fence(fence), ..held };
        for settlement in &settlements() {
            assert_eq!(test.settle(&forged, settlement).await, Settled::Lost, "fence {fence}");
        }
        assert_eq!(test.renew(&forged, LEASE).await, Renewed::Lost, "fence {fence}");
    }
    assert_eq!(test.record(&key("k")).await, before);
}

/// A lease is valid for its own key only.
pub async fn a_lease_does_not_open_another_key<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let held = test.claim(&draft(&key("mine"))).await;
    test.claim(&draft(&key("theirs"))).await;
    let before = test.record(&key("theirs")).await;
    let forged = Lease { digest: key("theirs").digest(), ..held };
    assert_eq!(test.settle(&forged, &success("1")).await, Settled::Lost);
    assert_eq!(test.settle(&forged, &Settlement::Removed).await, Settled::Lost);
    assert_eq!(test.renew(&forged, LEASE).await, Renewed::Lost);
    assert_eq!(test.record(&key("theirs")).await, before);
    test.end(&held, &success("1")).await;
}

/// Every grant of an operation has a larger fence than the grant before.
pub async fn a_fence_grows_with_every_grant<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let mut last = draft(&key("k"));
    let mut held = test.claim(&last).await;
    for attempt in 2..12 {
        test.end(&held, &failure("again")).await;
        last = next(&last);
        let granted = test.regrant(&last).await;
        assert!(
            granted.fence > held.fence,
            "attempt {attempt}: {} after {}",
            granted.fence,
            held.fence
        );
        assert_eq!(
            test.record(&last.key).await.fence,
            granted.fence,
            "the returned fence is stored"
        );
        held = granted;
    }
}

/// A fence is larger than those from before the key was released.
pub async fn a_fence_grows_over_a_release<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let mut last = Fence(0);
    for round in 0..10 {
        let held = test.claim(&draft(&key("k"))).await;
        assert!(held.fence > last, "round {round}: {} after {last}", held.fence);
        last = held.fence;
        test.end(&held, &Settlement::Removed).await;
    }
}

/// A fence is larger than those from before an expired record was replaced.
pub async fn a_fence_grows_over_a_replacement<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    test.end(&held, &success("1")).await;
    let second = draft(&first.key);
    let fence = test.change(&first.key, &Change::Replace(second.clone())).await;
    assert!(fence > held.fence);
    assert_granted(&test.record(&first.key).await, &second, fence);
}

/// A fence is larger than those from before the record was swept.
pub async fn a_fence_grows_over_a_sweep<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    test.end(&held, &Settlement::Succeeded { outcome: answer("1"), keep: BRIEF }).await;
    test.outlive_brief().await;
    test.sweep_all(100).await;
    let again = test.claim(&draft(&first.key)).await;
    assert!(again.fence > held.fence, "{} after {}", again.fence, held.fence);
    assert_eq!(
        test.settle(&held, &success("2")).await,
        Settled::Lost,
        "a lease from before the sweep"
    );
}

/// After a key was released and granted to another caller, the old lease is refused.
pub async fn a_lease_of_an_earlier_life_of_the_key_is_refused<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let old = test.claim(&draft(&key("k"))).await;
    test.end(&old, &Settlement::Removed).await;
    let second = draft(&key("k"));
    let live = test.claim(&second).await;
    for settlement in &settlements() {
        assert_eq!(test.settle(&old, settlement).await, Settled::Lost, "{settlement:?}");
    }
    assert_eq!(test.renew(&old, LEASE).await, Renewed::Lost);
    assert_granted(&test.record(&second.key).await, &second, live.fence);
}

/// After an operator has ended the record, its holder's settlement is refused.
pub async fn a_holder_is_refused_after_an_operator_ended_the_record<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for (at, settlement) in settlements().into_iter().enumerate() {
        let key = key(&format!("k{at}"));
        let held = test.claim(&draft(&key)).await;
        test.change(&key, &Change::Settle(settlement.clone())).await;
        let before = test.peek(&key).await.map(|peeked| peeked.record);
        assert_eq!(test.settle(&held, &success("\"late\"")).await, Settled::Lost, "{settlement:?}");
        assert_eq!(test.renew(&held, LEASE).await, Renewed::Lost, "{settlement:?}");
        assert_eq!(test.peek(&key).await.map(|peeked| peeked.record), before, "{settlement:?}");
    }
}

/// A crashed attempt that the sweep made uncertain stays so when its holder continues.
pub async fn a_holder_is_refused_after_its_claim_was_suspended<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = Draft { on_crash: OnCrash::Hold, ..brief(&key("k")) };
    let held = test.claim(&first).await;
    test.outlive_brief().await;
    assert_eq!(test.sweep_all(100).await, (0, 1));
    assert_eq!(test.settle(&held, &success("\"late\"")).await, Settled::Lost);
    assert_eq!(test.renew(&held, LEASE).await, Renewed::Lost);
    assert_eq!(test.record(&first.key).await.state, State::Uncertain);
}
