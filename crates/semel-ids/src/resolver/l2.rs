//! L2: the cache that nodes share. If it fails, ids are read from the map.
//!
//! After a failure L2 is not used for a second (a circuit breaker), so that a slow cache does not
//! slow down every lookup. The messages of other nodes are received in
//! [`invalidate`](super::invalidate).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::store;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::jittered;
use crate::shared::{CacheFill, CacheSlot, CorruptEntry, SharedCache};

/// The time for which the circuit breaker stays open after a failure.
pub(super) const BREAK: Duration = Duration::from_secs(1);
/// The largest number of background writes in flight; further writes are skipped.
const MAX_WRITES: usize = 64;

pub(super) struct L2 {
    pub(super) cache: Arc<dyn SharedCache>,
    runtime: Handle,
    writes: Arc<Semaphore>,
    /// The time at which the circuit breaker lets the next call through; `None` while it is closed.
    open_until: Mutex<Option<Instant>>,
    /// Whether this node receives invalidations from other nodes.
    pub(super) subscribed: AtomicBool,
}

impl L2 {
    pub(super) fn new(cache: Arc<dyn SharedCache>, runtime: Handle) -> Self {
        let writes = Arc::new(Semaphore::new(MAX_WRITES));
        let (open_until, subscribed) = (Mutex::new(None), AtomicBool::new(false));
        Self { cache, runtime, writes, open_until, subscribed }
    }

    /// Returns whether this node receives invalidations from other nodes.
    #[inline]
    pub(super) fn is_subscribed(&self) -> bool {
        self.subscribed.load(Ordering::Acquire)
    }

    /// Returns one slot per key, or `None` if the cache could not be read.
    pub(super) async fn get(&self, keys: &[&str]) -> Option<Vec<CacheSlot>> {
        if keys.is_empty() || self.is_broken() {
            return None;
        }
        let slots = self.record("get", self.cache.get(keys).await)?;
        (slots.len() == keys.len()).then_some(slots)
    }

    /// Writes entries into empty slots in the background.
    pub(super) fn fill(self: &Arc<Self>, mut fills: Vec<CacheFill>) {
        for fill in &mut fills {
            fill.ttl = jittered(fill.ttl);
        }
        if !fills.is_empty() {
            self.write(move |l2| async move {
                let filled = l2.cache.fill(&fills).await;
                l2.record("fill", filled);
            });
        }
    }

    /// Removes corrupt entries in the background.
    pub(super) fn remove_corrupt(self: &Arc<Self>, corrupt: Vec<CorruptEntry>) {
        if corrupt.is_empty() {
            return;
        }
        metrics::counter!("semel_idresolve_l2_damaged_total").increment(corrupt.len() as u64);
        self.write(move |l2| async move {
            let removed = l2.cache.clear(&corrupt).await;
            l2.record("clear", removed);
        });
    }

    fn write<F>(self: &Arc<Self>, write: impl FnOnce(Arc<Self>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Ok(permit) = Arc::clone(&self.writes).try_acquire_owned() else {
            metrics::counter!("semel_idresolve_l2_skipped_total").increment(1);
            return;
        };
        if self.is_broken() {
            return;
        }
        let writing = write(Arc::clone(self));
        self.runtime.spawn(async move {
            writing.await;
            drop(permit);
        });
    }

    /// Returns whether the circuit breaker is open. When its time is over, one caller may try L2,
    /// and the breaker stays open for the others until that call has succeeded.
    fn is_broken(&self) -> bool {
        let mut open_until = self.open_until.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        match *open_until {
            None => false,
            Some(end) if now < end => true,
            Some(_) => {
                *open_until = Some(now + BREAK);
                false
            }
        }
    }

    /// Opens the circuit breaker after a failure, which is counted, and closes it after a success.
    pub(super) fn record<T>(&self, operation: &'static str, result: store::Result<T>) -> Option<T> {
        let result = count_failure(operation, result);
        let open_until = result.is_none().then(|| Instant::now() + BREAK);
        *self.open_until.lock().unwrap_or_else(PoisonError::into_inner) = open_until;
        result
    }
}

pub(super) fn count_failure<T>(operation: &'static str, result: store::Result<T>) -> Option<T> {
    if let Err(error) = &result {
        metrics::counter!("semel_idresolve_l2_errors_total", "operation" => operation).increment(1);
        tracing::debug!(operation, %error, "a call of the shared id cache failed");
    }
    result.ok()
}
