//! A shard of the keys: their recent changes, and the loads in flight for them.
//!
//! Everything that decides whether an answer may be cached is under the one lock of its shard. Cached
//! answers are not here, so that a hit takes no lock: see [`L1`](super::L1).

use std::sync::Arc;

use tokio::time::Instant;

use super::recent::RecentChanges;
use crate::resolver::key::KeyRef;
use crate::resolver::load::Load;

/// A key that is being loaded: by which load, and its index there.
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
    /// Number of registrations whose transactions are open: their ids may exist at any moment.
    pub(super) registering: u32,
    /// Ids that were registered: an absence that was read before is not believed.
    pub(super) registered: RecentChanges,
    /// Ids that were revoked or repaired: L2 may hold an entry from before.
    pub(super) changed: RecentChanges,
    /// When invalidations from other nodes may last have been missed.
    pub(super) cleared_at: Option<Instant>,
    /// When a load last finished.
    pub(super) load_finished_at: Option<Instant>,
    loads: Vec<InFlight>,
}

impl Shard {
    /// Returns the load that is in flight for a key, and the key's index there.
    pub(super) fn load_of(&self, key: &KeyRef<'_>) -> Option<(Arc<Load>, usize)> {
        let found = self.loads.iter().find(|in_flight| in_flight.is(key))?;
        Some((Arc::clone(&found.load), found.index))
    }

    pub(super) fn start_load(&mut self, load: &Arc<Load>, index: usize) {
        self.loads.push(InFlight { load: Arc::clone(load), index });
    }

    /// Removes a load. It may have been detached already, and another load may be in its place.
    pub(super) fn finish_load(&mut self, load: &Arc<Load>, index: usize) {
        self.load_finished_at = Some(Instant::now());
        let is = |one: &InFlight| one.index == index && Arc::ptr_eq(&one.load, load);
        if let Some(at) = self.loads.iter().position(is) {
            self.loads.swap_remove(at);
        }
    }

    /// Detaches the load of a key: callers that come after a change must not join it.
    pub(super) fn detach_load(&mut self, key: &KeyRef<'_>) {
        self.loads.retain(|in_flight| !in_flight.is(key));
    }

    /// Forgets what depends on having received every invalidation.
    pub(super) fn clear(&mut self, now: Instant) {
        self.cleared_at = Some(now);
        self.loads.clear();
    }

    /// Returns whether the key has been neither revoked nor repaired since `began`, as far as this
    /// node knows.
    pub(super) fn unchanged_since(&self, key: &KeyRef<'_>, began: Instant) -> bool {
        let changed = self.changed.changed_at(key).max(self.cleared_at);
        changed.is_none_or(|at| at < began)
    }

    /// Returns whether the key has not been registered since `began`.
    pub(super) fn unregistered_since(&self, key: &KeyRef<'_>, began: Instant) -> bool {
        self.registered.changed_at(key).is_none_or(|at| at < began)
    }
}
