//! The clock of a store, and the fences that grow with it.
//!
//! The last fence is deliberately not persisted: across processes the clock itself makes fences
//! grow, and where a record exists, its stored fence does, whatever the clock does.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use semel_core::claim::Fence;
use semel_core::clock::{Clock, Timestamp};

/// The last fence granted on each file that this process has open. Two handles on one file are one
/// ledger, so they share one sequence of fences.
static LAST: Mutex<Option<HashMap<PathBuf, Weak<AtomicU64>>>> = Mutex::new(None);

/// The clock of a store, and the last fence granted on its file.
#[derive(Debug)]
pub(super) struct StoreClock {
    clock: Clock,
    last: Arc<AtomicU64>,
}

impl StoreClock {
    pub(super) fn new(clock: Clock, path: &Path) -> Self {
        let mut files = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        let files = files.get_or_insert_default();
        files.retain(|_, last| last.strong_count() > 0);
        let last = files.get(path).and_then(Weak::upgrade).unwrap_or_default();
        files.insert(path.to_owned(), Arc::downgrade(&last));
        Self { clock, last }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns a fence above every fence that this process granted on the file, even if the clock
    /// stands still. It is not below the clock, so that it exceeds the fences of records that were
    /// removed.
    pub(super) fn fence(&self, now: Timestamp) -> Fence {
        let floor = Fence::from_i64(now.as_micros()).0;
        let next = |last: u64| floor.max(last.saturating_add(1));
        let last = self.last.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |l| Some(next(l)));
        Fence(next(last.unwrap_or_else(|last| last)))
    }

    /// Remembers a fence that was granted by increasing a stored one.
    pub(super) fn given(&self, fence: Fence) {
        self.last.fetch_max(fence.0, Ordering::SeqCst);
    }
}
