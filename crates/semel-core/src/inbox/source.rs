//! What a broker must offer to consumers.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

use super::BrokerReply;
use crate::event::{Event, Unreadable};

/// Delivers the messages of one consumer group. It connects and reconnects by itself.
///
/// Whether the messages of a partition are delivered one after another (the next when the last was
/// acknowledged) is a setting of the source; an [ordered](super::Group::ordered) group needs it.
pub trait Source: Send + Sync + 'static {
    /// The type of its messages.
    type Message: Message;

    /// Waits for the next message. May be called from several tasks and dropped at any time: a message
    /// that was received from the broker and not returned must be delivered again.
    ///
    /// # Errors
    /// The broker is unreachable. The caller pauses and calls again.
    fn next(&self) -> impl Future<Output = Result<Self::Message, SourceError>> + Send;

    /// Returns whether the messages of a partition are delivered one after another.
    fn is_ordered(&self) -> bool;
}

/// A message that the broker expects an answer for. Dropping it is no answer.
pub trait Message: Send + Sync + 'static {
    /// Returns the event in the message.
    ///
    /// # Errors
    /// [`Unreadable`] if it is not an event.
    fn envelope(&self) -> Result<Event, Unreadable>;

    /// Returns the whole message as it was received, headers and payload, to be kept if it cannot be read.
    fn raw(&self) -> Bytes;

    /// Returns whether the broker has delivered it before. The message may have crashed its consumer, so its
    /// next attempt is counted before it begins.
    fn redelivered(&self) -> bool;

    /// Returns how often the delivery must be extended while the message is handled; `None` if it need not.
    fn keep_every(&self) -> Option<Duration> {
        None
    }

    /// Extends the delivery: the message is still being handled.
    ///
    /// # Errors
    /// The broker is unreachable, or has delivered the message to another consumer.
    fn keep(&self) -> impl Future<Output = Result<(), SourceError>> + Send {
        async { Ok(()) }
    }

    /// Answers the broker. If the answer is lost, the message is delivered again, which the inbox
    /// recognises.
    ///
    /// # Errors
    /// The answer may not have arrived.
    fn answer(&self, answer: BrokerReply) -> impl Future<Output = Result<(), SourceError>> + Send;
}

/// The broker is unreachable, or did not accept an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the broker is not available: {0}")]
pub struct SourceError(pub String);
