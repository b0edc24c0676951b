//! Hides the type of a source, for programs that choose their broker at run time.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::{BrokerReply, Message, Source, SourceError};
use crate::event::{Event, Unreadable};
use crate::store::BoxFuture;

/// A source of any type.
pub struct AnySource(Box<dyn ErasedSource>);

impl AnySource {
    /// Erases the type of `source`.
    pub fn new(source: impl Source) -> Self {
        Self(Box::new(source))
    }
}

impl fmt::Debug for AnySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnySource")
    }
}

#[deny(clippy::missing_trait_methods, reason = "every call is passed on")]
impl Source for AnySource {
    type Message = AnyMessage;

    async fn next(&self) -> Result<AnyMessage, SourceError> {
        self.0.next().await
    }

    fn is_ordered(&self) -> bool {
        self.0.is_ordered()
    }
}

trait ErasedSource: Send + Sync {
    fn next(&self) -> BoxFuture<'_, Result<AnyMessage, SourceError>>;
    fn is_ordered(&self) -> bool;
}

impl<B: Source> ErasedSource for B {
    fn next(&self) -> BoxFuture<'_, Result<AnyMessage, SourceError>> {
        Box::pin(async { Ok(AnyMessage(Box::new(Source::next(self).await?))) })
    }

    fn is_ordered(&self) -> bool {
        Source::is_ordered(self)
    }
}

/// A message of an [`AnySource`].
pub struct AnyMessage(Box<dyn ErasedMessage>);

impl fmt::Debug for AnyMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyMessage")
    }
}

#[deny(clippy::missing_trait_methods, reason = "every call is passed on")]
impl Message for AnyMessage {
    fn envelope(&self) -> Result<Event, Unreadable> {
        self.0.envelope()
    }

    fn raw(&self) -> Bytes {
        self.0.raw()
    }

    fn redelivered(&self) -> bool {
        self.0.redelivered()
    }

    fn keep_every(&self) -> Option<Duration> {
        self.0.keep_every()
    }

    async fn keep(&self) -> Result<(), SourceError> {
        self.0.keep().await
    }

    async fn answer(&self, answer: BrokerReply) -> Result<(), SourceError> {
        self.0.answer(answer).await
    }
}

trait ErasedMessage: Send + Sync {
    fn envelope(&self) -> Result<Event, Unreadable>;
    fn raw(&self) -> Bytes;
    fn redelivered(&self) -> bool;
    fn keep_every(&self) -> Option<Duration>;
    fn keep(&self) -> BoxFuture<'_, Result<(), SourceError>>;
    fn answer(&self, answer: BrokerReply) -> BoxFuture<'_, Result<(), SourceError>>;
}

impl<M: Message> ErasedMessage for M {
    fn envelope(&self) -> Result<Event, Unreadable> {
        Message::envelope(self)
    }

    fn raw(&self) -> Bytes {
        Message::raw(self)
    }

    fn redelivered(&self) -> bool {
        Message::redelivered(self)
    }

    fn keep_every(&self) -> Option<Duration> {
        Message::keep_every(self)
    }

    fn keep(&self) -> BoxFuture<'_, Result<(), SourceError>> {
        Box::pin(Message::keep(self))
    }

    fn answer(&self, answer: BrokerReply) -> BoxFuture<'_, Result<(), SourceError>> {
        Box::pin(Message::answer(self, answer))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::AnySource;
    use crate::event::{Event, Unreadable};
    use crate::inbox::{BrokerReply, Message, Source, SourceError};

    /// Returns the same message again and again.
    struct Repeating;

    struct Sample;

    impl Source for Repeating {
        type Message = Sample;

        async fn next(&self) -> Result<Sample, SourceError> {
            Ok(Sample)
        }

        fn is_ordered(&self) -> bool {
            true
        }
    }

    impl Message for Sample {
        fn envelope(&self) -> Result<Event, Unreadable> {
            Ok(Event::builder("acme", "order.placed", "/s").build().unwrap())
        }

        fn raw(&self) -> Bytes {
            Bytes::from_static(b"raw")
        }

        fn redelivered(&self) -> bool {
            true
        }

        fn keep_every(&self) -> Option<Duration> {
            Some(Duration::from_secs(3))
        }

        async fn keep(&self) -> Result<(), SourceError> {
            Err(SourceError("kept".to_owned()))
        }

        async fn answer(&self, answer: BrokerReply) -> Result<(), SourceError> {
            Err(SourceError(format!("{answer:?}")))
        }
    }

    #[tokio::test]
    async fn an_erased_source_and_its_messages_return_what_the_originals_return() {
        let source = AnySource::new(Repeating);
        let message = source.next().await.unwrap();
        assert!(source.is_ordered());
        assert_eq!(message.envelope().unwrap().kind(), "order.placed");
        assert_eq!((message.raw(), message.redelivered()), (Bytes::from_static(b"raw"), true));
        assert_eq!(message.keep_every(), Some(Duration::from_secs(3)));
        assert_eq!(message.keep().await, Err(SourceError("kept".to_owned())));
        let answered = message.answer(BrokerReply::Ack).await;
        assert_eq!(answered, Err(SourceError("Ack".to_owned())));
    }
}
