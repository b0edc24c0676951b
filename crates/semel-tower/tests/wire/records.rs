//! Tests that a response is recorded before the caller gets it.

use std::time::Duration;

use semel_core::Executor;
use semel_core::store::memory::MemoryStore;
use semel_redis::RedisStore;
use semel_testkit::faulty::{Fault, Faults, FaultyStore, StoreCall};

use crate::backend::{Protocol, run};
use crate::raw::keyed;
use crate::shop::{COOKIES, Shop};

async fn faulty() -> (Shop, Faults) {
    let store = FaultyStore::new(MemoryStore::new());
    let faults = store.faults().clone();
    (Shop::with(Executor::new(store)).await, faults)
}

#[test]
fn no_response_is_sent_before_it_is_recorded() {
    run(async {
        let (shop, faults) = faulty().await;
        faults.next(StoreCall::Settle, Fault::Hang);
        let mut wire = shop.connect().await;
        wire.send(&keyed("/orders", "k-1", b"{}")).await;
        faults.hung(1).await;
        assert_eq!(shop.done.times("k-1"), 1);
        assert!(!wire.answers_within(Duration::from_millis(200)).await, "answered too early");
        faults.release();
        assert_eq!(wire.answer().await.expect("an answer").status, 200);
        assert!(shop.ask(Protocol::H1, "/orders", "k-1").await.replayed());
        assert_eq!(shop.journal.times("k-1"), 1);
    });
}

#[test]
fn a_caller_that_leaves_during_recording_finds_it_recorded() {
    run(async {
        let (shop, faults) = faulty().await;
        faults.next(StoreCall::Settle, Fault::Hang);
        let mut wire = shop.connect().await;
        wire.send(&keyed("/patient", "k-1", b"{}")).await;
        faults.hung(1).await;
        wire.reset();
        shop.left(1).await;
        faults.release();
        let answer = shop.ask(Protocol::H2, "/patient", "k-1").await;
        assert_eq!((answer.status.as_u16(), answer.replayed()), (200, true));
        assert_eq!(shop.journal.times("k-1"), 1);
    });
}

#[test]
fn a_record_that_takes_several_tries_is_made_before_the_answer() {
    run(async {
        let (shop, faults) = faulty().await;
        faults.next(StoreCall::Settle, Fault::Refuse);
        faults.next(StoreCall::Settle, Fault::LoseRequest);
        faults.next(StoreCall::Settle, Fault::LoseReply);
        let answer = shop.ask(Protocol::H1, "/orders", "k-1").await;
        assert_eq!((answer.status.as_u16(), answer.replayed()), (200, false));
        assert_eq!(faults.happened(StoreCall::Settle), 3);
        let again = shop.ask(Protocol::H2, "/orders", "k-1").await;
        assert_eq!((again.replayed(), again.body), (true, answer.body));
        assert_eq!(shop.journal.times("k-1"), 1);
    });
}

#[test]
fn a_replay_has_each_header_once_and_none_of_another_moment() {
    run(async {
        let shop = Shop::open().await;
        let mut wire = shop.connect().await;
        let request = keyed("/cookies", "k-1", b"{}");
        wire.send(&[&request[..], &request].concat()).await;
        let first = wire.answer().await.expect("an answer");
        for (name, value) in COOKIES {
            assert!(first.all(name).contains(&value), "the first answer has {name}");
        }
        let replay = wire.answer().await.expect("an answer");
        assert!(replay.replayed());
        for name in ["set-cookie", "traceparent", "x-request-id", "keep-alive"] {
            assert_eq!(replay.all(name), Vec::<&str>::new(), "{name}");
        }
        assert_eq!(replay.all("location"), ["/orders/1"]);
        assert_eq!(replay.all("etag"), ["\"1\""]);
        assert_ne!(replay.all("date"), first.all("date"));
        for (name, _) in &replay.headers {
            assert_eq!(replay.all(name).len(), 1, "{name}");
        }
        assert_eq!(replay.body, first.body);
    });
}

#[test]
fn a_redis_cluster_keeps_answers_too() {
    run(async {
        let variable = "SEMEL_TEST_REDIS_CLUSTER_URL";
        let url = std::env::var(variable).unwrap_or_else(|_| {
            panic!("set {variable} or run `cargo xtask test`, which starts the servers")
        });
        let prefix = format!("test:{:016x}:", fastrand::u64(..));
        let executor = async || {
            let store = RedisStore::builder().prefix(&prefix).connect(&url).await;
            Executor::new(store.expect("the cluster answers"))
        };
        let (shop, other) =
            (Shop::with(executor().await).await, Shop::with(executor().await).await);
        // Enough keys for the slots of every master.
        for n in 0..32 {
            let key = format!("k-{n}");
            assert!(!shop.ask(Protocol::H1, "/patient", &key).await.replayed());
            assert!(other.ask(Protocol::H1, "/patient", &key).await.replayed());
            assert_eq!((shop.journal.times(&key), other.journal.times(&key)), (1, 0));
        }
    });
}
