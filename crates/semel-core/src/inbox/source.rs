//! What a broker must offer to whoever consumes.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

use super::BrokerReply;
use crate::event::{Event, Unreadable};

/// Brings the messages of one consumer group. It connects, and connects again, by itself.
///
/// Whether messages of one partition come one after another (the next only when the last was answered
/// with an ack) is the source's own setting; an [ordered](super::Group::ordered) group needs it.
pub trait Source: Send + Sync + 'static {
    /// What it brings.
    type Message: Message;

    /// The next message. May be called from several tasks and dropped at any time: a message that
    /// was taken from the broker and not handed over is brought again.
    ///
    /// # Errors
    /// The broker is away. The caller rests a while and asks again.
    fn next(&self) -> impl Future<Output = Result<Self::Message, SourceError>> + Send;

    /// Whether messages of one partition come one after another: the next when the last was acked.
    fn is_ordered(&self) -> bool;
}

/// A message that the broker waits for an answer to. Dropping it is no answer.
pub trait Message: Send + Sync + 'static {
    /// The event in it.
    ///
    /// # Errors
    /// [`Unreadable`]: it is no event.
    fn envelope(&self) -> Result<Event, Unreadable>;

    /// All of it as it came, headers and payload, for the grave of what cannot be read.
    fn raw(&self) -> Bytes;

    /// Whether the broker has brought it before. Whoever had it in hand may have died of it, so
    /// its next attempt is counted before it begins.
    fn redelivered(&self) -> bool;

    /// How often the broker wants to hear that the message is still being handled; `None` if it
    /// does not.
    fn keep_every(&self) -> Option<Duration> {
        None
    }

    /// Tells the broker that the message is still being handled.
    ///
    /// # Errors
    /// The broker is away, or has given the message to somebody else.
    fn keep(&self) -> impl Future<Output = Result<(), SourceError>> + Send {
        async { Ok(()) }
    }

    /// Answers. Only an ack must be certain when this ends; and where it is lost the message comes
    /// again, which the inbox recognises.
    ///
    /// # Errors
    /// The answer may not have arrived.
    fn answer(&self, answer: BrokerReply) -> impl Future<Output = Result<(), SourceError>> + Send;
}

/// The broker is away, or did not take an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the broker is not available: {0}")]
pub struct SourceError(pub String);
