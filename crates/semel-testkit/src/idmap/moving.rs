//! Inserts of many bindings in one call.

use semel_ids::map::{IdMap, Inserted};

use super::IdMapFixture;
use super::shorthand::*;

/// An insert of no bindings returns no results.
pub async fn inserting_nothing_answers_nothing<F: IdMapFixture>(fixture: F) {
    let map = fixture.map().await;
    assert_eq!(map.insert_many(&[]).await.expect("the map answers"), []);
    assert!(all(&map, ORDER).await.is_empty());
}

/// `insert_many` returns one result per binding, in the order of the call.
pub async fn answers_come_in_the_order_of_the_call<F: IdMapFixture>(fixture: F) {
    let (taken, revoked, (one, two)) = (order(1), order(2), ambiguous(ACME));
    let map = map_with(&fixture, &[taken.clone(), revoked.clone(), one]).await;
    revoke(&map, &revoked).await;
    let asked = [order(9), revoked, two, taken.clone(), order(3), renamed(&taken)];
    let returned = map.insert_many(&asked).await.expect("the map answers");
    let expected = [
        Inserted::New,
        Inserted::Revoked,
        Inserted::Conflict,
        Inserted::Already,
        Inserted::New,
        Inserted::Conflict,
    ];
    assert_eq!(returned, expected);
    assert!(is_live(&map, &asked[0]).await && is_live(&map, &asked[4]).await);
    assert_eq!(all(&map, ORDER).await.len(), 5);
}

/// One call inserts 2,500 bindings; a repeat of the call changes nothing.
pub async fn thousands_are_one_call<F: IdMapFixture>(fixture: F) {
    let orders = orders(0..2_500);
    let map = map_with(&fixture, &orders).await;
    assert_eq!(all(&map, ORDER).await.len(), orders.len());
    let again = map.insert_many(&orders).await.expect("the map answers");
    assert!(again.iter().all(|answer| *answer == Inserted::Already));
    assert_eq!(all(&map, ORDER).await.len(), orders.len());
}

/// A call with bindings that are partly there inserts the others.
pub async fn a_half_done_move_is_completed<F: IdMapFixture>(fixture: F) {
    let orders = orders(0..1_000);
    let there: Vec<_> = orders.iter().step_by(2).cloned().collect();
    let map = map_with(&fixture, &there).await;
    let returned = map.insert_many(&orders).await.expect("the map answers");
    for (at, answer) in returned.iter().enumerate() {
        let expected = if at % 2 == 0 { Inserted::Already } else { Inserted::New };
        assert_eq!(*answer, expected, "number {at}");
    }
    assert_eq!(all(&map, ORDER).await.len(), orders.len());
}

/// A binding that is given twice in a call is inserted once.
pub async fn a_binding_twice_in_a_call_is_one_row<F: IdMapFixture>(fixture: F) {
    let (map, one, two) = (fixture.map().await, order(1), order(2));
    let asked = [one.clone(), two.clone(), one.clone(), one, two];
    let returned = map.insert_many(&asked).await.expect("the map answers");
    let [new, old] = [Inserted::New, Inserted::Already];
    assert_eq!(returned, [new, new, old, old, old]);
    assert_eq!(all(&map, ORDER).await.len(), 2);
}

/// If two bindings of a call have an id in common, the first one wins.
pub async fn of_conflicting_bindings_in_a_call_the_first_wins<F: IdMapFixture>(fixture: F) {
    let (map, one, (two, three)) = (fixture.map().await, order(1), ambiguous(ACME));
    let asked = [one.clone(), two.clone(), renamed(&one), three.clone(), one.clone(), two.clone()];
    let returned = map.insert_many(&asked).await.expect("the map answers");
    let [new, old, no] = [Inserted::New, Inserted::Already, Inserted::Conflict];
    assert_eq!(returned, [new, new, no, no, old, old]);
    // In the opposite order, the other binding wins.
    let map = fixture.map().await;
    let (two, three) = ambiguous("other");
    let returned = map.insert_many(&[three.clone(), two]).await.expect("the map answers");
    assert_eq!(returned, [new, no]);
    assert!(is_live(&map, &three).await);
}

/// A refused binding does not conflict with later ones of the same call.
pub async fn a_refused_binding_blocks_no_later_one<F: IdMapFixture>(fixture: F) {
    let (first, second) = ambiguous(ACME);
    let map = map_with(&fixture, std::slice::from_ref(&first)).await;
    // The second binding's public id is taken, so its internal id is free for another public id.
    let asked = [second.clone(), renamed(&second)];
    let returned = map.insert_many(&asked).await.expect("the map answers");
    assert_eq!(returned, [Inserted::Conflict, Inserted::New]);
}

/// One call can have bindings of several tenants and types.
pub async fn a_call_may_hold_tenants_and_types<F: IdMapFixture>(fixture: F) {
    let map = fixture.map().await;
    let asked: Vec<_> = (0..60)
        .map(|n| order_of(&format!("tenant {}", n % 20), n / 20))
        .chain([payment(1)])
        .collect();
    let returned = map.insert_many(&asked).await.expect("the map answers");
    assert_eq!(returned, vec![Inserted::New; asked.len()]);
    assert_eq!(all(&map, ORDER).await.len(), 60);
    assert_eq!(all(&map, PAYMENT).await, [row(&payment(1), true)]);
    assert_eq!(pages(&map, ORDER, Some("tenant 7"), 10).await.len(), 3);
}
