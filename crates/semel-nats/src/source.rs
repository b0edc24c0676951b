//! Delivers a group's messages from the stream: through one durable consumer at the server, or one
//! per partition if order matters.
//!
//! Pumps (`pump`) pull messages into a buffer, from which callers take them. Buffered messages are
//! kept alive at the server, and given back if no caller takes them. The inbox decides whether a
//! message was handled before.

mod buffer;
mod message;
mod pump;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::consumer::pull::Config;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy};
use semel_core::inbox::{Source, SourceError};
use tokio_util::sync::{CancellationToken, DropGuard};

use buffer::Buffer;
pub use message::NatsMessage;
use message::Terms;
use pump::Pump;

use crate::link::TIMEOUT;
use crate::names::{self, InvalidSetting};
use crate::topology::{self, Declaration, Topology};

/// The server's limit of deliveries: none. The inbox decides how often an event is tried, and keeps
/// the events that it gives up.
const FOR_EVER: i64 = -1;

/// Delivers the messages of one consumer group from a JetStream stream.
///
/// Several sources of the same group, in one process or many, share its messages. Dropping a source
/// gives back the messages that it had pulled and that no caller had taken.
pub struct NatsSource {
    buffer: Arc<Buffer>,
    group: String,
    ordered: bool,
    /// Ends the pumps when the source is dropped.
    _working: DropGuard,
}

impl fmt::Debug for NatsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsSource").field("group", &self.group).finish_non_exhaustive()
    }
}

impl NatsSource {
    /// Returns the settings of a source for `group`, beginning with the defaults.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use semel_nats::{NatsSource, Topology};
    ///
    /// let client = semel_nats::connect("nats://127.0.0.1:4222").await?;
    /// let source = NatsSource::builder(client, Topology::default(), "INVENTORY").build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(client: Client, topology: Topology, group: &str) -> SourceBuilder {
        SourceBuilder {
            client,
            topology,
            group: group.to_owned(),
            ordered: false,
            ack_wait: Duration::from_secs(30),
            prefetch: 32,
            max_in_flight: 1_024,
            timeout: TIMEOUT,
            tenant: None,
            filter: None,
            declare: false,
        }
    }
}

impl Source for NatsSource {
    type Message = NatsMessage;

    async fn next(&self) -> Result<NatsMessage, SourceError> {
        self.buffer.take().await
    }

    fn is_ordered(&self) -> bool {
        self.ordered
    }
}

/// Settings of a [`NatsSource`].
#[derive(Clone)]
#[must_use]
pub struct SourceBuilder {
    client: Client,
    topology: Topology,
    group: String,
    ordered: bool,
    ack_wait: Duration,
    prefetch: usize,
    max_in_flight: u32,
    timeout: Duration,
    tenant: Option<String>,
    filter: Option<String>,
    declare: bool,
}

impl fmt::Debug for SourceBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceBuilder")
            .field("topology", &self.topology)
            .field("group", &self.group)
            .field("ordered", &self.ordered)
            .finish_non_exhaustive()
    }
}

impl SourceBuilder {
    /// Sets whether the messages of a partition are delivered one after another, each only after
    /// the one before it was acked, even through crashes and redeliveries. This costs parallelism:
    /// one message per partition is in flight, in all processes together. Default no.
    ///
    /// An ordered group has consumers of its own at the server. A group that changes this setting
    /// begins with the oldest event of the stream; the inbox recognises the events that it has
    /// handled.
    pub fn ordered(mut self, ordered: bool) -> Self {
        self.ordered = ordered;
        self
    }

    /// Sets how long the server waits for progress before it delivers a message again. Default 30
    /// s. Handlers may take longer, because the consumer reports progress three times as often.
    pub fn ack_wait(mut self, wait: Duration) -> Self {
        self.ack_wait = wait;
        self
    }

    /// Sets how many messages are pulled before a caller takes them. Default 32. An ordered source
    /// pulls one for each partition instead.
    pub fn prefetch(mut self, messages: usize) -> Self {
        self.prefetch = messages;
        self
    }

