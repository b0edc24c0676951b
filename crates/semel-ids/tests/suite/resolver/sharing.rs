//! Tests that a shared cache that is down, slow or damaged never changes an answer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_ids::resource::Order;
use semel_ids::shared::SharedCache as _;
use semel_ids::{CacheSettings, ResolveReason, Resolver, ResolverSettings, TypedId};

use super::nodes::{ACME, TestCache, TestMap, new_id, node};

async fn reason(resolver: &Resolver, id: TypedId<Order>) -> ResolveReason {
    resolver.resolve::<Order>(ACME, &id.to_string()).await.expect("an answer").reason
}

#[tokio::test(start_paused = true)]
async fn ids_are_read_from_the_map_while_the_shared_cache_is_down() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let resolver = node(&map, &shared).await;
    shared.down.store(true, Ordering::SeqCst);
    let ids = [(); 20].map(|()| new_id());
    for id in ids {
        map.add_row(id).await;
        assert_eq!(reason(&resolver, id).await, ResolveReason::HitDb);
    }
    assert_eq!(
        shared.reads.load(Ordering::SeqCst),
        1,
        "the shared cache is not used for a while after a failure"
    );
    assert_eq!(reason(&resolver, new_id()).await, ResolveReason::NotFound);
    shared.down.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let id = new_id();
    shared.put(id, &id.to_bytes());
    assert_eq!(reason(&resolver, id).await, ResolveReason::HitL2, "the shared cache is used again");
}

#[tokio::test(start_paused = true)]
async fn a_slow_shared_cache_slows_one_lookup_and_not_the_next() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let resolver = node(&map, &shared).await;
    shared.slow.store(true, Ordering::SeqCst);
    let began = tokio::time::Instant::now();
    for _ in 0..20 {
        let id = new_id();
        map.add_row(id).await;
        assert_eq!(reason(&resolver, id).await, ResolveReason::HitDb);
    }
    assert!(began.elapsed() < Duration::from_millis(300), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_damaged_entry_is_ignored_and_replaced() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let resolver = node(&map, &shared).await;
    let (id, other) = (new_id(), new_id());
    map.add_row(id).await;
    map.add_row(other).await;
    shared.put(id, b"not sixteen bytes, not NULL");
    // The entry can be decoded but is wrong, because the text encodes another id.
    shared.put(other, &new_id().to_bytes());
    for id in [id, other] {
        assert_eq!(reason(&resolver, id).await, ResolveReason::HitDb);
        while shared.peek(id).is_none_or(|(value, _)| value != id.to_bytes()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_revocation_that_cannot_be_published_is_reported_and_published_later() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let resolver = node(&map, &shared).await;
    let id = new_id();
    map.add_row(id).await;
    reason(&resolver, id).await;
    shared.filled(id).await;
    shared.down.store(true, Ordering::SeqCst);
    let revoked = resolver.revoke(ACME, id).await.expect("the map is revoked");
    assert!(revoked.was_live && !revoked.propagated);
    shared.down.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(shared.filled(id).await.0, b"NULL");
}

#[tokio::test(start_paused = true)]
async fn a_disabled_shared_cache_is_not_read() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let cache = CacheSettings { l2_enabled: false, ..CacheSettings::default() };
    let settings = ResolverSettings { cache, ..ResolverSettings::default() };
    let builder = Resolver::builder(map.clone()).shared(shared.clone());
    let resolver = builder.settings(settings).build();
    let id = new_id();
    shared.put(id, &id.to_bytes());
    assert_eq!(reason(&resolver, id).await, ResolveReason::NotFound);
    assert_eq!(shared.reads.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn answers_from_the_shared_cache_are_not_written_back() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let resolver = node(&map, &shared).await;
    let (known, absent, neither) = (new_id(), new_id(), new_id());
    shared.put(known, &known.to_bytes());
    shared.put(absent, b"NULL");
    let texts = [known, absent, neither].map(|id| id.to_string());
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    resolver.resolve_batch::<Order>(ACME, &texts).await.expect("answers");
    shared.filled(neither).await;
    assert_eq!(shared.fills.load(Ordering::SeqCst), 1, "only the answer of the map is written");
}

#[tokio::test(start_paused = true)]
async fn the_age_of_an_answer_counts_from_the_start_of_its_lookup() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let held = map.with_held_answers();
    let resolver = node(&held, &shared).await;
    let (id, slower) = (new_id(), new_id());
    let start_lookup = |id| {
        let resolver = resolver.clone();
        tokio::spawn(async move { reason(&resolver, id).await })
    };
    let requested = start_lookup(id);
    held.wait_for_lookups(1).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let late = start_lookup(slower);
    held.wait_for_lookups(2).await;
    held.release_one_answer();
    assert_eq!(requested.await.expect("no panic"), ResolveReason::NotFound);
    let (_, left) = shared.filled(id).await;
    assert!(left <= Duration::from_secs(10), "{left:?} in the shared cache");
    tokio::time::sleep(Duration::from_secs(31)).await;
    held.release_answers();
    assert_eq!(late.await.expect("no panic"), ResolveReason::NotFound);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(shared.peek(slower).is_none(), "the answer expired before it could be shared");
    assert_eq!(reason(&resolver, slower).await, ResolveReason::NotFound);
    assert_eq!(map.count(), 3, "the answer is not cached in L1 either");
}

#[tokio::test(start_paused = true)]
async fn new_ids_beyond_the_capacity_are_not_hidden() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let cache = CacheSettings { l1_max_size: 1_000, ..CacheSettings::default() };
    let settings = ResolverSettings { cache, ..ResolverSettings::default() };
    let builder = Resolver::builder(map.clone()).shared(shared.clone());
    let resolver = builder.settings(settings).build();
    let id = new_id();
    map.add_row(id).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    let ids = std::iter::once(id).chain((0..60_000).map(|_| new_id()));
    let keys: Vec<String> = ids.map(|id| format!("{ACME}:ORDER:{id}")).collect();
    shared.registered(&keys, Duration::ZERO).await.expect("the channel works");
    tokio::time::sleep(Duration::from_millis(1)).await;
    // An absence that was read before the commit.
    shared.put(id, b"NULL");
    assert_eq!(reason(&resolver, id).await, ResolveReason::HitDb);
}

