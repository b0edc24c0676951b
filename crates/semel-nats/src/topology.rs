//! The stream that events lie in: what it is called, how it is made, and whether one that is there
//! will do.
//!
//! The stream has one subject per partition, not one wildcard for all of them: so the server itself
//! refuses whoever counts the partitions differently. Streams that are there are never changed:
//! they may hold what somebody else needs.

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

use crate::link::TIMEOUT;
use crate::names::{self, InvalidSetting};

/// Most partitions. Each is a subject of the stream, and a consumer of every ordered group.
const MAX_PARTITIONS: u16 = 1_024;

/// Where events lie. Publishers and sources that mean the same stream need equal ones.
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
    /// What the stream is called. Default `SEMEL_EVENTS`.
    pub fn stream(mut self, name: &str) -> Self {
        name.clone_into(&mut self.stream);
        self
    }

    /// How subjects begin. Default `semel`.
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// Into how many partitions lanes are divided: so many events an ordered group handles at once.
    /// Default 16. It is part of the stream and does not change while events lie in it.
    pub fn partitions(mut self, count: u16) -> Self {
        self.partitions = count;
        self
    }

    /// How long the server recognises a repeat. Default 2 min, four times a relay's lease. It saves
    /// consumers work and promises nothing: what comes later is recognised by the inbox.
    pub fn duplicate_window(mut self, span: Duration) -> Self {
        self.duplicate_window = span;
        self
    }

    /// How long a stream that is made keeps events, consumed or not. Default 7 days, as long as the
    /// outbox keeps them; a group that stands still for longer loses some. `Duration::ZERO` keeps
    /// them for ever.
    pub fn keep(mut self, span: Duration) -> Self {
        self.keep = span;
        self
    }

    /// On how many servers the stream lies. Default 1.
    pub fn replicas(mut self, servers: usize) -> Self {
        self.replicas = servers;
        self
    }

    /// The stream's subjects, by partition.
    pub fn subjects(&self) -> Vec<String> {
        (0..self.partitions).map(|partition| self.subjects_of(partition)).collect()
    }

    /// Makes the stream if it is not there; looks whether it will do if it is.
    ///
    /// # Errors
    /// [`TopologyError::Differs`] says what must be changed by hand.
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
                // Somebody was faster.
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

    /// The stream as it is; `None` if there is none.
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
            // A full stream takes nothing more. The other policy forgets what nobody has read.
            discard: DiscardPolicy::New,
            max_age: self.keep,
            duplicate_window: self.duplicate_window,
            num_replicas: self.replicas,
            ..Config::default()
        }
    }

    /// What is different from how it must be.
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

    /// Every subject of a partition.
    pub(crate) fn subjects_of(&self, partition: u16) -> String {
        format!("{}.{partition}.>", self.prefix)
    }

    /// The subject of an event.
    pub(crate) fn subject(&self, event: &Event) -> String {
        let partition = partition(event, self.partitions);
        format!("{}.{partition}.{}", self.prefix, names::of_type(event.kind()))
    }
}

/// JetStream over this connection, with no request that takes longer than `limit`.
pub(crate) fn context(client: &Client, limit: Duration) -> jetstream::Context {
    ContextBuilder::new().timeout(limit).build(client.clone())
}

/// What is different about a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The name of the setting at the server.
    pub what: &'static str,
    /// What it must be.
    pub wanted: String,
    /// What it is.
    pub found: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, wanted, found } = self;
        write!(f, "{what} is {found} and must be {wanted}")
    }
}

/// Why there is no stream to use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// A setting cannot work.
    #[error(transparent)]
    Setting(#[from] InvalidSetting),
    /// The stream is there, and would lose, refuse or repeat events.
    #[error(
        "the stream {stream} cannot be used as it is: {}; change it with `nats stream edit {stream}` \
         or choose another name",
        listed(differences)
    )]
    Differs {
        /// Which stream.
        stream: String,
        /// What about it.
        differences: Vec<Difference>,
    },
    /// The server did not make it.
    #[error(
        "the server refuses to make the stream {stream}: {reason}; another stream may have its \
         subjects, or the account's limits are too low"
    )]
    Refused {
        /// Which stream.
        stream: String,
        /// What it said.
        reason: String,
    },
    /// JetStream did not answer.
    #[error("JetStream is not available, is it enabled at the server? {0}")]
    Unavailable(String),
}

fn listed(differences: &[Difference]) -> String {
    differences.iter().map(Difference::to_string).collect::<Vec<_>>().join("; ")
}
