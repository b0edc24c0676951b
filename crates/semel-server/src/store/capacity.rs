//! A ledger that remembers that it refused a write because it was full.
//!
//! For `/readyz`: load balancers send callers elsewhere while every new key is refused. The store is only
//! probed after a refused write, at most once a second. A store that detects it by itself (SQLite) is asked
//! first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel_core::store::{
    AnyRenewer, Change, Cursor, Draft, Error, ErrorKind, Filter, Finding, Guarantee, Inspect,
    Listed, Listen, Opened, Page, Peeked, Result, Settled, Settlement, Store, Swapped, Swept,
    Tally,
};
use semel_core::{AnyStore, Hint, Key, Lease, Version};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::probe;

/// How long the result of a probe is used.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Watches the writes of a ledger.
#[derive(Debug)]
pub(crate) struct CapacityWatch {
    store: AnyStore,
    /// Whether a write was refused because the store was full, and no claim was written since.
    full: AtomicBool,
    /// When the store was last probed, and its error.
    refusal: Mutex<Option<(Instant, String)>>,
}

impl CapacityWatch {
    pub(crate) fn new(store: AnyStore) -> Self {
        Self { store, full: AtomicBool::new(false), refusal: Mutex::default() }
    }

    fn noted<T>(&self, written: Result<T>) -> Result<T> {
        if written.as_ref().is_err_and(|error| error.kind() == ErrorKind::Capacity) {
            self.full.store(true, Ordering::Relaxed);
        }
        written
    }
}

#[deny(clippy::missing_trait_methods, reason = "every call is passed on")]
impl Store for CapacityWatch {
    type Renewer = AnyRenewer;

    async fn open(&self, draft: &Draft) -> Result<Opened> {
        let opened = self.noted(self.store.open(draft).await);
        // Only a new claim proves that there is room: a full Redis still settles running claims.
        if matches!(opened, Ok(Opened::Inserted { .. })) && self.full.load(Ordering::Relaxed) {
            self.full.store(false, Ordering::Relaxed);
        }
        opened
    }

    async fn swap(&self, key: &Key, judged: Version, change: &Change) -> Result<Swapped> {
        self.noted(self.store.swap(key, judged, change).await)
    }

    async fn settle(&self, lease: &Lease, settlement: &Settlement) -> Result<Settled> {
        self.noted(self.store.settle(lease, settlement).await)
    }

    async fn peek(&self, key: &Key) -> Result<Option<Peeked>> {
        self.store.peek(key).await
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        self.store.sweep(limit).await
    }

    async fn renewer(&self) -> Result<AnyRenewer> {
        self.store.renewer().await
    }

    async fn listen(&self) -> Result<Option<Box<dyn Listen>>> {
        self.store.listen().await
    }

    fn announce(&self, hint: Hint) {
        self.store.announce(hint);
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        self.store.check().await
    }

    async fn writable(&self) -> Result<()> {
        self.store.writable().await?;
        if !self.full.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut refusal = self.refusal.lock().await;
        if let Some((at, said)) = &*refusal
            && at.elapsed() < PROBE_INTERVAL
        {
            return Err(Error::new(ErrorKind::Capacity, "write", said.clone()));
        }
        match probe::write(&self.store, "READY", "semel /readyz").await {
            Ok(()) => {
                self.full.store(false, Ordering::Relaxed);
                *refusal = None;
                Ok(())
            }
            Err(error) => {
                let why = std::error::Error::source(&error).map(ToString::to_string);
                *refusal = Some((Instant::now(), why.unwrap_or_else(|| error.to_string())));
                Err(error)
            }
        }
    }

    fn guarantee(&self) -> Guarantee {
        self.store.guarantee()
    }

    fn max_retry_payload(&self) -> Option<usize> {
        self.store.max_retry_payload()
    }

    fn is_in_process(&self) -> bool {
        self.store.is_in_process()
    }
}

#[deny(clippy::missing_trait_methods, reason = "every call is passed on")]
impl Inspect for CapacityWatch {
    async fn list(&self, filter: &Filter, after: Option<&Cursor>, limit: u32) -> Result<Page> {
        self.store.list(filter, after, limit).await
    }

    async fn survey(
        &self,
        filter: &Filter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Listed>> {
        self.store.survey(filter, after, limit).await
    }

    async fn tally(&self, filter: &Filter) -> Result<Tally> {
        self.store.tally(filter).await
    }
}

#[cfg(test)]
mod tests {
    use semel_core::store::memory::MemoryStore;
    use semel_core::{AttemptId, Clock, Fingerprint, OnCrash, OperationId};

    use super::*;

    fn draft(id: &str) -> Draft {
        Draft {
            key: Key::command("shop", "PAY", id).unwrap(),
            fingerprint: Fingerprint::none(),
            operation_id: OperationId::generate(),
            attempt_id: AttemptId::generate(),
            attempt: 1,
            owner: "test".into(),
            lease: Duration::from_secs(60),
            on_crash: OnCrash::Rerun,
            keep: Duration::from_secs(60),
            retry_payload: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_without_room_is_not_writable_until_a_claim_is_written() {
        let watch = CapacityWatch::new(AnyStore::new(MemoryStore::with(1, Clock::system())));
        let first = draft("first");
        assert!(matches!(watch.open(&first).await, Ok(Opened::Inserted { .. })));
        // The store is full, and has refused nothing yet.
        assert!(watch.writable().await.is_ok());
        let refused = watch.open(&draft("second")).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Capacity);
        for _ in 0..2 {
            let refused = watch.writable().await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Capacity, "{refused}");
        }
        // Reading an existing record does not prove that there is room.
        assert!(matches!(watch.open(&first).await, Ok(Opened::Existing { .. })));
        assert!(watch.writable().await.is_err());
        let found = watch.peek(&first.key).await.unwrap().unwrap();
        let removed = Change::Settle(Settlement::Removed);
        let _ = watch.swap(&first.key, found.record.version(), &removed).await.unwrap();
        assert!(watch.writable().await.is_err(), "the result of the last probe is still used");
        assert!(matches!(watch.open(&draft("third")).await, Ok(Opened::Inserted { .. })));
        assert!(watch.writable().await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_finds_room_without_a_caller_and_leaves_nothing() {
        let store = AnyStore::new(MemoryStore::with(1, Clock::system()));
        let watch = CapacityWatch::new(store.clone());
        let first = draft("first");
        assert!(matches!(watch.open(&first).await, Ok(Opened::Inserted { .. })));
        assert!(watch.open(&draft("second")).await.is_err());
        assert!(watch.writable().await.is_err(), "a probe finds no room");
        let found = store.peek(&first.key).await.unwrap().unwrap();
        let removed = Change::Settle(Settlement::Removed);
        let _ = store.swap(&first.key, found.record.version(), &removed).await.unwrap();
        tokio::time::advance(PROBE_INTERVAL).await;
        assert!(watch.writable().await.is_ok());
        assert_eq!(store.tally(&Filter::default()).await.unwrap().records, 0);
    }
}
