//! Tests what the conformance suite does not cover: trips, scripts, expiry in Redis itself, damaged
//! values, settings. Each has a private server, since these tests read and change server-wide
//! state.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test that asked for it")]

use std::collections::HashMap;
use std::time::Duration;

use crate::support::{Place, claim, client, draft, key};
use semel_core::store::{
    Change, Draft, ErrorKind, Filter, Inspect, Opened, Renewed, Renewer, Settled, Settlement,
    Severity, Store, Swapped,
};
use semel_core::{ErrorText, Hint, OnCrash, Outcome, Recorded, State};
use semel_redis::RedisStore;
use semel_servers::{Options, Redis, Server};

fn start(flags: &[&str]) -> (Server, Place) {
    let server = Redis::start(Options::new().flags(flags)).unwrap();
    let place = Place::at(server.url().to_owned());
    (server, place)
}

fn success() -> Settlement {
    let outcome = Recorded::Whole(Outcome::new(Outcome::JSON, "{\"id\":7}"));
    Settlement::Succeeded { outcome, keep: Duration::from_secs(3_600) }
}

/// Returns the calls per command since the last call, without those that this function makes.
async fn calls(place: &Place) -> HashMap<String, u64> {
    let text: String = place.raw(redis::cmd("INFO").arg("commandstats")).await;
    let _: () = place.raw(redis::cmd("CONFIG").arg("RESETSTAT")).await;
    let lines = text.lines().filter_map(|line| line.strip_prefix("cmdstat_"));
    let stats = lines.filter_map(|line| {
        let (name, rest) = line.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    });
    let ours = ["client|setinfo", "hello", "info", "config|resetstat"];
    stats.filter(|(name, _)| !ours.contains(&name.as_str())).collect()
}

