//! Tests a server that takes no more writes, full or without its replicas: nothing new begins on
//! it, and running claims continue.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test that asked for it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::{LONG, Place, claim, client, draft, key};
use redis::aio::MultiplexedConnection;
use semel_core::store::{
    Change, Draft, ErrorKind, Opened, Renewed, Renewer, Settled, Settlement, Store, Swapped,
};
use semel_core::{AttemptId, Command, ErrorText, Executor, Outcome, Recorded, State};
use semel_redis::RedisStore;
use semel_servers::{Options, Redis, RedisCluster, Server};
use tokio::sync::Notify;

fn start() -> (Server, Place) {
    let server = Redis::start(Options::new()).unwrap();
    let place = Place::at(server.url().to_owned());
    (server, place)
}

fn success() -> Settlement {
    let outcome = Recorded::Whole(Outcome::new(Outcome::JSON, "{\"id\":7}"));
    Settlement::Succeeded { outcome, keep: Duration::from_secs(3_600) }
}

async fn set_limit(node: &mut MultiplexedConnection, bytes: u64) {
    let mut set = redis::cmd("CONFIG");
    let _: () = set.arg("SET").arg("maxmemory").arg(bytes).query_async(node).await.unwrap();
}

async fn used(node: &mut MultiplexedConnection) -> u64 {
    let info: String = redis::cmd("INFO").arg("memory").query_async(node).await.unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    line.trim().parse().unwrap()
}

/// Fills a server with other keys until it refuses them.
async fn fill(url: &str) {
    let mut node = client(url).await;
    let limit = used(&mut node).await + (4 << 20);
    set_limit(&mut node, limit).await;
    for n in 0.. {
        // One hash tag would not be enough: every node of a cluster has its own slots.
        let mut set = redis::cmd("SET");
        let set = set.arg(format!("filler:{n}")).arg(vec![b'x'; 16 << 10]);
        match set.query_async::<()>(&mut node).await {
            Ok(()) => {}
            Err(error) if error.code() == Some("MOVED") => {}
            Err(error) => {
                assert_eq!(error.code(), Some("OOM"), "{error}");
                break;
            }
        }
    }
    // The buffers of clients vary: with a limit this far below the used memory, the server is full
    // in any case.
    let limit = used(&mut node).await - (1 << 20);
    set_limit(&mut node, limit).await;
}

/// Asserts that the server is full.
async fn is_full(store: &RedisStore, id: &str) {
    let error = store.open(&draft(&key(id))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Capacity, "{error}");
    assert!(error.to_string().contains("maxmemory"), "{error}");
    assert!(store.peek(&key(id)).await.unwrap().is_none());
}

fn failure() -> Settlement {
    let (error, keep) = (ErrorText::new("x"), Duration::from_secs(60));
    Settlement::Failed { error, retry_after: Some(Duration::ZERO), keep }
}

