//! Repairs: rows of the map are overwritten with the bindings of the business table.

use semel_ids::map::{Binding, IdMap};

use super::IdMapFixture;
use super::shorthand::*;

async fn overwrite<M: IdMap>(map: &M, bindings: &[Binding]) {
    map.overwrite(bindings).await.expect("the map answers");
}

/// A repair inserts a missing row.
pub async fn a_missing_row_is_made<F: IdMapFixture>(fixture: F) {
    let map = map_with(&fixture, &orders(0..2)).await;
    overwrite(&map, &[order(2), order(0)]).await;
    assert_eq!(all(&map, ORDER).await.len(), 3);
    assert!(is_live(&map, &order(2)).await);
}

/// A repair makes a revoked row live again.
pub async fn a_revoked_row_is_made_live<F: IdMapFixture>(fixture: F) {
    let map = map_with(&fixture, &orders(0..2)).await;
    revoke(&map, &order(0)).await;
    overwrite(&map, &[order(0)]).await;
    assert!(is_live(&map, &order(0)).await);
    assert_eq!(all(&map, ORDER).await.len(), 2);
}

/// A repair binds a public id to another internal id.
pub async fn a_wrong_internal_id_is_corrected<F: IdMapFixture>(fixture: F) {
    let (first, second) = ambiguous(ACME);
    let map = map_with(&fixture, &[first.clone(), order(1)]).await;
    overwrite(&map, std::slice::from_ref(&second)).await;
    assert_eq!(find(&map, &[&first]).await, [Some(row(&second, true))]);
    assert!(is_live(&map, &order(1)).await);
    // The internal id that the public id had before is free.
    assert_eq!(insert(&fixture, &map, &renamed(&first)).await, semel_ids::map::Inserted::New);
}

/// A repair removes the row that has the internal id under another public id.
pub async fn a_wrong_public_id_gives_way<F: IdMapFixture>(fixture: F) {
    let order = order(1);
    let map = map_with(&fixture, &[renamed(&order), super::shorthand::order(2)]).await;
    overwrite(&map, std::slice::from_ref(&order)).await;
    assert!(is_live(&map, &order).await);
    assert!(is_absent(&map, &renamed(&order)).await);
    assert_eq!(all(&map, ORDER).await.len(), 2);
}

/// A repair replaces two rows that each have one of the binding's ids.
pub async fn two_rows_give_way_to_one<F: IdMapFixture>(fixture: F) {
    let (first, second) = ambiguous(ACME);
    let map = map_with(&fixture, &[first, renamed(&second)]).await;
    overwrite(&map, std::slice::from_ref(&second)).await;
    assert_eq!(all(&map, ORDER).await, [row(&second, true)]);
}

/// One call of a repair swaps back two public ids that were exchanged.
pub async fn exchanged_names_are_exchanged_back<F: IdMapFixture>(fixture: F) {
    let (first, second) = ambiguous(ACME);
    let other = renamed(&second);
    // Stored: `first` under the shared text, `second` under another. Wanted: the reverse.
    let map = map_with(&fixture, &[first.clone(), other]).await;
    let wanted = [second, renamed(&first)];
    overwrite(&map, &wanted).await;
    assert!(is_live(&map, &wanted[0]).await && is_live(&map, &wanted[1]).await);
    assert_eq!(all(&map, ORDER).await.len(), 2);
}

/// A repair changes no other rows: other tenants, types and ids, and revoked rows.
pub async fn neighbours_stay_as_they_are<F: IdMapFixture>(fixture: F) {
    let neighbours = [order_of("other", 1), payment(1), order(2), order(3)];
    let map = map_with(&fixture, &neighbours).await;
    revoke(&map, &order(3)).await;
    overwrite(&map, &[order(1), renamed(&order(4))]).await;
    assert!(is_live(&map, &neighbours[0]).await && is_live(&map, &neighbours[1]).await);
    assert!(is_live(&map, &neighbours[2]).await && !is_live(&map, &neighbours[3]).await);
}

/// If two bindings of a repair have an id in common, the last one wins.
pub async fn the_last_of_two_in_a_call_wins<F: IdMapFixture>(fixture: F) {
    let (map, (first, second), order) = (fixture.map().await, ambiguous(ACME), order(1));
    let asked = [first.clone(), renamed(&order), second.clone(), order.clone(), order.clone()];
    overwrite(&map, &asked).await;
    assert!(is_live(&map, &second).await && is_live(&map, &order).await);
    assert_eq!(all(&map, ORDER).await.len(), 2);
    overwrite(&map, &[second, first.clone(), renamed(&order), order.clone()]).await;
    assert!(is_live(&map, &first).await && is_live(&map, &order).await);
    assert_eq!(all(&map, ORDER).await.len(), 2);
}

/// One call repairs a thousand bindings; an empty call changes nothing.
pub async fn a_thousand_are_put_right_at_once<F: IdMapFixture>(fixture: F) {
    let orders = orders(0..1_000);
    let wrong: Vec<Binding> = orders.iter().step_by(3).map(renamed).collect();
    let map = map_with(&fixture, &wrong).await;
    overwrite(&map, &[]).await;
    assert_eq!(all(&map, ORDER).await.len(), wrong.len());
    overwrite(&map, &orders).await;
    let rows = all(&map, ORDER).await;
    assert_eq!(rows.len(), 1_000);
    assert!(rows.iter().all(|row| row.live));
    let found = map.find(ACME, ORDER, &publics(&orders)).await.expect("the map answers");
    assert_eq!(found.len(), 1_000);
}
