//! The stream of events: its name and subjects, how it is created, and whether an existing one can
//! be used.
//!
//! The stream has one subject per partition, not one wildcard for all of them, so the server itself
//! refuses a publisher with another number of partitions. Existing streams are never changed: they
//! may contain messages that others need.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::context::{
    Context, ContextBuilder, CreateStreamErrorKind, GetStreamErrorKind,
};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use async_nats::jetstream::{self, ErrorCode};
use semel_core::event::Event;
use semel_core::outbox::partition;

use crate::link::{self, TIMEOUT};
use crate::names::{self, InvalidSetting};

/// The largest number of partitions. Each is a subject of the stream, and a consumer of every
/// ordered group.
const MAX_PARTITIONS: u16 = 1_024;

/// The stream of events. All publishers and sources of a stream need an equal topology.
///
/// ```
/// use std::time::Duration;
/// use semel_nats::Topology;
///
/// let topology = Topology::default().stream("ORDERS").prefix("shop.orders").partitions(4);
/// assert_eq!(topology.subjects()[3], "shop.orders.3.>");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Topology {
    stream: String,
    prefix: String,
    partitions: u16,
    duplicate_window: Duration,
    keep: Duration,
    replicas: usize,
}

impl Default for Topology {
    fn default() -> Self {
        Self {
            stream: "SEMEL_EVENTS".to_owned(),
            prefix: "semel".to_owned(),
            partitions: 16,
            duplicate_window: Duration::from_secs(120),
            keep: Duration::from_secs(7 * 24 * 60 * 60),
            replicas: 1,
        }
    }
}

impl Topology {
    /// Sets the name of the stream. Default `SEMEL_EVENTS`.
    pub fn stream(mut self, name: &str) -> Self {
        name.clone_into(&mut self.stream);
        self
    }

    /// Sets the prefix of the subjects. Default `semel`.
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// Sets the number of partitions: an ordered group handles that many events at once. Default
    /// 16. The number is part of the stream's subjects and must not change while the stream has
    /// events.
    pub fn partitions(mut self, count: u16) -> Self {
        self.partitions = count;
        self
    }

    /// Sets how long the server recognises a repeat. Default 2 min, four times a relay's lease.
    /// This saves consumers work but guarantees nothing: later repeats are recognised by the inbox.
    pub fn duplicate_window(mut self, span: Duration) -> Self {
        self.duplicate_window = span;
        self
    }

    /// Sets how long a newly created stream keeps events, consumed or not. Default 7 days, as long
    /// as the outbox keeps them; a group that is stopped for longer loses events. `Duration::ZERO`
    /// keeps them for ever.
    pub fn keep(mut self, span: Duration) -> Self {
        self.keep = span;
        self
    }

    /// Sets the number of servers that store the stream. Default 1.
    pub fn replicas(mut self, servers: usize) -> Self {
        self.replicas = servers;
        self
    }

    /// Returns the stream's subjects, by partition.
    pub fn subjects(&self) -> Vec<String> {
        (0..self.partitions).map(|partition| self.subjects_of(partition)).collect()
    }

    /// Creates the stream if it does not exist; otherwise checks that it can be used.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use semel_nats::Topology;
    ///
    /// let client = semel_nats::connect("nats://127.0.0.1:4222").await?;
    /// Topology::default().stream("ORDERS").prefix("orders").ensure(&client).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`TopologyError::Differs`] lists what must be changed by hand; other variants tell why the
    /// stream could not be created or read.
    pub async fn ensure(&self, client: &Client) -> Result<(), TopologyError> {
        self.check()?;
        let context = context(client, TIMEOUT);
        if let Some(found) = self.find(&context).await? {
            return self.compare(&found);
        }
        let refused =
            |reason: String| TopologyError::Refused { stream: self.stream.clone(), reason };
        match context.create_stream(self.config()).await {
            Ok(made) => self.compare(&made.cached_info().config),
            Err(error) => match error.kind() {
                // Another process has created the stream meanwhile.
                CreateStreamErrorKind::JetStream(ref why)
                    if why.error_code() == ErrorCode::STREAM_NAME_EXIST =>
                {
                    match self.find(&context).await? {
                        Some(found) => self.compare(&found),
                        None => Err(refused(error.to_string())),
                    }
                }
                CreateStreamErrorKind::EmptyStreamName
                | CreateStreamErrorKind::InvalidStreamName
                | CreateStreamErrorKind::DomainAndExternalSet
                | CreateStreamErrorKind::JetStream(_)
                | CreateStreamErrorKind::NotFound => Err(refused(error.to_string())),
                CreateStreamErrorKind::JetStreamUnavailable
                | CreateStreamErrorKind::TimedOut
                | CreateStreamErrorKind::Response
                | CreateStreamErrorKind::ResponseParse => {
                    Err(TopologyError::Unavailable(error.to_string()))
                }
            },
        }
    }

