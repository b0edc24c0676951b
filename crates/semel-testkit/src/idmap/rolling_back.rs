//! Bindings commit or roll back with the transaction that inserted them.

use semel_ids::map::{IdMap, Inserted};

use super::IdMapFixture;
use super::shorthand::*;

/// A rollback removes the binding.
pub async fn a_rollback_leaves_nothing<F: IdMapFixture>(fixture: F) {
    let (map, order) = (fixture.map().await, order(1));
    let mut transaction = fixture.begin(&map).await;
    let inserted = map.insert(F::connection(&mut transaction), &order).await;
    assert_eq!(inserted.expect("the map answers"), Inserted::New);
    fixture.rollback(&map, transaction).await;
    assert!(is_absent(&map, &order).await);
    assert_eq!(insert(&fixture, &map, &renamed(&order)).await, Inserted::New);
}

/// Dropping a transaction removes its bindings.
pub async fn a_dropped_transaction_leaves_nothing<F: IdMapFixture>(fixture: F) {
    let (map, order) = (fixture.map().await, order(1));
    let mut transaction = fixture.begin(&map).await;
    let inserted = map.insert(F::connection(&mut transaction), &order).await;
    assert_eq!(inserted.expect("the map answers"), Inserted::New);
    drop(transaction);
    assert_eq!(insert(&fixture, &map, &order).await, Inserted::New);
}

/// Other connections do not see a binding that is not committed.
pub async fn uncommitted_bindings_are_invisible_to_others<F: IdMapFixture>(fixture: F) {
    let (map, order) = (fixture.map().await, order(1));
    let mut transaction = fixture.begin(&map).await;
    let inserted = map.insert(F::connection(&mut transaction), &order).await;
    assert_eq!(inserted.expect("the map answers"), Inserted::New);
    assert!(is_absent(&map, &order).await);
    assert!(all(&map, ORDER).await.is_empty());
    fixture.commit(&map, transaction).await;
    assert!(is_live(&map, &order).await);
}

/// A transaction sees the bindings that it inserted itself.
pub async fn a_transaction_sees_its_own_bindings<F: IdMapFixture>(fixture: F) {
    let (map, order) = (fixture.map().await, order(1));
    let mut transaction = fixture.begin(&map).await;
    let connection = F::connection(&mut transaction);
    for (binding, expected) in [
        (&order, Inserted::New),
        (&order, Inserted::Already),
        (&renamed(&order), Inserted::Conflict),
    ] {
        assert_eq!(map.insert(connection, binding).await.expect("an answer"), expected);
    }
    fixture.commit(&map, transaction).await;
    assert_eq!(all(&map, ORDER).await, [row(&order, true)]);
}

/// No result of an insert aborts the transaction: it continues and commits.
pub async fn no_result_aborts_the_transaction<F: IdMapFixture>(fixture: F) {
    let (taken, revoked, (one, two)) = (order(1), order(2), ambiguous(ACME));
    let map = map_with(&fixture, &[taken.clone(), revoked.clone(), one]).await;
    revoke(&map, &revoked).await;
    let mut transaction = fixture.begin(&map).await;
    let connection = F::connection(&mut transaction);
    for (binding, expected) in [
        (&two, Inserted::Conflict),
        (&order(3), Inserted::New),
        (&revoked, Inserted::Revoked),
        (&renamed(&taken), Inserted::Conflict),
        (&taken, Inserted::Already),
        (&order(4), Inserted::New),
    ] {
        assert_eq!(map.insert(connection, binding).await.expect("an answer"), expected);
    }
    fixture.commit(&map, transaction).await;
    assert!(is_live(&map, &order(3)).await && is_live(&map, &order(4)).await);
    assert_eq!(all(&map, ORDER).await.len(), 5);
}

/// A revocation that is rolled back leaves the id live.
pub async fn a_rolled_back_revocation_leaves_the_id_live<F: IdMapFixture>(fixture: F) {
    let order = order(1);
    let map = map_with(&fixture, std::slice::from_ref(&order)).await;
    let mut transaction = fixture.begin(&map).await;
    let connection = F::connection(&mut transaction);
    for expected in [true, false] {
        let revoked = map.revoke_in(connection, ACME, ORDER, order.public()).await;
        assert_eq!(revoked.expect("the map answers"), expected);
    }
    assert_eq!(map.insert(connection, &order).await.expect("an answer"), Inserted::Revoked);
    fixture.rollback(&map, transaction).await;
    assert!(is_live(&map, &order).await);
}

/// Other connections see a revocation once it is committed, and not before.
pub async fn a_revocation_counts_when_it_is_committed<F: IdMapFixture>(fixture: F) {
    let (order, other) = (order(1), order_of("other", 1));
    let map = map_with(&fixture, &[order.clone(), other.clone()]).await;
    let mut transaction = fixture.begin(&map).await;
    let connection = F::connection(&mut transaction);
    for (tenant, kind, expected) in
        [("Acme", ORDER, false), ("a\0", ORDER, false), (ACME, PAYMENT, false), (ACME, ORDER, true)]
    {
        let revoked = map.revoke_in(connection, tenant, kind, order.public()).await;
        assert_eq!(revoked.expect("the map answers"), expected, "{tenant:?}");
    }
    assert!(is_live(&map, &order).await);
    fixture.commit(&map, transaction).await;
    assert_eq!(find(&map, &[&order]).await, [Some(row(&order, false))]);
    assert!(is_live(&map, &other).await);
}
