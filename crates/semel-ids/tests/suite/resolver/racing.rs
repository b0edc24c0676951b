//! Writers and readers at the same time.

use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_ids::resource::Order;
use semel_ids::{CacheSettings, ResolveReason, Resolver, TypedId};

use super::nodes::{ACME, Hub, Spy, new_id, node};

async fn reason(resolver: &Resolver, id: TypedId<Order>) -> ResolveReason {
    resolver.resolve::<Order>(ACME, &id.to_string()).await.expect("an answer").reason
}

#[tokio::test(start_paused = true)]
async fn a_new_id_is_known_at_once_after_it_was_asked_for_in_vain() {
    let (map, hub) = (Spy::new(), Hub::new());
    let resolver = node(&map, &hub).await;
    let id = new_id();
    assert_eq!(reason(&resolver, id).await, ResolveReason::NotFound);
    hub.filled(id).await;
    map.register(&resolver, id).await.committed();
    assert_eq!(reason(&resolver, id).await, ResolveReason::HitL1);
}

#[tokio::test(start_paused = true)]
async fn other_nodes_know_a_new_id_as_soon_as_they_receive_the_message() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (one, two) = (node(&map, &hub).await, node(&map, &hub).await);
    let id = new_id();
    assert_eq!(reason(&two, id).await, ResolveReason::NotFound);
    hub.filled(id).await;
    map.register(&one, id).await.committed();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(reason(&two, id).await, ResolveReason::HitDb);
}

#[tokio::test(start_paused = true)]
async fn a_delayed_message_does_not_bring_back_a_revoked_id() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (one, two) = (node(&map, &hub).await, node(&map, &hub).await);
    let id = new_id();
    hub.down.store(true, Ordering::SeqCst);
    map.register(&one, id).await.committed();
    tokio::time::sleep(Duration::from_millis(10)).await;
    hub.down.store(false, Ordering::SeqCst);
    two.revoke(ACME, id).await.expect("revoked");
    // The first node now says what it could not say before.
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(reason(&one, id).await, ResolveReason::NotFound);
    assert_eq!(reason(&two, id).await, ResolveReason::NotFound);
}

