//! Listings of all rows of a type.

use semel_ids::map::{Binding, IdMap, MapKey, MapRow};

use super::IdMapFixture;
use super::shorthand::*;

fn sorted(bindings: &[Binding]) -> Vec<MapRow> {
    let mut rows: Vec<MapRow> = bindings.iter().map(|binding| row(binding, true)).collect();
    rows.sort_by(|a, b| (&a.tenant, &a.public).cmp(&(&b.tenant, &b.public)));
    rows
}

/// A map without rows lists none.
pub async fn a_listing_of_nothing_is_empty<F: IdMapFixture>(fixture: F) {
    let map = fixture.map().await;
    assert_eq!(map.list(ORDER, None, None, 10).await.expect("the map answers"), []);
    assert_eq!(map.list(ORDER, Some(ACME), None, 10).await.expect("the map answers"), []);
}

/// Pages of any size return every row once, ordered by the bytes of tenant and public id.
pub async fn pages_of_every_size_give_every_row<F: IdMapFixture>(fixture: F) {
    let tenants = ["a", "A", "a ", "a b", "ä", "b", "ab", "a!", "_", "Z", "🦀"];
    let bindings: Vec<Binding> =
        (0..44).map(|n| order_of(tenants[n % tenants.len()], n as u128)).collect();
    let map = map_with(&fixture, &bindings).await;
    for size in [1, 2, 3, 7, 43, 44, 45, 1_000] {
        assert_eq!(pages(&map, ORDER, None, size).await, sorted(&bindings), "pages of {size}");
    }
}

/// The listing of a tenant has the rows of that tenant only.
pub async fn a_tenants_listing_is_the_tenants<F: IdMapFixture>(fixture: F) {
    let bindings: Vec<Binding> =
        (0..30).map(|n| order_of(["a", "b", "B"][n % 3], n as u128)).collect();
    let map = map_with(&fixture, &bindings).await;
    let ours: Vec<Binding> = bindings.iter().filter(|b| b.tenant() == "b").cloned().collect();
    for size in [1, 3, 10, 100] {
        assert_eq!(pages(&map, ORDER, Some("b"), size).await, sorted(&ours));
    }
    for tenant in ["c", "", "b ", "b\0"] {
        assert_eq!(pages(&map, ORDER, Some(tenant), 10).await, [], "{tenant:?}");
    }
}

/// The listing of a tenant can start after a row of another tenant.
pub async fn a_cursor_need_not_be_of_the_tenant<F: IdMapFixture>(fixture: F) {
    let bindings = [order_of("b", 1), order_of("b", 2)];
    let map = map_with(&fixture, &bindings).await;
    let list = async |tenant: &str| {
        let after = MapKey { tenant: tenant.to_owned(), public: "zzz".to_owned() };
        map.list(ORDER, Some("b"), Some(&after), 10).await.expect("the map answers").len()
    };
    assert_eq!((list("a").await, list("b").await, list("c").await), (2, 0, 0));
}

/// A listing can start after a key that has no row.
pub async fn a_cursor_need_not_be_a_row<F: IdMapFixture>(fixture: F) {
    let bindings = [order_of("a", 1), order_of("c", 2)];
    let map = map_with(&fixture, &bindings).await;
    let after = MapKey { tenant: "b".into(), public: String::new() };
    let rows = map.list(ORDER, None, Some(&after), 10).await.expect("the map answers");
    assert_eq!(rows, [row(&bindings[1], true)]);
    let before = MapKey { tenant: String::new(), public: String::new() };
    let rows = map.list(ORDER, None, Some(&before), 10).await.expect("the map answers");
    assert_eq!(rows.len(), 2);
}

/// A listing has the rows of one type, and marks revoked rows.
pub async fn a_listing_shows_one_type_and_what_is_revoked<F: IdMapFixture>(fixture: F) {
    let map = map_with(&fixture, &[order(1), payment(2), order(3), payment(4)]).await;
    revoke(&map, &payment(2)).await;
    let mut expected = [row(&payment(2), false), row(&payment(4), true)];
    expected.sort_by(|a, b| a.public.cmp(&b.public));
    assert_eq!(all(&map, PAYMENT).await, expected);
    assert_eq!(all(&map, ORDER).await, sorted(&[order(1), order(3)]));
}

/// A page of size 0 is empty.
pub async fn a_page_of_no_rows_is_empty<F: IdMapFixture>(fixture: F) {
    let map = map_with(&fixture, &orders(0..3)).await;
    assert_eq!(map.list(ORDER, None, None, 0).await.expect("the map answers"), []);
}

/// Rows that exist during the whole listing are listed once, although others are inserted
/// meanwhile.
pub async fn a_listing_misses_nothing_while_rows_come<F: IdMapFixture>(fixture: F) {
    let steady = orders(0..200);
    let map = map_with(&fixture, &steady).await;
    let mut listed: Vec<MapRow> = Vec::new();
    for round in 0.. {
        let after = listed.last().map(row_key);
        let page = map.list(ORDER, None, after.as_ref(), 20).await.expect("the map answers");
        if page.is_empty() {
            break;
        }
        listed.extend(page);
        let publics = listed.iter().map(|row| &row.public);
        assert!(publics.is_sorted_by(|a, b| a < b), "each row is listed once, in order");
        let more = orders(1_000 + 10 * round..1_010 + 10 * round);
        let _ = map.insert_many(&more).await.expect("the map answers");
    }
    let publics: Vec<&str> = listed.iter().map(|row| row.public.as_str()).collect();
    assert!(steady.iter().all(|order| publics.contains(&order.public().as_str())));
}
