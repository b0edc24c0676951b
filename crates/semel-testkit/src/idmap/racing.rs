//! Concurrent writers, each in a transaction of its own.

use std::sync::Arc;

use semel_core::store::{ErrorKind, Result};
use semel_ids::map::{Binding, IdMap, Inserted};

use super::IdMapFixture;
use super::shorthand::*;

/// Returns the result; `None` if the map was unavailable, and the caller has to try again.
fn answered<T>(returned: Result<T>) -> Option<T> {
    match returned {
        Ok(answer) => Some(answer),
        Err(error) if error.kind() == ErrorKind::Unavailable => None,
        Err(error) => panic!("{error}"),
    }
}

async fn insert_all<M: IdMap>(map: Arc<M>, bindings: Vec<Binding>) -> Vec<Inserted> {
    loop {
        if let Some(returned) = answered(map.insert_many(&bindings).await) {
            return returned;
        }
    }
}

async fn handles<F: IdMapFixture>(fixture: &F, count: usize) -> Vec<Arc<F::Map>> {
    let mut maps = Vec::new();
    for _ in 0..count {
        maps.push(Arc::new(fixture.map().await));
    }
    maps
}

/// Of many concurrent inserts of one binding, one returns `New` and the others `Already`.
pub async fn of_many_inserts_of_one_binding_one_is_new<F: IdMapFixture>(fixture: F) {
    let maps = handles(&fixture, 4).await;
    for number in 0..20 {
        let racing = (0..8).map(|n| {
            let (map, order) = (Arc::clone(&maps[n % maps.len()]), order(number));
            tokio::spawn(insert_all(map, vec![order]))
        });
        let returned = futures_util::future::join_all(racing).await;
        let returned: Vec<Inserted> =
            returned.into_iter().flat_map(|returned| returned.expect("no panic")).collect();
        assert_eq!(
            returned.iter().filter(|returned| **returned == Inserted::New).count(),
            1,
            "{returned:?}"
        );
        assert_eq!(
            returned.iter().filter(|returned| **returned == Inserted::Already).count(),
            7,
            "{returned:?}"
        );
    }
}

/// Of two concurrent public ids for one internal id, one is bound.
pub async fn of_many_names_of_one_thing_one_is_new<F: IdMapFixture>(fixture: F) {
    let maps = handles(&fixture, 2).await;
    for number in 0..20 {
        let names = [order(number), renamed(&order(number))];
        let racing = names
            .into_iter()
            .zip(&maps)
            .map(|(name, map)| tokio::spawn(insert_all(Arc::clone(map), vec![name])));
        let returned = futures_util::future::join_all(racing).await;
        let mut returned: Vec<Inserted> =
            returned.into_iter().flat_map(|returned| returned.expect("no panic")).collect();
        returned.sort_by_key(|returned| *returned != Inserted::New);
        assert_eq!(returned, [Inserted::New, Inserted::Conflict]);
    }
    assert_eq!(all(&*maps[0], ORDER).await.len(), 20);
}

/// Concurrent calls with overlapping sets of bindings, in different orders, insert each row once
/// and do not deadlock.
pub async fn movers_of_overlapping_sets_write_each_row_once<F: IdMapFixture>(fixture: F) {
    let maps = handles(&fixture, 3).await;
    let moving = maps.iter().enumerate().map(|(n, map)| {
        let map = Arc::clone(map);
        let mut set: Vec<Binding> = orders(0..300).into_iter().skip(n * 40).take(220).collect();
        if n == 1 {
            set.reverse();
        }
        tokio::spawn(insert_all(map, set))
    });
    let returned = futures_util::future::join_all(moving).await;
    let returned: Vec<Inserted> =
        returned.into_iter().flat_map(|returned| returned.expect("no panic")).collect();
    assert_eq!(returned.iter().filter(|returned| **returned == Inserted::New).count(), 300);
    assert_eq!(
        returned.iter().filter(|returned| **returned == Inserted::Already).count(),
        3 * 220 - 300
    );
    assert_eq!(all(&*maps[0], ORDER).await.len(), 300);
}

/// Of many concurrent revocations of one id, one revokes it.
pub async fn of_many_revocations_one_is_first<F: IdMapFixture>(fixture: F) {
    let (maps, orders) = (handles(&fixture, 2).await, orders(0..20));
    let _ = maps[0].insert_many(&orders).await.expect("the map answers");
    for order in orders {
        let racing = (0..6).map(|n| {
            let (map, public) = (Arc::clone(&maps[n % 2]), *order.public());
            tokio::spawn(async move {
                loop {
                    if let Some(returned) = answered(map.revoke(ACME, ORDER, &public).await) {
                        return returned;
                    }
                }
            })
        });
        let returned = futures_util::future::join_all(racing).await;
        let first =
            returned.into_iter().filter(|returned| *returned.as_ref().expect("no panic")).count();
        assert_eq!(first, 1);
    }
}

/// Concurrent repairs leave one row per internal id.
pub async fn repairs_at_once_leave_one_row_for_each_id<F: IdMapFixture>(fixture: F) {
    let maps = handles(&fixture, 2).await;
    let (plain, other) = (orders(0..60), orders(0..60).iter().map(renamed).collect());
    let repairing = [plain, other].into_iter().zip(&maps).map(|(wanted, map)| {
        let map = Arc::clone(map);
        tokio::spawn(async move {
            for _ in 0..5 {
                while answered(map.overwrite(&wanted).await).is_none() {}
            }
        })
    });
    for repaired in futures_util::future::join_all(repairing).await {
        repaired.expect("no panic");
    }
    let rows = all(&*maps[0], ORDER).await;
    assert_eq!(rows.len(), 60, "one public id for each internal one");
    assert!(rows.iter().all(|row| row.live));
    let mut internals: Vec<_> = rows.iter().map(|row| row.internal).collect();
    internals.sort_unstable();
    internals.dedup();
    assert_eq!(internals.len(), 60);
}
