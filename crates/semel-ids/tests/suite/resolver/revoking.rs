//! Tests for how long revocations hide ids.

use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_ids::resource::Order;
use semel_ids::{
    Binding, CacheSettings, IdMap as _, ResolveReason, Resolver, Resource as _, TypedId,
};

use super::nodes::{ACME, TestCache, TestMap, new_id, node};

/// Returns the entry of a revocation in the shared cache, which lives for half an hour.
fn absence() -> (Vec<u8>, Duration) {
    (b"NULL".to_vec(), CacheSettings::default().l2_ttl)
}

/// Returns an id that the shared cache and two nodes have cached.
async fn cached_everywhere(
    map: &TestMap,
    shared: &TestCache,
) -> (TypedId<Order>, Resolver, Resolver) {
    let (one, two) = (node(map, shared).await, node(map, shared).await);
    let id = new_id();
    map.add_row(id).await;
    assert_eq!(reason(&one, id).await, ResolveReason::HitDb);
    shared.filled(id).await;
    assert_eq!(reason(&two, id).await, ResolveReason::HitL2);
    (id, one, two)
}

async fn reason(resolver: &Resolver, id: TypedId<Order>) -> ResolveReason {
    resolver.resolve::<Order>(ACME, &id.to_string()).await.expect("an answer").reason
}

#[tokio::test(start_paused = true)]
async fn an_id_that_was_revoked_before_it_existed_can_be_registered_and_is_found() {
    for cut in [false, true] {
        let (map, shared) = (TestMap::new(), TestCache::new());
        let (one, two) = (node(&map, &shared).await, node(&map, &shared).await);
        let id = new_id();
        shared.cut(cut);
        // A creation was rolled back and its id revoked; the next attempt has the same id.
        let revoked = two.revoke(ACME, id).await.expect("an answer");
        assert!(!revoked.was_live && revoked.propagated);
        map.register(&one, id).await.committed();
        tokio::time::sleep(Duration::from_millis(1)).await;
        // A node that received no message.
        let third = node(&map, &shared).await;
        for node in [&one, &two, &third] {
            assert_ne!(reason(node, id).await, ResolveReason::NotFound, "{cut}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_revocation_that_failed_hides_a_live_id_only_briefly() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (one, two) = (node(&map, &shared).await, node(&map, &shared).await);
    let id = new_id();
    map.register(&one, id).await.committed();
    tokio::time::sleep(Duration::from_millis(1)).await;
    map.down.store(true, Ordering::SeqCst);
    assert!(one.revoke(ACME, id).await.is_err());
    map.down.store(false, Ordering::SeqCst);
    assert_eq!(shared.filled(id).await.0, b"NULL", "the id may have been revoked");
    tokio::time::sleep(Duration::from_secs(31)).await;
    for node in [&one, &two] {
        assert_ne!(reason(node, id).await, ResolveReason::NotFound);
    }
}

#[tokio::test(start_paused = true)]
async fn a_revived_id_is_found_by_nodes_that_received_no_message() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let one = node(&map, &shared).await;
    let id = new_id();
    map.add_row(id).await;
    assert!(one.revoke(ACME, id).await.expect("revoked").was_live);
    map.overwrite(&[Binding::of(ACME, id).expect("a tenant")]).await.expect("memory");
    one.changed(Order::TYPE, ACME, &id.to_string(), true);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(reason(&node(&map, &shared).await, id).await, ResolveReason::HitDb);
}

#[tokio::test(start_paused = true)]
async fn a_repeated_revocation_does_not_shorten_its_entry() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let one = node(&map, &shared).await;
    let id = new_id();
    map.add_row(id).await;
    one.revoke(ACME, id).await.expect("revoked");
    assert_eq!(shared.filled(id).await, absence());
    map.down.store(true, Ordering::SeqCst);
    assert!(one.revoke(ACME, id).await.is_err());
    assert_eq!(shared.filled(id).await, absence());
}

#[tokio::test(start_paused = true)]
async fn a_repeated_revocation_reaches_nodes_that_the_first_did_not() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let one = node(&map, &shared).await;
    let id = new_id();
    map.add_row(id).await;
    reason(&one, id).await;
    shared.filled(id).await;
    // The node that revoked the id could publish nothing, and has ended.
    let alone = Resolver::builder(map.clone()).build();
    assert!(alone.revoke(ACME, id).await.expect("revoked").was_live);
    let revoked = one.revoke(ACME, id).await.expect("an answer");
    assert!(!revoked.was_live && revoked.propagated);
    assert_eq!(shared.filled(id).await, absence());
}

