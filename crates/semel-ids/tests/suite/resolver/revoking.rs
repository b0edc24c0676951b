//! Revocations: what they hide, and for how long.

use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_ids::resource::Order;
use semel_ids::{
    Binding, CacheSettings, IdMap as _, ResolveReason, Resolver, Resource as _, TypedId,
};

use super::nodes::{ACME, Hub, Spy, new_id, node};

/// What the shared cache keeps of a revocation: half an hour.
fn absence() -> (Vec<u8>, Duration) {
    (b"NULL".to_vec(), CacheSettings::default().l2_ttl)
}

/// An id that the shared cache and two nodes know.
async fn well_known(map: &Spy, hub: &Hub) -> (TypedId<Order>, Resolver, Resolver) {
    let (one, two) = (node(map, hub).await, node(map, hub).await);
    let id = new_id();
    map.plant(id).await;
    assert_eq!(reason(&one, id).await, ResolveReason::HitDb);
    hub.filled(id).await;
    assert_eq!(reason(&two, id).await, ResolveReason::HitL2);
    (id, one, two)
}

async fn reason(resolver: &Resolver, id: TypedId<Order>) -> ResolveReason {
    resolver.resolve::<Order>(ACME, &id.to_string()).await.expect("an answer").reason
}

#[tokio::test(start_paused = true)]
async fn what_was_revoked_in_vain_can_be_registered_and_is_found() {
    for cut in [false, true] {
        let (map, hub) = (Spy::new(), Hub::new());
        let (one, two) = (node(&map, &hub).await, node(&map, &hub).await);
        let id = new_id();
        hub.cut(cut);
        // A creation was rolled back and is undone; its next attempt has the same id.
        let revoked = two.revoke(ACME, id).await.expect("an answer");
        assert!(!revoked.was_live && revoked.propagated);
        map.register(&one, id).await.committed();
        tokio::time::sleep(Duration::from_millis(1)).await;
        // Somebody who was told nothing.
        let third = node(&map, &hub).await;
        for node in [&one, &two, &third] {
            assert_ne!(reason(node, id).await, ResolveReason::NotFound, "{cut}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_revocation_that_failed_hides_a_live_id_only_briefly() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (one, two) = (node(&map, &hub).await, node(&map, &hub).await);
    let id = new_id();
    map.register(&one, id).await.committed();
    tokio::time::sleep(Duration::from_millis(1)).await;
    map.down.store(true, Ordering::SeqCst);
    assert!(one.revoke(ACME, id).await.is_err());
    map.down.store(false, Ordering::SeqCst);
    assert_eq!(hub.filled(id).await.0, b"NULL", "it might have been revoked");
    tokio::time::sleep(Duration::from_secs(31)).await;
    for node in [&one, &two] {
        assert_ne!(reason(node, id).await, ResolveReason::NotFound);
    }
}

#[tokio::test(start_paused = true)]
async fn a_revived_id_is_found_by_nodes_that_received_no_message() {
    let (map, hub) = (Spy::new(), Hub::new());
    let one = node(&map, &hub).await;
    let id = new_id();
    map.plant(id).await;
    assert!(one.revoke(ACME, id).await.expect("revoked").was_live);
    map.overwrite(&[Binding::of(ACME, id).expect("a tenant")]).await.expect("memory");
    one.changed(Order::TYPE, ACME, &id.to_string(), true);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(reason(&node(&map, &hub).await, id).await, ResolveReason::HitDb);
}

#[tokio::test(start_paused = true)]
async fn a_revocation_that_is_repeated_is_remembered_no_shorter() {
    let (map, hub) = (Spy::new(), Hub::new());
    let one = node(&map, &hub).await;
    let id = new_id();
    map.plant(id).await;
    one.revoke(ACME, id).await.expect("revoked");
    assert_eq!(hub.filled(id).await, absence());
    map.down.store(true, Ordering::SeqCst);
    assert!(one.revoke(ACME, id).await.is_err());
    assert_eq!(hub.filled(id).await, absence());
}

#[tokio::test(start_paused = true)]
async fn a_repeated_revocation_reaches_nodes_that_the_first_did_not() {
    let (map, hub) = (Spy::new(), Hub::new());
    let one = node(&map, &hub).await;
    let id = new_id();
    map.plant(id).await;
    reason(&one, id).await;
    hub.filled(id).await;
    // Whoever revoked it could tell nobody, and is gone.
    let alone = Resolver::builder(map.clone()).build();
    assert!(alone.revoke(ACME, id).await.expect("revoked").was_live);
    let revoked = one.revoke(ACME, id).await.expect("an answer");
    assert!(!revoked.was_live && revoked.propagated);
    assert_eq!(hub.filled(id).await, absence());
}

#[tokio::test(start_paused = true)]
async fn a_revocation_that_was_missed_while_a_registration_was_open_counts() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (one, two) = (node(&map, &hub).await, node(&map, &hub).await);
    let id = new_id();
    let registration = map.register(&one, id).await;
    hub.cut(true);
    assert!(two.revoke(ACME, id).await.expect("revoked").was_live);
    tokio::time::sleep(Duration::from_secs(5)).await;
    hub.cut(false);
    tokio::time::sleep(Duration::from_secs(10)).await;
    registration.committed();
    assert_eq!(reason(&one, id).await, ResolveReason::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_revocation_that_was_missed_before_a_late_commit_is_known_even_while_deaf() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (one, two) = (node(&map, &hub).await, node(&map, &hub).await);
    let id = new_id();
    let registration = map.register(&one, id).await;
    hub.cut(true);
    assert!(two.revoke(ACME, id).await.expect("revoked").was_live);
    tokio::time::sleep(Duration::from_secs(10)).await;
    registration.committed();
    assert_eq!(reason(&one, id).await, ResolveReason::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_revoked_id_does_not_come_back_with_a_shared_cache_that_was_away() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (id, one, two) = well_known(&map, &hub).await;
    hub.down.store(true, Ordering::SeqCst);
    let revoked = one.revoke(ACME, id).await.expect("the map has it");
    assert!(revoked.was_live && !revoked.propagated);
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(reason(&one, id).await, ResolveReason::NotFound);
    assert_eq!(hub.peek(id).map(|(value, _)| value), Some(id.to_bytes().to_vec()));
    hub.down.store(false, Ordering::SeqCst);
    for _ in 0..100 {
        assert_eq!(reason(&one, id).await, ResolveReason::NotFound, "whoever revoked it");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(
        reason(&two, id).await,
        ResolveReason::NotFound,
        "and the others, ten seconds later"
    );
    let (value, left) = hub.filled(id).await;
    assert_eq!(value, b"NULL");
    assert!(left > Duration::from_secs(1_780), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn the_node_that_revoked_an_id_trusts_no_entry_that_could_not_be_changed() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (id, one, _two) = well_known(&map, &hub).await;
    hub.full.store(true, Ordering::SeqCst);
    assert!(!one.revoke(ACME, id).await.expect("the map has it").propagated);
    // Longer than an absence is remembered, again and again.
    let reads = hub.reads.load(Ordering::SeqCst);
    for _ in 0..500 {
        assert_eq!(reason(&one, id).await, ResolveReason::NotFound);
        tokio::time::sleep(Duration::from_millis(1_300)).await;
    }
    assert!(hub.reads.load(Ordering::SeqCst) - reads > 10, "the cache was asked");
    assert_eq!(hub.filled(id).await.0, id.to_bytes(), "and said that it is there");
    hub.full.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(hub.filled(id).await.0, b"NULL");
}

#[tokio::test(start_paused = true)]
async fn revocations_beyond_the_pending_limit_do_not_come_back_either() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (id, one, _two) = well_known(&map, &hub).await;
    hub.full.store(true, Ordering::SeqCst);
    assert!(!one.revoke(ACME, id).await.expect("the map has it").propagated);
    for _ in 0..60_000 {
        one.changed(Order::TYPE, ACME, &new_id().to_string(), false);
    }
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(reason(&one, id).await, ResolveReason::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_delayed_revocation_does_not_hide_a_revived_id() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (id, one, _two) = well_known(&map, &hub).await;
    hub.full.store(true, Ordering::SeqCst);
    assert!(!one.revoke(ACME, id).await.expect("the map has it").propagated);
    // By a process that can tell nobody either.
    map.overwrite(&[Binding::of(ACME, id).expect("a tenant")]).await.expect("memory");
    hub.full.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_ne!(hub.peek(id).map(|(value, _)| value), Some(b"NULL".to_vec()));
    assert_ne!(reason(&one, id).await, ResolveReason::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_repair_ends_a_pending_revocation() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (id, one, two) = well_known(&map, &hub).await;
    hub.full.store(true, Ordering::SeqCst);
    assert!(!one.revoke(ACME, id).await.expect("the map has it").propagated);
    map.overwrite(&[Binding::of(ACME, id).expect("a tenant")]).await.expect("memory");
    two.changed(Order::TYPE, ACME, &id.to_string(), true);
    hub.full.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(60)).await;
    for node in [&one, &two] {
        assert_ne!(reason(node, id).await, ResolveReason::NotFound);
    }
    assert_ne!(hub.peek(id).map(|(value, _)| value), Some(b"NULL".to_vec()));
}

#[tokio::test(start_paused = true)]
async fn a_revocation_goes_on_without_its_caller() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (id, one, _two) = well_known(&map, &hub).await;
    hub.slow.store(true, Ordering::SeqCst);
    let caller = tokio::spawn({
        let one = one.clone();
        async move { one.revoke(ACME, id).await.map(|revoked| revoked.was_live) }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    caller.abort();
    assert!(caller.await.is_err_and(|error| error.is_cancelled()), "before the map was changed");
    hub.slow.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(hub.filled(id).await.0, b"NULL");
    assert_eq!(reason(&one, id).await, ResolveReason::NotFound);
}
