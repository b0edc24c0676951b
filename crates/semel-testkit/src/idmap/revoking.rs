//! Revocations of ids.

use semel_ids::map::{IdMap, MapKey};

use super::IdMapFixture;
use super::shorthand::*;

/// `revoke` returns whether there was a live row.
pub async fn only_a_live_row_is_revoked<F: IdMapFixture>(fixture: F) {
    let order = order(1);
    let map = map_with(&fixture, std::slice::from_ref(&order)).await;
    for expected in [true, false, false] {
        let revoked = map.revoke(ACME, ORDER, order.public()).await.expect("the map answers");
        assert_eq!(revoked, expected);
    }
    assert_eq!(all(&map, ORDER).await, [row(&order, false)]);
}

/// Revoking an id that is not there changes nothing.
pub async fn what_is_not_there_is_not_revoked<F: IdMapFixture>(fixture: F) {
    let map = map_with(&fixture, &orders(0..1)).await;
    let missing = order(1);
    let there = order(0);
    for (tenant, kind, public) in [
        (ACME, ORDER, missing.public()),
        ("other", ORDER, there.public()),
        ("Acme", ORDER, there.public()),
        ("acme\0", ORDER, there.public()),
        (ACME, PAYMENT, there.public()),
    ] {
        assert!(!map.revoke(tenant, kind, public).await.expect("the map answers"), "{tenant:?}");
    }
    assert_eq!(all(&map, ORDER).await, [row(&there, true)]);
}

/// A revocation affects one tenant.
pub async fn a_revocation_is_one_tenants<F: IdMapFixture>(fixture: F) {
    let (ours, theirs) = (order_of("acme", 1), order_of("other", 1));
    let map = map_with(&fixture, &[ours.clone(), theirs.clone(), order(2)]).await;
    revoke(&map, &ours).await;
    assert!(is_live(&map, &theirs).await && is_live(&map, &order(2)).await);
}

/// `revoke_rows` revokes rows by their texts and returns how many of them were live.
pub async fn rows_are_revoked_by_their_texts<F: IdMapFixture>(fixture: F) {
    let map = map_with(&fixture, &orders(0..5)).await;
    revoke(&map, &order(0)).await;
    let other = order_of("other", 1);
    let missing = MapKey { tenant: ACME.into(), public: "nonsense".into() };
    let long = MapKey { tenant: "x".repeat(500), public: "y".repeat(500) };
    let nul = MapKey { tenant: "a\0".into(), public: "\0".into() };
    let rows = [&order(0), &order(1), &order(2), &order(2), &order(7), &other].map(key_of);
    let rows: Vec<MapKey> = rows.into_iter().chain([missing, long, nul]).collect();
    assert_eq!(map.revoke_rows(ORDER, &rows).await.expect("the map answers"), 2);
    assert_eq!(map.revoke_rows(ORDER, &rows).await.expect("the map answers"), 0);
    let live: Vec<_> = all(&map, ORDER).await.into_iter().filter(|row| row.live).collect();
    assert_eq!(live.len(), 2);
    assert!(is_live(&map, &order(3)).await && is_live(&map, &order(4)).await);
}

/// One call revokes 900 rows; an empty call revokes none.
pub async fn hundreds_of_rows_are_one_call<F: IdMapFixture>(fixture: F) {
    let orders = orders(0..1_000);
    let map = map_with(&fixture, &orders).await;
    assert_eq!(map.revoke_rows(ORDER, &[]).await.expect("the map answers"), 0);
    let rows: Vec<MapKey> = orders[..900].iter().map(key_of).collect();
    assert_eq!(map.revoke_rows(PAYMENT, &rows).await.expect("the map answers"), 0);
    assert_eq!(map.revoke_rows(ORDER, &rows).await.expect("the map answers"), 900);
    let live = all(&map, ORDER).await.iter().filter(|row| row.live).count();
    assert_eq!(live, 100);
}
