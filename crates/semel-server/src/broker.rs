//! Brokers by URL: the bus inside this process, NATS, RabbitMQ or Redis Streams.
//!
//! Here a broker is connected to, set up and checked. Its messages are handled by the relay and the inbox.

mod publisher;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use semel_amqp::{AmqpPublisher, SetupError};
use semel_core::store::{Finding, Severity};
use semel_nats::async_nats::Client;
use semel_nats::async_nats::jetstream::{self, ErrorCode, context::GetStreamErrorKind};
use semel_nats::{Topology, TopologyError};
use semel_redis::stream::Streams;

pub(crate) use self::publisher::{BrokerPublisher, trim};
use crate::exit::{ExitError, chain};
use crate::redact::redacted;
use crate::store::StoreUrl;

/// The URL of a broker. Displayed without its password.
#[derive(Clone, PartialEq, Eq)]
pub struct BrokerUrl {
    kind: BrokerKind,
    text: String,
}

/// The kinds of brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokerKind {
    /// `bus`, inside this process.
    Bus,
    /// `nats://…` and `tls://…`: NATS JetStream.
    Nats,
    /// `amqp://…` and `amqps://…`: RabbitMQ.
    Amqp,
    /// `redis://…`, `rediss://…` and `redis+cluster://…`: Redis Streams.
    Redis,
}

impl BrokerKind {
    /// Returns the name of the product.
    pub const fn name(self) -> &'static str {
        match self {
            BrokerKind::Bus => "the bus inside this process",
            BrokerKind::Nats => "NATS JetStream",
            BrokerKind::Amqp => "RabbitMQ",
            BrokerKind::Redis => "Redis Streams",
        }
    }
}

impl FromStr for BrokerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let scheme = text.split_once("://").map(|(scheme, _)| scheme);
        let kind = match scheme {
            None if text == "bus" => BrokerKind::Bus,
            Some("nats" | "tls") => BrokerKind::Nats,
            Some("amqp" | "amqps") => BrokerKind::Amqp,
            Some("redis" | "rediss" | "redis+cluster") => BrokerKind::Redis,
            Some(_) | None => {
                return Err(format!(
                    "`{}` is not a broker URL; use bus, nats://…, amqp://…, redis://… or \
                     redis+cluster://…",
                    redacted(text)
                ));
            }
        };
        // The same client parses the URL of a Redis store.
        if kind == BrokerKind::Redis {
            text.parse::<StoreUrl>()?;
        }
        Ok(Self { kind, text: text.to_owned() })
    }
}

impl BrokerUrl {
    /// Returns the kind of broker.
    pub fn kind(&self) -> BrokerKind {
        self.kind
    }

    /// Returns the whole URL with its password, for connecting.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redacted(&self.text))
    }
}

impl fmt::Debug for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BrokerUrl({self})")
    }
}

/// A broker and a name on it: of the stream and its subjects on NATS, of the exchange and the prefix of its
/// queues on RabbitMQ, the prefix of the keys on Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerHandle {
    url: BrokerUrl,
    name: String,
}

/// A connection to a broker.
#[derive(Debug)]
pub(crate) enum Link {
    /// Needs no connection.
    Bus,
    /// A connection, and the stream that was found or created.
    Nats(Client, Topology),
    /// Publishers and sources connect by themselves.
    Amqp { url: BrokerUrl, exchange: String },
    /// A connection.
    Redis(Streams),
}

/// The longest name: every broker allows it with a suffix.
const MAX_NAME: usize = 40;
/// How long JetStream recognises duplicates in a stream that is created here: as briefly as possible, so that
/// the inbox gets duplicates to recognise.
const WINDOW: Duration = Duration::from_millis(100);

