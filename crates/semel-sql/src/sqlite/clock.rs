//! The store's time: its clock, and fences that outgrow it.
//!
//! Deliberately not persisted: between processes the clock itself keeps fences growing, and a record
//! that is there keeps them growing whatever the clock does.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use semel_core::claim::Fence;
use semel_core::clock::{Clock, Timestamp};

/// The last fence given on each file that this process has open: two handles on one file are one
/// ledger, and their fences must grow together.
static LAST: Mutex<Option<HashMap<PathBuf, Weak<AtomicU64>>>> = Mutex::new(None);

/// The clock of a store and the last fence that was given on its file.
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

    /// Larger than every fence this process gave on the file, even if the clock stands still, and
    /// not less than the clock, so that it outgrows the fences of records that are long gone.
    pub(super) fn fence(&self, now: Timestamp) -> Fence {
        let floor = Fence::from_i64(now.as_micros()).0;
        let next = |last: u64| floor.max(last.saturating_add(1));
        let last = self.last.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |l| Some(next(l)));
        Fence(next(last.unwrap_or_else(|last| last)))
    }

    /// Takes note of a fence that grew from a stored one.
    pub(super) fn given(&self, fence: Fence) {
        self.last.fetch_max(fence.0, Ordering::SeqCst);
    }
}
