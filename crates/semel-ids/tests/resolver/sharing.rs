//! A shared cache that is down, slow or damaged costs time, never an answer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_ids::resource::Order;
use semel_ids::{CacheSettings, Reason, Resolver, Settings, TypedId};

use crate::scene::{ACME, Hub, Spy, new_id, node};

async fn reason(resolver: &Resolver, id: TypedId<Order>) -> Reason {
    resolver.resolve::<Order>(ACME, &id.to_string()).await.expect("an answer").reason
}

#[tokio::test(start_paused = true)]
async fn without_the_shared_cache_the_map_answers() {
    let (map, hub) = (Spy::new(), Hub::new());
    let resolver = node(&map, &hub).await;
    hub.down.store(true, Ordering::SeqCst);
    let ids = [(); 20].map(|()| new_id());
    for id in ids {
        map.plant(id).await;
        assert_eq!(reason(&resolver, id).await, Reason::HitDb);
    }
    assert_eq!(hub.reads.load(Ordering::SeqCst), 1, "after a failure it is left alone");
    assert_eq!(reason(&resolver, new_id()).await, Reason::NotFound);
    hub.down.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let id = new_id();
    hub.put(id, &id.to_bytes());
    assert_eq!(reason(&resolver, id).await, Reason::HitL2, "it is used again");
}

#[tokio::test(start_paused = true)]
async fn a_slow_shared_cache_slows_one_lookup_and_not_the_next() {
    let (map, hub) = (Spy::new(), Hub::new());
    let resolver = node(&map, &hub).await;
    hub.slow.store(true, Ordering::SeqCst);
    let began = tokio::time::Instant::now();
    for _ in 0..20 {
        let id = new_id();
        map.plant(id).await;
        assert_eq!(reason(&resolver, id).await, Reason::HitDb);
    }
    assert!(began.elapsed() < Duration::from_millis(300), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_damaged_entry_is_passed_over_and_replaced() {
    let (map, hub) = (Spy::new(), Hub::new());
    let resolver = node(&map, &hub).await;
    let (id, other) = (new_id(), new_id());
    map.plant(id).await;
    map.plant(other).await;
    hub.put(id, b"not sixteen bytes, not NULL");
    // Readable, and a lie: the text says which id it is.
    hub.put(other, &new_id().to_bytes());
    for id in [id, other] {
        assert_eq!(reason(&resolver, id).await, Reason::HitDb);
        while hub.peek(id).is_none_or(|(value, _)| value != id.to_bytes()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_revocation_that_cannot_be_told_says_so_and_is_told_later() {
    let (map, hub) = (Spy::new(), Hub::new());
    let resolver = node(&map, &hub).await;
    let id = new_id();
    map.plant(id).await;
    reason(&resolver, id).await;
    hub.filled(id).await;
    hub.down.store(true, Ordering::SeqCst);
    let revoked = resolver.revoke(ACME, id).await.expect("the map has it");
    assert!(revoked.was_live && !revoked.told);
    hub.down.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(hub.filled(id).await.0, b"NULL");
}

#[tokio::test(start_paused = true)]
async fn switched_off_the_shared_cache_is_not_asked() {
    let (map, hub) = (Spy::new(), Hub::new());
    let cache = CacheSettings { l2_enabled: false, ..CacheSettings::default() };
    let settings = Settings { cache, ..Settings::default() };
    let builder = Resolver::builder(map.clone()).shared(hub.clone());
    let resolver = builder.settings(settings).build();
    let id = new_id();
    hub.put(id, &id.to_bytes());
    assert_eq!(reason(&resolver, id).await, Reason::NotFound);
    assert_eq!(hub.reads.load(Ordering::SeqCst), 0);
}
