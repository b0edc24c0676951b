//! The interface between a broker and the consumer.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

use super::BrokerReply;
use crate::event::{Event, Unreadable};

/// Delivers the messages of one consumer group. A source connects and reconnects by itself.
///
/// An [ordered](super::Group::ordered) group needs a source that delivers the messages of a
/// partition one after another, each when the previous one was acknowledged. This is a setting of
/// the source.
pub trait Source: Send + Sync + 'static {
    /// The type of the messages.
    type Message: Message;

    /// Waits for the next message. The method may be called from several tasks, and its future
    /// dropped at any time: a message that was received from the broker but not returned must be
    /// delivered again.
    ///
    /// # Errors
    /// [`SourceError`] if the broker is unreachable. The caller pauses and calls again.
    fn next(&self) -> impl Future<Output = Result<Self::Message, SourceError>> + Send;

    /// Returns whether the messages of a partition are delivered one after another.
    fn is_ordered(&self) -> bool;
}

/// A message that the broker expects an answer to. Dropping the message sends no answer.
pub trait Message: Send + Sync + 'static {
    /// Returns the event in the message.
    ///
    /// # Errors
    /// [`Unreadable`] if the message is not an event.
    fn envelope(&self) -> Result<Event, Unreadable>;

    /// Returns the whole message as it was received, headers and payload. It is stored if the
    /// message is not an event.
    fn raw(&self) -> Bytes;

    /// Returns whether the broker has delivered the message before. Such a message may have crashed
    /// its consumer, so the next attempt is counted before it begins.
    fn redelivered(&self) -> bool;

    /// Returns the time between extensions of the delivery while the message is handled; `None` if
    /// no extension is needed.
    fn keep_every(&self) -> Option<Duration> {
        None
    }

    /// Extends the delivery, because the message is still being handled.
    ///
    /// # Errors
    /// [`SourceError`] if the broker is unreachable, or has delivered the message to another
    /// consumer.
    fn keep(&self) -> impl Future<Output = Result<(), SourceError>> + Send {
        async { Ok(()) }
    }

    /// Answers the broker. If the answer is lost, the broker delivers the message again, and the
    /// inbox recognises the repeat.
    ///
    /// # Errors
    /// [`SourceError`] if the answer may not have arrived.
    fn answer(&self, answer: BrokerReply) -> impl Future<Output = Result<(), SourceError>> + Send;
}

/// The error of a broker that is unreachable, or did not accept an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the broker is not available: {0}")]
pub struct SourceError(pub String);
