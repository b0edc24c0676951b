//! What a broker must offer to the relay.

use std::future::Future;
use std::time::Duration;

use crate::event::Event;

/// Publishes events to a broker.
///
/// ```
/// use semel_core::Event;
/// use semel_core::outbox::{PublishError, Publisher};
///
/// /// Prints events. A real publisher returns `Ok` when its broker has stored the event.
/// struct Print;
///
/// impl Publisher for Print {
///     async fn publish(&self, events: &[Event]) -> Vec<Result<(), PublishError>> {
///         events.iter().map(|event| Ok(println!("{} {}", event.id(), event.kind()))).collect()
///     }
/// }
/// ```
pub trait Publisher: Send + Sync + 'static {
    /// Publishes events and waits until the broker has confirmed each. Returns one result per event, in
    /// order; `Ok` means that the broker has stored it durably. An event may be published although its
    /// result is an error, and be published again: consumers recognise it by its id.
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
    /// The broker is unreachable or accepts nothing. Not counted as an attempt of the event.
    #[error("the broker is not available: {0}")]
    Unavailable(String),
    /// The broker did not accept the event now, and may later. Counted as an attempt.
    #[error("the broker did not accept the event: {0}")]
    Failed(String),
    /// The consumer has asked for the event later. Not counted as an attempt; its partition waits.
    #[error("the event was postponed: {reason}")]
    Later {
        /// How long until the next attempt.
        after: Duration,
        /// The consumer, and its reason.
        reason: String,
    },
    /// The broker has no route for the event yet: no queue is bound, the stream lacks its subject, the user
    /// may not write there. The broker is not set up, as before its first consumer starts, and the event is
    /// not wrong: not counted as an attempt; its partition waits, others continue.
    #[error("the broker has no route for the event: {0}")]
    Unrouted(String),
    /// The broker will never accept the event: it is too large, or there is no handler for it.
    #[error("the broker refuses the event: {0}")]
    Refused(String),
}
