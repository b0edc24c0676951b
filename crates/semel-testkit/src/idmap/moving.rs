//! Many bindings at a time.

use semel_ids::map::{IdMap, Inserted};

use super::IdMapFixture;
use super::shorthand::*;

/// Nothing is answered with nothing.
pub async fn inserting_nothing_answers_nothing<F: IdMapFixture>(fixture: F) {
    let map = fixture.map().await;
    assert_eq!(map.insert_many(&[]).await.expect("the map answers"), []);
    assert!(all(&map, ORDER).await.is_empty());
}

/// Each binding has its own answer, in the order of the call.
pub async fn answers_come_in_the_order_of_the_call<F: IdMapFixture>(fixture: F) {
    let (taken, revoked, (one, two)) = (order(1), order(2), ambiguous(ACME));
    let map = holding(&fixture, &[taken.clone(), revoked.clone(), one]).await;
    revoke(&map, &revoked).await;
    let asked = [order(9), revoked, two, taken.clone(), order(3), renamed(&taken)];
    let told = map.insert_many(&asked).await.expect("the map answers");
    let expected = [
        Inserted::New,
        Inserted::Revoked,
        Inserted::Conflict,
        Inserted::Already,
        Inserted::New,
        Inserted::Conflict,
    ];
    assert_eq!(told, expected);
    assert!(is_live(&map, &asked[0]).await && is_live(&map, &asked[4]).await);
    assert_eq!(all(&map, ORDER).await.len(), 5);
}

/// A thousand and more are one call; repeating it changes nothing.
pub async fn thousands_are_one_call<F: IdMapFixture>(fixture: F) {
    let orders = orders(0..2_500);
    let map = holding(&fixture, &orders).await;
    assert_eq!(all(&map, ORDER).await.len(), orders.len());
    let again = map.insert_many(&orders).await.expect("the map answers");
    assert!(again.iter().all(|answer| *answer == Inserted::Already));
    assert_eq!(all(&map, ORDER).await.len(), orders.len());
}

/// What is half there is completed.
pub async fn a_half_done_move_is_completed<F: IdMapFixture>(fixture: F) {
    let orders = orders(0..1_000);
    let there: Vec<_> = orders.iter().step_by(2).cloned().collect();
    let map = holding(&fixture, &there).await;
    let told = map.insert_many(&orders).await.expect("the map answers");
    for (at, answer) in told.iter().enumerate() {
        let expected = if at % 2 == 0 { Inserted::Already } else { Inserted::New };
        assert_eq!(*answer, expected, "number {at}");
    }
    assert_eq!(all(&map, ORDER).await.len(), orders.len());
}

/// A binding that is twice in a call is written once.
pub async fn twins_in_one_call_are_one_row<F: IdMapFixture>(fixture: F) {
    let (map, one, two) = (fixture.map().await, order(1), order(2));
    let asked = [one.clone(), two.clone(), one.clone(), one, two];
    let told = map.insert_many(&asked).await.expect("the map answers");
    let [new, old] = [Inserted::New, Inserted::Already];
    assert_eq!(told, [new, new, old, old, old]);
    assert_eq!(all(&map, ORDER).await.len(), 2);
}

/// Of two in a call that want one id, the first has it.
pub async fn rivals_in_one_call_come_in_its_order<F: IdMapFixture>(fixture: F) {
    let (map, one, (two, three)) = (fixture.map().await, order(1), ambiguous(ACME));
    let asked = [one.clone(), two.clone(), renamed(&one), three.clone(), one.clone(), two.clone()];
    let told = map.insert_many(&asked).await.expect("the map answers");
    let [new, old, no] = [Inserted::New, Inserted::Already, Inserted::Conflict];
    assert_eq!(told, [new, new, no, no, old, old]);
    // The other way round the other one wins.
    let map = fixture.map().await;
    let (two, three) = ambiguous("other");
    let told = map.insert_many(&[three.clone(), two]).await.expect("the map answers");
    assert_eq!(told, [new, no]);
    assert!(is_live(&map, &three).await);
}

/// A binding that fails makes room for the next one of the call.
pub async fn a_refused_binding_is_in_nobodys_way<F: IdMapFixture>(fixture: F) {
    let (first, second) = ambiguous(ACME);
    let map = holding(&fixture, std::slice::from_ref(&first)).await;
    // The second's public id is taken, so its internal id is free for another name.
    let asked = [second.clone(), renamed(&second)];
    let told = map.insert_many(&asked).await.expect("the map answers");
    assert_eq!(told, [Inserted::Conflict, Inserted::New]);
}

/// One call may hold several tenants and types.
pub async fn a_call_may_hold_tenants_and_types<F: IdMapFixture>(fixture: F) {
    let map = fixture.map().await;
    let asked: Vec<_> = (0..60)
        .map(|n| order_of(&format!("tenant {}", n % 20), n / 20))
        .chain([payment(1)])
        .collect();
    let told = map.insert_many(&asked).await.expect("the map answers");
    assert_eq!(told, vec![Inserted::New; asked.len()]);
    assert_eq!(all(&map, ORDER).await.len(), 60);
    assert_eq!(all(&map, PAYMENT).await, [row(&payment(1), true)]);
    assert_eq!(pages(&map, ORDER, Some("tenant 7"), 10).await.len(), 3);
}