fn expected(pairs: &[(&str, u64)]) -> HashMap<String, u64> {
    pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[tokio::test]
async fn a_first_execution_takes_two_trips_and_a_replay_one() {
    let (_server, place) = start(&[]);
    let store = place.open().await;
    // The first call of each script also sends its text.
    let warm = claim(&store, &draft(&key("warm"))).await;
    assert_eq!(store.settle(&warm, &success()).await.unwrap(), Settled::Done);
    calls(&place).await;

    let first = draft(&key("k"));
    let lease = claim(&store, &first).await;
    assert_eq!(store.settle(&lease, &success()).await.unwrap(), Settled::Done);
    let done = expected(&[("evalsha", 2), ("time", 2), ("set", 2), ("get", 1), ("publish", 1)]);
    assert_eq!(calls(&place).await, done, "two trips, and what the scripts did in them");

    assert!(matches!(store.open(&first).await.unwrap(), Opened::Existing { .. }));
    assert_eq!(calls(&place).await, expected(&[("evalsha", 1), ("time", 1), ("set", 1)]));
}

#[tokio::test]
async fn scripts_that_the_server_forgot_are_sent_again() {
    let (_server, place) = start(&[]);
    let store = place.open().await;
    let flush = || async {
        let _: () = place.raw(redis::cmd("SCRIPT").arg("FLUSH")).await;
    };
    let first = draft(&key("k"));
    let lease = claim(&store, &first).await;
    let mut renewer = store.renewer().await.unwrap();
    flush().await;
    let leases = [(lease, Duration::from_secs(9)), (lease, Duration::from_secs(9))];
    assert_eq!(renewer.renew(&leases).await.unwrap(), [Renewed::Extended; 2]);
    flush().await;
    assert_eq!(store.peek(&first.key).await.unwrap().unwrap().record.number, 3);
    flush().await;
    assert_eq!(store.settle(&lease, &success()).await.unwrap(), Settled::Done);
    flush().await;
    assert!(matches!(store.open(&first).await.unwrap(), Opened::Existing { .. }));
}

#[tokio::test]
async fn redis_expires_only_records_that_are_no_longer_needed() {
    let (_server, place) = start(&[]);
    let store = place.open().await;
    let ttl =
        async |id: &str| -> i64 { place.raw(redis::cmd("PTTL").arg(place.name(&key(id)))).await };
    // Ten seconds longer than the record is needed, some of which may have passed.
    let about = |millis: i64| millis..=millis + 10_000;

    let lease = claim(&store, &draft(&key("rerun"))).await;
    assert!(about(3_630_000).contains(&ttl("rerun").await));
    let mut renewer = store.renewer().await.unwrap();
    let renewed = renewer.renew(&[(lease, Duration::from_secs(60))]).await.unwrap();
    assert_eq!(renewed, [Renewed::Extended]);
    assert!(about(3_660_000).contains(&ttl("rerun").await));
    assert_eq!(store.settle(&lease, &success()).await.unwrap(), Settled::Done);
    assert!(about(3_600_000).contains(&ttl("rerun").await));

    for (id, on_crash) in [("hold", OnCrash::Hold), ("verify", OnCrash::Verify)] {
        let lease = claim(&store, &Draft { on_crash, ..draft(&key(id)) }).await;
        assert_eq!(ttl(id).await, -1, "{id}");
        let _ = renewer.renew(&[(lease, Duration::from_secs(60))]).await.unwrap();
        assert_eq!(ttl(id).await, -1, "{id}");
    }

    let lease = claim(&store, &draft(&key("dead"))).await;
    let dead = Settlement::Dead { error: ErrorText::new("x") };
    assert_eq!(store.settle(&lease, &dead).await.unwrap(), Settled::Done);
    assert_eq!(ttl("dead").await, -1);
    let version = store.peek(&key("dead")).await.unwrap().unwrap().record.version();
    let redriven = store.swap(&key("dead"), version, &Change::Redrive).await.unwrap();
    assert_eq!(redriven, Swapped::Done { fence: lease.fence });
    assert!(about(3_600_000).contains(&ttl("dead").await));
}

#[tokio::test]
async fn a_damaged_or_newer_value_is_corrupt_and_is_never_overwritten() {
    let (_server, place) = start(&[]);
    let store = place.open().await;
    let whole = draft(&key("whole"));
    let lease = claim(&store, &whole).await;
    let value: Vec<u8> = place.raw(redis::cmd("GET").arg(place.name(&whole.key))).await;
    let mut newer = value.clone();
    newer[0] = 2;
    for bad in [&newer[..], &value[..112], &value[..value.len() - 1], b"", b"x"] {
        let set = || {
            let mut set = redis::cmd("SET");
            set.arg(place.name(&whole.key)).arg(bad);
            set
        };
        let _: () = place.raw(&mut set()).await;
        let corrupt =
            |error: semel_core::store::Error| assert_eq!(error.kind(), ErrorKind::Corrupt);
        corrupt(store.open(&whole).await.unwrap_err());
        corrupt(store.peek(&whole.key).await.unwrap_err());
        if bad.len() < 113 || bad[0] != 1 {
            corrupt(store.settle(&lease, &success()).await.unwrap_err());
            let mut renewer = store.renewer().await.unwrap();
            let renewed = renewer.renew(&[(lease, Duration::from_secs(1))]).await.unwrap();
            assert_eq!(renewed, [Renewed::Unknown]);
            let left: Vec<u8> = place.raw(redis::cmd("GET").arg(place.name(&whole.key))).await;
            assert_eq!(left, bad);
        }
    }
}

#[tokio::test]
async fn one_damaged_value_hides_no_others() {
    let (_server, place) = start(&[]);
    let store = place.open().await;
    for id in ["a", "b", "c"] {
        let lease = claim(&store, &draft(&key(id))).await;
        assert_eq!(store.settle(&lease, &success()).await.unwrap(), Settled::Done);
    }
    store.rewind(Duration::from_secs(7_200)).await.unwrap();
    let _: () = place.raw(redis::cmd("SET").arg(place.name(&key("b"))).arg("junk")).await;
    let _: i64 = place.raw(redis::cmd("LPUSH").arg(place.name(&key("list"))).arg("x")).await;
    let page = store.list(&Filter::default(), None, 10).await.unwrap();
    assert_eq!((page.entries.len(), page.next), (2, None));
    let [unreadable] = &page.unreadable[..] else { panic!("{:?}", page.unreadable) };
    assert_eq!(unreadable.digest, key("b").digest().as_bytes());
    assert!(unreadable.why.contains("layout"), "{unreadable:?}");
    let swept = store.sweep(10).await.unwrap();
    assert_eq!((swept.removed, swept.more), (2, false));
    let kind = store.open(&draft(&key("list"))).await.unwrap_err().kind();
    assert_eq!(kind, ErrorKind::Corrupt, "somebody else's list is under this name");
}

#[tokio::test]
async fn one_unreadable_lease_does_not_affect_the_others() {
    let (_server, place) = start(&[]);
    let store = place.open().await;
    let mut leases = Vec::new();
    for id in ["junk", "good", "list", "lost"] {
        leases.push((claim(&store, &draft(&key(id))).await, Duration::from_secs(60)));
    }
    let _: () = place.raw(redis::cmd("SET").arg(place.name(&key("junk"))).arg("junk")).await;
    for id in ["list", "lost"] {
        let _: i64 = place.raw(redis::cmd("DEL").arg(place.name(&key(id)))).await;
    }
    let _: i64 = place.raw(redis::cmd("LPUSH").arg(place.name(&key("list"))).arg("x")).await;
    let mut renewer = store.renewer().await.unwrap();
    let renewed = renewer.renew(&leases).await.unwrap();
    let expected = [Renewed::Unknown, Renewed::Extended, Renewed::Unknown, Renewed::Lost];
    assert_eq!(renewed, expected);
    assert_eq!(renewer.renew(&[]).await.unwrap(), []);
}

#[tokio::test]
async fn a_sweep_that_fails_goes_on_where_it_stopped() {
    let (_server, place) = start(&[]);
    let store = place.open().await;
    let fresh = draft(&key("fresh"));
    claim(&store, &fresh).await;
    let value: Vec<u8> = place.raw(redis::cmd("GET").arg(place.name(&fresh.key))).await;
    let mut fill = redis::pipe();
    for n in 0..5_000 {
        fill.set(format!("{}{n:064x}", place.prefix), &value).ignore();
    }
    let _: () = fill.query_async(&mut client(&place.url).await).await.unwrap();
    // Many, so that some are found before the last step of the scan.
    for n in 0..50 {
        let lapsed = draft(&key(&n.to_string()));
        claim(&store, &Draft { lease: Duration::ZERO, on_crash: OnCrash::Hold, ..lapsed }).await;
    }
    let need_replicas = async |count: u32| {
        let mut set = redis::cmd("CONFIG");
        let _: () = place.raw(set.arg("SET").arg("min-replicas-to-write").arg(count)).await;
    };
    let scans = async || calls(&place).await.remove("scan").unwrap_or(0);
    scans().await;
    need_replicas(1).await;
    let error = store.sweep(100_000).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    need_replicas(0).await;
    let swept = store.sweep(100_000).await.unwrap();
    assert!(swept.suspended > 0 && !swept.more, "{swept:?}");
    let both = scans().await;
    assert!(!store.sweep(100_000).await.unwrap().more);
    let whole = scans().await;
    assert!(whole > 2, "one step is no walk");
    assert_eq!(both, whole, "the second went on where the first stopped");
}

#[tokio::test]
async fn a_server_that_forbids_wake_ups_still_settles() {
    let (_server, place) = start(&[]);
    let store = place.open().await;
    let mut acl = redis::cmd("ACL");
    acl.arg("SETUSER").arg("quiet").arg("on").arg(">secret").arg("~*").arg("+@all").arg("-publish");
    let _: () = place.raw(&mut acl).await;
    let quiet = place.url.replace("redis://", "redis://quiet:secret@");
    let muted = place.builder().connect(&quiet).await.unwrap();
    let lease = claim(&muted, &draft(&key("k"))).await;
    assert_eq!(muted.settle(&lease, &success()).await.unwrap(), Settled::Done);
    let record = store.peek(&key("k")).await.unwrap().unwrap().record;
    assert_eq!(record.state, State::Succeeded);

    let wrong = place.url.replace("redis://", "redis://quiet:wrong@");
    let error = place.builder().connect(&wrong).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
}

#[tokio::test]
async fn a_hint_reaches_another_process_of_the_group_and_no_other() {
    let (_server, place) = start(&[]);
    let here = place.open().await;
    let there = place.open().await;
    let other = place.builder().group("other").connect(&place.url).await.unwrap();
    let mut listener = there.listen().await.unwrap().unwrap();
    let mut stranger = other.listen().await.unwrap().unwrap();
    let lease = claim(&here, &draft(&key("k"))).await;
    // A message that is no hint is ignored.
    let channel = format!("{}wake:all", place.prefix);
    let _: i64 = place.raw(redis::cmd("PUBLISH").arg(channel).arg("hello")).await;
    assert_eq!(here.settle(&lease, &success()).await.unwrap(), Settled::Done);
    let hint: Hint = listener.next().await.unwrap();
    assert_eq!(hint, key("k").digest().hint());

    let lease = claim(&other, &draft(&key("theirs"))).await;
    assert_eq!(other.settle(&lease, &success()).await.unwrap(), Settled::Done);
    assert_eq!(stranger.next().await.unwrap(), key("theirs").digest().hint());
}

#[tokio::test]
async fn an_unsafe_server_is_reported() {
    let flags = ["--appendonly", "no", "--maxmemory", "64mb", "--maxmemory-policy", "volatile-ttl"];
    let (_server, place) = start(&flags);
    let store = place.open().await;
    let found: Vec<_> = store
        .check()
        .await
        .unwrap()
        .into_iter()
        .map(|found| (found.code, found.severity))
        .collect();
    assert_eq!(found, [("redis-eviction", Severity::Error), ("redis-aof", Severity::Error)]);

    // As managed services do.
    let mut acl = redis::cmd("ACL");
    acl.arg("SETUSER").arg("managed").arg("on").arg("nopass").arg("~*").arg("&*").arg("+@all");
    let _: () = place.raw(acl.arg("-config")).await;
    let managed = place.url.replace("redis://", "redis://managed:x@");
    let managed = place.builder().connect(&managed).await.unwrap();
    let codes: Vec<_> = managed.check().await.unwrap().iter().map(|found| found.code).collect();
    assert_eq!(codes, ["redis-eviction", "redis-aof", "redis-unchecked"]);

    let (_safe, place) = start(&["--appendfsync", "always"]);
    assert_eq!(place.open().await.check().await.unwrap(), []);
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_before_anything_is_sent() {
    let builder = RedisStore::builder;
    let nobody = "redis://127.0.0.1:1";
    let misconfigured = [
        builder().connect("postgres://127.0.0.1").await,
        builder().connect("").await,
        builder().prefix("").connect(nobody).await,
        builder().wait_replicas(1, Duration::from_secs(9)).connect(nobody).await,
        builder().connect_cluster(Vec::<String>::new()).await,
    ];
    for refused in misconfigured {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    }
    let error = builder().connect(nobody).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let (_server, place) = start(&[]);
    let single = place.url.replace("redis://", "redis+cluster://");
    let error = builder().connect(&single).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
}

#[tokio::test]
async fn a_survey_finds_the_end_of_a_content_type_that_is_longer_than_an_outline() {
    let (_server, place) = start(&[]);
    let store = place.open().await;
    let lease = claim(&store, &draft(&key("long"))).await;
    let outcome = Recorded::Whole(Outcome::new("x".repeat(9_000), vec![0; 20_000]));
    let settlement = Settlement::Succeeded { outcome, keep: Duration::from_secs(60) };
    assert_eq!(store.settle(&lease, &settlement).await.unwrap(), Settled::Done);
    let page = store.survey(&Filter::default(), None, 10).await.unwrap();
    let content = page.entries[0].content.as_ref().unwrap();
    assert_eq!((content.bytes, content.content_type.len()), (20_000, 9_000));
}
