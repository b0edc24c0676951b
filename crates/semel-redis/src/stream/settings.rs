//! The settings of a connection and of a consumer group, each with its default.

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
    /// Returns the default settings.
    pub fn new() -> Self {
        Self {
            prefix: "semel:events".to_owned(),
            partitions: 16,
            largest: 4 << 20,
            connection: Builder::new(),
        }
    }

    /// Sets the prefix of the streams' keys. Default `semel:events`. It must not contain braces,
    /// which determine the slot in a cluster.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the number of streams. Default 16. Publishers and sources must use the same number. If
    /// it changes, the order of events that are still in the streams is lost: let the groups finish
    /// first.
    pub fn partitions(mut self, count: u16) -> Self {
        self.partitions = count;
        self
    }

    /// Sets the size of the largest event, in bytes as it is written (a payload that is not JSON
    /// counts four thirds). A larger event is refused, and becomes dead at once. Default 4 MiB.
    pub fn largest(mut self, bytes: usize) -> Self {
        self.largest = bytes;
        self
    }

    /// Sets how long connecting may take. Default 2 s.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connection = self.connection.connect_timeout(limit);
        self
    }

    /// Sets how long a command may wait for its answer. Default 3 s.
    pub fn response_timeout(mut self, limit: Duration) -> Self {
        self.connection = self.connection.response_timeout(limit);
        self
    }

    /// Requires `count` replicas to confirm every event within a time limit. Default none. An event
    /// that too few confirm is published again, and consumers recognise it by its id.
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

/// The entry with which a new group begins.
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

    /// Delivers the next entry of a stream only after the group has acked the last, so that the
    /// events of an aggregate keep their order. All sources of a group must use the same setting.
    /// One entry of each partition is handled at a time.
    pub fn ordered(mut self) -> Self {
        self.ordered = true;
        self
    }

    /// Sets how long the group waits for an answer before another consumer gets the entry. Default
    /// 30 s, at least 100 ms. Consumers report progress three times in that span.
    pub fn patience(mut self, span: Duration) -> Self {
        self.patience = span;
        self
    }

    /// Sets how many entries of each partition are fetched at once. Default 4; ordered sources
    /// fetch one.
    pub fn prefetch(mut self, entries: u16) -> Self {
        self.prefetch = entries.clamp(1, 1_000);
        self
    }

    /// Lets a new group begin with entries that are published from now on. By default it begins
    /// with the oldest entry.
    pub fn from_now(mut self) -> Self {
        self.begin = Begin::Now;
        self
    }

    /// Removes an entry at its ack. Use it only if this is the streams' only group: other groups
    /// would miss the entry. By default acked entries stay until they are [trimmed](Streams::trim).
    pub fn delete_acked(mut self) -> Self {
        self.delete_acked = true;
        self
    }

    /// Sets the tenant of events without one. By default such events cannot be read.
    pub fn tenant(mut self, tenant: &str) -> Self {
        self.tenant = Some(tenant.to_owned());
        self
    }
}
