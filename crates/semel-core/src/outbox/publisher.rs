//! The interface between the relay and a broker.

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
    /// Publishes events and waits until the broker has confirmed each. Returns one result per
    /// event, in order; `Ok` means that the broker has stored the event durably. An event with an
    /// error may have been published nevertheless, and is published again: consumers recognise it
    /// by its id.
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

/// The reason why an event is not known to be published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The broker is unreachable or accepts no events. This is not counted as an attempt.
    #[error("the broker is not available: {0}")]
    Unavailable(String),
    /// The broker did not accept the event now, but may accept it later. This is counted as an
    /// attempt.
    #[error("the broker did not accept the event: {0}")]
    Failed(String),
    /// The consumer has postponed the event. This is not counted as an attempt; the event's
    /// partition waits.
    #[error("the event was postponed: {reason}")]
    Later {
        /// The time until the next attempt.
        after: Duration,
        /// The name of the consumer, and its reason.
        reason: String,
    },
    /// The broker has no route for the event yet: no queue is bound, the stream lacks its subject,
    /// or the user may not write there. The cause is the set-up of the broker, for example before
    /// the first consumer starts, and not the event. So this is not counted as an attempt; the
    /// event's partition waits, others continue.
    #[error("the broker has no route for the event: {0}")]
    Unrouted(String),
    /// The broker will never accept the event: the event is too large, or has no handler.
    #[error("the broker refuses the event: {0}")]
    Refused(String),
}
