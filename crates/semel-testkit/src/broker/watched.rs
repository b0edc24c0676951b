//! A source that records its deliveries and replies.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use semel_core::event::{Event, Unreadable};
use semel_core::inbox::{BrokerReply, Message, Source, SourceError};

/// Wraps a source and records its deliveries and the replies to its messages.
#[derive(Debug)]
pub struct Watched<S> {
    source: S,
    log: Log,
}

/// A message of a [`Watched`] source.
#[derive(Debug)]
pub struct WatchedMessage<M> {
    message: M,
    log: Log,
}

/// The deliveries and replies of a source. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Log(Arc<Mutex<(usize, Vec<BrokerReply>)>>);

impl Log {
    fn note(&self, note: impl FnOnce(&mut (usize, Vec<BrokerReply>))) {
        note(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the number of delivered messages.
    pub(super) fn deliveries(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Returns the replies that the broker accepted, in order.
    pub(super) fn answers(&self) -> Vec<BrokerReply> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }
}

impl<S: Source> Watched<S> {
    pub(super) fn new(source: S) -> (Self, Log) {
        let log = Log::default();
        (Self { source, log: log.clone() }, log)
    }
}

#[deny(clippy::missing_trait_methods, reason = "every call is passed on")]
impl<S: Source> Source for Watched<S> {
    type Message = WatchedMessage<S::Message>;

    async fn next(&self) -> Result<Self::Message, SourceError> {
        let message = self.source.next().await?;
        self.log.note(|(deliveries, _)| *deliveries += 1);
        Ok(WatchedMessage { message, log: self.log.clone() })
    }

    fn is_ordered(&self) -> bool {
        self.source.is_ordered()
    }
}

#[deny(clippy::missing_trait_methods, reason = "every call is passed on")]
impl<M: Message> Message for WatchedMessage<M> {
    fn envelope(&self) -> Result<Event, Unreadable> {
        self.message.envelope()
    }

    fn raw(&self) -> Bytes {
        self.message.raw()
    }

    fn redelivered(&self) -> bool {
        self.message.redelivered()
    }

    fn keep_every(&self) -> Option<Duration> {
        self.message.keep_every()
    }

    async fn keep(&self) -> Result<(), SourceError> {
        self.message.keep().await
    }

    async fn answer(&self, answer: BrokerReply) -> Result<(), SourceError> {
        self.message.answer(answer).await?;
        self.log.note(|(_, answers)| answers.push(answer));
        Ok(())
    }
}
