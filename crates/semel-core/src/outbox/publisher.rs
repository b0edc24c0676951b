//! What a broker must offer to whoever publishes.

use std::future::Future;
use std::time::Duration;

use crate::event::Event;

/// Hands events to a broker.
pub trait Publisher: Send + Sync + 'static {
    /// Publishes events and waits until the broker has confirmed each: one answer per event, in
    /// order. `Ok` means that the broker has it durably. An event may arrive although its answer is
    /// an error, and arrive again when it is tried again: consumers recognise it by its id.
    fn publish(
        &self,
        events: &[Event],
    ) -> impl Future<Output = Vec<Result<(), PublishError>>> + Send;
}

impl<P: Publisher> Publisher for std::sync::Arc<P> {
    fn publish(
        &self,
        events: &[Event],
    ) -> impl Future<Output = Vec<Result<(), PublishError>>> + Send {
        P::publish(self, events)
    }
}

/// Why an event is not known to be published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The broker cannot be reached or takes nothing from anybody. Says nothing about the event, so
    /// it is not counted as a try.
    #[error("the broker is not available: {0}")]
    Unavailable(String),
    /// This event was not taken now, and may be later. Counted.
    #[error("the broker did not take the event: {0}")]
    Failed(String),
    /// This event is not to be tried for a while, which is nobody's fault: whoever is to take it has
    /// asked for it later. Not counted, however often it is said; its partition waits.
    #[error("the event was put off: {reason}")]
    Later {
        /// Come again after this.
        after: Duration,
        /// Who asked, and why.
        reason: String,
    },
    /// The broker has no route for this event yet: no queue is bound, the stream lacks its subject, the
    /// user may not write there. That is a broker which is not set up, as before its first consumer
    /// starts, and not an event that is wrong: it is not counted, its partition waits, others go on.
    #[error("the broker has no route for the event: {0}")]
    Unrouted(String),
    /// This event will never be taken as it is: too large, no handler.
    #[error("the broker refuses the event: {0}")]
    Refused(String),
}
