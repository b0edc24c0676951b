//! Counts the messages that a broker delivers: while copies of the load's events still arrive, it is not
//! known whether one will be handled twice.
//!
//! The database cannot show it: a copy that the inbox recognises leaves nothing there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use semel_core::event::{Event, Unreadable};
use semel_core::inbox::{AnyMessage, AnySource, BrokerReply, Message, Source, SourceError};

/// The messages about one tenant's events, over all groups of this process.
#[derive(Debug)]
pub(super) struct Arrivals {
    /// `None` without a load: nothing is counted.
    tenant: Option<Arc<str>>,
    count: AtomicU64,
}

impl Arrivals {
    pub(super) fn of(tenant: Option<Arc<str>>) -> Arc<Self> {
        Arc::new(Self { tenant, count: AtomicU64::new(0) })
    }

    /// Returns how many have arrived so far, copies included.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Counts a message if `tenant` is the tenant that is watched.
    pub(super) fn add(&self, tenant: &str) {
        if self.tenant.as_deref() == Some(tenant) {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns `source` with its messages counted.
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
