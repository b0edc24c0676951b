//! Tests registrations and revocations that run at the same time as lookups.

use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_ids::resource::Order;
use semel_ids::{CacheSettings, ResolveReason, Resolver, TypedId};

use super::nodes::{ACME, TestCache, TestMap, new_id, node};

async fn reason(resolver: &Resolver, id: TypedId<Order>) -> ResolveReason {
    resolver.resolve::<Order>(ACME, &id.to_string()).await.expect("an answer").reason
}

#[tokio::test(start_paused = true)]
async fn a_new_id_is_found_at_once_after_an_earlier_lookup_did_not_find_it() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let resolver = node(&map, &shared).await;
    let id = new_id();
    assert_eq!(reason(&resolver, id).await, ResolveReason::NotFound);
    shared.filled(id).await;
    map.register(&resolver, id).await.committed();
    assert_eq!(reason(&resolver, id).await, ResolveReason::HitL1);
}

#[tokio::test(start_paused = true)]
async fn other_nodes_find_a_new_id_as_soon_as_they_receive_the_message() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (one, two) = (node(&map, &shared).await, node(&map, &shared).await);
    let id = new_id();
    assert_eq!(reason(&two, id).await, ResolveReason::NotFound);
    shared.filled(id).await;
    map.register(&one, id).await.committed();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(reason(&two, id).await, ResolveReason::HitDb);
}

#[tokio::test(start_paused = true)]
async fn a_delayed_message_does_not_restore_a_revoked_id() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (one, two) = (node(&map, &shared).await, node(&map, &shared).await);
    let id = new_id();
    shared.down.store(true, Ordering::SeqCst);
    map.register(&one, id).await.committed();
    tokio::time::sleep(Duration::from_millis(10)).await;
    shared.down.store(false, Ordering::SeqCst);
    two.revoke(ACME, id).await.expect("revoked");
    // The first node now publishes the registration that it could not publish before.
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(reason(&one, id).await, ResolveReason::NotFound);
    assert_eq!(reason(&two, id).await, ResolveReason::NotFound);
}