    /// Sets how many messages of the group may be without an answer, in all processes together,
    /// before the server delivers no more. Messages that wait for a later attempt count. Default
    /// 1,024. An ordered group has one for each partition instead.
    pub fn max_in_flight(mut self, messages: u32) -> Self {
        self.max_in_flight = messages;
        self
    }

    /// Sets how long the server may take to answer a request. Default 5 s.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Sets the tenant of events without one. By default such events are unreadable.
    pub fn default_tenant(mut self, tenant: &str) -> Self {
        self.tenant = Some(tenant.to_owned());
        self
    }

    /// Sets whether a missing stream is created, once for every connection. Needed with
    /// [`connect_lazy`](crate::connect_lazy). Default no.
    pub fn declare(mut self, declare: bool) -> Self {
        self.declare = declare;
        self
    }

    /// Restricts the source to these subjects, with NATS' wildcards: for a stream that is not
    /// Semel's, or that has other messages too. They must lie within one of the stream's own
    /// subjects. Not allowed for an ordered source. Default all.
    pub fn filter(mut self, subjects: &str) -> Self {
        self.filter = Some(subjects.to_owned());
        self
    }

    /// Returns the source, whether or not the server can be reached. It begins to pull at once, and
    /// retries with growing pauses (100 ms to 2 s). Must be called on a tokio runtime.
    ///
    /// # Errors
    /// If a setting cannot work.
    pub fn build(self) -> Result<NatsSource, InvalidSetting> {
        self.check()?;
        let buffer = Arc::new(Buffer::new(if self.ordered { None } else { Some(self.prefetch) }));
        let terms = Arc::new(Terms {
            client: self.client.clone(),
            ack_wait: self.ack_wait,
            timeout: self.timeout,
            tenant: self.tenant.clone(),
        });
        let context = topology::context(&self.client, self.timeout);
        let declaration = self.declare.then(Arc::<Declaration>::default);
        let stopping = CancellationToken::new();
        for config in self.consumers() {
            let pump = Pump {
                context: context.clone(),
                topology: self.topology.clone(),
                declaration: declaration.clone(),
                config,
                terms: Arc::clone(&terms),
                buffer: Arc::clone(&buffer),
            };
            tokio::spawn(pump.run(stopping.clone()));
        }
        tokio::spawn(pump::keep(terms, Arc::clone(&buffer), stopping.clone()));
        let (group, ordered) = (self.group, self.ordered);
        Ok(NatsSource { buffer, group, ordered, _working: stopping.drop_guard() })
    }

    fn check(&self) -> Result<(), InvalidSetting> {
        self.topology.check()?;
        if self.group.trim().is_empty() {
            return Err(InvalidSetting::new("the group", "a name", format!("{:?}", self.group)));
        }
        if self.ack_wait < Duration::from_millis(100) {
            let got = format!("{:?}", self.ack_wait);
            return Err(InvalidSetting::new("ack_wait", "100 ms or more", got));
        }
        if self.timeout.is_zero() {
            return Err(InvalidSetting::new("the timeout", "longer than 0", "0"));
        }
        if self.prefetch == 0 || self.max_in_flight == 0 {
            return Err(InvalidSetting::new("prefetch and max_in_flight", "1 or more", 0));
        }
        match &self.filter {
            Some(filter) if self.ordered => {
                let wanted = "unset for an ordered source, which reads whole partitions";
                Err(InvalidSetting::new("the filter", wanted, filter))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the durable consumers of this group.
    fn consumers(&self) -> Vec<Config> {
        let one = |name: String, filter: String, in_flight: u32| Config {
            durable_name: Some(name),
            filter_subject: filter,
            deliver_policy: DeliverPolicy::All,
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.ack_wait,
            max_deliver: FOR_EVER,
            max_ack_pending: i64::from(in_flight),
            ..Config::default()
        };
        if !self.ordered {
            let filter = self.filter.clone().unwrap_or_default();
            return vec![one(names::of_consumer(&self.group), filter, self.max_in_flight)];
        }
        let partitions = 0..self.topology.count();
        let of = |partition| {
            let name = names::of_ordered_consumer(&self.group, partition);
            one(name, self.topology.subjects_of(partition), 1)
        };
        partitions.map(of).collect()
    }
}
