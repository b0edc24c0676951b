//! Tests revocations in the caller's transaction, which deletes the resource.

use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_ids::resource::Order;
use semel_ids::{ResolveReason, Resolver, Revocation, TypedId};

use super::nodes::{ACME, TestCache, TestMap, new_id, node};

async fn reason(resolver: &Resolver, id: TypedId<Order>) -> ResolveReason {
    resolver.resolve::<Order>(ACME, &id.to_string()).await.expect("an answer").reason
}

/// Returns an id that both nodes have cached.
async fn cached_on_both(map: &TestMap, nodes: [&Resolver; 2]) -> TypedId<Order> {
    let id = new_id();
    map.add_row(id).await;
    for node in nodes {
        reason(node, id).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(reason(node, id).await, ResolveReason::HitL1);
    }
    id
}

/// Revokes an id in a transaction, as a service does. In this map the commit takes effect at once.
async fn revoke_in_transaction(
    map: &TestMap,
    resolver: &Resolver,
    id: TypedId<Order>,
) -> Revocation {
    let mut transaction = map.rows.clone();
    resolver.revoke_in(map, &mut transaction, ACME, id).await.expect("the map works")
}

#[tokio::test(start_paused = true)]
async fn an_id_that_was_revoked_with_its_resource_is_found_on_no_node() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (one, two) = (node(&map, &shared).await, node(&map, &shared).await);
    // Whether or not the caller reports how the transaction ended.
    for reported in [true, false] {
        let id = cached_on_both(&map, [&one, &two]).await;
        let revocation = revoke_in_transaction(&map, &one, id).await;
        assert!(revocation.was_live());
        if reported {
            revocation.committed();
        } else {
            drop(revocation);
        }
        assert_eq!(reason(&one, id).await, ResolveReason::NotFound, "{reported}");
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(reason(&two, id).await, ResolveReason::NotFound, "{reported}");
        let (value, left) = shared.filled(id).await;
        assert_eq!(value, b"NULL");
        assert!(left > Duration::from_secs(1_700), "{left:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_id_whose_revocation_was_rolled_back_is_found_at_once() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (one, two) = (node(&map, &shared).await, node(&map, &shared).await);
    let id = cached_on_both(&map, [&one, &two]).await;
    // Another map contains the writes of the transaction, which are not visible.
    let elsewhere = TestMap::new();
    elsewhere.add_row(id).await;
    let revocation = revoke_in_transaction(&elsewhere, &one, id).await;
    assert_eq!(
        shared.filled(id).await.0,
        b"NULL",
        "the revocation was announced to the other nodes"
    );
    revocation.rolled_back();
    tokio::time::sleep(Duration::from_millis(1)).await;
    for node in [&one, &two] {
        assert_ne!(reason(node, id).await, ResolveReason::NotFound);
    }
}

#[tokio::test(start_paused = true)]
async fn an_id_whose_rollback_was_not_reported_is_still_found() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (one, two) = (node(&map, &shared).await, node(&map, &shared).await);
    let id = cached_on_both(&map, [&one, &two]).await;
    let elsewhere = TestMap::new();
    elsewhere.add_row(id).await;
    // The transaction is rolled back, and the caller does not report it.
    drop(revoke_in_transaction(&elsewhere, &one, id).await);
    tokio::time::sleep(Duration::from_millis(1)).await;
    for node in [&one, &two] {
        assert_ne!(reason(node, id).await, ResolveReason::NotFound);
    }
}

#[tokio::test(start_paused = true)]
async fn an_id_that_was_revoked_before_it_existed_can_be_registered() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (one, two) = (node(&map, &shared).await, node(&map, &shared).await);
    let id = new_id();
    let revocation = revoke_in_transaction(&map, &two, id).await;
    assert!(!revocation.was_live());
    revocation.committed();
    map.register(&one, id).await.committed();
    tokio::time::sleep(Duration::from_millis(1)).await;
    for node in [&one, &two] {
        assert_ne!(reason(node, id).await, ResolveReason::NotFound);
    }
    map.down.store(true, Ordering::SeqCst);
    let refused = one.revoke_in(&map, &mut map.rows.clone(), ACME, id).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("down")));
}
