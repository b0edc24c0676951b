//! A shard of the keys, with their recent changes and the loads in flight for them.
//!
//! One lock per shard protects all data that decide whether an answer may be cached. The cached
//! answers are in [`L1`](super::L1), so that a hit takes no lock.

use std::sync::Arc;

use tokio::time::Instant;

use super::recent::RecentChanges;
use crate::resolver::key::KeyRef;
use crate::resolver::load::Load;

/// A key that is being loaded: its load, and its index in that load.
#[derive(Debug)]
struct InFlight {
    load: Arc<Load>,
    index: usize,
}

impl InFlight {
    fn is(&self, key: &KeyRef<'_>) -> bool {
        let id = &self.load.ids[self.index];
        key.is(&self.load.group, &id.public, id.hash)
    }
}

#[derive(Debug, Default)]
pub(super) struct Shard {
    /// The number of registrations whose transactions are open: their ids may exist at any moment.
    pub(super) registering: u32,
    /// The ids that were registered: an absence that was read before is ignored.
    pub(super) registered: RecentChanges,
    /// The ids that were revoked or repaired: L2 may have an earlier entry.
    pub(super) changed: RecentChanges,
    /// The last time at which invalidations from other nodes may have been missed.
    pub(super) cleared_at: Option<Instant>,
    /// The time at which a load last finished.
    pub(super) load_finished_at: Option<Instant>,
    loads: Vec<InFlight>,
}

impl Shard {
    /// Returns the load that is in flight for a key, and the key's index in that load.
    pub(super) fn load_of(&self, key: &KeyRef<'_>) -> Option<(Arc<Load>, usize)> {
        let found = self.loads.iter().find(|in_flight| in_flight.is(key))?;
        Some((Arc::clone(&found.load), found.index))
    }

    pub(super) fn start_load(&mut self, load: &Arc<Load>, index: usize) {
        self.loads.push(InFlight { load: Arc::clone(load), index });
    }

    /// Removes a load, unless it was detached before. Another load of the same key is not removed.
    pub(super) fn finish_load(&mut self, load: &Arc<Load>, index: usize) {
        self.load_finished_at = Some(Instant::now());
        let is = |one: &InFlight| one.index == index && Arc::ptr_eq(&one.load, load);
        if let Some(at) = self.loads.iter().position(is) {
            self.loads.swap_remove(at);
        }
    }

    /// Detaches the load of a key, so that callers that arrive after a change do not join it.
    pub(super) fn detach_load(&mut self, key: &KeyRef<'_>) {
        self.loads.retain(|in_flight| !in_flight.is(key));
    }

    /// Detaches all loads, because invalidations may have been missed until `now`.
    pub(super) fn clear(&mut self, now: Instant) {
        self.cleared_at = Some(now);
        self.loads.clear();
    }

    /// Returns whether the key was neither revoked nor repaired since `began`, and no invalidations
    /// were missed.
    pub(super) fn unchanged_since(&self, key: &KeyRef<'_>, began: Instant) -> bool {
        let changed = self.changed.changed_at(key).max(self.cleared_at);
        changed.is_none_or(|at| at < began)
    }

    /// Returns whether the key was not registered since `began`.
    pub(super) fn unregistered_since(&self, key: &KeyRef<'_>, began: Instant) -> bool {
        self.registered.changed_at(key).is_none_or(|at| at < began)
    }
}
