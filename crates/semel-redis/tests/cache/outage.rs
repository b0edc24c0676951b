//! Tests servers that hang, die and come back: calls end in time, and work again by themselves.

use std::time::Duration;

use semel_core::store::ErrorKind;
use semel_ids::shared::{CacheSlot, Invalidation, Invalidations, SharedCache};
use semel_redis::RedisCache;
use semel_servers::{Options, Redis, RedisCluster};
use semel_testkit::proxy::{Direction, FaultProxy};
use ulid::Ulid;

use crate::fixture::{GENEROUS, HOUR, Place, keys, next_invalidation, note, read, wrong};

/// The timeout while a server does not answer; longer than a healthy server takes on a busy
/// machine.
const PATIENCE: Duration = Duration::from_secs(4);

/// Waits until the cache answers again.
async fn recovered(cache: &RedisCache, keys: &[String]) -> Vec<CacheSlot> {
    let asking = async {
        loop {
            if let Ok(slots) = read(cache, keys).await {
                return slots;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(GENEROUS * 3, asking).await.expect("the cache comes back")
}

/// Asserts that every call ends with an error.
async fn every_call_fails(cache: &RedisCache) {
    let keys = keys(30);
    let notes: Vec<_> = keys.iter().map(|key| note(key, Some(2))).collect();
    let calls = async {
        assert_eq!(read(cache, &keys).await.expect_err("away").kind(), ErrorKind::Unavailable);
        let unwritten = [ErrorKind::Unavailable, ErrorKind::Ambiguous];
        assert!(unwritten.contains(&cache.fill(&notes).await.expect_err("away").kind()));
        assert!(unwritten.contains(&cache.registered(&keys, HOUR).await.expect_err("away").kind()));
        let revoking = cache.revoked(&keys, GENEROUS);
        assert!(unwritten.contains(&revoking.await.expect_err("away").kind()));
        assert!(unwritten.contains(&cache.repaired(&keys).await.expect_err("away").kind()));
        assert!(unwritten.contains(&cache.clear(&wrong(&keys)).await.expect_err("away").kind()));
    };
    tokio::time::timeout(GENEROUS, calls).await.expect("calls end in time");
}

async fn subscription_fails(messages: &mut dyn Invalidations) {
    let listening = async {
        loop {
            if let Err(error) = messages.next().await {
                return error;
            }
        }
    };
    let error =
        tokio::time::timeout(GENEROUS, listening).await.expect("the lost subscription is detected");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_is_an_error_in_time_and_then_works_again() {
    let mut server = Redis::start(Options::new()).unwrap();
    let place = Place::at(server.url().to_owned());
    let cache = place.impatient(PATIENCE);
    let mut messages = cache.listen().await.unwrap();
    let keys = keys(2);
    recovered(&cache, &keys).await;
    place.cache().fill(&[note("stays", Some(1))]).await.unwrap();
    server.pause().unwrap();
    every_call_fails(&cache).await;
    subscription_fails(messages.as_mut()).await;
    server.resume().unwrap();
    let stays = ["stays".to_owned()];
    assert_eq!(recovered(&cache, &stays).await, [CacheSlot::Known(Ulid(1))]);
    let mut messages = place.cache().listen().await.unwrap();
    place.cache().registered(&stays, HOUR).await.unwrap();
    // Commands that were queued in the server run late, and their messages may arrive first.
    while next_invalidation(messages.as_mut()).await != Invalidation::Registered(stays.to_vec()) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_died_is_an_error_and_then_works_again() {
    let mut server = Redis::start(Options::new()).unwrap();
    let place = Place::at(server.url().to_owned());
    let cache = place.cache();
    let mut messages = cache.listen().await.unwrap();
    let keys = keys(2);
    cache.fill(&[note(&keys[0], Some(1))]).await.unwrap();
    server.kill9().unwrap();
    every_call_fails(&cache).await;
    subscription_fails(messages.as_mut()).await;
    assert!(cache.listen().await.is_err());
    server.restart().unwrap();
    recovered(&cache, &keys).await;
    cache.fill(&[note(&keys[1], Some(9))]).await.unwrap();
    assert_eq!(read(&cache, &keys[1..]).await.unwrap(), [CacheSlot::Known(Ulid(9))]);
    assert!(cache.listen().await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_that_is_away_at_the_start_is_used_when_it_comes() {
    let mut server = Redis::start(Options::new()).unwrap();
    let place = Place::at(server.url().to_owned());
    server.kill9().unwrap();
    let cache = place.cache();
    every_call_fails(&cache).await;
    server.restart().unwrap();
    assert_eq!(recovered(&cache, &keys(1)).await, [CacheSlot::Empty]);

    let mut cluster = RedisCluster::start().unwrap();
    let place = Place::at(cluster.url());
    for node in cluster.nodes_mut() {
        node.kill9().unwrap();
    }
    let cache = place.cache();
    every_call_fails(&cache).await;
    for node in cluster.nodes_mut() {
        node.restart().unwrap();
    }
    cluster.wait_until_whole().unwrap();
    assert_eq!(recovered(&cache, &keys(50)).await, vec![CacheSlot::Empty; 50]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_connection_is_detected_by_its_listener_and_replaced_by_its_callers() {
    let server = Redis::start(Options::new()).unwrap();
    let proxy = FaultProxy::start(([127, 0, 0, 1], server.port()).into()).await.unwrap();
    let place = Place::at(format!("redis://{}", proxy.addr()));
    let cache = place.impatient(PATIENCE);
    let mut messages = cache.listen().await.unwrap();
    let keys = keys(1);
    recovered(&cache, &keys).await;
    proxy.blackhole(Direction::Replies);
    every_call_fails(&cache).await;
    subscription_fails(messages.as_mut()).await;
    assert!(proxy.faults().held > 0, "the fault has to happen");
    proxy.heal();
    recovered(&cache, &keys).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_callers_of_a_hanging_server_share_one_time_out() {
    let mut server = Redis::start(Options::new()).unwrap();
    let place = Place::at(server.url().to_owned());
    let cache = place.impatient(PATIENCE);
    let keys = keys(1);
    recovered(&cache, &keys).await;
    server.pause().unwrap();
    for _ in 0..2 {
        let all = futures_util::future::join_all((0..200).map(|_| read(&cache, &keys)));
        let answers = tokio::time::timeout(GENEROUS, all).await.expect("not one after another");
        assert!(answers.iter().all(Result::is_err));
    }
    server.resume().unwrap();
    recovered(&cache, &keys).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn however_many_keys_make_one_trip() {
    let server = Redis::start(Options::new()).unwrap();
    let proxy = FaultProxy::start(([127, 0, 0, 1], server.port()).into()).await.unwrap();
    let place = Place::at(format!("redis://{}", proxy.addr()));
    let cache = place.cache();
    let keys = keys(1_000);
    let notes: Vec<_> = keys.iter().map(|key| note(key, Some(1))).collect();
    read(&cache, &keys).await.unwrap();
    proxy.latency(Duration::from_millis(100), Duration::ZERO);
    // Sent one after another, the keys would take more than three minutes each call.
    let calls = async {
        cache.fill(&notes).await.unwrap();
        cache.registered(&keys, HOUR).await.unwrap();
        cache.repaired(&keys).await.unwrap();
        cache.clear(&wrong(&keys)).await.unwrap();
        cache.revoked(&keys, GENEROUS).await.unwrap();
        read(&cache, &keys).await.unwrap()
    };
    let slots = tokio::time::timeout(GENEROUS, calls).await.expect("one trip each");
    assert_eq!(slots, vec![CacheSlot::Absent; 1_000]);
    let behind = Place::at(server.url().to_owned());
    let stats: String = behind.raw(redis::cmd("INFO").arg("commandstats")).await;
    assert!(stats.contains("cmdstat_mget:calls=2,"), "{stats}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_hangs_or_dies_is_an_error_and_then_works_again() {
    let mut cluster = RedisCluster::start().unwrap();
    let place = Place::at(cluster.url());
    let cache = place.impatient(PATIENCE);
    let keys = keys(60);
    recovered(&cache, &keys).await;
    cluster.nodes_mut()[1].pause().unwrap();
    every_call_fails(&cache).await;
    cluster.nodes_mut()[1].resume().unwrap();
    assert_eq!(recovered(&cache, &keys).await.len(), keys.len());

    cluster.nodes_mut()[2].kill9().unwrap();
    every_call_fails(&cache).await;
    cluster.nodes_mut()[2].restart().unwrap();
    cluster.wait_until_whole().unwrap();
    recovered(&cache, &keys).await;
    while cache.revoked(&keys, GENEROUS * 9).await.is_err() {}
    assert_eq!(recovered(&cache, &keys).await, vec![CacheSlot::Absent; 60]);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_move_to_another_master_are_found_there() {
    let cluster = RedisCluster::start().unwrap();
    let place = Place::at(cluster.url());
    let cache = place.cache();
    // One slot for all keys, by the hash tag in their tenant.
    let keys: Vec<String> = (0..8).map(|at| format!("{{acme}}:ORDER:ord_{at}")).collect();
    let (stays, comes) = keys.split_at(4);
    let minute = Duration::from_secs(60);
    cache.revoked(stays, minute).await.unwrap();
    let mut listener = place.cache().listen().await.unwrap();

    let slot: u16 = place.raw(redis::cmd("CLUSTER").arg("KEYSLOT").arg(place.name(&keys[0]))).await;
    let owner = (0..3).rfind(|at| usize::from(slot) >= 16_384 * at / 3).unwrap();
    let target = (owner + 1) % 3;
    let nodes = [owner, target].map(|at| Place::at(cluster.nodes()[at].url().to_owned()));
    let mut ids = Vec::new();
    for node in &nodes {
        ids.push(node.raw::<String>(redis::cmd("CLUSTER").arg("MYID")).await);
    }
    let set_slot = async |node: &Place, how: &str, id: &str| {
        let mut command = redis::cmd("CLUSTER");
        let () = node.raw(command.arg("SETSLOT").arg(slot).arg(how).arg(id)).await;
    };
    set_slot(&nodes[1], "IMPORTING", &ids[0]).await;
    set_slot(&nodes[0], "MIGRATING", &ids[1]).await;
    // Keys that are still at the source are answered there, the others by the target.
    let mut expected = vec![CacheSlot::Absent; 4];
    expected.extend([CacheSlot::Empty; 4]);
    assert_eq!(read(&cache, &keys).await.unwrap(), expected);
    cache.revoked(comes, minute).await.unwrap();
    // Each invalidation is sent once more, after the entry was written where it belongs. They are
    // written at the same time, in no order.
    let mut alone = Vec::new();
    while alone.len() < comes.len() {
        let Invalidation::Revoked(some) = next_invalidation(listener.as_mut()).await else {
            panic!("revocations")
        };
        if let [one] = &some[..] {
            alone.push(one.clone());
        }
    }
    alone.sort_unstable();
    assert_eq!(alone, comes);
    assert_eq!(read(&cache, &keys).await.unwrap(), vec![CacheSlot::Absent; 8]);
    let mut migrate = redis::cmd("MIGRATE");
    migrate.arg("127.0.0.1").arg(cluster.nodes()[target].port()).arg("").arg(0).arg(5_000);
    migrate.arg("KEYS");
    for key in stays {
        migrate.arg(place.name(key));
    }
    let _: String = nodes[0].raw(&mut migrate).await;
    for node in &nodes {
        set_slot(node, "NODE", &ids[1]).await;
    }
    // The cache's map of slots is out of date now, and is corrected.
    for _ in 0..2 {
        assert_eq!(read(&cache, &keys).await.unwrap(), vec![CacheSlot::Absent; 8]);
    }
}
