//! The settings of a source.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};

use super::{AmqpSource, Shared, State};
use crate::error::SetupError;
use crate::link::Link;
use crate::topology::{self, EXCHANGE, Topology};

/// The default number of deliveries after which the broker gives a message up. It is high because
/// the inbox counts attempts itself, and an hour in which its store is down must not end in the
/// dead queue.
const DELIVERY_LIMIT: u32 = 1_000_000;

/// Settings of an [`AmqpSource`].
#[derive(Clone)]
#[must_use]
pub struct SourceBuilder {
    url: String,
    exchange: String,
    group: String,
    kinds: Vec<String>,
    ordered: Option<u16>,
    prefetch: u16,
    patience: Duration,
    timeout: Duration,
    delivery_limit: u32,
    tenant: Option<Box<str>>,
    declare: bool,
}

impl std::fmt::Debug for SourceBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceBuilder").field("group", &self.group).finish_non_exhaustive()
    }
}

impl SourceBuilder {
    pub(super) fn new(url: &str, group: &str) -> Self {
        Self {
            url: url.to_owned(),
            exchange: EXCHANGE.to_owned(),
            group: group.to_owned(),
            kinds: Vec::new(),
            ordered: None,
            prefetch: 64,
            patience: Duration::from_secs(5),
            timeout: Duration::from_secs(5),
            delivery_limit: DELIVERY_LIMIT,
            tenant: None,
            declare: true,
        }
    }

    /// Sets the name of the topic exchange. Default [`EXCHANGE`].
    pub fn exchange(mut self, name: &str) -> Self {
        self.exchange = name.to_owned();
        self
    }

    /// Restricts the source to events of these types; `*` is one word of a type and `#` any number
    /// of them. Default all. A type that is removed from the list stays bound until you unbind it.
    pub fn kinds<'a>(mut self, kinds: impl IntoIterator<Item = &'a str>) -> Self {
        self.kinds = kinds.into_iter().map(str::to_owned).collect();
        self
    }

    /// Keeps the order of each partition: the partitions are spread over this many queues (1 to
    /// [`BUCKETS`](crate::BUCKETS)), each of which delivers one message at a time.
    ///
    /// A group that becomes ordered or unordered, or changes the number, leaves its old queues
    /// behind, still bound: they get the same messages as the new ones. To change it, stop the
    /// publishers, wait until the old queues are empty, delete them and start again.
    pub fn ordered(mut self, queues: u16) -> Self {
        self.ordered = Some(queues);
        self
    }

    /// Sets how many messages the broker delivers before it gets an answer: those that this process
    /// handles and those that wait in it. Should be at least the number that the consumer handles
    /// at once. Default 64; an ordered source has one per queue.
    pub fn prefetch(mut self, messages: u16) -> Self {
        self.prefetch = messages;
        self
    }

    /// Sets after how long a message without an answer is given back. Default 5 s.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets how long to wait for the broker's answers. Default 5 s.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Sets how often a message is delivered before the broker puts it into the group's dead queue.
    /// Default 1,000,000: the inbox counts attempts itself. The limit is a property of the queue,
    /// so it cannot be changed while the queue exists.
    pub fn delivery_limit(mut self, deliveries: u32) -> Self {
        self.delivery_limit = deliveries;
        self
    }

    /// Sets the tenant of events without one, for events of other publishers. By default such an
    /// event cannot be read.
    pub fn tenant(mut self, tenant: &str) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// Sets whether exchange, queues and bindings are declared. Turn it off for users without that
    /// permission; the retry queues must then exist as well. Default on.
    pub fn declare(mut self, declare: bool) -> Self {
        self.declare = declare;
        self
    }

    /// Returns the source, whether or not the broker can be reached. It connects and declares its
    /// queue when the first message is requested, and retries with growing pauses (50 ms to 2 s)
    /// while messages are requested. An event that is published before the queue exists is
    /// [unrouted](semel_core::outbox::PublishError::Unrouted), and stays in the outbox.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), semel_amqp::SetupError> {
    /// use semel_amqp::AmqpSource;
    ///
    /// let source = AmqpSource::builder("amqp://guest:guest@127.0.0.1:5672/%2f", "billing").build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`SetupError::Setting`] contains the setting that cannot be used.
    pub fn build(self) -> Result<AmqpSource, SetupError> {
        let topology = Topology {
            exchange: topology::exchange(&self.exchange)?,
            group: self.group,
            kinds: self.kinds,
            ordered: self.ordered,
            delivery_limit: self.delivery_limit,
        };
        topology.check()?;
        if self.prefetch == 0 {
            return Err(SetupError::setting("prefetch", "0 would mean no limit"));
        }
        let linked = |role: &str| {
            let name = format!("semel {role} {}.{}", topology.exchange, topology.group);
            Link::new(&self.url, name, self.timeout)
        };
        let (here, gone) = watch::channel(());
        let shared = Arc::new(Shared {
            link: linked("source")?,
            retries: linked("retries")?,
            topology,
            prefetch: if self.ordered.is_some() { 1 } else { self.prefetch },
            patience: self.patience,
            tenant: self.tenant,
            declare: self.declare,
            gone,
        });
        Ok(AmqpSource { shared, state: Mutex::default(), _here: here })
    }

    /// Connects, declares and binds the queue, starts to consume and returns the source: every
    /// event published from now on reaches the group. Fails if the broker cannot be reached;
    /// [`build`](Self::build) does not.
    ///
    /// # Errors
    /// [`SetupError`] contains what is wrong, and what to do.
    pub async fn connect(self) -> Result<AmqpSource, SetupError> {
        let source = self.build()?;
        let mut state = State::default();
        source.channel(&mut state).await?;
        *source.state.lock().await = state;
        Ok(source)
    }
}