#[tokio::test(start_paused = true)]
async fn a_revocation_that_was_missed_while_a_registration_was_open_takes_effect() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (one, two) = (node(&map, &shared).await, node(&map, &shared).await);
    let id = new_id();
    let registration = map.register(&one, id).await;
    shared.cut(true);
    assert!(two.revoke(ACME, id).await.expect("revoked").was_live);
    tokio::time::sleep(Duration::from_secs(5)).await;
    shared.cut(false);
    tokio::time::sleep(Duration::from_secs(10)).await;
    registration.committed();
    assert_eq!(reason(&one, id).await, ResolveReason::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_revocation_that_was_missed_before_a_late_commit_takes_effect_without_messages() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (one, two) = (node(&map, &shared).await, node(&map, &shared).await);
    let id = new_id();
    let registration = map.register(&one, id).await;
    shared.cut(true);
    assert!(two.revoke(ACME, id).await.expect("revoked").was_live);
    tokio::time::sleep(Duration::from_secs(10)).await;
    registration.committed();
    assert_eq!(reason(&one, id).await, ResolveReason::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_revoked_id_does_not_reappear_when_the_shared_cache_returns() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (id, one, two) = cached_everywhere(&map, &shared).await;
    shared.down.store(true, Ordering::SeqCst);
    let revoked = one.revoke(ACME, id).await.expect("the map is revoked");
    assert!(revoked.was_live && !revoked.propagated);
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(reason(&one, id).await, ResolveReason::NotFound);
    assert_eq!(shared.peek(id).map(|(value, _)| value), Some(id.to_bytes().to_vec()));
    shared.down.store(false, Ordering::SeqCst);
    for _ in 0..100 {
        assert_eq!(reason(&one, id).await, ResolveReason::NotFound, "the node that revoked the id");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(
        reason(&two, id).await,
        ResolveReason::NotFound,
        "the other node, ten seconds later"
    );
    let (value, left) = shared.filled(id).await;
    assert_eq!(value, b"NULL");
    assert!(left > Duration::from_secs(1_780), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn the_node_that_revoked_an_id_ignores_the_entry_that_could_not_be_changed() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (id, one, _two) = cached_everywhere(&map, &shared).await;
    shared.full.store(true, Ordering::SeqCst);
    assert!(!one.revoke(ACME, id).await.expect("the map is revoked").propagated);
    // Longer than the TTL of an absence, several times.
    let reads = shared.reads.load(Ordering::SeqCst);
    for _ in 0..500 {
        assert_eq!(reason(&one, id).await, ResolveReason::NotFound);
        tokio::time::sleep(Duration::from_millis(1_300)).await;
    }
    assert!(shared.reads.load(Ordering::SeqCst) - reads > 10, "the shared cache was read");
    assert_eq!(shared.filled(id).await.0, id.to_bytes(), "the shared cache still has the id");
    shared.full.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(shared.filled(id).await.0, b"NULL");
}

#[tokio::test(start_paused = true)]
async fn ids_of_revocations_beyond_the_pending_limit_do_not_reappear() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (id, one, _two) = cached_everywhere(&map, &shared).await;
    shared.full.store(true, Ordering::SeqCst);
    assert!(!one.revoke(ACME, id).await.expect("the map is revoked").propagated);
    for _ in 0..60_000 {
        one.changed(Order::TYPE, ACME, &new_id().to_string(), false);
    }
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(reason(&one, id).await, ResolveReason::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_delayed_revocation_does_not_hide_a_revived_id() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (id, one, _two) = cached_everywhere(&map, &shared).await;
    shared.full.store(true, Ordering::SeqCst);
    assert!(!one.revoke(ACME, id).await.expect("the map is revoked").propagated);
    // Another process, which cannot publish messages either, revives the id.
    map.overwrite(&[Binding::of(ACME, id).expect("a tenant")]).await.expect("memory");
    shared.full.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_ne!(shared.peek(id).map(|(value, _)| value), Some(b"NULL".to_vec()));
    assert_ne!(reason(&one, id).await, ResolveReason::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_repair_ends_a_pending_revocation() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (id, one, two) = cached_everywhere(&map, &shared).await;
    shared.full.store(true, Ordering::SeqCst);
    assert!(!one.revoke(ACME, id).await.expect("the map is revoked").propagated);
    map.overwrite(&[Binding::of(ACME, id).expect("a tenant")]).await.expect("memory");
    two.changed(Order::TYPE, ACME, &id.to_string(), true);
    shared.full.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(60)).await;
    for node in [&one, &two] {
        assert_ne!(reason(node, id).await, ResolveReason::NotFound);
    }
    assert_ne!(shared.peek(id).map(|(value, _)| value), Some(b"NULL".to_vec()));
}

#[tokio::test(start_paused = true)]
async fn a_revocation_continues_without_its_caller() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (id, one, _two) = cached_everywhere(&map, &shared).await;
    shared.slow.store(true, Ordering::SeqCst);
    let caller = tokio::spawn({
        let one = one.clone();
        async move { one.revoke(ACME, id).await.map(|revoked| revoked.was_live) }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    caller.abort();
    assert!(caller.await.is_err_and(|error| error.is_cancelled()), "before the map was changed");
    shared.slow.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(shared.filled(id).await.0, b"NULL");
    assert_eq!(reason(&one, id).await, ResolveReason::NotFound);
}
