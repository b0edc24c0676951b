//! The keys of a shard that changed recently, with the time of each change.
//!
//! This is not a moka cache, because an eviction must be noticed: after it, any key may be the
//! evicted one.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::resolver::key::{CacheKey, KeyRef};

/// The number of changes that a shard keeps, and the time after which they expire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retention {
    pub(super) max: usize,
    pub(super) ttl: Duration,
}

/// The changed keys of a shard, oldest first. There are so few that they are searched linearly.
#[derive(Debug, Default)]
pub(super) struct RecentChanges {
    changes: VecDeque<(CacheKey, Instant)>,
    /// The time of the newest change that was evicted before it expired.
    evicted: Option<Instant>,
}

impl RecentChanges {
    /// Returns the time at which the key last changed or may have changed: a key that was evicted
    /// cannot be distinguished from a key that never changed.
    pub(super) fn changed_at(&self, key: &KeyRef<'_>) -> Option<Instant> {
        let found = self.changes.iter().find(|(changed, _)| is(key, changed));
        found.map(|(_, at)| *at).max(self.evicted)
    }

    /// Inserts a change, and evicts the oldest one if the list is full.
    pub(super) fn insert(&mut self, key: CacheKey, now: Instant, retention: Retention) {
        self.remove(&key.as_ref());
        while let Some((_, oldest)) = self.changes.front() {
            let expired = *oldest + retention.ttl <= now;
            if !expired {
                if self.changes.len() < retention.max {
                    break;
                }
                self.evicted = Some(*oldest);
            }
            self.changes.pop_front();
        }
        self.changes.push_back((key, now));
    }

    pub(super) fn remove(&mut self, key: &KeyRef<'_>) {
        self.changes.retain(|(changed, _)| !is(key, changed));
    }
}

fn is(key: &KeyRef<'_>, changed: &CacheKey) -> bool {
    key.is(&changed.group, &changed.public, changed.hash)
}
