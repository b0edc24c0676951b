//! Whether the broker or the outbox is unreachable, so that the log says so once, and once that it is over.

use std::sync::{Mutex, PoisonError};

use super::Pass;
use crate::store::Error;

/// What a relay cannot reach now.
#[derive(Debug, Default)]
pub(super) struct Outage(Mutex<Option<Unreachable>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unreachable {
    Outbox,
    Broker,
}

impl Outage {
    /// Takes notice of a failed access to the outbox.
    pub(super) fn of_outbox(&self, error: &Error) {
        if self.set(Some(Unreachable::Outbox)) != Some(Unreachable::Outbox) {
            tracing::warn!(%error, "could not read the outbox; retrying until it answers");
        }
    }

    /// Takes notice of a pass that reached the outbox. `reason` is why the broker did not answer, if it did not.
    pub(super) fn after(&self, pass: &Pass, reason: impl FnOnce() -> String) {
        if pass.away {
            if self.set(Some(Unreachable::Broker)) != Some(Unreachable::Broker) {
                tracing::warn!(
                    reason = reason(),
                    "the broker is unreachable; events stay in the outbox, retrying until it answers"
                );
            }
            return;
        }
        // Without an event, nothing is known of the broker.
        let over = match self.get() {
            Some(Unreachable::Outbox) => true,
            Some(Unreachable::Broker) => pass.published > 0,
            None => false,
        };
        if over && self.set(None).is_some() {
            tracing::info!("the outbox and the broker are reachable again");
        }
    }

    fn get(&self) -> Option<Unreachable> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, now: Option<Unreachable>) -> Option<Unreachable> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), now)
    }
}
