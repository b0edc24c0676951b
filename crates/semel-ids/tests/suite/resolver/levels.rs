//! Tests which of L1, L2, the map and business tables are read.

use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_ids::resource::{Order, Store};
use semel_ids::{Binding, IdMap as _, ResolveReason, Resolver, ResolverSettings, TypedId};

use super::nodes::{ACME, TestCache, TestMap, TestTable, new_id, node};

async fn reason(resolver: &Resolver, text: &str) -> ResolveReason {
    resolver.resolve::<Order>(ACME, text).await.expect("an answer").reason
}

#[tokio::test(start_paused = true)]
async fn a_text_that_is_not_an_id_of_its_type_is_not_looked_up() {
    let (map, shared, table) = (TestMap::new(), TestCache::new(), TestTable::default());
    let settings = ResolverSettings { fallback_to_biz_table: true, ..ResolverSettings::default() };
    let builder = Resolver::builder(map.clone()).shared(shared.clone()).fallback(table.clone());
    let resolver = builder.settings(settings).build();
    let id = new_id().to_string();
    let foreign = id.replace("ord_", "sto_");
    let upper = id.to_uppercase();
    let padded = format!(" {id}");
    for bad in
        ["", "   ", "ord_", "ord", "nonsense", "ord_o1arz3ndektsv4rrffq69g5fav", &upper, &padded]
    {
        assert_eq!(reason(&resolver, bad).await, ResolveReason::InvalidFormat, "{bad:?}");
    }
    assert_eq!(reason(&resolver, &foreign).await, ResolveReason::PrefixMismatch);
    let many = resolver.resolve_batch::<Order>(ACME, &["ord_", &foreign]).await.expect("answers");
    assert!(many.iter().all(|one| !one.hit() && !one.exists() && one.internal_id.is_none()));
    assert_eq!(map.count(), 0);
    assert_eq!(shared.reads.load(Ordering::SeqCst), 0);
    assert_eq!(table.lookups.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_hit_in_l1_reads_neither_the_shared_cache_nor_the_map() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let resolver = node(&map, &shared).await;
    let id = new_id();
    map.add_row(id).await;
    let text = id.to_string();
    assert_eq!(reason(&resolver, &text).await, ResolveReason::HitDb);
    let reads = shared.reads.load(Ordering::SeqCst);
    let again = resolver.resolve::<Order>(ACME, &text).await.expect("an answer");
    assert_eq!((again.reason, again.internal_id), (ResolveReason::HitL1, Some(id.ulid())));
    assert_eq!((map.count(), shared.reads.load(Ordering::SeqCst)), (1, reads));
}

#[tokio::test(start_paused = true)]
async fn a_hit_in_the_shared_cache_is_cached_in_l1() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let resolver = node(&map, &shared).await;
    let id = new_id();
    shared.put(id, &id.to_bytes());
    let text = id.to_string();
    assert_eq!(reason(&resolver, &text).await, ResolveReason::HitL2);
    assert_eq!(reason(&resolver, &text).await, ResolveReason::HitL1);
    assert_eq!((map.count(), shared.reads.load(Ordering::SeqCst)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_hit_in_the_map_is_cached_in_l1_and_l2() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (one, two) = (node(&map, &shared).await, node(&map, &shared).await);
    let id = new_id();
    map.add_row(id).await;
    let text = id.to_string();
    assert_eq!(reason(&one, &text).await, ResolveReason::HitDb);
    let (value, ttl) = shared.filled(id).await;
    assert_eq!(value, id.to_bytes());
    assert!(ttl > Duration::from_secs(1_600) && ttl <= Duration::from_secs(1_800), "{ttl:?}");
    assert_eq!(reason(&two, &text).await, ResolveReason::HitL2);
    assert_eq!(map.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_absence_is_cached_briefly_in_l1_and_l2() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (one, two) = (node(&map, &shared).await, node(&map, &shared).await);
    let id = new_id();
    let text = id.to_string();
    let answer = one.resolve::<Order>(ACME, &text).await.expect("an answer");
    assert_eq!(answer.reason, ResolveReason::NotFound);
    assert!(answer.hit() && !answer.exists());
    let (value, ttl) = shared.filled(id).await;
    assert_eq!(value, b"NULL");
    assert!(ttl > Duration::from_secs(26) && ttl <= Duration::from_secs(30), "{ttl:?}");
    assert_eq!(reason(&one, &text).await, ResolveReason::NotFound);
    assert_eq!(reason(&two, &text).await, ResolveReason::NotFound);
    assert_eq!(map.count(), 1);
    tokio::time::sleep(Duration::from_secs(31)).await;
    map.add_row(id).await;
    assert_eq!(reason(&one, &text).await, ResolveReason::HitDb);
}

#[tokio::test(start_paused = true)]
async fn a_cached_id_is_looked_up_again_after_its_ttl() {
    let map = TestMap::new();
    let resolver = Resolver::builder(map.clone()).build();
    let id = new_id();
    map.add_row(id).await;
    let text = id.to_string();
    assert_eq!(reason(&resolver, &text).await, ResolveReason::HitDb);
    tokio::time::sleep(Duration::from_secs(500)).await;
    assert_eq!(reason(&resolver, &text).await, ResolveReason::HitL1);
    tokio::time::sleep(Duration::from_secs(101)).await;
    assert_eq!(reason(&resolver, &text).await, ResolveReason::HitDb);
}

#[tokio::test(start_paused = true)]
async fn business_tables_are_read_only_if_the_fallback_is_enabled() {
    let (map, table) = (TestMap::new(), TestTable::default());
    let id = new_id();
    table.add_row(id);
    let text = id.to_string();
    let strict = Resolver::builder(map.clone()).fallback(table.clone()).build();
    assert_eq!(reason(&strict, &text).await, ResolveReason::NotFound);
    assert_eq!(table.lookups.load(Ordering::SeqCst), 0);
    let settings = ResolverSettings { fallback_to_biz_table: true, ..ResolverSettings::default() };
    let other = TestTable::default();
    let builder = Resolver::builder(map.clone()).fallback(other.clone()).fallback(table);
    let resolver = builder.settings(settings).build();
    assert_eq!(reason(&resolver, &text).await, ResolveReason::HitFallback);
    assert_eq!(other.lookups.load(Ordering::SeqCst), 1, "every table of the type is read");
    assert_eq!(reason(&resolver, &text).await, ResolveReason::HitL1);
    let rows = map.list(semel_ids::ResourceType::new("ORDER", "ord"), None, None, 10).await;
    assert!(rows.expect("memory").is_empty(), "the map is not written");
}

#[tokio::test(start_paused = true)]
async fn a_revoked_id_is_not_found_in_a_business_table() {
    let (map, table) = (TestMap::new(), TestTable::default());
    let settings = ResolverSettings { fallback_to_biz_table: true, ..ResolverSettings::default() };
    let builder = Resolver::builder(map.clone()).fallback(table.clone());
    let resolver = builder.settings(settings).build();
    let id = new_id();
    map.add_row(id).await;
    table.add_row(id);
    assert!(resolver.revoke(ACME, id).await.expect("revoked").was_live);
    assert_eq!(reason(&resolver, &id.to_string()).await, ResolveReason::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_batch_with_all_sources_is_answered_in_order() {
    let (map, shared, table) = (TestMap::new(), TestCache::new(), TestTable::default());
    let settings = ResolverSettings { fallback_to_biz_table: true, ..ResolverSettings::default() };
    let builder = Resolver::builder(map.clone()).shared(shared.clone()).fallback(table.clone());
    let resolver = builder.settings(settings).build();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let [in_l1, in_cache, in_map, in_table, nowhere, absent] = [(); 6].map(|()| new_id());
    map.add_row(in_l1).await;
    map.add_row(in_map).await;
    table.add_row(in_table);
    shared.put(in_cache, &in_cache.to_bytes());
    shared.put(absent, b"NULL");
    let texts = [in_l1, in_cache, in_map, in_table, nowhere, absent].map(|id| id.to_string());
    reason(&resolver, &texts[0]).await;
    let foreign = texts[0].replace("ord_", "sto_");
    let (lookups, reads) = (map.count(), shared.reads.load(Ordering::SeqCst));
    let texts_in_order: Vec<&str> = [
        &texts[2], &texts[0], &foreign, &texts[1], &texts[4], "x", &texts[3], &texts[5], &texts[2],
    ]
    .map(|text: &str| text)
    .to_vec();
    let answers = resolver.resolve_batch::<Order>(ACME, &texts_in_order).await.expect("answers");
    let reasons: Vec<ResolveReason> = answers.iter().map(|one| one.reason).collect();
    use ResolveReason::{
        HitDb, HitFallback, HitL1, HitL2, InvalidFormat, NotFound, PrefixMismatch,
    };
    let expected = [
        HitDb,
        HitL1,
        PrefixMismatch,
        HitL2,
        NotFound,
        InvalidFormat,
        HitFallback,
        NotFound,
        HitDb,
    ];
    assert_eq!(reasons, expected);
    assert!(answers.iter().zip(&texts_in_order).all(|(answer, text)| answer.public_id == *text));
    assert_eq!(answers[3].internal_id, Some(in_cache.ulid()));
    assert_eq!(map.count() - lookups, 1, "one query of the map");
    assert_eq!(shared.reads.load(Ordering::SeqCst) - reads, 1, "one call of the shared cache");
}

#[tokio::test(start_paused = true)]
async fn a_large_batch_is_split_and_a_larger_one_is_refused() {
    let map = TestMap::new();
    let resolver = Resolver::builder(map.clone()).build();
    let texts: Vec<String> = (0..1_001).map(|_| new_id().to_string()).collect();
    let requested: Vec<&str> = texts.iter().map(String::as_str).collect();
    let answers =
        resolver.resolve_batch::<Order>(ACME, &requested[..1_000]).await.expect("answers");
    assert_eq!(answers.len(), 1_000);
    assert_eq!((map.count(), map.requested_ids.load(Ordering::SeqCst)), (5, 1_000));
    let refused = resolver.resolve_batch::<Order>(ACME, &requested).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("at most 1000")));
    assert_eq!(map.count(), 5);
}

#[tokio::test(start_paused = true)]
async fn tenants_and_types_are_separate() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let resolver = node(&map, &shared).await;
    let id = new_id();
    map.add_row(id).await;
    let text = id.to_string();
    assert_eq!(reason(&resolver, &text).await, ResolveReason::HitDb);
    for other in ["other", "acme2", "ACME", "acme:ORDER"] {
        let answer = resolver.resolve::<Order>(other, &text).await.expect("an answer");
        assert_eq!(answer.reason, ResolveReason::NotFound, "{other}");
    }
    let store = TypedId::<Store>::new(id.ulid()).to_string();
    let answer = resolver.resolve::<Store>(ACME, &store).await.expect("an answer");
    assert_eq!(answer.reason, ResolveReason::NotFound);
    assert!(resolver.resolve::<Order>(" ", &text).await.is_err(), "a blank tenant is refused");
}

#[tokio::test(start_paused = true)]
async fn a_disabled_resolver_looks_nothing_up() {
    let map = TestMap::new();
    let settings = ResolverSettings { enabled: false, ..ResolverSettings::default() };
    let resolver = Resolver::builder(map.clone()).settings(settings).build();
    let id = new_id();
    map.add_row(id).await;
    let text = id.to_string();
    let answer = resolver.resolve::<Order>(ACME, &text).await.expect("an answer");
    assert_eq!((answer.reason, answer.exists(), map.count()), (ResolveReason::Disabled, false, 0));
}

#[tokio::test(start_paused = true)]
async fn a_row_with_another_internal_id_is_ignored() {
    let map = TestMap::new();
    let resolver = Resolver::builder(map.clone()).build();
    let (id, other) = (new_id(), new_id());
    let binding = Binding::checked(
        ACME,
        semel_ids::ResourceType::new("ORDER", "ord"),
        &semel_ids::Codec::new(),
        &id.to_string(),
        other.ulid(),
    );
    assert!(binding.is_err(), "such a binding cannot be created");
    map.rows.plant_raw(ACME, "ORDER", &id.to_string(), other.ulid());
    assert_eq!(reason(&resolver, &id.to_string()).await, ResolveReason::NotFound);
}
