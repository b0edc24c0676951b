//! Two open transactions of applications write at the same time: each result is right, or an error
//! after which the application can retry the transaction.

use std::future::Future;
use std::time::Duration;

use semel_core::store::{ErrorKind, Result};
use semel_ids::map::{Binding, IdMap, Inserted};
use tokio::time::timeout;

use super::IdMapFixture;
use super::shorthand::*;

/// Longer than any call takes here, on any machine.
const LONG: Duration = Duration::from_secs(60);

/// Polls a future for 100 ms; returns its result if there is one by then.
async fn soon<T>(asked: impl Future<Output = T>) -> Option<T> {
    timeout(Duration::from_millis(100), asked).await.ok()
}

/// Returns whether this is a correct result for a binding that conflicts with an open transaction:
/// the expected one, or an error that allows a retry.
fn is_right(returned: &Result<Inserted>, expected: Inserted) -> bool {
    match returned {
        Ok(returned) => *returned == expected,
        Err(error) => matches!(error.kind(), ErrorKind::RetryTransaction | ErrorKind::Unavailable),
    }
}

/// Inserts `first` in one transaction and then `second` in another, ends the first transaction, and
/// returns the result of the second insert. The second insert waits for the first transaction or
/// fails.
async fn insert_second<F: IdMapFixture>(
    fixture: &F,
    first: &Binding,
    second: &Binding,
    commits: bool,
) -> Result<Inserted> {
    let map = fixture.map().await;
    let mut one = fixture.begin(&map).await;
    let mut two = fixture.begin(&map).await;
    let returned = map.insert(F::connection(&mut one), first).await.expect("the map answers");
    assert_eq!(returned, Inserted::New);
    let returned = {
        let connection = F::connection(&mut two);
        let mut asked = Box::pin(map.insert(connection, second));
        match soon(&mut asked).await {
            // The insert did not wait: it must be an error, because the right result is not known
            // yet.
            Some(returned) => {
                assert!(returned.is_err(), "{returned:?} while the first is open");
                if commits {
                    fixture.commit(&map, one).await;
                } else {
                    fixture.rollback(&map, one).await;
                }
                returned
            }
            None => {
                if commits {
                    fixture.commit(&map, one).await;
                } else {
                    fixture.rollback(&map, one).await;
                }
                timeout(LONG, asked).await.expect("the first transaction has ended")
            }
        }
    };
    match &returned {
        Ok(_) => fixture.commit(&map, two).await,
        Err(_) => fixture.rollback(&map, two).await,
    }
    returned
}

/// Two transactions insert the same binding, and the first commits: the second finds the binding or
/// must be retried.
pub async fn the_second_finds_what_the_first_committed<F: IdMapFixture>(fixture: F) {
    let order = order(1);
    let returned = insert_second(&fixture, &order, &order, true).await;
    assert!(is_right(&returned, Inserted::Already), "{returned:?}");
    assert!(is_live(&fixture.map().await, &order).await);
}

/// Two transactions insert the same binding, and the first rolls back: the second inserts it.
pub async fn the_second_inserts_what_the_first_rolled_back<F: IdMapFixture>(fixture: F) {
    let order = order(1);
    let returned = insert_second(&fixture, &order, &order, false).await;
    assert!(is_right(&returned, Inserted::New), "{returned:?}");
    let map = fixture.map().await;
    assert_eq!(is_live(&map, &order).await, returned.is_ok());
}

/// A second public id for an internal id is a conflict, although the first is not yet committed.
pub async fn another_name_of_an_open_binding_is_a_conflict<F: IdMapFixture>(fixture: F) {
    let order = order(1);
    let returned = insert_second(&fixture, &order, &renamed(&order), true).await;
    assert!(is_right(&returned, Inserted::Conflict), "{returned:?}");
    let map = fixture.map().await;
    assert_eq!(all(&map, ORDER).await, [row(&order, true)]);
}

/// A second internal id for a public id is a conflict, although the first is not yet committed.
pub async fn another_thing_of_an_open_name_is_a_conflict<F: IdMapFixture>(fixture: F) {
    let (one, two) = ambiguous(ACME);
    let returned = insert_second(&fixture, &one, &two, true).await;
    assert!(is_right(&returned, Inserted::Conflict), "{returned:?}");
    let map = fixture.map().await;
    assert_eq!(all(&map, ORDER).await, [row(&one, true)]);
}

/// Transactions that insert unrelated bindings do not wait for each other.
pub async fn unrelated_bindings_do_not_wait_for_each_other<F: IdMapFixture>(fixture: F) {
    let map = map_with(&fixture, &orders(100..120)).await;
    let mut one = fixture.begin(&map).await;
    let mut two = fixture.begin(&map).await;
    for number in 0..20 {
        for (transaction, number) in [(&mut one, number), (&mut two, 50 + number)] {
            let connection = F::connection(transaction);
            let asked = timeout(LONG, map.insert(connection, &order(number))).await;
            assert_eq!(
                asked.expect("no wait for another transaction").expect("new"),
                Inserted::New
            );
        }
    }
    let other = order_of("other", 1);
    let asked = timeout(LONG, map.insert_many(std::slice::from_ref(&other))).await;
    assert_eq!(asked.expect("no wait for another transaction").expect("new"), [Inserted::New]);
    fixture.commit(&map, one).await;
    fixture.commit(&map, two).await;
    assert_eq!(all(&map, ORDER).await.len(), 61);
}

/// A lookup does not wait for open transactions, and returns committed rows only.
pub async fn finding_waits_for_no_transaction<F: IdMapFixture>(fixture: F) {
    let (there, open) = (order(1), order(2));
    let map = map_with(&fixture, std::slice::from_ref(&there)).await;
    let mut transaction = fixture.begin(&map).await;
    for binding in [&open, &there] {
        let _ = map.insert(F::connection(&mut transaction), binding).await.expect("an answer");
    }
    let found =
        timeout(LONG, find(&map, &[&there, &open])).await.expect("no wait for the transaction");
    assert_eq!(found, [Some(row(&there, true)), None]);
    fixture.commit(&map, transaction).await;
}

/// Two transactions insert the same bindings in opposite orders: both end, at least one commits,
/// and the other gets an error that allows a retry.
pub async fn transactions_in_opposite_orders_both_end<F: IdMapFixture>(fixture: F) {
    let map = fixture.map().await;
    let (one, two) = (order(1), order(2));
    let mut first = fixture.begin(&map).await;
    let mut second = fixture.begin(&map).await;
    let returned = map.insert(F::connection(&mut first), &one).await;
    assert_eq!(returned.expect("the map answers"), Inserted::New);
    let returned = map.insert(F::connection(&mut second), &two).await;
    assert_eq!(returned.expect("the map answers"), Inserted::New);
    // Each transaction ends as soon as it has its result, so that the other can continue.
    let end = async |mut transaction: F::Transaction, wanted: &Binding| {
        let returned = map.insert(F::connection(&mut transaction), wanted).await;
        match &returned {
            Ok(_) => fixture.commit(&map, transaction).await,
            Err(_) => fixture.rollback(&map, transaction).await,
        }
        returned
    };
    let ended = futures_util::future::join(end(first, &two), end(second, &one));
    let (first, second) = timeout(LONG, ended).await.expect("no deadlock");
    assert!(first.is_ok() || second.is_ok(), "{first:?}, {second:?}");
    for returned in [&first, &second] {
        if let Err(error) = returned {
            assert_eq!(error.kind(), ErrorKind::RetryTransaction, "{error}");
        }
    }
    // The transaction that committed has inserted both.
    assert!(is_live(&map, &one).await && is_live(&map, &two).await);
}
