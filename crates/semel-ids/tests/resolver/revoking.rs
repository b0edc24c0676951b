//! Revocations: what they hide, and for how long.

use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_ids::resource::Order;
use semel_ids::{Binding, IdMap as _, Reason, Resolver, Resource as _, TypedId};

use crate::scene::{ACME, Hub, Spy, new_id, node};

async fn reason(resolver: &Resolver, id: TypedId<Order>) -> Reason {
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
        assert!(!revoked.was_live && revoked.told);
        map.register(&one, id).await.committed();
        tokio::time::sleep(Duration::from_millis(1)).await;
        // Somebody who was told nothing.
        let third = node(&map, &hub).await;
        for node in [&one, &two, &third] {
            assert_ne!(reason(node, id).await, Reason::NotFound, "{cut}");
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
        assert_ne!(reason(node, id).await, Reason::NotFound);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_repair_revived_is_found_by_whoever_was_told_nothing() {
    let (map, hub) = (Spy::new(), Hub::new());
    let one = node(&map, &hub).await;
    let id = new_id();
    map.plant(id).await;
    assert!(one.revoke(ACME, id).await.expect("revoked").was_live);
    map.overwrite(&[Binding::of(ACME, id).expect("a tenant")]).await.expect("memory");
    one.changed(Order::TYPE, ACME, &id.to_string(), true);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(reason(&node(&map, &hub).await, id).await, Reason::HitDb);
}

#[tokio::test(start_paused = true)]
async fn a_revocation_that_is_repeated_is_remembered_no_shorter() {
    let (map, hub) = (Spy::new(), Hub::new());
    let one = node(&map, &hub).await;
    let id = new_id();
    map.plant(id).await;
    one.revoke(ACME, id).await.expect("revoked");
    let half_an_hour = Duration::from_secs(1_800);
    assert_eq!(hub.filled(id).await, (b"NULL".to_vec(), half_an_hour));
    map.down.store(true, Ordering::SeqCst);
    assert!(one.revoke(ACME, id).await.is_err());
    assert_eq!(hub.filled(id).await, (b"NULL".to_vec(), half_an_hour));
}

#[tokio::test(start_paused = true)]
async fn a_repeated_revocation_reaches_those_whom_the_first_did_not() {
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
    assert!(!revoked.was_live && revoked.told);
    assert_eq!(hub.filled(id).await, (b"NULL".to_vec(), Duration::from_secs(1_800)));
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
    assert_eq!(reason(&one, id).await, Reason::NotFound);
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
    assert_eq!(reason(&one, id).await, Reason::NotFound);
}
