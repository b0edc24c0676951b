//! Lookups of public ids.

use semel_ids::map::IdMap;

use super::IdMapFixture;
use super::shorthand::*;

/// Public ids without a row are left out of the result.
pub async fn what_is_not_there_is_left_out<F: IdMapFixture>(fixture: F) {
    let map = map_with(&fixture, &orders(0..3)).await;
    let asked = publics(&orders(2..6));
    let found = map.find(ACME, ORDER, &asked).await.expect("the map answers");
    assert_eq!(found, [row(&order(2), true)]);
}

/// A lookup of no ids returns nothing.
pub async fn asking_for_nothing_finds_nothing<F: IdMapFixture>(fixture: F) {
    let map = map_with(&fixture, &orders(0..3)).await;
    assert_eq!(map.find(ACME, ORDER, &[]).await.expect("the map answers"), []);
}

/// One call looks up a thousand ids.
pub async fn a_thousand_are_found_at_once<F: IdMapFixture>(fixture: F) {
    let orders = orders(0..1_000);
    let map = map_with(&fixture, &orders).await;
    let mut found = map.find(ACME, ORDER, &publics(&orders)).await.expect("the map answers");
    let mut expected: Vec<_> = orders.iter().map(|order| row(order, true)).collect();
    found.sort_by(|a, b| a.public.cmp(&b.public));
    expected.sort_by(|a, b| a.public.cmp(&b.public));
    assert_eq!(found, expected);
}

/// Lookups of 1 to 9 ids, and of sizes around powers of two, return every row.
pub async fn lists_of_every_size_are_answered_whole<F: IdMapFixture>(fixture: F) {
    let orders = orders(0..140);
    let map = map_with(&fixture, &orders).await;
    let asked = publics(&orders);
    for size in (1..=9).chain([15, 16, 17, 63, 64, 65, 127, 128, 129, 140]) {
        let found = map.find(ACME, ORDER, &asked[..size]).await.expect("the map answers");
        assert_eq!(found.len(), size);
    }
}

/// An id that is given twice in a lookup is returned once.
pub async fn an_id_asked_for_twice_is_one_row<F: IdMapFixture>(fixture: F) {
    let map = map_with(&fixture, &orders(0..2)).await;
    let asked = [order(0), order(1), order(0), order(0)];
    let found = map.find(ACME, ORDER, &publics(&asked)).await.expect("the map answers");
    assert_eq!(found.len(), 2);
}

/// A lookup returns revoked rows, marked as revoked.
pub async fn a_revoked_row_is_shown_as_revoked<F: IdMapFixture>(fixture: F) {
    let map = map_with(&fixture, &orders(0..3)).await;
    revoke(&map, &order(1)).await;
    let mut found = map.find(ACME, ORDER, &publics(&orders(0..3))).await.expect("the map answers");
    found.sort_by(|a, b| a.public.cmp(&b.public));
    let mut expected = vec![row(&order(0), true), row(&order(1), false), row(&order(2), true)];
    expected.sort_by(|a, b| a.public.cmp(&b.public));
    assert_eq!(found, expected);
}

/// An id is found neither under another tenant nor under another type.
pub async fn other_tenants_and_types_are_not_found<F: IdMapFixture>(fixture: F) {
    let map = map_with(&fixture, &orders(0..3)).await;
    let asked = publics(&orders(0..3));
    for tenant in ["other", "Acme", "acme ", "", "acme\0", "%", "a_me"] {
        let found = map.find(tenant, ORDER, &asked).await.expect("the map answers");
        assert_eq!(found, [], "{tenant:?}");
    }
    assert_eq!(map.find(ACME, PAYMENT, &asked).await.expect("the map answers"), []);
}

/// A second handle sees inserts and revocations of the first at once, and the reverse.
pub async fn another_handle_finds_it_at_once<F: IdMapFixture>(fixture: F) {
    let (one, two) = (fixture.map().await, fixture.map().await);
    for number in 0..20 {
        let order = order(number);
        let _ = insert(&fixture, &one, &order).await;
        assert!(is_live(&two, &order).await);
        revoke(&two, &order).await;
        assert_eq!(find(&one, &[&order]).await, [Some(row(&order, false))]);
    }
}

/// Many concurrent lookups all get their rows.
pub async fn concurrent_lookups_are_all_answered<F: IdMapFixture>(fixture: F) {
    let orders = orders(0..50);
    let map = map_with(&fixture, &orders).await;
    let asking = (0..100).map(|n| {
        let (map, asked) = (&map, publics(&orders[..=n % 50]));
        async move { map.find(ACME, ORDER, &asked).await.expect("the map answers").len() }
    });
    let found = futures_util::future::join_all(asking).await;
    assert!(found.iter().enumerate().all(|(n, found)| *found == n % 50 + 1), "{found:?}");
}
