//! Describes how a store's acknowledged writes reach the servers that can take over after a
//! failure.

use std::sync::atomic::{AtomicU8, Ordering};

use super::Guarantee;

/// The kind of replication, which determines whether a failover may lose acknowledged writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replication {
    /// No other server takes over, so a failover loses no writes.
    #[default]
    None,
    /// A write is acknowledged after every server that can be promoted has it, so a failover loses
    /// no writes.
    Synchronous,
    /// A server that lacks acknowledged writes can be promoted, so claims and outcomes can be lost.
    Asynchronous,
}

impl Replication {
    /// Returns the guarantee under this replication: with asynchronous replicas it is always
    /// [`Guarantee::BestEffort`].
    #[must_use]
    pub fn limit(self, guarantee: Guarantee) -> Guarantee {
        match self {
            Self::None | Self::Synchronous => guarantee,
            Self::Asynchronous => Guarantee::BestEffort,
        }
    }
}

/// The replication of a store: the one that the operator declared, else the one that the store last
/// observed.
///
/// The replication is observed again whenever the store is checked or swept, since replicas change
/// while the store runs.
#[derive(Debug, Default)]
pub struct ReplicationState {
    declared: Option<Replication>,
    observed: AtomicU8,
}

impl ReplicationState {
    /// Creates the state. A declared replication overrules every observation.
    #[must_use]
    pub fn new(declared: Option<Replication>) -> Self {
        Self { declared, observed: AtomicU8::new(0) }
    }

    /// Records the observed replication.
    pub fn observe(&self, replication: Replication) {
        let code = match replication {
            Replication::None => 0,
            Replication::Synchronous => 1,
            Replication::Asynchronous => 2,
        };
        self.observed.store(code, Ordering::Relaxed);
    }

    /// Returns the replication that was last observed, even if another one was declared.
    #[must_use]
    pub fn observed(&self) -> Replication {
        match self.observed.load(Ordering::Relaxed) {
            0 => Replication::None,
            1 => Replication::Synchronous,
            _ => Replication::Asynchronous,
        }
    }

    /// Returns the declared replication, if any.
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
    fn a_declared_replication_overrules_the_observed_one() {
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
