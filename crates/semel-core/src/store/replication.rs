//! How a store's acknowledged writes reach the servers that can take over from it.

use std::sync::atomic::{AtomicU8, Ordering};

use super::Guarantee;

/// What a failover may lose of the writes that a store has acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replication {
    /// No other server takes over: nothing is lost but what the server itself loses.
    #[default]
    None,
    /// A write is acknowledged after every server that can be promoted has it: nothing is lost.
    Synchronous,
    /// A server can be promoted that lacks acknowledged writes: claims and outcomes can be lost.
    Asynchronous,
}

impl Replication {
    /// Returns what remains of a guarantee: behind asynchronous replicas every one is
    /// [`Guarantee::BestEffort`].
    #[must_use]
    pub fn limit(self, guarantee: Guarantee) -> Guarantee {
        match self {
            Self::None | Self::Synchronous => guarantee,
            Self::Asynchronous => Guarantee::BestEffort,
        }
    }
}

/// A store's replication: what the operator declared, else what the store last observed.
///
/// Observed anew whenever the store is checked or swept, since replicas come and go while it runs.
#[derive(Debug, Default)]
pub struct ReplicationState {
    declared: Option<Replication>,
    observed: AtomicU8,
}

impl ReplicationState {
    /// Creates the state; a declared replication overrules every observation.
    #[must_use]
    pub fn new(declared: Option<Replication>) -> Self {
        Self { declared, observed: AtomicU8::new(0) }
    }

    /// Records what was observed.
    pub fn observe(&self, replication: Replication) {
        let code = match replication {
            Replication::None => 0,
            Replication::Synchronous => 1,
            Replication::Asynchronous => 2,
        };
        self.observed.store(code, Ordering::Relaxed);
    }

    /// Returns what was last observed, whatever was declared.
    #[must_use]
    pub fn observed(&self) -> Replication {
        match self.observed.load(Ordering::Relaxed) {
            0 => Replication::None,
            1 => Replication::Synchronous,
            _ => Replication::Asynchronous,
        }
    }

    /// Returns what was declared.
    #[must_use]
    pub fn declared(&self) -> Option<Replication> {
        self.declared
    }

    /// Returns the declared replication, else the observed one.
    #[must_use]
    pub fn effective(&self) -> Replication {
        self.declared.unwrap_or_else(|| self.observed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_declaration_overrules_what_is_observed() {
        let state = ReplicationState::new(None);
        assert_eq!(state.effective(), Replication::None);
        state.observe(Replication::Asynchronous);
        assert_eq!(state.effective().limit(Guarantee::Fenced), Guarantee::BestEffort);
        let declared = ReplicationState::new(Some(Replication::Synchronous));
        declared.observe(Replication::Asynchronous);
        assert_eq!(declared.effective().limit(Guarantee::Atomic), Guarantee::Atomic);
        assert_eq!(declared.observed(), Replication::Asynchronous);
    }
}
