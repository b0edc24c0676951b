//! Runs the conformance suite on the memory store, with a manual clock.

use std::time::Duration;

use semel_core::store::memory::MemoryStore;
use semel_core::{Clock, Timestamp};
use semel_testkit::{Fixture, conformance, model_test};

struct Memory {
    store: MemoryStore,
    clock: Clock,
}

impl Memory {
    async fn new() -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        Self { store: MemoryStore::with(MemoryStore::CAPACITY, clock.clone()), clock }
    }
}

impl Fixture for Memory {
    type Store = MemoryStore;

    async fn store(&self) -> MemoryStore {
        self.store.clone()
    }

    async fn advance(&self, span: Duration) {
        self.clock.advance(span);
    }

    /// Setting the clock has no effect on the store, which uses passed time only.
    async fn jump(&self, span: Duration, ahead: bool) -> bool {
        let (now, by) = (self.clock.now().as_micros(), semel_core::clock::micros(span));
        self.clock.set(Timestamp::from_micros(if ahead { now + by } else { now - by }));
        false
    }

    fn forgets_by_itself(&self) -> bool {
        true
    }
}

conformance!(Memory::new());
model_test!(Memory::new());

/// Tests the capacity, which only this store limits.
mod capacity {
    use semel_core::store::{Draft, ErrorKind, Opened, Settlement, Store};
    use semel_core::{AttemptId, Fingerprint, Key, Lease, OnCrash, OperationId, Outcome, Recorded};

    use super::*;

    fn draft(id: usize) -> Draft {
        Draft {
            key: Key::command("acme", "PAY", &format!("k{id}")).expect("a valid key"),
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

    fn of(capacity: usize) -> (MemoryStore, Clock) {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        (MemoryStore::with(capacity, clock.clone()), clock)
    }

    async fn claim(store: &MemoryStore, draft: &Draft) -> Lease {
        let opened = store.open(draft).await.expect("the store is not full");
        let Opened::Inserted { fence } = opened else { panic!("the key is free") };
        Lease { digest: draft.key.digest(), fence, attempt_id: draft.attempt_id }
    }

    #[tokio::test]
    async fn a_full_store_refuses_new_keys_and_accepts_existing_ones() {
        let (store, _) = of(2);
        claim(&store, &draft(1)).await;
        claim(&store, &draft(2)).await;
        let refused = store.open(&draft(3)).await.expect_err("the store is full");
        assert_eq!(refused.kind(), ErrorKind::Capacity);
        assert!(matches!(store.open(&draft(1)).await, Ok(Opened::Existing { .. })));
        assert_eq!(store.len(), 2);
    }

    #[tokio::test]
    async fn released_and_expired_keys_do_not_count() {
        let (store, clock) = of(2);
        let one = claim(&store, &draft(1)).await;
        let two = claim(&store, &draft(2)).await;
        store.settle(&one, &Settlement::Removed).await.map(drop).expect("settle");
        claim(&store, &draft(3)).await;
        let outcome = Recorded::Whole(Outcome::empty());
        let settlement = Settlement::Succeeded { outcome, keep: Duration::from_secs(1) };
        store.settle(&two, &settlement).await.map(drop).expect("settle");
        assert!(store.open(&draft(4)).await.is_err(), "an outcome that is kept still counts");
        clock.advance(Duration::from_secs(1));
        claim(&store, &draft(4)).await;
    }

    #[tokio::test]
    async fn the_number_of_records_follows_the_number_of_live_keys() {
        let (store, clock) = of(100_000);
        let keep = Duration::from_secs(1);
        let settlement = Settlement::Succeeded { outcome: Recorded::Whole(Outcome::empty()), keep };
        for id in 0..20_000 {
            let lease = claim(&store, &draft(id)).await;
            store.settle(&lease, &settlement).await.map(drop).expect("settle");
            clock.advance(keep / 200);
        }
        // About 200 keys have not expired, although no sweep ran.
        assert!((200..500).contains(&store.len()), "{}", store.len());
        let kept = store.open(&draft(19_900)).await;
        assert!(matches!(kept, Ok(Opened::Existing { .. })), "a key that has not expired stays");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn concurrent_callers_do_not_exceed_the_capacity() {
        let (store, _) = of(10);
        let mut racing = tokio::task::JoinSet::new();
        for id in 0..64 {
            let store = store.clone();
            racing.spawn(async move { store.open(&draft(id)).await.is_ok() });
        }
        assert_eq!(racing.join_all().await.into_iter().filter(|won| *won).count(), 10);
        assert_eq!(store.len(), 10);
    }
}