    /// Checks that the stream exists and can be used.
    pub(crate) async fn compare_found(&self, context: &Context) -> Result<(), TopologyError> {
        match self.find(context).await? {
            Some(found) => self.compare(&found),
            None => Err(TopologyError::Missing { stream: self.stream.clone() }),
        }
    }

    /// Returns the stream's configuration; `None` if it does not exist.
    pub(crate) async fn find(&self, context: &Context) -> Result<Option<Config>, TopologyError> {
        match context.get_stream(&self.stream).await {
            Ok(found) => Ok(Some(found.cached_info().config.clone())),
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(ref why)
                    if why.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    Ok(None)
                }
                GetStreamErrorKind::JetStream(_)
                | GetStreamErrorKind::Request
                | GetStreamErrorKind::EmptyName
                | GetStreamErrorKind::InvalidStreamName => {
                    Err(TopologyError::Unavailable(error.to_string()))
                }
            },
        }
    }

    fn config(&self) -> Config {
        Config {
            name: self.stream.clone(),
            description: Some("events of Semel".to_owned()),
            subjects: self.subjects(),
            storage: StorageType::File,
            retention: RetentionPolicy::Limits,
            // A full stream refuses new messages. The other policy drops messages that were never
            // read.
            discard: DiscardPolicy::New,
            max_age: self.keep,
            duplicate_window: self.duplicate_window,
            num_replicas: self.replicas,
            ..Config::default()
        }
    }

    /// Fails with the settings of an existing stream that differ from what is needed.
    fn compare(&self, found: &Config) -> Result<(), TopologyError> {
        let sorted = |subjects: &[String]| -> String {
            let sorted: BTreeSet<&str> = subjects.iter().map(String::as_str).collect();
            sorted.into_iter().collect::<Vec<_>>().join(",")
        };
        let limited = [found.max_bytes, found.max_messages, found.max_messages_per_subject];
        let forgets = found.discard == DiscardPolicy::Old && limited.iter().any(|limit| *limit > 0);
        let mut differences = Vec::new();
        let mut want = |is_so: bool, what, wanted: &dyn fmt::Debug, found: &dyn fmt::Debug| {
            if !is_so {
                let (wanted, found) = (format!("{wanted:?}"), format!("{found:?}"));
                differences.push(Difference { what, wanted, found });
            }
        };
        let (wanted, is) = (sorted(&self.subjects()), sorted(&found.subjects));
        want(wanted == is, "subjects", &wanted, &is);
        let (file, limits) = (StorageType::File, RetentionPolicy::Limits);
        want(found.storage == file, "storage", &file, &found.storage);
        want(found.retention == limits, "retention", &limits, &found.retention);
        want(!forgets, "discard", &DiscardPolicy::New, &found.discard);
        want(!found.no_ack, "no_ack", &false, &found.no_ack);
        want(!found.sealed, "sealed", &false, &found.sealed);
        let window = found.duplicate_window;
        want(window >= self.duplicate_window, "duplicate_window", &self.duplicate_window, &window);
        let replicas = found.num_replicas;
        want(replicas >= self.replicas, "num_replicas", &self.replicas, &replicas);
        if differences.is_empty() {
            return Ok(());
        }
        Err(TopologyError::Differs { stream: self.stream.clone(), differences })
    }

    pub(crate) fn check(&self) -> Result<(), InvalidSetting> {
        let name = "1 to 64 of A-Za-z0-9_-";
        if !names::is_name(&self.stream) {
            return Err(InvalidSetting::new("the stream's name", name, &self.stream));
        }
        if !self.prefix.split('.').all(names::is_name) {
            let wanted = "tokens of 1 to 64 of A-Za-z0-9_- with dots between them";
            return Err(InvalidSetting::new("the prefix", wanted, &self.prefix));
        }
        if !(1..=MAX_PARTITIONS).contains(&self.partitions) {
            return Err(InvalidSetting::new("partitions", "1 to 1024", self.partitions));
        }
        Ok(())
    }

    pub(crate) fn name(&self) -> &str {
        &self.stream
    }

    pub(crate) fn count(&self) -> u16 {
        self.partitions
    }

    /// Returns the pattern of all subjects of a partition.
    pub(crate) fn subjects_of(&self, partition: u16) -> String {
        format!("{}.{partition}.>", self.prefix)
    }

    /// Returns the subject of an event.
    pub(crate) fn subject(&self, event: &Event) -> String {
        let partition = partition(event, self.partitions);
        format!("{}.{partition}.{}", self.prefix, names::of_type(event.kind()))
    }
}

