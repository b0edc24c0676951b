//! A store that counts opens and swept records. With the counts, benchmarks check that a replay
//! came from the store or from the cache as intended, and that the sweeper had work.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use semel_core::store::{
    Change, Draft, Finding, Guarantee, Listen, Opened, Peeked, Result, Settled, Settlement,
    Swapped, Swept,
};
use semel_core::{Hint, Key, Lease, Store, Version};

/// A store and its counters.
#[derive(Debug)]
pub(crate) struct Counted<S> {
    store: S,
    opened: AtomicU64,
    swept: AtomicU64,
}

impl<S> Counted<S> {
    pub(crate) fn new(store: S) -> Self {
        Self { store, opened: AtomicU64::new(0), swept: AtomicU64::new(0) }
    }

    /// Returns the number of opens.
    pub(crate) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Returns the number of swept records.
    pub(crate) fn swept(&self) -> u64 {
        self.swept.load(Ordering::Relaxed)
    }
}

#[deny(clippy::missing_trait_methods, reason = "every call is passed on")]
impl<S: Store> Store for Counted<S> {
    type Renewer = S::Renewer;

    fn open(&self, draft: &Draft) -> impl Future<Output = Result<Opened>> + Send {
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.store.open(draft)
    }

    fn swap(
        &self,
        key: &Key,
        judged: Version,
        change: &Change,
    ) -> impl Future<Output = Result<Swapped>> + Send {
        self.store.swap(key, judged, change)
    }

    fn settle(
        &self,
        lease: &Lease,
        settlement: &Settlement,
    ) -> impl Future<Output = Result<Settled>> + Send {
        self.store.settle(lease, settlement)
    }

    fn peek(&self, key: &Key) -> impl Future<Output = Result<Option<Peeked>>> + Send {
        self.store.peek(key)
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        let swept = self.store.sweep(limit).await?;
        self.swept.fetch_add(u64::from(swept.removed), Ordering::Relaxed);
        Ok(swept)
    }

    fn renewer(&self) -> impl Future<Output = Result<S::Renewer>> + Send {
        self.store.renewer()
    }

    fn listen(&self) -> impl Future<Output = Result<Option<Box<dyn Listen>>>> + Send {
        self.store.listen()
    }

    fn announce(&self, hint: Hint) {
        self.store.announce(hint);
    }

    fn check(&self) -> impl Future<Output = Result<Vec<Finding>>> + Send {
        self.store.check()
    }

    fn writable(&self) -> impl Future<Output = Result<()>> + Send {
        self.store.writable()
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