impl BrokerHandle {
    /// Creates a handle of the broker at `url` with a name that every broker accepts: 1 to 40 of
    /// `A-Za-z0-9_-`.
    ///
    /// # Errors
    /// The name is not valid.
    pub fn new(url: BrokerUrl, name: &str) -> Result<Self, String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if !(1..=MAX_NAME).contains(&name.len()) || !name.bytes().all(plain) {
            return Err(format!(
                "`{name}` is not a valid name; use 1 to {MAX_NAME} of A-Za-z0-9_-"
            ));
        }
        Ok(Self { url, name: name.to_owned() })
    }

    /// Returns the URL.
    pub fn url(&self) -> &BrokerUrl {
        &self.url
    }

    /// Returns what is wrong with the broker's configuration. Nothing is created: publishers and sources
    /// create what is missing when they start.
    ///
    /// # Errors
    /// The broker cannot be reached.
    pub async fn check(&self) -> Result<Vec<Finding>, ExitError> {
        match self.url.kind {
            BrokerKind::Bus => Ok(Vec::new()),
            BrokerKind::Nats => {
                let client = self.nats().await?;
                self.check_stream(&client).await
            }
            BrokerKind::Amqp => {
                let publisher = AmqpPublisher::builder(&self.url.text).exchange(&self.name);
                match publisher.check().await {
                    Ok(()) => Ok(Vec::new()),
                    Err(error) => Ok(vec![self.amqp_finding(error)?]),
                }
            }
            BrokerKind::Redis => {
                let streams = self.streams().await?;
                Ok(streams.check().await?)
            }
        }
    }

    /// Connects, and creates what is missing. RabbitMQ's queues are created by their consumers.
    ///
    /// # Errors
    /// The broker cannot be reached, or an existing stream has other settings than needed.
    pub(crate) async fn link(&self) -> Result<Link, ExitError> {
        match self.url.kind {
            BrokerKind::Bus => Ok(Link::Bus),
            BrokerKind::Nats => {
                let (client, topology) = (self.nats().await?, self.topology());
                match topology.ensure(&client).await {
                    Ok(()) => {
                        self.warn_of_window(&client).await;
                        Ok(Link::Nats(client, topology))
                    }
                    Err(error @ TopologyError::Unavailable(_)) => Err(self.away(error)),
                    Err(error) => Err(ExitError::failed(format_args!("{}: {error}", self.url))),
                }
            }
            BrokerKind::Amqp => {
                Ok(Link::Amqp { url: self.url.clone(), exchange: self.name.clone() })
            }
            BrokerKind::Redis => Ok(Link::Redis(self.streams().await?)),
        }
    }

    fn topology(&self) -> Topology {
        Topology::default().stream(&self.name).prefix(&self.name).duplicate_window(WINDOW)
    }

    /// Warns of an existing stream whose window for duplicates is longer. It is not changed.
    async fn warn_of_window(&self, client: &Client) {
        let found = jetstream::new(client.clone()).get_stream(&self.name).await;
        let window = found.map(|stream| stream.cached_info().config.duplicate_window);
        if let Some(window) = window.ok().filter(|window| *window > WINDOW) {
            tracing::warn!(
                stream = self.name,
                ?window,
                "the existing stream drops duplicates itself: an event that is published again within \
                 this window is not delivered twice"
            );
        }
    }

    async fn nats(&self) -> Result<Client, ExitError> {
        semel_nats::connect(&self.url.text).await.map_err(|error| self.away(error))
    }

    async fn streams(&self) -> Result<Streams, ExitError> {
        let connected = Streams::builder().prefix(&self.name).connect(&self.url.text).await;
        connected
            .map_err(|error| ExitError::from(error).during(format_args!("the broker {}", self.url)))
    }

    async fn check_stream(&self, client: &Client) -> Result<Vec<Finding>, ExitError> {
        let found = jetstream::new(client.clone()).get_stream(&self.name).await;
        let unavailable = |why: String| Finding {
            severity: Severity::Error,
            code: "nats-jetstream",
            found: format!("JetStream does not answer: {why}"),
            fix:
                "start the server with JetStream (-js, or jetstream {} in its configuration), and \
                  enable it for this account"
                    .to_owned(),
        };
        match found {
            Ok(_) => {}
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(why)
                    if why.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    return Ok(Vec::new());
                }
                GetStreamErrorKind::JetStream(_)
                | GetStreamErrorKind::Request
                | GetStreamErrorKind::EmptyName
                | GetStreamErrorKind::InvalidStreamName => {
                    return Ok(vec![unavailable(error.to_string())]);
                }
            },
        }
        // The stream exists, so nothing is created.
        match self.topology().ensure(client).await {
            Ok(()) => Ok(Vec::new()),
            Err(TopologyError::Unavailable(why)) => Ok(vec![unavailable(why)]),
            Err(error) => Ok(vec![Finding {
                severity: Severity::Error,
                code: "nats-stream",
                found: error.to_string(),
                fix: "change the stream as described, or choose another name".to_owned(),
            }]),
        }
    }

    /// Returns the finding for an error of a RabbitMQ that answered.
    ///
    /// # Errors
    /// It did not answer, or a setting is not valid.
    fn amqp_finding(&self, error: SetupError) -> Result<Finding, ExitError> {
        let (code, fix) = match &error {
            SetupError::Differs { .. } => (
                "amqp-exchange",
                "delete it if it is unused, or choose another name with --broker-name",
            ),
            SetupError::Denied { .. } => {
                ("amqp-denied", "check the user, the password and the user's permissions")
            }
            SetupError::Unavailable { .. } | SetupError::Setting { .. } => {
                return Err(self.unset(error));
            }
        };
        let (severity, found, fix) = (Severity::Error, error.to_string(), fix.to_owned());
        Ok(Finding { severity, code, found, fix })
    }

    /// Returns the error of a RabbitMQ that cannot be used; it is unreachable only if it does not answer.
    pub(crate) fn unset(&self, error: SetupError) -> ExitError {
        match error {
            SetupError::Unavailable { .. } => self.away(error),
            SetupError::Setting { .. } => ExitError::usage(format_args!("{}: {error}", self.url)),
            SetupError::Differs { .. } | SetupError::Denied { .. } => {
                ExitError::failed(format_args!("{}: {error}", self.url))
            }
        }
    }

    /// Returns the error of a broker that cannot be reached, with its URL.
    pub(crate) fn away(&self, error: impl std::error::Error + 'static) -> ExitError {
        let url = &self.url;
        ExitError::unreachable(format_args!("cannot reach the broker {url}: {}", chain(&error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_one_kind_of_broker() {
        let kind = |text: &str| text.parse::<BrokerUrl>().map(|url| url.kind());
        assert_eq!(kind("bus"), Ok(BrokerKind::Bus));
        assert_eq!(kind("nats://127.0.0.1:4222"), Ok(BrokerKind::Nats));
        assert_eq!(kind("amqps://ann:secret@mq/%2f"), Ok(BrokerKind::Amqp));
        assert_eq!(kind("redis+cluster://a,b"), Ok(BrokerKind::Redis));
        for wrong in
            ["", "bus:", "nats:x", "kafka://x", "postgres://x", "redis://a:b:c", "redis://a/x"]
        {
            assert!(kind(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let url: BrokerUrl = "amqp://ann:secret@mq:5672/%2f".parse().unwrap();
        assert_eq!(url.to_string(), "amqp://ann:***@mq:5672/%2f");
        assert!(!format!("{url:?}").contains("secret"));
        let refused = "kafka://ann:secret@mq".parse::<BrokerUrl>().unwrap_err();
        assert!(!refused.contains("secret"), "{refused}");
    }

    #[test]
    fn a_name_is_valid_on_every_broker() {
        let named = |name: &str| BrokerHandle::new("bus".parse().unwrap(), name);
        assert!(named("semel-demo_2").is_ok() && named(&"a".repeat(40)).is_ok());
        for wrong in ["", "a b", "a.b", "a*", "{a}", "ä", &"a".repeat(41)] {
            assert!(named(wrong).is_err(), "{wrong}");
        }
    }
}