/// Creates a missing stream, once for every connection.
#[derive(Debug, Default)]
pub(crate) struct Declaration {
    /// The connection on which the stream was last found or created; 0 before the first.
    done_on: tokio::sync::Mutex<u64>,
}

impl Declaration {
    /// Ensures that the stream exists, unless that was done on this connection before.
    pub(crate) async fn ensure(
        &self,
        topology: &Topology,
        client: &Client,
    ) -> Result<(), TopologyError> {
        if !link::is_connected(client) {
            return Err(TopologyError::Unavailable(link::DISCONNECTED.to_owned()));
        }
        let connection = link::connections(client);
        let mut done_on = self.done_on.lock().await;
        if *done_on != connection {
            topology.ensure(client).await?;
            *done_on = connection;
        }
        Ok(())
    }
}

/// Returns a JetStream context over this connection, in which no request takes longer than `limit`.
pub(crate) fn context(client: &Client, limit: Duration) -> jetstream::Context {
    ContextBuilder::new().timeout(limit).build(client.clone())
}

/// A setting of a stream that differs from what is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The name of the setting at the server.
    pub what: &'static str,
    /// The value that is needed.
    pub wanted: String,
    /// The value at the server.
    pub found: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, wanted, found } = self;
        write!(f, "{what} is {found} and must be {wanted}")
    }
}

/// Why the stream cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// A setting cannot work.
    #[error(transparent)]
    Setting(#[from] InvalidSetting),
    /// The stream exists, and would lose, refuse or repeat events.
    #[error(
        "the stream {stream} cannot be used as it is: {}; change it with `nats stream edit {stream}` \
         or choose another name",
        listed(differences)
    )]
    Differs {
        /// The name of the stream.
        stream: String,
        /// The settings that differ.
        differences: Vec<Difference>,
    },
    /// The stream does not exist.
    #[error("the stream {stream} does not exist; create it with `Topology::ensure`")]
    Missing {
        /// The name of the stream.
        stream: String,
    },
    /// The server refused to create the stream.
    #[error(
        "the server refuses to create the stream {stream}: {reason}; another stream may have its \
         subjects, or the account's limits are too low"
    )]
    Refused {
        /// The name of the stream.
        stream: String,
        /// The server's answer.
        reason: String,
    },
    /// JetStream did not answer.
    #[error("JetStream is not available, is it enabled at the server? {0}")]
    Unavailable(String),
}

fn listed(differences: &[Difference]) -> String {
    differences.iter().map(Difference::to_string).collect::<Vec<_>>().join("; ")
}
