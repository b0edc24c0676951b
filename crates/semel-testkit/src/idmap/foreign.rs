//! Rows that another program wrote: returned as they are, or an error, never a panic.

use semel_ids::map::{IdMap, Inserted, MapKey};

use super::IdMapFixture;
use super::shorthand::*;

/// Pairs of tenant and public id that no codec writes and no application uses.
const STRANGE: [(&str, &str); 8] = [
    ("", ""),
    ("acme", ""),
    ("acme", "no id at all"),
    ("acme", "ORD_01ARZ3NDEKTSV4RRFFQ69G5FAV"),
    ("acme", "pay_01arz3ndektsv4rrffq69g5fav"),
    ("acme", "ord_01arz3ndektsv4rrffq69g5fav_"),
    ("\t\n\u{7f}", "\u{1}"),
    ("🦀", "ord_🐟"),
];

async fn plant<F: IdMapFixture>(fixture: &F) {
    for (number, (tenant, public)) in STRANGE.into_iter().enumerate() {
        fixture.plant(ORDER.name(), tenant, public, id(500 + number as u128).to_bytes()).await;
    }
}

/// A listing returns foreign texts unchanged and skips none.
pub async fn a_listing_shows_strange_texts_as_they_are<F: IdMapFixture>(fixture: F) {
    let map = map_with(&fixture, &orders(0..3)).await;
    plant(&fixture).await;
    for size in [1, 2, 100] {
        let rows = pages(&map, ORDER, None, size).await;
        assert_eq!(rows.len(), STRANGE.len() + 3);
        for (tenant, public) in STRANGE {
            let shown =
                |row: &&semel_ids::map::MapRow| row.tenant == tenant && row.public == public;
            assert!(rows.iter().find(shown).is_some_and(|row| row.live), "{tenant:?} {public:?}");
        }
    }
}

/// Foreign rows can be revoked by the texts that a listing returns.
pub async fn strange_rows_are_revoked_by_their_texts<F: IdMapFixture>(fixture: F) {
    let map = map_with(&fixture, &orders(0..3)).await;
    plant(&fixture).await;
    let strange = |(tenant, public): (&str, &str)| MapKey {
        tenant: tenant.to_owned(),
        public: public.to_owned(),
    };
    let revoked = map.revoke_rows(ORDER, &STRANGE.map(strange)).await.expect("the map answers");
    assert_eq!(revoked, u32::try_from(STRANGE.len()).expect("a few"));
    let live: Vec<_> = all(&map, ORDER).await.into_iter().filter(|row| row.live).collect();
    assert_eq!(live.len(), 3);
}

/// A foreign row conflicts like any other row, until a repair replaces it.
pub async fn a_strange_row_is_in_the_way_until_it_is_repaired<F: IdMapFixture>(fixture: F) {
    let (map, order) = (fixture.map().await, order(1));
    fixture.plant(ORDER.name(), ACME, "no id at all", order.internal().to_bytes()).await;
    fixture.plant(ORDER.name(), ACME, order.public(), id(2).to_bytes()).await;
    assert_eq!(insert(&fixture, &map, &order).await, Inserted::Conflict);
    let returned = map.insert_many(std::slice::from_ref(&order)).await.expect("the map answers");
    assert_eq!(returned, [Inserted::Conflict]);
    map.overwrite(std::slice::from_ref(&order)).await.expect("the map answers");
    assert_eq!(all(&map, ORDER).await, [row(&order, true)]);
}

/// A row of an unknown type is found under no other type and conflicts with none.
pub async fn rows_of_unknown_types_conflict_with_no_other<F: IdMapFixture>(fixture: F) {
    let (map, order) = (fixture.map().await, order(1));
    for kind in ["order", "ORDER ", "Order", ""] {
        fixture.plant(kind, ACME, order.public(), order.internal().to_bytes()).await;
    }
    assert!(is_absent(&map, &order).await);
    assert_eq!(insert(&fixture, &map, &order).await, Inserted::New);
    assert_eq!(all(&map, ORDER).await, [row(&order, true)]);
}
