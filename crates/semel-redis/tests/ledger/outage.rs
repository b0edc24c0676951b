//! Tests servers that die, hang and come back: one server and a cluster.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test that asked for it")]

use std::time::Duration;

use crate::support::{LONG, Place, client, draft, key};
use semel_core::store::{ErrorKind, Opened, Settled, Settlement, Store};
use semel_core::{Key, Lease, Outcome, Recorded, State};
use semel_redis::RedisStore;
use semel_servers::{Options, Redis, RedisCluster};
use semel_testkit::proxy::{Direction, FaultProxy};

/// The timeout while a server does not answer; longer than a healthy server takes on a busy
/// machine.
const PATIENCE: Duration = Duration::from_secs(4);

fn success() -> Settlement {
    Settlement::Succeeded {
        outcome: Recorded::Whole(Outcome::empty()),
        keep: Duration::from_secs(60),
    }
}

async fn claim(store: &RedisStore, key: &Key) -> Lease {
    let draft = draft(key);
    let Opened::Inserted { fence } = store.open(&draft).await.unwrap() else {
        panic!("{key:?} was held");
    };
    Lease { digest: key.digest(), fence, attempt_id: draft.attempt_id }
}

async fn impatient(place: &Place) -> RedisStore {
    let builder = place.builder().response_timeout(PATIENCE).connect_timeout(PATIENCE);
    builder.connect(&place.url).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_died_is_reached_again_and_has_lost_nothing() {
    let mut server = Redis::start(Options::new().flags(["--appendfsync", "always"])).unwrap();
    let place = Place::at(server.url().to_owned());
    let store = place.open().await;
    let mut renewer = store.renewer().await.unwrap();
    let lease = claim(&store, &key("k")).await;
    server.kill9().unwrap();
    // At most one command is sent on the dead connection; after it connecting fails, which proves
    // that nothing was sent.
    let error = store.open(&draft(&key("first"))).await.unwrap_err();
    assert!([ErrorKind::Unavailable, ErrorKind::Ambiguous].contains(&error.kind()), "{error}");
    let error = store.open(&draft(&key("other"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.restart().unwrap();
    assert_eq!(store.peek(&key("k")).await.unwrap().unwrap().record.state, State::Running);
    use semel_core::store::{Renewed, Renewer};
    let renewed = renewer.renew(&[(lease, Duration::from_secs(9))]).await.unwrap();
    assert_eq!(renewed, [Renewed::Extended]);
    assert_eq!(store.settle(&lease, &success()).await.unwrap(), Settled::Done);
    assert!(store.peek(&key("other")).await.unwrap().is_none(), "unavailable means not done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_is_ambiguous_once_and_then_unavailable() {
    let mut server = Redis::start(Options::new()).unwrap();
    let place = Place::at(server.url().to_owned());
    let store = impatient(&place).await;
    let lease = claim(&store, &key("k")).await;
    server.pause().unwrap();
    let error = tokio::time::timeout(LONG, store.settle(&lease, &success()))
        .await
        .expect("the limit holds")
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    // Many callers share one attempt to connect: they do not queue for one timeout each, which
    // would take longer.
    let key = key("other");
    let draft = draft(&key);
    let many = (0..50).map(|_| store.open(&draft));
    let all = futures_util::future::join_all(many);
    let answers = tokio::time::timeout(LONG, all).await.expect("one time-out for all");
    for answer in answers {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    server.resume().unwrap();
    assert!(matches!(store.open(&draft).await.unwrap(), Opened::Inserted { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_is_ambiguous_and_nothing_is_sent_twice() {
    let server = Redis::start(Options::new()).unwrap();
    let proxy = FaultProxy::start(([127, 0, 0, 1], server.port()).into()).await.unwrap();
    let place = Place::at(format!("redis://{}", proxy.addr()));
    let store = place.open().await;
    // The server knows both scripts, so that every verb below is one command.
    let warm = claim(&store, &key("warm")).await;
    assert_eq!(store.settle(&warm, &success()).await.unwrap(), Settled::Done);

    let first = draft(&key("k"));
    proxy.cut_reply_after(0);
    let error = store.open(&first).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    assert_eq!(proxy.faults().cuts, 1, "the fault has to happen");
    let record = store.peek(&first.key).await.unwrap().expect("it had happened").record;
    assert_eq!((record.attempt_id, record.number), (first.attempt_id, 1));

    proxy.cut_reply_after(0);
    let error = store.settle(&record.lease(first.key.digest()), &success()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    let record = store.peek(&first.key).await.unwrap().expect("it is still there").record;
    assert_eq!((record.state, record.number), (State::Succeeded, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_is_replaced() {
    let server = Redis::start(Options::new()).unwrap();
    let proxy = FaultProxy::start(([127, 0, 0, 1], server.port()).into()).await.unwrap();
    let place = Place::at(format!("redis://{}", proxy.addr()));
    let store = impatient(&place).await;
    let warm = claim(&store, &key("warm")).await;
    assert_eq!(store.settle(&warm, &success()).await.unwrap(), Settled::Done);
    let lease = claim(&store, &key("k")).await;
    proxy.blackhole(Direction::Replies);
    let error = store.settle(&lease, &success()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    let error = store.open(&draft(&key("other"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(proxy.faults().held > 0, "the fault has to happen");
    proxy.heal();
    let record = store.peek(&key("k")).await.unwrap().expect("it is still there").record;
    assert_eq!(record.state, State::Succeeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_is_being_moved_answers_all_the_time() {
    let cluster = RedisCluster::start().unwrap();
    let place = Place::at(cluster.url());
    let store = place.open().await;
    let settled = claim(&store, &key("stays")).await;
    let slot = slot_of(&cluster, &place.name(&key("stays"))).await;
    let (source, target) = ends(&cluster, slot).await;
    let mut from = client(&source.1).await;
    let mut to = client(&target.1).await;
    set_slot(&mut to, slot, "IMPORTING", &source.0).await;
    set_slot(&mut from, slot, "MIGRATING", &target.0).await;
    // A record that is still at the source is answered there; others by the target, which does not
    // know the script.
    assert_eq!(store.peek(&key("stays")).await.unwrap().unwrap().record.state, State::Running);
    let name = place.name(&key("stays"));
    let port: u16 = target.1.rsplit(':').next().unwrap().parse().unwrap();
    let mut migrate = redis::cmd("MIGRATE");
    migrate.arg("127.0.0.1").arg(port).arg(&name).arg(0).arg(5_000);
    let _: () = migrate.query_async(&mut from).await.unwrap();
    assert_eq!(store.settle(&settled, &success()).await.unwrap(), Settled::Done);
    for connection in [&mut to, &mut from] {
        set_slot(connection, slot, "NODE", &target.0).await;
    }
    assert_eq!(store.peek(&key("stays")).await.unwrap().unwrap().record.state, State::Succeeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_died_is_reached_again_and_the_others_continue() {
    let mut cluster = RedisCluster::start().unwrap();
    let place = Place::at(cluster.url());
    // With everysec the server may acknowledge while it delays the write behind a slow fsync.
    for node in cluster.nodes() {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("appendfsync").arg("always");
        let _: () = set.query_async(&mut client(node.url()).await).await.unwrap();
    }
    let store = impatient(&place).await;
    let ids = |from: u32, to: u32| (from..to).map(|id| key(&format!("k{id}"))).collect::<Vec<_>>();
    for key in ids(0, 30) {
        let _ = claim(&store, &key).await;
    }
    cluster.nodes_mut()[1].kill9().unwrap();
    let mut refused = 0;
    for key in ids(30, 60) {
        match store.open(&draft(&key)).await {
            Ok(Opened::Inserted { .. }) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                let kind = error.kind();
                assert!([ErrorKind::Unavailable, ErrorKind::Ambiguous].contains(&kind), "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "the fault has to be seen");
    cluster.nodes_mut()[1].restart().unwrap();
    cluster.wait_until_whole().unwrap();
    for key in ids(0, 30) {
        let peeked = eventually(&store, &key).await;
        assert!(peeked, "{key:?} was forgotten");
    }
}

async fn eventually(store: &RedisStore, key: &Key) -> bool {
    let asking = async {
        loop {
            match store.peek(key).await {
                Ok(peeked) => return peeked.is_some(),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    };
    tokio::time::timeout(LONG, asking).await.expect("the cluster comes back")
}

async fn slot_of(cluster: &RedisCluster, name: &str) -> u16 {
    let mut connection = client(cluster.nodes()[0].url()).await;
    let mut command = redis::cmd("CLUSTER");
    command.arg("KEYSLOT").arg(name).query_async(&mut connection).await.unwrap()
}

/// Returns the master that has the slot, and another master: id and URL of each.
async fn ends(cluster: &RedisCluster, slot: u16) -> ((String, String), (String, String)) {
    let index = (0..3).rfind(|at| usize::from(slot) >= 16_384 * at / 3).unwrap();
    let mut found = Vec::new();
    for at in [index, (index + 1) % 3] {
        let url = cluster.nodes()[at].url().to_owned();
        let mut connection = client(&url).await;
        let id: String =
            redis::cmd("CLUSTER").arg("MYID").query_async(&mut connection).await.unwrap();
        found.push((id, url));
    }
    let target = found.pop().unwrap();
    (found.pop().unwrap(), target)
}

async fn set_slot(node: &mut redis::aio::MultiplexedConnection, slot: u16, how: &str, id: &str) {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SETSLOT").arg(slot).arg(how).arg(id);
    let _: () = command.query_async(node).await.unwrap();
}
