//! Messages that a broker brings, counted: while copies of the load's events still come, nobody can
//! say that none of them was handled twice.
//!
//! The database does not tell: a copy that was recognised leaves nothing there.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use semel_core::event::{Event, Unreadable};
use semel_core::inbox::{BrokerReply, Message, Source, SourceError};

/// The messages about one tenant's events, over all groups of this process.
#[derive(Debug)]
pub(super) struct Arrivals {
    /// Nobody's are counted where there is no load.
    tenant: Option<Arc<str>>,
    count: AtomicU64,
}

impl Arrivals {
    pub(super) fn of(tenant: Option<Arc<str>>) -> Arc<Self> {
        Arc::new(Self { tenant, count: AtomicU64::new(0) })
    }

    /// How many have come so far, copies and all.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// One has come that is about this tenant.
    pub(super) fn came(&self, tenant: &str) {
        if self.tenant.as_deref() == Some(tenant) {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The same source, with its messages counted.
    pub(super) fn at<B: Source>(self: &Arc<Self>, source: B) -> Watched<B> {
        Watched { source, arrivals: Arc::clone(self) }
    }
}

/// A source whose messages are counted.
pub(super) struct Watched<B> {
    source: B,
    arrivals: Arc<Arrivals>,
}

impl<B> fmt::Debug for Watched<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("arrivals", &self.arrivals).finish_non_exhaustive()
    }
}

impl<B: Source> Source for Watched<B> {
    type Message = Arrived<B::Message>;

    async fn next(&self) -> Result<Self::Message, SourceError> {
        let message = self.source.next().await?;
        Ok(Arrived { message, arrivals: Arc::clone(&self.arrivals) })
    }

    fn is_ordered(&self) -> bool {
        self.source.is_ordered()
    }
}

/// A message that is counted when it is read.
pub(super) struct Arrived<M> {
    message: M,
    arrivals: Arc<Arrivals>,
}

impl<M> fmt::Debug for Arrived<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrived").finish_non_exhaustive()
    }
}

impl<M: Message> Message for Arrived<M> {
    fn envelope(&self) -> Result<Event, Unreadable> {
        let event = self.message.envelope()?;
        self.arrivals.came(event.tenant());
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
