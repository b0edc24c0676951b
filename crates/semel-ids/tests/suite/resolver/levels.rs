//! Who is asked, and who is not.

use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_ids::resource::{Order, Store};
use semel_ids::{Binding, IdMap as _, ResolveReason, Resolver, ResolverSettings, TypedId};

use super::nodes::{ACME, Hub, Spy, Table, new_id, node};

async fn reason(resolver: &Resolver, text: &str) -> ResolveReason {
    resolver.resolve::<Order>(ACME, text).await.expect("an answer").reason
}

#[tokio::test(start_paused = true)]
async fn a_text_that_is_no_id_of_its_type_is_not_looked_up() {
    let (map, hub, table) = (Spy::new(), Hub::new(), Table::default());
    let settings = ResolverSettings { fallback_to_biz_table: true, ..ResolverSettings::default() };
    let builder = Resolver::builder(map.clone()).shared(hub.clone()).fallback(table.clone());
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
    assert_eq!(hub.reads.load(Ordering::SeqCst), 0);
    assert_eq!(table.lookups.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_hit_in_l1_asks_neither_cache_nor_map() {
    let (map, hub) = (Spy::new(), Hub::new());
    let resolver = node(&map, &hub).await;
    let id = new_id();
    map.plant(id).await;
    let text = id.to_string();
    assert_eq!(reason(&resolver, &text).await, ResolveReason::HitDb);
    let reads = hub.reads.load(Ordering::SeqCst);
    let again = resolver.resolve::<Order>(ACME, &text).await.expect("an answer");
    assert_eq!((again.reason, again.internal_id), (ResolveReason::HitL1, Some(id.ulid())));
    assert_eq!((map.count(), hub.reads.load(Ordering::SeqCst)), (1, reads));
}

#[tokio::test(start_paused = true)]
async fn a_hit_in_the_shared_cache_is_remembered_here() {
    let (map, hub) = (Spy::new(), Hub::new());
    let resolver = node(&map, &hub).await;
    let id = new_id();
    hub.put(id, &id.to_bytes());
    let text = id.to_string();
    assert_eq!(reason(&resolver, &text).await, ResolveReason::HitL2);
    assert_eq!(reason(&resolver, &text).await, ResolveReason::HitL1);
    assert_eq!((map.count(), hub.reads.load(Ordering::SeqCst)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_hit_in_the_map_is_remembered_here_and_shared() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (one, two) = (node(&map, &hub).await, node(&map, &hub).await);
    let id = new_id();
    map.plant(id).await;
    let text = id.to_string();
    assert_eq!(reason(&one, &text).await, ResolveReason::HitDb);
    let (value, ttl) = hub.filled(id).await;
    assert_eq!(value, id.to_bytes());
    assert!(ttl > Duration::from_secs(1_600) && ttl <= Duration::from_secs(1_800), "{ttl:?}");
    assert_eq!(reason(&two, &text).await, ResolveReason::HitL2);
    assert_eq!(map.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_absence_is_remembered_briefly_here_and_shared() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (one, two) = (node(&map, &hub).await, node(&map, &hub).await);
    let id = new_id();
    let text = id.to_string();
    let answer = one.resolve::<Order>(ACME, &text).await.expect("an answer");
    assert_eq!(answer.reason, ResolveReason::NotFound);
    assert!(answer.hit() && !answer.exists());
    let (value, ttl) = hub.filled(id).await;
    assert_eq!(value, b"NULL");
    assert!(ttl > Duration::from_secs(26) && ttl <= Duration::from_secs(30), "{ttl:?}");
    assert_eq!(reason(&one, &text).await, ResolveReason::NotFound);
    assert_eq!(reason(&two, &text).await, ResolveReason::NotFound);
    assert_eq!(map.count(), 1);
    tokio::time::sleep(Duration::from_secs(31)).await;
    map.plant(id).await;
    assert_eq!(reason(&one, &text).await, ResolveReason::HitDb);
}

#[tokio::test(start_paused = true)]
async fn what_is_known_is_looked_up_again_after_its_time() {
    let map = Spy::new();
    let resolver = Resolver::builder(map.clone()).build();
    let id = new_id();
    map.plant(id).await;
    let text = id.to_string();
    assert_eq!(reason(&resolver, &text).await, ResolveReason::HitDb);
    tokio::time::sleep(Duration::from_secs(500)).await;
    assert_eq!(reason(&resolver, &text).await, ResolveReason::HitL1);
    tokio::time::sleep(Duration::from_secs(101)).await;
    assert_eq!(reason(&resolver, &text).await, ResolveReason::HitDb);
}

#[tokio::test(start_paused = true)]
async fn business_tables_stand_in_only_where_they_are_allowed_to() {
    let (map, table) = (Spy::new(), Table::default());
    let id = new_id();
    table.plant(id);
    let text = id.to_string();
    let strict = Resolver::builder(map.clone()).fallback(table.clone()).build();
    assert_eq!(reason(&strict, &text).await, ResolveReason::NotFound);
    assert_eq!(table.lookups.load(Ordering::SeqCst), 0);
    let settings = ResolverSettings { fallback_to_biz_table: true, ..ResolverSettings::default() };
    let other = Table::default();
    let builder = Resolver::builder(map.clone()).fallback(other.clone()).fallback(table);
    let resolver = builder.settings(settings).build();
    assert_eq!(reason(&resolver, &text).await, ResolveReason::HitFallback);
    assert_eq!(other.lookups.load(Ordering::SeqCst), 1, "every table that may know is asked");
    assert_eq!(reason(&resolver, &text).await, ResolveReason::HitL1);
    let rows = map.list(semel_ids::ResourceType::new("ORDER", "ord"), None, None, 10).await;
    assert!(rows.expect("memory").is_empty(), "the map is not written");
}

#[tokio::test(start_paused = true)]
async fn a_revoked_id_is_not_found_in_a_business_table() {
    let (map, table) = (Spy::new(), Table::default());
    let settings = ResolverSettings { fallback_to_biz_table: true, ..ResolverSettings::default() };
    let builder = Resolver::builder(map.clone()).fallback(table.clone());
    let resolver = builder.settings(settings).build();
    let id = new_id();
    map.plant(id).await;
    table.plant(id);
    assert!(resolver.revoke(ACME, id).await.expect("revoked").was_live);
    assert_eq!(reason(&resolver, &id.to_string()).await, ResolveReason::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_batch_mixes_all_of_them_and_answers_in_order() {
    let (map, hub, table) = (Spy::new(), Hub::new(), Table::default());
    let settings = ResolverSettings { fallback_to_biz_table: true, ..ResolverSettings::default() };
    let builder = Resolver::builder(map.clone()).shared(hub.clone()).fallback(table.clone());
    let resolver = builder.settings(settings).build();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let [near, middle, far, aside, nowhere, never] = [(); 6].map(|()| new_id());
    map.plant(near).await;
    map.plant(far).await;
    table.plant(aside);
    hub.put(middle, &middle.to_bytes());
    hub.put(never, b"NULL");
    let texts = [near, middle, far, aside, nowhere, never].map(|id| id.to_string());
    reason(&resolver, &texts[0]).await;
    let foreign = texts[0].replace("ord_", "sto_");
    let (lookups, reads) = (map.count(), hub.reads.load(Ordering::SeqCst));
    let asked: Vec<&str> = [
        &texts[2], &texts[0], &foreign, &texts[1], &texts[4], "x", &texts[3], &texts[5], &texts[2],
    ]
    .map(|text: &str| text)
    .to_vec();
    let answers = resolver.resolve_batch::<Order>(ACME, &asked).await.expect("answers");
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
    assert!(answers.iter().zip(&asked).all(|(answer, text)| answer.public_id == *text));
    assert_eq!(answers[3].internal_id, Some(middle.ulid()));
    assert_eq!(map.count() - lookups, 1, "one query");
    assert_eq!(hub.reads.load(Ordering::SeqCst) - reads, 1, "one trip to the shared cache");
}

#[tokio::test(start_paused = true)]
async fn a_large_batch_is_asked_in_parts_and_a_larger_one_refused() {
    let map = Spy::new();
    let resolver = Resolver::builder(map.clone()).build();
    let texts: Vec<String> = (0..1_001).map(|_| new_id().to_string()).collect();
    let asked: Vec<&str> = texts.iter().map(String::as_str).collect();
    let answers = resolver.resolve_batch::<Order>(ACME, &asked[..1_000]).await.expect("answers");
    assert_eq!(answers.len(), 1_000);
    assert_eq!((map.count(), map.asked.load(Ordering::SeqCst)), (5, 1_000));
    let refused = resolver.resolve_batch::<Order>(ACME, &asked).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("at most 1000")));
    assert_eq!(map.count(), 5);
}

#[tokio::test(start_paused = true)]
async fn tenants_and_types_do_not_meet() {
    let (map, hub) = (Spy::new(), Hub::new());
    let resolver = node(&map, &hub).await;
    let id = new_id();
    map.plant(id).await;
    let text = id.to_string();
    assert_eq!(reason(&resolver, &text).await, ResolveReason::HitDb);
    for other in ["other", "acme2", "ACME", "acme:ORDER"] {
        let answer = resolver.resolve::<Order>(other, &text).await.expect("an answer");
        assert_eq!(answer.reason, ResolveReason::NotFound, "{other}");
    }
    let store = TypedId::<Store>::new(id.ulid()).to_string();
    let answer = resolver.resolve::<Store>(ACME, &store).await.expect("an answer");
    assert_eq!(answer.reason, ResolveReason::NotFound);
    assert!(resolver.resolve::<Order>(" ", &text).await.is_err(), "a tenant is never blank");
}

#[tokio::test(start_paused = true)]
async fn a_disabled_resolver_looks_nothing_up() {
    let map = Spy::new();
    let settings = ResolverSettings { enabled: false, ..ResolverSettings::default() };
    let resolver = Resolver::builder(map.clone()).settings(settings).build();
    let id = new_id();
    map.plant(id).await;
    let text = id.to_string();
    let answer = resolver.resolve::<Order>(ACME, &text).await.expect("an answer");
    assert_eq!((answer.reason, answer.exists(), map.count()), (ResolveReason::Disabled, false, 0));
}

#[tokio::test(start_paused = true)]
async fn a_row_that_holds_another_id_is_not_believed() {
    let map = Spy::new();
    let resolver = Resolver::builder(map.clone()).build();
    let (id, other) = (new_id(), new_id());
    let binding = Binding::checked(
        ACME,
        semel_ids::ResourceType::new("ORDER", "ord"),
        &semel_ids::Codec::new(),
        &id.to_string(),
        other.ulid(),
    );
    assert!(binding.is_err(), "it cannot even be made");
    map.rows.plant_raw(ACME, "ORDER", &id.to_string(), other.ulid());
    assert_eq!(reason(&resolver, &id.to_string()).await, ResolveReason::NotFound);
}
