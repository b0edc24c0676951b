//! What the servers behind a store guarantee, observed again whenever the store is checked or swept:
//! replicas and settings come and go while it runs.

use std::sync::atomic::{AtomicBool, Ordering};

use semel_core::store::{Guarantee, Replication, ReplicationState};

use crate::check::Facts;
use crate::settings::Settings;

/// A store's guarantee, shared by its clones.
#[derive(Debug)]
pub(crate) struct GuaranteeState {
    replication: ReplicationState,
    /// Whether every server writes what it acknowledges to its disk first.
    persistent: AtomicBool,
    /// Whether the settings alone say that acknowledged writes can be lost in a failover.
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

    /// Records what the servers say about themselves now; a label that changes is logged.
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
            tracing::info!(
                ?guarantee,
                ?before,
                ?observed,
                persistent,
                "the guarantee is now another"
            );
        }
    }

    /// The replication that counts: declared, else observed.
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
