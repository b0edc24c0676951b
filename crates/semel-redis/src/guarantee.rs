//! Tracks what the servers of a store guarantee. Observed again whenever the store is checked or
//! swept: replicas and settings change while it runs.

use std::sync::atomic::{AtomicBool, Ordering};

use semel_core::store::{Guarantee, Replication, ReplicationState};

use crate::check::Facts;
use crate::settings::Settings;

/// The guarantee of a store, shared by its clones.
#[derive(Debug)]
pub(crate) struct GuaranteeState {
    replication: ReplicationState,
    /// Whether every server writes to its disk before it acknowledges.
    persistent: AtomicBool,
    /// Whether the settings alone imply that a failover can lose acknowledged writes.
    assumed: bool,
}

impl GuaranteeState {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            replication: ReplicationState::new(settings.declared),
            persistent: AtomicBool::new(false),
            assumed: settings.cluster || settings.replicas.is_some(),
        }
    }

    /// Records the current facts of the servers, and logs a guarantee that changes.
    pub(crate) fn observe<'a>(&self, servers: impl IntoIterator<Item = &'a Facts>) {
        let (mut replicated, mut persistent) = (self.assumed, true);
        for facts in servers {
            replicated |= facts.is_replicated();
            persistent &= facts.is_persistent();
        }
        let observed = if replicated { Replication::Asynchronous } else { Replication::None };
        let before = self.current();
        self.replication.observe(observed);
        self.persistent.store(persistent, Ordering::Relaxed);
        let guarantee = self.current();
        if guarantee != before {
            tracing::info!(?guarantee, ?before, ?observed, persistent, "the guarantee has changed");
        }
    }

    /// Returns the replication that applies: the declared one, or else the observed one.
    pub(crate) fn replication(&self) -> Replication {
        self.replication.effective()
    }

    pub(crate) fn current(&self) -> Guarantee {
        match self.persistent.load(Ordering::Relaxed) {
            true => self.replication().limit(Guarantee::Fenced),
            false => Guarantee::BestEffort,
        }
    }
}
