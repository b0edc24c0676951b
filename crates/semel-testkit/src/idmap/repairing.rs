//! The business table is the truth: rows are put right.

use semel_ids::map::{Binding, IdMap};

use super::IdMapFixture;
use super::shorthand::*;

async fn overwrite<M: IdMap>(map: &M, bindings: &[Binding]) {
    map.overwrite(bindings).await.expect("the map answers");
}

/// What is missing is there.
pub async fn a_missing_row_is_made<F: IdMapFixture>(fixture: F) {
    let map = holding(&fixture, &orders(0..2)).await;
    overwrite(&map, &[order(2), order(0)]).await;
    assert_eq!(all(&map, ORDER).await.len(), 3);
    assert!(is_live(&map, &order(2)).await);
}

/// What was revoked is live again.
pub async fn a_revoked_row_is_made_live<F: IdMapFixture>(fixture: F) {
    let map = holding(&fixture, &orders(0..2)).await;
    revoke(&map, &order(0)).await;
    overwrite(&map, &[order(0)]).await;
    assert!(is_live(&map, &order(0)).await);
    assert_eq!(all(&map, ORDER).await.len(), 2);
}

/// A public id that stands for something else stands for this.
pub async fn a_wrong_internal_id_is_corrected<F: IdMapFixture>(fixture: F) {
    let (first, second) = ambiguous(ACME);
    let map = holding(&fixture, &[first.clone(), order(1)]).await;
    overwrite(&map, std::slice::from_ref(&second)).await;
    assert_eq!(find(&map, &[&first]).await, [Some(row(&second, true))]);
    assert!(is_live(&map, &order(1)).await);
    // And the internal id that it had is free.
    assert_eq!(insert(&fixture, &map, &renamed(&first)).await, semel_ids::map::Inserted::New);
}

/// A row that has the internal id under another name gives way.
pub async fn a_wrong_public_id_gives_way<F: IdMapFixture>(fixture: F) {
    let order = order(1);
    let map = holding(&fixture, &[renamed(&order), super::shorthand::order(2)]).await;
    overwrite(&map, std::slice::from_ref(&order)).await;
    assert!(is_live(&map, &order).await);
    assert!(is_absent(&map, &renamed(&order)).await);
    assert_eq!(all(&map, ORDER).await.len(), 2);
}

/// One binding may stand against two rows.
pub async fn two_rows_give_way_to_one<F: IdMapFixture>(fixture: F) {
    let (first, second) = ambiguous(ACME);
    let map = holding(&fixture, &[first, renamed(&second)]).await;
    overwrite(&map, std::slice::from_ref(&second)).await;
    assert_eq!(all(&map, ORDER).await, [row(&second, true)]);
}

/// Names that were exchanged are exchanged back, in one call.
pub async fn exchanged_names_are_exchanged_back<F: IdMapFixture>(fixture: F) {
    let (first, second) = ambiguous(ACME);
    let other = renamed(&second);
    // There: the text for the first id, the other name for the second. Wanted: the reverse.
    let map = holding(&fixture, &[first.clone(), other]).await;
    let wanted = [second, renamed(&first)];
    overwrite(&map, &wanted).await;
    assert!(is_live(&map, &wanted[0]).await && is_live(&map, &wanted[1]).await);
    assert_eq!(all(&map, ORDER).await.len(), 2);
}

/// Neighbours stay as they are: other tenants, other types, other ids, revoked ones.
pub async fn neighbours_stay_as_they_are<F: IdMapFixture>(fixture: F) {
    let neighbours = [order_of("other", 1), payment(1), order(2), order(3)];
    let map = holding(&fixture, &neighbours).await;
    revoke(&map, &order(3)).await;
    overwrite(&map, &[order(1), renamed(&order(4))]).await;
    assert!(is_live(&map, &neighbours[0]).await && is_live(&map, &neighbours[1]).await);
    assert!(is_live(&map, &neighbours[2]).await && !is_live(&map, &neighbours[3]).await);
}

/// Of two in a call that want one id, the last has it.
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

/// A thousand are one call; none are none.
pub async fn a_thousand_are_put_right_at_once<F: IdMapFixture>(fixture: F) {
    let orders = orders(0..1_000);
    let wrong: Vec<Binding> = orders.iter().step_by(3).map(renamed).collect();
    let map = holding(&fixture, &wrong).await;
    overwrite(&map, &[]).await;
    assert_eq!(all(&map, ORDER).await.len(), wrong.len());
    overwrite(&map, &orders).await;
    let rows = all(&map, ORDER).await;
    assert_eq!(rows.len(), 1_000);
    assert!(rows.iter().all(|row| row.live));
    let found = map.find(ACME, ORDER, &publics(&orders)).await.expect("the map answers");
    assert_eq!(found.len(), 1_000);
}
