//! Hides the type of a publisher, for programs that choose their broker at run time.

use std::fmt;
use std::sync::Arc;

use super::{PublishError, Publisher};
use crate::event::Event;
use crate::store::BoxFuture;

/// A publisher of any type. Cheap to clone.
#[derive(Clone)]
pub struct AnyPublisher(Arc<dyn Erased>);

impl AnyPublisher {
    /// Erases the type of `publisher`.
    pub fn new(publisher: impl Publisher) -> Self {
        Self(Arc::new(publisher))
    }
}

impl fmt::Debug for AnyPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyPublisher")
    }
}

impl Publisher for AnyPublisher {
    async fn publish(&self, events: &[Event]) -> Vec<Result<(), PublishError>> {
        self.0.publish(events).await
    }
}

trait Erased: Send + Sync {
    fn publish<'a>(&'a self, events: &'a [Event]) -> BoxFuture<'a, Vec<Result<(), PublishError>>>;
}

impl<P: Publisher> Erased for P {
    fn publish<'a>(&'a self, events: &'a [Event]) -> BoxFuture<'a, Vec<Result<(), PublishError>>> {
        Box::pin(Publisher::publish(self, events))
    }
}

#[cfg(test)]
mod tests {
    use super::AnyPublisher;
    use crate::event::Event;
    use crate::outbox::{PublishError, Publisher};

    struct Refusing;

    impl Publisher for Refusing {
        async fn publish(&self, events: &[Event]) -> Vec<Result<(), PublishError>> {
            let refused = |event: &Event| Err(PublishError::Refused(event.kind().to_owned()));
            events.iter().map(refused).collect()
        }
    }

    #[tokio::test]
    async fn an_erased_publisher_returns_one_result_per_event_in_order() {
        let events = ["a", "b"].map(|kind| Event::builder("acme", kind, "/s").build().unwrap());
        let answers = AnyPublisher::new(Refusing).clone().publish(&events).await;
        let refused = |kind: &str| Err(PublishError::Refused(kind.to_owned()));
        assert_eq!(answers, [refused("a"), refused("b")]);
    }
}
