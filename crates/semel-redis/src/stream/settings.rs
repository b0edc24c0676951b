//! How to connect, and how a group consumes: every setting with its default beside it.

use std::sync::Arc;
use std::time::Duration;

use semel_core::store::Result;

use super::{Shared, Streams, misconfigured};
use crate::builder::Builder;

/// Settings of [`Streams`].
#[derive(Clone, Debug)]
#[must_use]
pub struct StreamBuilder {
    prefix: String,
    partitions: u16,
    largest: usize,
    connection: Builder,
}

impl Default for StreamBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl StreamBuilder {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self {
            prefix: "semel:events".to_owned(),
            partitions: 16,
            largest: 4 << 20,
            connection: Builder::new(),
        }
    }

    /// What the streams' keys begin with. Default `semel:events`. No braces: those are ours, and
    /// decide on a cluster's slots.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// The number of streams. Default 16. Publishers and sources must agree,
    /// and with another number the order of what is still in the streams is lost: let the groups
    /// finish first.
    pub fn partitions(mut self, count: u16) -> Self {
        self.partitions = count;
        self
    }

    /// The largest event, in bytes as it is written (a payload that is not JSON counts four thirds).
    /// A larger one is refused, and dead at once. Default 4 MiB.
    pub fn largest(mut self, bytes: usize) -> Self {
        self.largest = bytes;
        self
    }

    /// How long connecting may take. Default 2 s.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connection = self.connection.connect_timeout(limit);
        self
    }

    /// How long a command may wait for its answer. Default 3 s.
    pub fn response_timeout(mut self, limit: Duration) -> Self {
        self.connection = self.connection.response_timeout(limit);
        self
    }

    /// Has every event confirmed by `count` replicas within a limit. Default none. One that too few
    /// confirm is published again, and recognised by its id.
    pub fn wait_replicas(mut self, count: u32, within: Duration) -> Self {
        self.connection = self.connection.wait_replicas(count, within);
        self
    }

    /// Connects to the server at `url`: `redis://…`, `unix://…`, or a cluster as
    /// `redis+cluster://host:port,host:port`.
    ///
    /// # Errors
    /// `Misconfigured` for a setting that cannot work or a server before Redis 7; `Unavailable` if
    /// no server answers.
    pub async fn connect(self, url: &str) -> Result<Streams> {
        if self.prefix.is_empty() || self.prefix.contains(['{', '}']) {
            return Err(misconfigured("the prefix of streams must be some text without { or }"));
        }
        if self.partitions == 0 {
            return Err(misconfigured("there must be at least one partition"));
        }
        let prefix = self.prefix;
        let connection = self.connection.prefix(format!("{prefix}:")).group("streams");
        let store = connection.connect(url).await?;
        Ok(Streams(Arc::new(Shared {
            transport: store.transport.clone(),
            settings: Arc::clone(&store.settings),
            keys: (0..self.partitions).map(|at| format!("{{{prefix}:{at}}}")).collect(),
            largest: self.largest,
        })))
    }
}

/// Where a group begins that is not there yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    Oldest,
    Now,
}

/// Settings of a [`StreamSource`](super::StreamSource).
#[derive(Clone)]
#[must_use]
pub struct SourceBuilder {
    pub(super) shared: Arc<Shared>,
    pub(super) group: String,
    pub(super) ordered: bool,
    pub(super) patience: Duration,
    pub(super) prefetch: u16,
    pub(super) begin: Begin,
    pub(super) delete_acked: bool,
    pub(super) tenant: Option<String>,
}

impl std::fmt::Debug for SourceBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceBuilder")
            .field("group", &self.group)
            .field("ordered", &self.ordered)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

impl SourceBuilder {
    pub(super) fn new(shared: Arc<Shared>, group: &str) -> Self {
        Self {
            shared,
            group: group.to_owned(),
            ordered: false,
            patience: Duration::from_secs(30),
            prefetch: 4,
            begin: Begin::Oldest,
            delete_acked: false,
            tenant: None,
        }
    }

    /// Delivers the next entry of a stream when the group has acked the last, so that the events of an aggregate keep
    /// their order. All sources of a group must agree. One entry of each partition is under way at a time.
    pub fn ordered(mut self) -> Self {
        self.ordered = true;
        self
    }

    /// How long the group waits for an answer before an entry is given to another consumer. Default
    /// 30 s, at least 100 ms. Consumers report progress three times in that span.
    pub fn patience(mut self, span: Duration) -> Self {
        self.patience = span;
        self
    }

    /// How many entries of each partition are fetched at once. Default 4; ordered sources fetch one.
    pub fn prefetch(mut self, entries: u16) -> Self {
        self.prefetch = entries.clamp(1, 1_000);
        self
    }

    /// A group that is not there yet begins with what is published from now on. Default: with the
    /// oldest that is there.
    pub fn from_now(mut self) -> Self {
        self.begin = Begin::Now;
        self
    }

    /// Removes an entry at its ack. Only where this is the streams' only group: others would miss
    /// it. Default: acked entries stay until they are [trimmed](Streams::trim).
    pub fn delete_acked(mut self) -> Self {
        self.delete_acked = true;
        self
    }

    /// The tenant of events that name none. Default: those cannot be read.
    pub fn tenant(mut self, tenant: &str) -> Self {
        self.tenant = Some(tenant.to_owned());
        self
    }
}
