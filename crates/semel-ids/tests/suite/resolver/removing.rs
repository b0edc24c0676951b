//! Revocations in the caller's transaction, where the thing itself goes away.

use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_ids::resource::Order;
use semel_ids::{ResolveReason, Resolver, Revocation, TypedId};

use super::nodes::{ACME, Hub, Spy, new_id, node};

async fn reason(resolver: &Resolver, id: TypedId<Order>) -> ResolveReason {
    resolver.resolve::<Order>(ACME, &id.to_string()).await.expect("an answer").reason
}

/// An id that both nodes remember.
async fn remembered(map: &Spy, nodes: [&Resolver; 2]) -> TypedId<Order> {
    let id = new_id();
    map.plant(id).await;
    for node in nodes {
        reason(node, id).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(reason(node, id).await, ResolveReason::HitL1);
    }
    id
}

/// What a service does, up to its commit, which in this map is at once.
async fn removing(map: &Spy, resolver: &Resolver, id: TypedId<Order>) -> Revocation {
    let mut transaction = map.rows.clone();
    resolver.revoke_in(map, &mut transaction, ACME, id).await.expect("the map answers")
}

#[tokio::test(start_paused = true)]
async fn an_id_that_went_with_its_thing_is_gone_everywhere() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (one, two) = (node(&map, &hub).await, node(&map, &hub).await);
    // Whether or not anybody says how the transaction ended.
    for told in [true, false] {
        let id = remembered(&map, [&one, &two]).await;
        let revocation = removing(&map, &one, id).await;
        assert!(revocation.was_live());
        if told {
            revocation.committed();
        } else {
            drop(revocation);
        }
        assert_eq!(reason(&one, id).await, ResolveReason::NotFound, "{told}");
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(reason(&two, id).await, ResolveReason::NotFound, "{told}");
        let (value, left) = hub.filled(id).await;
        assert_eq!(value, b"NULL");
        assert!(left > Duration::from_secs(1_700), "{left:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_id_whose_removal_was_rolled_back_is_found_at_once() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (one, two) = (node(&map, &hub).await, node(&map, &hub).await);
    let id = remembered(&map, [&one, &two]).await;
    // Another map stands for what the transaction writes and nobody sees.
    let elsewhere = Spy::new();
    elsewhere.plant(id).await;
    let revocation = removing(&elsewhere, &one, id).await;
    assert_eq!(hub.filled(id).await.0, b"NULL", "the others were warned");
    revocation.rolled_back();
    tokio::time::sleep(Duration::from_millis(1)).await;
    for node in [&one, &two] {
        assert_ne!(reason(node, id).await, ResolveReason::NotFound);
    }
}

#[tokio::test(start_paused = true)]
async fn an_id_that_was_only_thought_to_be_removed_is_not_said_to_be_gone() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (one, two) = (node(&map, &hub).await, node(&map, &hub).await);
    let id = remembered(&map, [&one, &two]).await;
    let elsewhere = Spy::new();
    elsewhere.plant(id).await;
    // Rolled back, and nobody says so.
    drop(removing(&elsewhere, &one, id).await);
    tokio::time::sleep(Duration::from_millis(1)).await;
    for node in [&one, &two] {
        assert_ne!(reason(node, id).await, ResolveReason::NotFound);
    }
}

#[tokio::test(start_paused = true)]
async fn an_id_that_is_not_there_is_removed_in_vain_and_can_be_registered() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (one, two) = (node(&map, &hub).await, node(&map, &hub).await);
    let id = new_id();
    let revocation = removing(&map, &two, id).await;
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