#[tokio::test(start_paused = true)]
async fn after_a_panic_of_the_listener_old_answers_are_ignored() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let resolver = node(&map, &shared).await;
    let id = new_id();
    map.add_row(id).await;
    assert_eq!(reason(&resolver, id).await, ResolveReason::HitDb);
    shared.filled(id).await;
    shared.panics.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(reason(&resolver, id).await, ResolveReason::HitL2, "old answers of L1 are ignored");
}

#[tokio::test(start_paused = true)]
async fn one_lookup_tests_for_all_whether_a_slow_shared_cache_works_again() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let resolver = node(&map, &shared).await;
    shared.slow.store(true, Ordering::SeqCst);
    reason(&resolver, new_id()).await;
    for round in 1..=3_usize {
        // The circuit breaker lets one call through again.
        tokio::time::sleep(Duration::from_millis(1_001)).await;
        let start_lookup = || {
            let resolver = resolver.clone();
            tokio::spawn(async move { reason(&resolver, new_id()).await })
        };
        let requested: Vec<_> = (0..20).map(|_| start_lookup()).collect();
        for one in requested {
            assert_eq!(one.await.expect("no panic"), ResolveReason::NotFound);
        }
        assert_eq!(
            shared.reads.load(Ordering::SeqCst),
            1 + round,
            "one of twenty callers reads the shared cache"
        );
    }
    shared.slow.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(1_001)).await;
    let id = new_id();
    shared.put(id, &id.to_bytes());
    assert_eq!(reason(&resolver, id).await, ResolveReason::HitL2);
}

#[tokio::test(start_paused = true)]
async fn ttls_of_any_length_are_accepted() {
    for long in [Duration::MAX, Duration::from_secs(1 << 40), Duration::ZERO] {
        let (map, shared) = (TestMap::new(), TestCache::new());
        let cache = CacheSettings {
            l1_ttl: long,
            negative_ttl: long,
            l2_ttl: long,
            ..CacheSettings::default()
        };
        assert!(cache.absence_bound() >= long);
        let settings = ResolverSettings { cache, ..ResolverSettings::default() };
        let resolver =
            Resolver::builder(map.clone()).shared(shared.clone()).settings(settings).build();
        let id = new_id();
        assert_eq!(reason(&resolver, id).await, ResolveReason::NotFound);
        map.register(&resolver, id).await.committed();
        assert_ne!(reason(&resolver, id).await, ResolveReason::NotFound, "{long:?}");
        assert!(resolver.revoke(ACME, id).await.expect("revoked").was_live);
        assert_eq!(reason(&resolver, id).await, ResolveReason::NotFound, "{long:?}");
    }
}
