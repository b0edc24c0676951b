//! Counts the messages that a broker delivers. As long as copies of the load's events arrive, one
//! of them may still be handled twice.
//!
//! The database does not show these copies: a copy that the inbox recognises leaves no trace in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use semel_core::event::{Event, Unreadable};
use semel_core::inbox::{AnyMessage, AnySource, BrokerReply, Message, Source, SourceError};

/// The number of messages with events of one tenant, over all groups of this process.
#[derive(Debug)]
pub(super) struct Arrivals {
    /// The tenant whose messages are counted; `None` without a built-in load.
    tenant: Option<Arc<str>>,
    count: AtomicU64,
}

impl Arrivals {
    pub(super) fn of(tenant: Option<Arc<str>>) -> Arc<Self> {
        Arc::new(Self { tenant, count: AtomicU64::new(0) })
    }

    /// Returns the number of messages so far, including copies.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Counts a message if `tenant` is the tenant that is watched.
    pub(super) fn add(&self, tenant: &str) {
        if self.tenant.as_deref() == Some(tenant) {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Wraps `source` so that its messages are counted.
    pub(super) fn counted(self: &Arc<Self>, source: impl Source) -> CountedSource {
        CountedSource { source: AnySource::new(source), arrivals: Arc::clone(self) }
    }
}

/// A source whose messages are counted.
#[derive(Debug)]
pub(super) struct CountedSource {
    source: AnySource,
    arrivals: Arc<Arrivals>,
}

#[deny(clippy::missing_trait_methods, reason = "every call is passed on")]
impl Source for CountedSource {
    type Message = CountedMessage;

    async fn next(&self) -> Result<CountedMessage, SourceError> {
        let message = self.source.next().await?;
        Ok(CountedMessage { message, arrivals: Arc::clone(&self.arrivals) })
    }

    fn is_ordered(&self) -> bool {
        self.source.is_ordered()
    }
}

/// A message that is counted when it is read.
#[derive(Debug)]
pub(super) struct CountedMessage {
    message: AnyMessage,
    arrivals: Arc<Arrivals>,
}

#[deny(clippy::missing_trait_methods, reason = "every call is passed on")]
impl Message for CountedMessage {
    fn envelope(&self) -> Result<Event, Unreadable> {
        let event = self.message.envelope()?;
        self.arrivals.add(event.tenant());
        Ok(event)
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
        self.message.answer(answer).await
    }
}
