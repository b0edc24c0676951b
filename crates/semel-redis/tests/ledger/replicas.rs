//! Tests a server with replicas, or with missing ones: what is confirmed, what is taken back, and
//! what happens when another server becomes the master.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test that asked for it")]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{LONG, Place, claim, client, draft, key};
use semel_core::store::{
    Change, Draft, ErrorKind, Guarantee, Opened, Renewed, Renewer, Replication, Settled,
    Settlement, Store,
};
use semel_core::{AttemptId, ErrorText, Key, OnCrash, Outcome, Record, Recorded, State, Version};
use semel_redis::RedisStore;
use semel_servers::{Options, Redis, Server};
use tokio::net::{TcpListener, TcpStream};

const BRIEF: Duration = Duration::from_millis(50);

fn start() -> (Server, Place) {
    let server = Redis::start(Options::new()).unwrap();
    let place = Place::at(server.url().to_owned());
    (server, place)
}

/// Starts a replica of `place`'s server, and waits until it has caught up.
async fn replica(place: &Place) -> Server {
    let port = place.url.rsplit(':').next().unwrap().to_owned();
    let replica = Redis::start(Options::new().flags(["--replicaof", "127.0.0.1", &port])).unwrap();
    let mut behind = client(replica.url()).await;
    loop {
        // A server that copies another's records may answer slowly.
        let role = redis::cmd("INFO").arg("replication").query_async::<String>(&mut behind).await;
        if role.is_ok_and(|role| role.contains("master_link_status:up")) {
            return replica;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Connects a store that requires a replica although there is none.
async fn strict(place: &Place) -> RedisStore {
    place.builder().wait_replicas(1, BRIEF).connect(&place.url).await.unwrap()
}

fn success() -> Settlement {
    Settlement::Succeeded {
        outcome: Recorded::Whole(Outcome::empty()),
        keep: Duration::from_secs(60),
    }
}

async fn record(store: &RedisStore, key: &Key) -> Record {
    store.peek(key).await.unwrap().expect("it is there").record
}

#[tokio::test]
async fn a_claim_that_no_replica_confirms_is_taken_back() {
    let (_server, place) = start();
    let alone = strict(&place).await;
    let first = draft(&key("k"));
    let error = alone.open(&first).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(alone.peek(&first.key).await.unwrap().is_none());
    let lease = claim(&place.open().await, &first).await;
    let error = alone.settle(&lease, &success()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    assert_eq!(record(&alone, &first.key).await.state, State::Succeeded, "the master keeps it");
}

#[tokio::test]
async fn a_replica_confirms_for_its_master_and_takes_nothing_itself() {
    let (_server, place) = start();
    let replica = replica(&place).await;
    let patient = place.builder().wait_replicas(1, LONG / 2);
    let confirmed = patient.connect(&place.url).await.unwrap();
    let lease = claim(&confirmed, &draft(&key("confirmed"))).await;
    assert_eq!(confirmed.settle(&lease, &success()).await.unwrap(), Settled::Done);
    let codes: Vec<_> = confirmed.check().await.unwrap().iter().map(|found| found.code).collect();
    assert_eq!(codes, ["redis-fsync", "redis-failover"]);

    let misled = place.builder().connect(replica.url()).await.unwrap();
    let error = misled.open(&draft(&key("misled"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(misled.check().await.unwrap().iter().any(|found| found.code == "redis-replica"));
}

/// Starts a server that writes to its disk before it acknowledges.
fn durable() -> (Server, Place) {
    let server = Redis::start(Options::new().flags(["--appendfsync", "always"])).unwrap();
    let place = Place::at(server.url().to_owned());
    (server, place)
}

async fn configure(place: &Place, name: &str, value: &str) {
    let _: () = place.raw(redis::cmd("CONFIG").arg("SET").arg(name).arg(value)).await;
}

#[tokio::test]
async fn a_server_that_can_fail_over_guarantees_best_effort() {
    let (_server, place) = durable();
    assert_eq!(place.open().await.guarantee(), Guarantee::Fenced);
    assert_eq!(strict(&place).await.guarantee(), Guarantee::BestEffort);
    let replica = replica(&place).await;
    assert_eq!(place.open().await.guarantee(), Guarantee::BestEffort);
    let misled = place.builder().connect(replica.url()).await.unwrap();
    assert_eq!(misled.guarantee(), Guarantee::BestEffort);
}

#[tokio::test]
async fn a_replica_that_is_attached_later_changes_the_guarantee() {
    let (_server, place) = durable();
    let (checked, swept) = (place.open().await, place.open().await);
    let clone = checked.clone();
    assert_eq!(checked.check().await.unwrap(), []);
    assert_eq!((checked.guarantee(), swept.guarantee()), (Guarantee::Fenced, Guarantee::Fenced));

    let replica = replica(&place).await;
    let codes: Vec<_> = checked.check().await.unwrap().iter().map(|found| found.code).collect();
    assert_eq!(codes, ["redis-failover"]);
    assert_eq!(checked.guarantee(), Guarantee::BestEffort);
    assert_eq!(clone.guarantee(), Guarantee::BestEffort, "clones share what was seen");
    swept.sweep(10).await.unwrap();
    assert_eq!(swept.guarantee(), Guarantee::BestEffort);

    // A replica that is away for a moment can still be promoted.
    drop(replica);
    let connected = async || {
        let info: String = place.raw(redis::cmd("INFO").arg("replication")).await;
        !info.contains("connected_slaves:0")
    };
    while connected().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    checked.check().await.unwrap();
    assert_eq!(checked.guarantee(), Guarantee::BestEffort);
}

#[tokio::test]
async fn a_declared_replication_overrules_the_observed_one() {
    let (_server, place) = durable();
    let _replica = replica(&place).await;
    let declared = place.builder().replication(Replication::Synchronous);
    let declared = declared.connect(&place.url).await.unwrap();
    assert_eq!(declared.check().await.unwrap(), []);
    assert_eq!(declared.guarantee(), Guarantee::Fenced);
    let by_url = async |word: &str| {
        let url = format!("{}/?replication={word}", place.url);
        place.builder().connect(&url).await.map(|store| store.guarantee())
    };
    assert_eq!(by_url("none").await.unwrap(), Guarantee::Fenced);
    assert_eq!(by_url("synchronous").await.unwrap(), Guarantee::Fenced);
    assert_eq!(by_url("asynchronous").await.unwrap(), Guarantee::BestEffort);
    assert_eq!(by_url("some").await.unwrap_err().kind(), ErrorKind::Misconfigured);
}

#[tokio::test]
async fn a_server_that_can_lose_acknowledged_writes_guarantees_best_effort() {
    let (_server, place) = durable();
    let store = place.open().await;
    assert_eq!(store.guarantee(), Guarantee::Fenced);
    configure(&place, "appendfsync", "everysec").await;
    store.sweep(10).await.unwrap();
    assert_eq!(store.guarantee(), Guarantee::BestEffort);
    configure(&place, "appendfsync", "always").await;
    assert_eq!(store.check().await.unwrap(), []);
    assert_eq!(store.guarantee(), Guarantee::Fenced);
    configure(&place, "appendonly", "no").await;
    assert!(store.check().await.unwrap().iter().any(|found| found.code == "redis-aof"));
    assert_eq!(store.guarantee(), Guarantee::BestEffort);
    assert_eq!(place.open().await.guarantee(), Guarantee::BestEffort);
    // A declaration about replicas does not change what is known about the disk.
    let declared = place.builder().replication(Replication::Synchronous);
    let declared = declared.connect(&place.url).await.unwrap();
    assert_eq!(declared.guarantee(), Guarantee::BestEffort);
}

/// Claims `first`, lets it fail, and returns its version.
async fn failed(store: &RedisStore, first: &Draft) -> Version {
    let lease = claim(store, first).await;
    let (error, keep) = (ErrorText::new("x"), Duration::from_secs(60));
    let settlement = Settlement::Failed { error, retry_after: Some(Duration::ZERO), keep };
    assert_eq!(store.settle(&lease, &settlement).await.unwrap(), Settled::Done);
    record(store, &first.key).await.version()
}

fn next(first: &Draft) -> Draft {
    Draft { attempt_id: AttemptId::generate(), attempt: first.attempt + 1, ..first.clone() }
}

#[tokio::test]
async fn a_takeover_that_no_replica_confirms_is_taken_back_and_its_operation_goes_on() {
    let (_server, place) = start();
    let (lax, strict) = (place.open().await, strict(&place).await);
    for on_crash in [OnCrash::Rerun, OnCrash::Hold] {
        let first = Draft { on_crash, ..draft(&key(&format!("{on_crash:?}"))) };
        let judged = failed(&lax, &first).await;
        let next = next(&first);
        let error = strict.swap(&first.key, judged, &Change::Regrant(next.clone())).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Unavailable, "{on_crash:?}");
        let record = record(&lax, &first.key).await;
        assert_eq!((record.state, record.attempt), (State::Failed, 2), "{on_crash:?}");
        assert_eq!(record.operation_id, first.operation_id);
        assert_eq!(record.retry_at, Some(record.updated_at), "due now");
        assert_eq!(record.attempt_id, next.attempt_id, "under the new lease");
    }
}

#[tokio::test]
async fn a_crashed_attempt_that_awaits_its_verifier_still_does_after_a_takeover_was_taken_back() {
    let (_server, place) = start();
    let (lax, strict) = (place.open().await, strict(&place).await);
    let first =
        Draft { on_crash: OnCrash::Verify, lease: Duration::ZERO, ..draft(&key("crashed")) };
    let _ = claim(&lax, &first).await;
    let judged = record(&lax, &first.key).await.version();
    let next = Draft { lease: Duration::from_secs(3_600), ..next(&first) };
    let error = strict.swap(&first.key, judged, &Change::Regrant(next)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let peeked = lax.peek(&first.key).await.unwrap().expect("it is there");
    assert_eq!(peeked.record.state, State::Running, "a failed one would run unverified");
    assert!(!peeked.record.held(peeked.now), "nobody has to wait");
}

#[tokio::test]
async fn a_replacement_that_no_replica_confirms_leaves_nothing() {
    let (_server, place) = start();
    let (lax, strict) = (place.open().await, strict(&place).await);
    let first = draft(&key("expired"));
    let judged = failed(&lax, &first).await;
    let error = strict.swap(&first.key, judged, &Change::Replace(draft(&first.key))).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(lax.peek(&first.key).await.unwrap().is_none());
}

#[tokio::test]
async fn a_claim_whose_reply_was_lost_counts_only_once_a_replica_has_it() {
    let (_server, place) = start();
    let (lax, strict) = (place.open().await, strict(&place).await);
    let first = draft(&key("k"));
    let _ = claim(&lax, &first).await;
    let error = strict.open(&first).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    let rival = strict.open(&draft(&first.key)).await.unwrap();
    assert!(matches!(rival, Opened::Existing { .. }), "a rival only looks: {rival:?}");
    let _replica = replica(&place).await;
    let patient = place.builder().wait_replicas(1, LONG / 2);
    let found = patient.connect(&place.url).await.unwrap().open(&first).await.unwrap();
    assert!(matches!(found, Opened::Existing { .. }), "{found:?}");
}

/// Starts a proxy that leads each new connection to the address in `target`.
async fn name_of(target: Arc<Mutex<SocketAddr>>) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let name = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let meant = *target.lock().unwrap();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(meant).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    name
}

#[tokio::test]
async fn connections_leave_a_demoted_master_for_the_one_that_the_name_resolves_to() {
    let (old, direct) = start();
    let new = replica(&direct).await;
    let target = Arc::new(Mutex::new(SocketAddr::from(([127, 0, 0, 1], old.port()))));
    let place = Place::at(format!("redis://{}", name_of(Arc::clone(&target)).await));
    let patient = place.builder().wait_replicas(1, LONG / 2);
    let confirmed = patient.connect(&place.url).await.unwrap();
    let lease = claim(&confirmed, &draft(&key("k"))).await;
    let store = place.open().await;
    let mut renewer = store.renewer().await.unwrap();
    let beat = [(lease, Duration::from_secs(60))];
    assert_eq!(renewer.renew(&beat).await.unwrap(), [Renewed::Extended]);

    let replica_of = async |url: &str, host: &str, port: &str| {
        let mut command = redis::cmd("REPLICAOF");
        let _: () = command.arg(host).arg(port).query_async(&mut client(url).await).await.unwrap();
    };
    replica_of(new.url(), "NO", "ONE").await;
    // A replica without a master: one that copies its new master refuses for other reasons
    // meanwhile.
    replica_of(old.url(), "127.0.0.1", "1").await;
    *target.lock().unwrap() = SocketAddr::from(([127, 0, 0, 1], new.port()));

    let refused = renewer.renew(&beat).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Misconfigured, "{refused}");
    assert_eq!(renewer.renew(&beat).await.unwrap(), [Renewed::Extended]);
    let refused = store.settle(&lease, &success()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Misconfigured, "{refused}");
    assert_eq!(store.settle(&lease, &success()).await.unwrap(), Settled::Done);
    let peeked = store.peek(&key("k")).await.unwrap().expect("it is there");
    assert_eq!(peeked.record.state, State::Succeeded);
}
