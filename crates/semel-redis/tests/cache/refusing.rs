//! Tests a server that answers reads and refuses writes: full, or without its required replicas. A
//! revoked id is revoked on every node that receives the invalidation.

use std::time::Duration;

use semel_ids::map::memory::MemoryMap;
use semel_ids::resource::Order;
use semel_ids::shared::{CacheSlot, Invalidation, SharedCache as _};
use semel_ids::{Binding, CacheSettings, Generator, Resolver, ResolverSettings, TypedId};
use semel_servers::{Options, Redis, Server};

use crate::fixture::{GENEROUS, HOUR, Place, keys, next_invalidation, note, read};

fn start() -> (Server, Place) {
    let server = Redis::start(Options::new()).expect("a Redis");
    let place = Place::at(server.url().to_owned());
    (server, place)
}

async fn configure(place: &Place, name: &str, value: u32) {
    let () = place.raw(redis::cmd("CONFIG").arg("SET").arg(name).arg(value)).await;
}

/// Returns a resolver whose caches remember for longer than any test takes.
fn node(map: &MemoryMap, place: &Place) -> Resolver {
    let cache = CacheSettings { l1_ttl: HOUR, l2_ttl: HOUR, ..CacheSettings::default() };
    let settings = ResolverSettings { cache, ..ResolverSettings::default() };
    Resolver::builder(map.clone()).shared(place.cache()).settings(settings).build()
}

async fn exists(node: &Resolver, id: TypedId<Order>) -> bool {
    node.resolve::<Order>("acme", &id.to_string()).await.expect("an answer").exists()
}

/// Registers an id that both nodes and the cache know.
async fn known(nodes: [&Resolver; 2], map: &MemoryMap, place: &Place) -> TypedId<Order> {
    let id = TypedId::<Order>::new(Generator::new().generate().expect("an id"));
    let binding = Binding::of("acme", id).expect("a binding");
    let registration = nodes[0].register(map, &mut map.clone(), &binding).await.expect("memory");
    registration.committed();
    let key = [format!("acme:ORDER:{id}")];
    let filling = async {
        while !matches!(
            read(&place.cache(), &key).await.expect("an answer")[..],
            [CacheSlot::Known(_)]
        ) {
            assert!(exists(nodes[1], id).await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(GENEROUS, filling).await.expect("the cache is filled");
    assert!(exists(nodes[0], id).await);
    id
}

/// Waits until a node treats an id as revoked, and asserts that it stays so.
async fn gone(node: &Resolver, id: TypedId<Order>) {
    let waiting = async {
        while exists(node, id).await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(GENEROUS, waiting).await.expect("it receives the revocation");
    for _ in 0..20 {
        assert!(!exists(node, id).await, "what was revoked is back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_id_is_revoked_on_nodes_whose_cache_refuses_writes() {
    for setting in ["maxmemory", "min-replicas-to-write"] {
        let (_server, place) = start();
        let map = MemoryMap::new();
        let (here, there) = (node(&map, &place), node(&map, &place));
        // Both nodes listen once one has received the other's invalidation.
        let first = known([&here, &there], &map, &place).await;
        assert!(here.revoke("acme", first).await.expect("memory").propagated);
        gone(&there, first).await;

        let id = known([&here, &there], &map, &place).await;
        configure(&place, setting, 1).await;
        let revoked = here.revoke("acme", id).await.expect("memory");
        assert!(revoked.was_live && !revoked.propagated, "{setting}: {revoked:?}");
        gone(&here, id).await;
        gone(&there, id).await;
        // A node that started later treats it as revoked too.
        gone(&node(&map, &place), id).await;

        configure(&place, setting, 0).await;
        let key = [format!("acme:ORDER:{id}")];
        let telling = async {
            while read(&place.cache(), &key).await.expect("an answer") != [CacheSlot::Absent] {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(GENEROUS, telling).await.expect("the cache is told in the end");
        gone(&there, id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_cache_removes_an_entry_that_it_cannot_revoke() {
    let (_server, place) = start();
    let (cache, keys) = (place.cache(), keys(1));
    cache.fill(&[note(&keys[0], Some(1))]).await.unwrap();
    let mut messages = place.cache().listen().await.unwrap();
    configure(&place, "maxmemory", 1).await;
    cache.revoked(&keys, HOUR).await.expect_err("there is no room");
    assert_eq!(read(&cache, &keys).await.unwrap(), [CacheSlot::Empty]);
    assert_eq!(
        next_invalidation(messages.as_mut()).await,
        Invalidation::Revoked(keys.clone()),
        "it is next_invalidation all the same"
    );
    configure(&place, "maxmemory", 0).await;
    cache.revoked(&keys, HOUR).await.unwrap();
    assert_eq!(read(&cache, &keys).await.unwrap(), [CacheSlot::Absent]);
}
