//! Keys that changed recently, with the time of the change.
//!
//! Not a moka cache: when an entry is evicted to make room, that must be known, since from then on any
//! key may be the evicted one.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::resolver::key::{CacheKey, KeyRef};

/// How many changes a shard keeps, and for how long they matter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retention {
    pub(super) max: usize,
    pub(super) ttl: Duration,
}

/// Changed keys of a shard, oldest first. A shard has so few of them that they are searched linearly.
#[derive(Debug, Default)]
pub(super) struct RecentChanges {
    changes: VecDeque<(CacheKey, Instant)>,
    /// The time of the newest change that was evicted before it expired.
    evicted: Option<Instant>,
}

impl RecentChanges {
    /// Returns when the key last changed, or may have: a key that was evicted cannot be told from one
    /// that never changed.
    pub(super) fn changed_at(&self, key: &KeyRef<'_>) -> Option<Instant> {
        let found = self.changes.iter().find(|(changed, _)| is(key, changed));
        found.map(|(_, at)| *at).max(self.evicted)
    }

    /// Inserts a change, evicting the oldest where there is no room.
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
