//! A shared cache that is down, slow or damaged costs time, never an answer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_ids::resource::Order;
use semel_ids::shared::SharedCache as _;
use semel_ids::{CacheSettings, ResolveReason, Resolver, ResolverSettings, TypedId};

use super::nodes::{ACME, Hub, Spy, new_id, node};

async fn reason(resolver: &Resolver, id: TypedId<Order>) -> ResolveReason {
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
        assert_eq!(reason(&resolver, id).await, ResolveReason::HitDb);
    }
    assert_eq!(hub.reads.load(Ordering::SeqCst), 1, "after a failure it is left alone");
    assert_eq!(reason(&resolver, new_id()).await, ResolveReason::NotFound);
    hub.down.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let id = new_id();
    hub.put(id, &id.to_bytes());
    assert_eq!(reason(&resolver, id).await, ResolveReason::HitL2, "it is used again");
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
        assert_eq!(reason(&resolver, id).await, ResolveReason::HitDb);
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
        assert_eq!(reason(&resolver, id).await, ResolveReason::HitDb);
        while hub.peek(id).is_none_or(|(value, _)| value != id.to_bytes()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_revocation_that_cannot_be_published_says_so_and_is_published_later() {
    let (map, hub) = (Spy::new(), Hub::new());
    let resolver = node(&map, &hub).await;
    let id = new_id();
    map.plant(id).await;
    reason(&resolver, id).await;
    hub.filled(id).await;
    hub.down.store(true, Ordering::SeqCst);
    let revoked = resolver.revoke(ACME, id).await.expect("the map has it");
    assert!(revoked.was_live && !revoked.propagated);
    hub.down.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(hub.filled(id).await.0, b"NULL");
}

#[tokio::test(start_paused = true)]
async fn switched_off_the_shared_cache_is_not_asked() {
    let (map, hub) = (Spy::new(), Hub::new());
    let cache = CacheSettings { l2_enabled: false, ..CacheSettings::default() };
    let settings = ResolverSettings { cache, ..ResolverSettings::default() };
    let builder = Resolver::builder(map.clone()).shared(hub.clone());
    let resolver = builder.settings(settings).build();
    let id = new_id();
    hub.put(id, &id.to_bytes());
    assert_eq!(reason(&resolver, id).await, ResolveReason::NotFound);
    assert_eq!(hub.reads.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_read_from_the_shared_cache_is_not_written_back() {
    let (map, hub) = (Spy::new(), Hub::new());
    let resolver = node(&map, &hub).await;
    let (known, absent, neither) = (new_id(), new_id(), new_id());
    hub.put(known, &known.to_bytes());
    hub.put(absent, b"NULL");
    let texts = [known, absent, neither].map(|id| id.to_string());
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    resolver.resolve_batch::<Order>(ACME, &texts).await.expect("answers");
    hub.filled(neither).await;
    assert_eq!(hub.notes.load(Ordering::SeqCst), 1, "only what the map said");
}

#[tokio::test(start_paused = true)]
async fn answers_are_as_old_as_the_question() {
    let (map, hub) = (Spy::new(), Hub::new());
    let held = map.holding();
    let resolver = node(&held, &hub).await;
    let (id, slower) = (new_id(), new_id());
    let ask = |id| {
        let resolver = resolver.clone();
        tokio::spawn(async move { reason(&resolver, id).await })
    };
    let asked = ask(id);
    held.looked(1).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let late = ask(slower);
    held.looked(2).await;
    held.let_one_go();
    assert_eq!(asked.await.expect("no panic"), ResolveReason::NotFound);
    let (_, left) = hub.filled(id).await;
    assert!(left <= Duration::from_secs(10), "{left:?} in the shared cache");
    tokio::time::sleep(Duration::from_secs(31)).await;
    held.let_go();
    assert_eq!(late.await.expect("no panic"), ResolveReason::NotFound);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(hub.peek(slower).is_none(), "its time was over before it was told");
    assert_eq!(reason(&resolver, slower).await, ResolveReason::NotFound);
    assert_eq!(map.count(), 3, "nor is it remembered here");
}

#[tokio::test(start_paused = true)]
async fn more_new_ids_than_there_is_room_for_are_not_hidden_either() {
    let (map, hub) = (Spy::new(), Hub::new());
    let cache = CacheSettings { l1_max_size: 1_000, ..CacheSettings::default() };
    let settings = ResolverSettings { cache, ..ResolverSettings::default() };
    let builder = Resolver::builder(map.clone()).shared(hub.clone());
    let resolver = builder.settings(settings).build();
    let id = new_id();
    map.plant(id).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    let ids = std::iter::once(id).chain((0..60_000).map(|_| new_id()));
    let keys: Vec<String> = ids.map(|id| format!("{ACME}:ORDER:{id}")).collect();
    hub.registered(&keys, Duration::ZERO).await.expect("the line works");
    tokio::time::sleep(Duration::from_millis(1)).await;
    // An absence from before the commit.
    hub.put(id, b"NULL");
    assert_eq!(reason(&resolver, id).await, ResolveReason::HitDb);
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_came_to_grief_hears_nothing() {
    let (map, hub) = (Spy::new(), Hub::new());
    let resolver = node(&map, &hub).await;
    let id = new_id();
    map.plant(id).await;
    assert_eq!(reason(&resolver, id).await, ResolveReason::HitDb);
    hub.filled(id).await;
    hub.deadly.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(
        reason(&resolver, id).await,
        ResolveReason::HitL2,
        "it trusts its own memory no longer"
    );
}

#[tokio::test(start_paused = true)]
async fn one_lookup_finds_out_for_all_whether_a_slow_shared_cache_is_well() {
    let (map, hub) = (Spy::new(), Hub::new());
    let resolver = node(&map, &hub).await;
    hub.slow.store(true, Ordering::SeqCst);
    reason(&resolver, new_id()).await;
    for rest in 1..=3_usize {
        // Its rest is over.
        tokio::time::sleep(Duration::from_millis(1_001)).await;
        let ask = || {
            let resolver = resolver.clone();
            tokio::spawn(async move { reason(&resolver, new_id()).await })
        };
        let asked: Vec<_> = (0..20).map(|_| ask()).collect();
        for one in asked {
            assert_eq!(one.await.expect("no panic"), ResolveReason::NotFound);
        }
        assert_eq!(hub.reads.load(Ordering::SeqCst), 1 + rest, "one of twenty");
    }
    hub.slow.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(1_001)).await;
    let id = new_id();
    hub.put(id, &id.to_bytes());
    assert_eq!(reason(&resolver, id).await, ResolveReason::HitL2);
}

#[tokio::test(start_paused = true)]
async fn times_of_any_length_can_be_set() {
    for long in [Duration::MAX, Duration::from_secs(1 << 40), Duration::ZERO] {
        let (map, hub) = (Spy::new(), Hub::new());
        let cache = CacheSettings {
            l1_ttl: long,
            negative_ttl: long,
            l2_ttl: long,
            ..CacheSettings::default()
        };
        assert!(cache.absence_bound() >= long);
        let settings = ResolverSettings { cache, ..ResolverSettings::default() };
        let resolver =
            Resolver::builder(map.clone()).shared(hub.clone()).settings(settings).build();
        let id = new_id();
        assert_eq!(reason(&resolver, id).await, ResolveReason::NotFound);
        map.register(&resolver, id).await.committed();
        assert_ne!(reason(&resolver, id).await, ResolveReason::NotFound, "{long:?}");
        assert!(resolver.revoke(ACME, id).await.expect("revoked").was_live);
        assert_eq!(reason(&resolver, id).await, ResolveReason::NotFound, "{long:?}");
    }
}