#[tokio::test(start_paused = true)]
async fn other_nodes_find_a_new_id_within_the_bound_if_no_message_arrives() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (one, two) = (node(&map, &shared).await, node(&map, &shared).await);
    let third = node(&map, &shared).await;
    let id = new_id();
    assert_eq!(reason(&two, id).await, ResolveReason::NotFound);
    shared.filled(id).await;
    // The third node copies the absence from the shared cache just before it expires there.
    tokio::time::sleep(Duration::from_secs(26)).await;
    assert_eq!(reason(&third, id).await, ResolveReason::NotFound);
    // A process dies after its commit and before it publishes the registration.
    drop(map.register(&one, id).await);
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(
        reason(&third, id).await,
        ResolveReason::NotFound,
        "the absence lasts nearly until the bound"
    );
    let bound = CacheSettings::default().absence_bound();
    tokio::time::sleep(bound - Duration::from_secs(15)).await;
    for node in [&one, &two, &third] {
        assert!(matches!(reason(node, id).await, ResolveReason::HitDb | ResolveReason::HitL2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_lookup_that_missed_before_the_commit_leaves_no_absence() {
    for reported in [true, false] {
        let (map, shared) = (TestMap::new(), TestCache::new());
        let held = map.with_held_answers();
        let resolver = node(&held, &shared).await;
        let id = new_id();
        let early = tokio::spawn({
            let resolver = resolver.clone();
            async move { reason(&resolver, id).await }
        });
        held.wait_for_lookups(1).await;
        let registration = map.register(&resolver, id).await;
        if reported {
            registration.committed();
        } else {
            drop(registration);
        }
        held.release_answers();
        assert_eq!(
            early.await.expect("no panic"),
            ResolveReason::NotFound,
            "the lookup began before the change"
        );
        assert!(
            matches!(reason(&resolver, id).await, ResolveReason::HitL1 | ResolveReason::HitDb),
            "{reported}"
        );
        let shared = shared.peek(id).map(|(value, _)| value);
        assert!(
            shared.is_none_or(|value| value == id.to_bytes()),
            "the shared cache has no absence"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_lookup_during_the_transaction_leaves_no_absence() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let held = map.with_held_answers();
    let resolver = node(&held, &shared).await;
    let id = new_id();
    // The row is not visible yet, because its transaction is open.
    let binding = semel_ids::Binding::of(ACME, id).expect("a tenant");
    let mut elsewhere = TestMap::new().rows;
    let open = resolver.register(&TestMap::new(), &mut elsewhere, &binding).await.expect("begun");
    let during = tokio::spawn({
        let resolver = resolver.clone();
        async move { reason(&resolver, id).await }
    });
    held.wait_for_lookups(1).await;
    held.release_answers();
    assert_eq!(during.await.expect("no panic"), ResolveReason::NotFound);
    assert!(shared.peek(id).is_none(), "an absence that may end at any moment is not shared");
    map.add_row(id).await;
    assert_eq!(reason(&resolver, id).await, ResolveReason::HitDb, "before the commit was reported");
    open.committed();
}

#[tokio::test(start_paused = true)]
async fn a_lookup_on_another_node_that_missed_before_the_commit_leaves_no_absence() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let held = map.with_held_answers();
    let (one, two) = (node(&map, &shared).await, node(&held, &shared).await);
    let id = new_id();
    let early = tokio::spawn({
        let two = two.clone();
        async move { reason(&two, id).await }
    });
    held.wait_for_lookups(1).await;
    map.register(&one, id).await.committed();
    tokio::time::sleep(Duration::from_millis(1)).await;
    held.release_answers();
    early.await.expect("no panic");
    assert!(shared.peek(id).is_none(), "the absence is not shared");
    assert_eq!(reason(&two, id).await, ResolveReason::HitDb);
}

#[tokio::test(start_paused = true)]
async fn an_id_that_is_revoked_before_committed_is_called_stays_revoked() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (one, two) = (node(&map, &shared).await, node(&map, &shared).await);
    for revoker in [&one, &two] {
        let id = new_id();
        let registration = map.register(&one, id).await;
        revoker.revoke(ACME, id).await.expect("revoked");
        tokio::time::sleep(Duration::from_millis(1)).await;
        registration.committed();
        assert_eq!(reason(&one, id).await, ResolveReason::NotFound);
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(reason(&one, id).await, ResolveReason::NotFound);
    }
}

#[tokio::test(start_paused = true)]
async fn an_absence_in_the_shared_cache_does_not_hide_an_id_that_this_node_registered() {
    for reported in [true, false] {
        let (map, shared) = (TestMap::new(), TestCache::new());
        let (one, two) = (node(&map, &shared).await, node(&map, &shared).await);
        let id = new_id();
        assert_eq!(reason(&two, id).await, ResolveReason::NotFound);
        shared.filled(id).await;
        // No message can be published, and this node soon ignores its cached answers.
        shared.cut(true);
        shared.down.store(true, Ordering::SeqCst);
        let registration = map.register(&one, id).await;
        if reported {
            registration.committed();
        } else {
            drop(registration);
        }
        tokio::time::sleep(Duration::from_secs(9)).await;
        shared.down.store(false, Ordering::SeqCst);
        assert_eq!(shared.filled(id).await.0, b"NULL");
        assert_ne!(reason(&one, id).await, ResolveReason::NotFound, "{reported}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_absence_that_arrives_after_the_message_does_not_hide_a_new_id() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (one, two) = (node(&map, &shared).await, node(&map, &shared).await);
    let id = new_id();
    map.register(&one, id).await.committed();
    tokio::time::sleep(Duration::from_millis(1)).await;
    // Another reader did not find the id before the commit, and fills the cache now.
    shared.put(id, b"NULL");
    assert_eq!(reason(&two, id).await, ResolveReason::HitDb);
}

#[tokio::test(start_paused = true)]
async fn a_repaired_id_is_found_by_nodes_that_received_the_message() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (one, two) = (node(&map, &shared).await, node(&map, &shared).await);
    let id = new_id();
    assert_eq!(reason(&one, id).await, ResolveReason::NotFound);
    shared.filled(id).await;
    map.add_row(id).await;
    one.changed(<Order as semel_ids::Resource>::TYPE, ACME, &id.to_string(), true);
    assert_eq!(
        reason(&one, id).await,
        ResolveReason::HitDb,
        "before other nodes receive the message"
    );
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_ne!(reason(&two, id).await, ResolveReason::NotFound);
}

#[tokio::test(start_paused = true)]
async fn absences_are_cached_again_after_a_rolled_back_registration() {
    let map = TestMap::new();
    let resolver = Resolver::builder(map.clone()).build();
    let id = new_id();
    let binding = semel_ids::Binding::of(ACME, id).expect("a tenant");
    let mut transaction = TestMap::new().rows;
    let begun = resolver.register(&map, &mut transaction, &binding).await.expect("begun");
    begun.rolled_back();
    assert_eq!(reason(&resolver, id).await, ResolveReason::NotFound);
    assert_eq!(reason(&resolver, id).await, ResolveReason::NotFound);
    assert_eq!(map.count(), 1, "absences are cached again");
}

#[tokio::test(start_paused = true)]
async fn a_revoked_id_is_not_found_on_this_node_and_on_nodes_that_received_the_message() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (one, two) = (node(&map, &shared).await, node(&map, &shared).await);
    let id = new_id();
    map.add_row(id).await;
    for node in [&one, &two] {
        assert!(matches!(reason(node, id).await, ResolveReason::HitDb | ResolveReason::HitL2));
        assert_eq!(reason(node, id).await, ResolveReason::HitL1);
    }
    let revoked = one.revoke(ACME, id).await.expect("revoked");
    assert!(revoked.was_live && revoked.propagated);
    assert_eq!(reason(&one, id).await, ResolveReason::NotFound);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(reason(&two, id).await, ResolveReason::NotFound);
    assert!(!one.revoke(ACME, id).await.expect("an answer").was_live);
}

#[tokio::test(start_paused = true)]
async fn a_lookup_that_hit_before_the_revocation_is_not_cached() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let held = map.with_held_answers();
    let (one, two) = (node(&map, &shared).await, node(&held, &shared).await);
    let id = new_id();
    map.add_row(id).await;
    let early = tokio::spawn({
        let two = two.clone();
        async move { reason(&two, id).await }
    });
    held.wait_for_lookups(1).await;
    one.revoke(ACME, id).await.expect("revoked");
    tokio::time::sleep(Duration::from_millis(1)).await;
    held.release_answers();
    assert_eq!(
        early.await.expect("no panic"),
        ResolveReason::HitDb,
        "the lookup began before the change"
    );
    assert_eq!(reason(&two, id).await, ResolveReason::NotFound);
    assert_eq!(shared.filled(id).await.0, b"NULL", "a reader writes only into empty slots");
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(reason(&two, id).await, ResolveReason::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_node_without_messages_sees_a_revocation_within_ten_seconds() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (one, two) = (node(&map, &shared).await, node(&map, &shared).await);
    let id = new_id();
    map.add_row(id).await;
    reason(&two, id).await;
    shared.cut(true);
    one.revoke(ACME, id).await.expect("revoked");
    assert_eq!(reason(&two, id).await, ResolveReason::HitL1, "the node received no message");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(reason(&two, id).await, ResolveReason::NotFound);
    // While a node receives no messages, it uses cached answers only briefly.
    let other = new_id();
    map.add_row(other).await;
    assert_eq!(reason(&two, other).await, ResolveReason::HitDb);
    assert_eq!(reason(&two, other).await, ResolveReason::HitL1);
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(reason(&two, other).await, ResolveReason::HitL2);
    shared.cut(false);
    tokio::time::sleep(Duration::from_secs(10)).await;
    reason(&two, other).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(reason(&two, other).await, ResolveReason::HitL1, "the node receives messages again");
}