async fn what_runs_goes_on(place: &Place, urls: &[String]) {
    let (store, other) = (place.open().await, place.open().await);
    let ids = ["lives", "succeeds", "fails", "dies", "is given back"];
    let mut leases = Vec::new();
    for id in ids {
        leases.push(claim(&store, &draft(&key(id))).await);
    }
    let retried = draft(&key("retried"));
    let lease = claim(&store, &retried).await;
    assert_eq!(store.settle(&lease, &failure()).await.unwrap(), Settled::Done);
    let judged = store.peek(&retried.key).await.unwrap().unwrap().record.version();
    for url in urls {
        fill(url).await;
    }
    is_full(&store, "new").await;

    let before = store.peek(&key("lives")).await.unwrap().unwrap().record;
    let mut renewer = store.renewer().await.unwrap();
    let longer: Vec<_> = leases.iter().map(|lease| (*lease, LONG)).collect();
    assert_eq!(renewer.renew(&longer).await.unwrap(), [Renewed::Extended; 5]);
    let after = store.peek(&key("lives")).await.unwrap().unwrap().record;
    assert!(after.lease_until > before.lease_until, "{before:?} {after:?}");
    let rival = other.open(&draft(&key("lives"))).await.unwrap();
    let Opened::Existing { record, now } = rival else { panic!("{rival:?}") };
    assert!(record.held(now), "it is not taken over");

    let dead = Settlement::Dead { error: ErrorText::new("x") };
    let settlements = [success(), failure(), dead, Settlement::Removed];
    for (lease, settlement) in leases[1..].iter().zip(&settlements) {
        assert_eq!(store.settle(lease, settlement).await.unwrap(), Settled::Done, "{settlement:?}");
    }
    for (id, state) in
        [("succeeds", State::Succeeded), ("fails", State::Failed), ("dies", State::Dead)]
    {
        let told = other.open(&draft(&key(id))).await.unwrap();
        let Opened::Existing { record, .. } = told else { panic!("{id}: {told:?}") };
        assert_eq!(record.state, state, "{id}");
    }
    assert!(store.peek(&key("is given back")).await.unwrap().is_none());

    // A retry would begin work whose outcome needs memory.
    let next = Draft { attempt_id: AttemptId::generate(), attempt: 2, ..retried.clone() };
    let error = store.swap(&retried.key, judged, &Change::Regrant(next.clone())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Capacity, "{error}");
    is_full(&store, "newer").await;
    for url in urls {
        set_limit(&mut client(url).await, 0).await;
    }
    let granted = store.swap(&retried.key, judged, &Change::Regrant(next)).await.unwrap();
    assert!(matches!(granted, Swapped::Done { .. }), "{granted:?}");
    claim(&store, &draft(&key("new"))).await;
}

#[tokio::test]
async fn on_a_full_server_leases_are_renewed_outcomes_recorded_and_settled_keys_replayed() {
    let (server, place) = start();
    what_runs_goes_on(&place, &[server.url().to_owned()]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_cluster_leases_are_renewed_outcomes_recorded_and_settled_keys_replayed() {
    let cluster = RedisCluster::start().unwrap();
    let place = Place::at(cluster.url());
    let urls: Vec<_> = cluster.nodes().iter().map(|node| node.url().to_owned()).collect();
    what_runs_goes_on(&place, &urls).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_ends_on_a_full_server_is_done_once_and_replayed_elsewhere() {
    let (server, place) = start();
    let here = Executor::new(place.open().await);
    let there = Executor::new(place.open().await);
    let command = |id: &str| Command::new(key(id));
    let effects = Arc::new(AtomicU32::new(0));
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let work = {
        let (effects, begun, go) = (Arc::clone(&effects), Arc::clone(&begun), Arc::clone(&go));
        move |_| async move {
            effects.fetch_add(1, Ordering::Relaxed);
            begun.notify_one();
            go.notified().await;
            Ok::<_, std::convert::Infallible>(7)
        }
    };
    let running = tokio::spawn({
        let (here, command) = (here.clone(), command("k"));
        async move { here.run(command, work).await.unwrap() }
    });
    begun.notified().await;
    fill(server.url()).await;
    go.notify_one();
    let first = running.await.unwrap();
    assert_eq!((first.value(), first.replayed()), (Some(&7), false));

    let none = |_| async { Err::<i32, _>("nothing runs on a full server") };
    let repeat = there.run(command("k"), none).await.unwrap();
    assert_eq!((repeat.value(), repeat.replayed()), (Some(&7), true));
    let refused = there.run(command("new"), none).await.unwrap_err();
    assert!(matches!(refused, semel_core::Error::Capacity), "{refused:?}");
    assert_eq!(effects.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_server_without_its_replicas_replays_and_accepts_no_write() {
    let (_server, place) = start();
    let (store, other) = (place.open().await, place.open().await);
    let lease = claim(&store, &draft(&key("settled"))).await;
    assert_eq!(store.settle(&lease, &success()).await.unwrap(), Settled::Done);
    let mut set = redis::cmd("CONFIG");
    let _: () = place.raw(set.arg("SET").arg("min-replicas-to-write").arg(1)).await;
    let told = other.open(&draft(&key("settled"))).await.unwrap();
    let Opened::Existing { record, .. } = told else { panic!("{told:?}") };
    assert_eq!(record.state, State::Succeeded);
    let error = other.open(&draft(&key("new"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