#[tokio::test(start_paused = true)]
async fn other_nodes_know_a_new_id_within_the_bound_if_no_message_arrives() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (one, two) = (node(&map, &hub).await, node(&map, &hub).await);
    let third = node(&map, &hub).await;
    let id = new_id();
    assert_eq!(reason(&two, id).await, ResolveReason::NotFound);
    hub.filled(id).await;
    // Copied from the shared cache just before it runs out there.
    tokio::time::sleep(Duration::from_secs(26)).await;
    assert_eq!(reason(&third, id).await, ResolveReason::NotFound);
    // A process that dies between its commit and telling of it.
    drop(map.register(&one, id).await);
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(reason(&third, id).await, ResolveReason::NotFound, "the bound is not idle talk");
    let bound = CacheSettings::default().absence_bound();
    tokio::time::sleep(bound - Duration::from_secs(15)).await;
    for node in [&one, &two, &third] {
        assert!(matches!(reason(node, id).await, ResolveReason::HitDb | ResolveReason::HitL2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_lookup_that_missed_before_the_commit_leaves_no_absence() {
    for told in [true, false] {
        let (map, hub) = (Spy::new(), Hub::new());
        let held = map.holding();
        let resolver = node(&held, &hub).await;
        let id = new_id();
        let early = tokio::spawn({
            let resolver = resolver.clone();
            async move { reason(&resolver, id).await }
        });
        held.looked(1).await;
        let registration = map.register(&resolver, id).await;
        if told {
            registration.committed();
        } else {
            drop(registration);
        }
        held.let_go();
        assert_eq!(early.await.expect("no panic"), ResolveReason::NotFound, "it asked before");
        assert!(
            matches!(reason(&resolver, id).await, ResolveReason::HitL1 | ResolveReason::HitDb),
            "{told}"
        );
        let shared = hub.peek(id).map(|(value, _)| value);
        assert!(shared.is_none_or(|value| value == id.to_bytes()), "and none in the shared cache");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lookup_during_the_transaction_leaves_no_absence() {
    let (map, hub) = (Spy::new(), Hub::new());
    let held = map.holding();
    let resolver = node(&held, &hub).await;
    let id = new_id();
    // The row is not there yet: its transaction is open.
    let binding = semel_ids::Binding::of(ACME, id).expect("a tenant");
    let mut elsewhere = Spy::new().rows;
    let open = resolver.register(&Spy::new(), &mut elsewhere, &binding).await.expect("begun");
    let during = tokio::spawn({
        let resolver = resolver.clone();
        async move { reason(&resolver, id).await }
    });
    held.looked(1).await;
    held.let_go();
    assert_eq!(during.await.expect("no panic"), ResolveReason::NotFound);
    assert!(hub.peek(id).is_none(), "nobody else is told of an absence that may end at any moment");
    map.plant(id).await;
    assert_eq!(reason(&resolver, id).await, ResolveReason::HitDb, "before anybody said committed");
    open.committed();
}

#[tokio::test(start_paused = true)]
async fn a_lookup_on_another_node_that_missed_before_the_commit_leaves_no_absence() {
    let (map, hub) = (Spy::new(), Hub::new());
    let held = map.holding();
    let (one, two) = (node(&map, &hub).await, node(&held, &hub).await);
    let id = new_id();
    let early = tokio::spawn({
        let two = two.clone();
        async move { reason(&two, id).await }
    });
    held.looked(1).await;
    map.register(&one, id).await.committed();
    tokio::time::sleep(Duration::from_millis(1)).await;
    held.let_go();
    early.await.expect("no panic");
    assert!(hub.peek(id).is_none(), "nor does it tell of one");
    assert_eq!(reason(&two, id).await, ResolveReason::HitDb);
}

#[tokio::test(start_paused = true)]
async fn an_id_that_is_revoked_before_committed_is_called_stays_revoked() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (one, two) = (node(&map, &hub).await, node(&map, &hub).await);
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
async fn an_absence_in_the_shared_cache_does_not_hide_what_this_node_registered() {
    for told in [true, false] {
        let (map, hub) = (Spy::new(), Hub::new());
        let (one, two) = (node(&map, &hub).await, node(&map, &hub).await);
        let id = new_id();
        assert_eq!(reason(&two, id).await, ResolveReason::NotFound);
        hub.filled(id).await;
        // Nobody can be told, and this node soon trusts its own memory no more.
        hub.cut(true);
        hub.down.store(true, Ordering::SeqCst);
        let registration = map.register(&one, id).await;
        if told {
            registration.committed();
        } else {
            drop(registration);
        }
        tokio::time::sleep(Duration::from_secs(9)).await;
        hub.down.store(false, Ordering::SeqCst);
        assert_eq!(hub.filled(id).await.0, b"NULL");
        assert_ne!(reason(&one, id).await, ResolveReason::NotFound, "{told}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_absence_that_arrives_after_the_message_does_not_hide_a_new_id() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (one, two) = (node(&map, &hub).await, node(&map, &hub).await);
    let id = new_id();
    map.register(&one, id).await.committed();
    tokio::time::sleep(Duration::from_millis(1)).await;
    // A reader elsewhere had missed before the commit, and its fill comes now.
    hub.put(id, b"NULL");
    assert_eq!(reason(&two, id).await, ResolveReason::HitDb);
}

#[tokio::test(start_paused = true)]
async fn a_repaired_id_is_known_to_nodes_that_received_the_message() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (one, two) = (node(&map, &hub).await, node(&map, &hub).await);
    let id = new_id();
    assert_eq!(reason(&one, id).await, ResolveReason::NotFound);
    hub.filled(id).await;
    map.plant(id).await;
    one.changed(<Order as semel_ids::Resource>::TYPE, ACME, &id.to_string(), true);
    assert_eq!(reason(&one, id).await, ResolveReason::HitDb, "before anybody else was told");
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_ne!(reason(&two, id).await, ResolveReason::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_rolled_back_registration_leaves_nothing_behind() {
    let map = Spy::new();
    let resolver = Resolver::builder(map.clone()).build();
    let id = new_id();
    let binding = semel_ids::Binding::of(ACME, id).expect("a tenant");
    let mut transaction = Spy::new().rows;
    let begun = resolver.register(&map, &mut transaction, &binding).await.expect("begun");
    begun.rolled_back();
    assert_eq!(reason(&resolver, id).await, ResolveReason::NotFound);
    assert_eq!(reason(&resolver, id).await, ResolveReason::NotFound);
    assert_eq!(map.count(), 1, "absences are remembered again");
}

#[tokio::test(start_paused = true)]
async fn a_revoked_id_is_gone_at_once_here_and_where_the_message_arrives() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (one, two) = (node(&map, &hub).await, node(&map, &hub).await);
    let id = new_id();
    map.plant(id).await;
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
async fn a_lookup_that_hit_before_the_revocation_is_not_remembered() {
    let (map, hub) = (Spy::new(), Hub::new());
    let held = map.holding();
    let (one, two) = (node(&map, &hub).await, node(&held, &hub).await);
    let id = new_id();
    map.plant(id).await;
    let early = tokio::spawn({
        let two = two.clone();
        async move { reason(&two, id).await }
    });
    held.looked(1).await;
    one.revoke(ACME, id).await.expect("revoked");
    tokio::time::sleep(Duration::from_millis(1)).await;
    held.let_go();
    assert_eq!(early.await.expect("no panic"), ResolveReason::HitDb, "it asked before");
    assert_eq!(reason(&two, id).await, ResolveReason::NotFound);
    assert_eq!(hub.filled(id).await.0, b"NULL", "a reader fills gaps only");
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(reason(&two, id).await, ResolveReason::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_hears_nothing_knows_of_a_revocation_within_ten_seconds() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (one, two) = (node(&map, &hub).await, node(&map, &hub).await);
    let id = new_id();
    map.plant(id).await;
    reason(&two, id).await;
    hub.cut(true);
    one.revoke(ACME, id).await.expect("revoked");
    assert_eq!(reason(&two, id).await, ResolveReason::HitL1, "nobody told it");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(reason(&two, id).await, ResolveReason::NotFound);
    // While it hears nothing, it does not believe itself for long.
    let other = new_id();
    map.plant(other).await;
    assert_eq!(reason(&two, other).await, ResolveReason::HitDb);
    assert_eq!(reason(&two, other).await, ResolveReason::HitL1);
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(reason(&two, other).await, ResolveReason::HitL2);
    hub.cut(false);
    tokio::time::sleep(Duration::from_secs(10)).await;
    reason(&two, other).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(reason(&two, other).await, ResolveReason::HitL1, "it hears again");
}
