//! The faulty store: each fault has its documented effect, at the scripted call, and is counted.

use std::time::Duration;

use semel_core::store::memory::MemoryStore;
use semel_core::store::{Draft, ErrorKind, Opened, Renewed, Renewer, Settled, Settlement, Store};
use semel_core::{AttemptId, Fingerprint, Key, Lease, OnCrash, OperationId};
use semel_testkit::faulty::{Fault, FaultyStore, StoreCall};
use semel_testkit::{Fixture, conformance};

struct Sound(FaultyStore<MemoryStore>, semel_core::Clock);

impl Sound {
    async fn new() -> Self {
        let clock =
            semel_core::Clock::manual(semel_core::Timestamp::from_micros(1_700_000_000_000_000));
        Sound(FaultyStore::new(MemoryStore::with(10_000, clock.clone())), clock)
    }
}

impl Fixture for Sound {
    type Store = FaultyStore<MemoryStore>;

    async fn store(&self) -> Self::Store {
        self.0.clone()
    }

    async fn advance(&self, span: Duration) {
        self.1.advance(span);
    }
}

mod without_a_script_it_is_the_store_inside {
    use super::*;

    conformance!(Sound::new());
}

fn draft(id: &str) -> Draft {
    Draft {
        key: Key::command("acme", "PAY", id).expect("a valid key"),
        fingerprint: Fingerprint::none(),
        operation_id: OperationId::generate(),
        attempt_id: AttemptId::generate(),
        attempt: 1,
        owner: "host:1:a".into(),
        lease: Duration::from_secs(30),
        on_crash: OnCrash::Rerun,
        keep: Duration::from_secs(60),
        retry_payload: None,
    }
}

async fn claim(store: &FaultyStore<MemoryStore>, draft: &Draft) -> Lease {
    let Opened::Inserted { fence } = store.open(draft).await.expect("open") else {
        panic!("taken")
    };
    Lease { digest: draft.key.digest(), fence, attempt_id: draft.attempt_id }
}

#[tokio::test]
async fn a_refused_call_did_nothing_and_says_so() {
    let store = FaultyStore::new(MemoryStore::new());
    store.faults().next(StoreCall::Open, Fault::Refuse);
    let refused = store.open(&draft("k")).await.unwrap_err();
    assert_eq!((refused.kind(), refused.operation()), (ErrorKind::Unavailable, "open"));
    assert!(store.sound().is_empty());
    claim(&store, &draft("k")).await;
    assert_eq!(
        (store.faults().happened(StoreCall::Open), store.faults().calls(StoreCall::Open)),
        (1, 2)
    );
}

#[tokio::test]
async fn a_lost_reply_and_a_lost_request_look_alike_and_are_not() {
    let store = FaultyStore::new(MemoryStore::new());
    store.faults().next(StoreCall::Open, Fault::LoseRequest);
    store.faults().next(StoreCall::Open, Fault::LoseReply);
    let first = draft("k");
    for there in [false, true] {
        let lost = store.open(&first).await.unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::Ambiguous);
        assert_eq!(store.peek(&first.key).await.unwrap().is_some(), there);
    }
    assert_eq!(store.faults().total(), 2);
}

#[tokio::test]
async fn a_script_reaches_the_call_it_is_meant_for() {
    let store = FaultyStore::new(MemoryStore::new());
    store.faults().spare(StoreCall::Settle, 1);
    store.faults().next(StoreCall::Settle, Fault::LoseReply);
    let (one, two) = (claim(&store, &draft("1")).await, claim(&store, &draft("2")).await);
    assert_eq!(store.settle(&one, &Settlement::Removed).await.unwrap(), Settled::Done);
    assert!(store.settle(&two, &Settlement::Removed).await.is_err());
    assert!(store.sound().is_empty(), "the call was made, only its reply was lost");
    assert_eq!(store.settle(&two, &Settlement::Removed).await.unwrap(), Settled::Lost);
}

#[tokio::test]
async fn a_renewer_fails_under_the_same_script() {
    let store = FaultyStore::new(MemoryStore::new());
    let held = claim(&store, &draft("k")).await;
    let mut renewer = store.renewer().await.unwrap();
    store.faults().always(StoreCall::Renew, Fault::Refuse);
    for _ in 0..3 {
        assert!(renewer.renew(&[(held, Duration::from_secs(9))]).await.is_err());
    }
    store.faults().heal();
    assert_eq!(
        renewer.renew(&[(held, Duration::from_secs(9))]).await.unwrap(),
        [Renewed::Extended]
    );
    assert_eq!(store.faults().happened(StoreCall::Renew), 3);
}

#[tokio::test]
async fn a_call_hangs_until_it_is_released() {
    let store = FaultyStore::new(MemoryStore::new());
    store.faults().next(StoreCall::Open, Fault::Hang);
    let hanging = tokio::spawn({
        let store = store.clone();
        async move { store.open(&draft("k")).await }
    });
    store.faults().hung(1).await;
    assert!(store.sound().is_empty(), "the call has no effect while it hangs");
    store.faults().release();
    assert!(matches!(hanging.await.unwrap(), Ok(Opened::Inserted { .. })));
}

#[tokio::test]
async fn a_caller_who_gives_up_hangs_no_longer() {
    let store = FaultyStore::new(MemoryStore::new());
    store.faults().always(StoreCall::Open, Fault::Hang);
    let hanging = tokio::spawn({
        let store = store.clone();
        async move { store.open(&draft("k")).await }
    });
    store.faults().hung(1).await;
    hanging.abort();
    assert!(hanging.await.unwrap_err().is_cancelled());
    store.faults().heal();
    assert!(store.sound().is_empty());
    claim(&store, &draft("k")).await;
}

#[tokio::test]
async fn random_faults_come_as_often_as_asked_and_replay_from_their_seed() {
    let run = async |seed| {
        let store = FaultyStore::new(MemoryStore::new());
        store.faults().randomly(seed, 250, &[Fault::Refuse, Fault::LoseReply, Fault::LoseRequest]);
        let mut answers = Vec::new();
        for at in 0..400 {
            let answer = store.open(&draft(&format!("k{at}"))).await;
            answers.push(answer.err().map(|error| error.to_string()));
        }
        let failed = answers.iter().flatten().count() as u64;
        assert_eq!(failed, store.faults().total());
        assert!((50..150).contains(&failed), "{failed} of 400");
        answers
    };
    assert_eq!(run(1).await, run(1).await);
    assert_ne!(run(1).await, run(2).await);
}
