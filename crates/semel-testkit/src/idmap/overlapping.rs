//! Two transactions of applications that write at the same time: each answer is right, or a typed
//! error that asks the application to begin again.

use std::future::Future;
use std::time::Duration;

use semel_core::store::{ErrorKind, Result};
use semel_ids::map::{Binding, IdMap, Inserted};
use tokio::time::timeout;

use super::IdMapFixture;
use super::shorthand::*;

/// Longer than anything here takes, on any machine.
const LONG: Duration = Duration::from_secs(60);

/// Polls for a while; gives the answer if there is one already.
async fn soon<T>(asked: impl Future<Output = T>) -> Option<T> {
    timeout(Duration::from_millis(100), asked).await.ok()
}

/// Returns whether this is a correct result for a binding that another transaction is about to commit.
fn is_right(told: &Result<Inserted>, expected: Inserted) -> bool {
    match told {
        Ok(told) => *told == expected,
        Err(error) => matches!(error.kind(), ErrorKind::RetryTransaction | ErrorKind::Unavailable),
    }
}

/// The second of two waits for the first and gets the right result.
async fn second_is_told<F: IdMapFixture>(
    fixture: &F,
    first: &Binding,
    second: &Binding,
    commits: bool,
) -> Result<Inserted> {
    let map = fixture.map().await;
    let mut one = fixture.begin(&map).await;
    let mut two = fixture.begin(&map).await;
    let told = map.insert(F::connection(&mut one), first).await.expect("the map answers");
    assert_eq!(told, Inserted::New);
    let told = {
        let connection = F::connection(&mut two);
        let mut asked = Box::pin(map.insert(connection, second));
        match soon(&mut asked).await {
            // Not waited for: an error, because the result is not known yet.
            Some(told) => {
                assert!(told.is_err(), "{told:?} while the first is open");
                if commits {
                    fixture.commit(&map, one).await;
                } else {
                    fixture.rollback(&map, one).await;
                }
                told
            }
            None => {
                if commits {
                    fixture.commit(&map, one).await;
                } else {
                    fixture.rollback(&map, one).await;
                }
                timeout(LONG, asked).await.expect("the first is done")
            }
        }
    };
    match &told {
        Ok(_) => fixture.commit(&map, two).await,
        Err(_) => fixture.rollback(&map, two).await,
    }
    told
}

/// The same binding in two transactions: the second finds it there, or begins again.
pub async fn the_second_finds_what_the_first_committed<F: IdMapFixture>(fixture: F) {
    let order = order(1);
    let told = second_is_told(&fixture, &order, &order, true).await;
    assert!(is_right(&told, Inserted::Already), "{told:?}");
    assert!(is_live(&fixture.map().await, &order).await);
}

/// The first rolls back: the second has it.
pub async fn the_second_has_what_the_first_gave_back<F: IdMapFixture>(fixture: F) {
    let order = order(1);
    let told = second_is_told(&fixture, &order, &order, false).await;
    assert!(is_right(&told, Inserted::New), "{told:?}");
    let map = fixture.map().await;
    assert_eq!(is_live(&map, &order).await, told.is_ok());
}

/// Another name of the same thing is a conflict, however close they come.
pub async fn another_name_of_an_open_binding_is_a_conflict<F: IdMapFixture>(fixture: F) {
    let order = order(1);
    let told = second_is_told(&fixture, &order, &renamed(&order), true).await;
    assert!(is_right(&told, Inserted::Conflict), "{told:?}");
    let map = fixture.map().await;
    assert_eq!(all(&map, ORDER).await, [row(&order, true)]);
}

/// Another thing under the same name is a conflict, too.
pub async fn another_thing_of_an_open_name_is_a_conflict<F: IdMapFixture>(fixture: F) {
    let (one, two) = ambiguous(ACME);
    let told = second_is_told(&fixture, &one, &two, true).await;
    assert!(is_right(&told, Inserted::Conflict), "{told:?}");
    let map = fixture.map().await;
    assert_eq!(all(&map, ORDER).await, [row(&one, true)]);
}

/// Strangers' bindings do not wait for each other.
pub async fn strangers_do_not_wait_for_each_other<F: IdMapFixture>(fixture: F) {
    let map = holding(&fixture, &orders(100..120)).await;
    let mut one = fixture.begin(&map).await;
    let mut two = fixture.begin(&map).await;
    for number in 0..20 {
        for (transaction, number) in [(&mut one, number), (&mut two, 50 + number)] {
            let connection = F::connection(transaction);
            let asked = timeout(LONG, map.insert(connection, &order(number))).await;
            assert_eq!(asked.expect("nobody is in the way").expect("new"), Inserted::New);
        }
    }
    let other = order_of("other", 1);
    let asked = timeout(LONG, map.insert_many(std::slice::from_ref(&other))).await;
    assert_eq!(asked.expect("nobody is in the way").expect("new"), [Inserted::New]);
    fixture.commit(&map, one).await;
    fixture.commit(&map, two).await;
    assert_eq!(all(&map, ORDER).await.len(), 61);
}

/// Finding does not wait for open transactions, and sees what is committed.
pub async fn finding_waits_for_no_transaction<F: IdMapFixture>(fixture: F) {
    let (there, open) = (order(1), order(2));
    let map = holding(&fixture, std::slice::from_ref(&there)).await;
    let mut transaction = fixture.begin(&map).await;
    for binding in [&open, &there] {
        let _ = map.insert(F::connection(&mut transaction), binding).await.expect("an answer");
    }
    let found = timeout(LONG, find(&map, &[&there, &open])).await.expect("nobody is waited for");
    assert_eq!(found, [Some(row(&there, true)), None]);
    fixture.commit(&map, transaction).await;
}

/// Two transactions that take the same bindings in opposite orders: both end, one at least commits, and
/// the loser got an error that asks to begin again.
pub async fn opposite_orders_end<F: IdMapFixture>(fixture: F) {
    let map = fixture.map().await;
    let (one, two) = (order(1), order(2));
    let mut first = fixture.begin(&map).await;
    let mut second = fixture.begin(&map).await;
    let told = map.insert(F::connection(&mut first), &one).await;
    assert_eq!(told.expect("the map answers"), Inserted::New);
    let told = map.insert(F::connection(&mut second), &two).await;
    assert_eq!(told.expect("the map answers"), Inserted::New);
    // Each ends as soon as it has its answer, so that the other goes on.
    let end = async |mut transaction: F::Transaction, wanted: &Binding| {
        let told = map.insert(F::connection(&mut transaction), wanted).await;
        match &told {
            Ok(_) => fixture.commit(&map, transaction).await,
            Err(_) => fixture.rollback(&map, transaction).await,
        }
        told
    };
    let ended = futures_util::future::join(end(first, &two), end(second, &one));
    let (first, second) = timeout(LONG, ended).await.expect("nobody waits for ever");
    assert!(first.is_ok() || second.is_ok(), "{first:?}, {second:?}");
    for told in [&first, &second] {
        if let Err(error) = told {
            assert_eq!(error.kind(), ErrorKind::RetryTransaction, "{error}");
        }
    }
    // The one that committed has both.
    assert!(is_live(&map, &one).await && is_live(&map, &two).await);
}
