//! Renewals extend leases to their full length from the store's clock, with one result per lease.

use std::time::Duration;

use semel_core::store::{Change, Renewed, Settlement, Swapped};
use semel_core::{Record, State};

use super::test_store::{
    BRIEF, LEASE, TestStore, assert_granted, brief, draft, key, next, settlements, success,
};
use crate::fixture::Fixture;

/// A renewed lease runs for its full length from the store's current time.
pub async fn a_renewal_counts_from_the_stores_now<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    test.outlive_brief().await;
    assert_eq!(test.renew(&held, LEASE).await, Renewed::Extended);
    let record = test.record(&first.key).await;
    assert_eq!(record.lease_until, Some(record.updated_at.after(LEASE)));
    let age = record.updated_at.as_micros() - record.created_at.as_micros();
    assert!(age >= semel_core::clock::micros(BRIEF), "the renewal is dated when it happened");
}

/// A renewal changes the lease and the record's number, and nothing else.
pub async fn a_renewal_changes_the_lease_and_nothing_else<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    let before = test.record(&first.key).await;
    assert_eq!(test.renew(&held, LEASE * 2).await, Renewed::Extended);
    let after = test.record(&first.key).await;
    assert_eq!(after.number, before.number + 1, "every write counts, renewals included");
    assert!(after.updated_at >= before.updated_at);
    let undone = Record {
        number: before.number,
        updated_at: before.updated_at,
        lease_until: before.lease_until,
        ..after
    };
    assert_eq!(undone, before);
}

/// A renewed claim outlives the lease it was opened with.
pub async fn a_renewed_claim_outlives_its_first_lease<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = brief(&key("k"));
    let held = test.claim(&first).await;
    assert_eq!(test.renew(&held, LEASE).await, Renewed::Extended);
    test.outlive_brief().await;
    let (record, now) = test.existing(&draft(&first.key)).await;
    assert!(record.held(now), "the renewed lease still runs");
    assert_eq!(test.sweep_all(100).await, (0, 0), "and is not swept");
    test.end(&held, &success("1")).await;
}

/// A renewal can also shorten a lease: it sets the length that was asked for.
pub async fn a_renewal_sets_the_length_that_is_asked_for<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    assert_eq!(test.renew(&held, BRIEF).await, Renewed::Extended);
    let record = test.record(&first.key).await;
    assert_eq!(record.lease_until, Some(record.updated_at.after(BRIEF)));
    test.outlive_brief().await;
    let (record, now) = test.existing(&first).await;
    assert!(!record.held(now));
}

/// A lapsed lease that was not taken over is extended.
pub async fn a_lapsed_claim_that_nobody_took_is_extended<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = brief(&key("k"));
    let held = test.claim(&first).await;
    test.outlive_brief().await;
    assert_eq!(test.renew(&held, LEASE).await, Renewed::Extended);
    let (record, now) = test.existing(&draft(&first.key)).await;
    assert!(record.held(now));
    assert_eq!((record.attempt_id, record.fence), (held.attempt_id, held.fence));
}

/// Renewals return one result per lease, in the order of the leases, lost ones included.
pub async fn renewals_are_answered_in_order<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let mut leases = Vec::new();
    for at in 0..6 {
        let held = test.claim(&draft(&key(&format!("k{at}")))).await;
        if at % 3 == 1 {
            test.end(&held, &Settlement::Removed).await;
        }
        leases.push((held, LEASE + Duration::from_secs(at)));
    }
    // Not sorted by anything that a store could sort by.
    leases.swap(0, 4);
    leases.swap(2, 5);
    let gone = [key("k1").digest(), key("k4").digest()];
    let expected: Vec<Renewed> = leases
        .iter()
        .map(
            |(lease, _)| {
                if gone.contains(&lease.digest) { Renewed::Lost } else { Renewed::Extended }
            },
        )
        .collect();
    assert_eq!(test.renew_all(&leases).await, expected);
    for at in [0, 2, 3, 5] {
        let record = test.record(&key(&format!("k{at}"))).await;
        let length = LEASE + Duration::from_secs(at);
        assert_eq!(record.lease_until, Some(record.updated_at.after(length)), "k{at}");
    }
}

/// A renewal of no leases returns no results.
pub async fn renewing_nothing_answers_nothing<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    test.claim(&draft(&key("k"))).await;
    let before = test.record(&key("k")).await;
    assert_eq!(test.renew_all(&[]).await, Vec::<Renewed>::new());
    assert_eq!(test.record(&key("k")).await, before);
}

/// A renewal does not make a settled claim running again.
pub async fn a_settled_claim_is_not_revived_by_a_renewal<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for (at, settlement) in settlements().iter().enumerate() {
        let key = key(&format!("k{at}"));
        let held = test.claim(&draft(&key)).await;
        test.end(&held, settlement).await;
        let before = test.peek(&key).await.map(|peeked| peeked.record);
        assert_eq!(test.renew(&held, LEASE).await, Renewed::Lost, "{settlement:?}");
        assert_eq!(test.peek(&key).await.map(|peeked| peeked.record), before, "{settlement:?}");
    }
}

/// One renewal extends hundreds of leases.
pub async fn one_renewal_extends_hundreds_of_leases<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let mut leases = Vec::new();
    for at in 0..300 {
        leases.push((test.claim(&brief(&key(&format!("k{at}")))).await, LEASE));
    }
    assert!(test.renew_all(&leases).await.iter().all(|answer| *answer == Renewed::Extended));
    test.outlive_brief().await;
    for at in [0, 1, 150, 298, 299] {
        let (record, now) = test.existing(&draft(&key(&format!("k{at}")))).await;
        assert!(record.held(now), "k{at}");
    }
}

/// A takeover that was judged before the holder renewed is refused: the holder is alive.
pub async fn a_takeover_judged_before_a_renewal_is_refused<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = brief(&key("k"));
    let held = test.claim(&first).await;
    test.outlive_brief().await;
    let (lapsed, _) = test.existing(&draft(&first.key)).await;
    assert_eq!(test.renew(&held, LEASE).await, Renewed::Extended);
    let rival = Change::Regrant(next(&first));
    assert_eq!(test.swap(&first.key, lapsed.version(), &rival).await, Swapped::Lost);
    let record = test.record(&first.key).await;
    assert_eq!((record.state, record.attempt_id), (State::Running, first.attempt_id));
    test.end(&held, &success("1")).await;
}

/// A renewer works on after one of its leases was lost.
pub async fn a_lost_lease_does_not_spoil_the_next_renewal<F: Fixture>(fixture: F) {
    use semel_core::store::{Renewer, Store};

    let test = TestStore::set(fixture).await;
    let lost = test.claim(&draft(&key("lost"))).await;
    test.end(&lost, &success("1")).await;
    let first = draft(&key("kept"));
    let kept = test.claim(&first).await;
    let mut renewer = test.store.renewer().await.expect("a renewer");
    for round in 2..6 {
        let answers = renewer.renew(&[(lost, LEASE), (kept, LEASE)]).await.expect("renew");
        assert_eq!(answers, [Renewed::Lost, Renewed::Extended]);
        assert_eq!(test.record(&first.key).await.number, round);
    }
    assert_granted(&test.record(&first.key).await, &first, kept.fence);
}
