//! What carries events, chosen by URL: the bus inside this process, or a broker.
//!
//! Here a broker is named, dialled and checked. What becomes of its messages is the relay's and the
//! inbox's to know.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use semel_amqp::{AmqpPublisher, SetupError};
use semel_core::store::{Finding, Severity};
use semel_nats::async_nats::Client;
use semel_nats::async_nats::jetstream::{self, ErrorCode, context::GetStreamErrorKind};
use semel_nats::{Topology, TopologyError};
use semel_redis::stream::Streams;

use crate::exit::{ExitError, chain};
use crate::store::{StoreUrl, redacted};

/// The address of a broker. Shows itself without its password.
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
    /// Its name in sentences.
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
                    "`{}` is no broker; one of bus, nats://…, amqp://…, redis://…, \
                     redis+cluster://…",
                    redacted(text)
                ));
            }
        };
        // Read by the client that reads a store's, before anything is dialled.
        if kind == BrokerKind::Redis {
            text.parse::<StoreUrl>()?;
        }
        Ok(Self { kind, text: text.to_owned() })
    }
}

impl BrokerUrl {
    /// Which kind of broker it names.
    pub fn kind(&self) -> BrokerKind {
        self.kind
    }

    /// As whoever dials needs it: with its password.
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

/// A broker, and what our things are called there: the stream and its subjects on NATS, the exchange
/// and what its queues begin with on RabbitMQ, what the keys begin with on Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerHandle {
    url: BrokerUrl,
    name: String,
}

/// A broker that answered.
#[derive(Debug)]
pub(crate) enum Link {
    /// Nothing to dial.
    Bus,
    /// A connection, and the stream that was made or found on it.
    Nats(Client, Topology),
    /// Publishers and sources dial for themselves.
    Amqp { url: BrokerUrl, exchange: String },
    /// A connection.
    Redis(Streams),
}

/// As long as every broker's names may be with something behind them.
const MAX_NAME: usize = 40;
/// How long JetStream is to recognise repeats in a stream that is made here: as briefly as it can. An
/// event that is sent again is there to be recognised by the inbox.
const WINDOW: Duration = Duration::from_millis(100);

impl BrokerHandle {
    /// The broker at `url`, where our things are called `name`: 1 to 40 of `A-Za-z0-9_-`, which every
    /// broker takes.
    ///
    /// # Errors
    /// The name is none of these.
    pub fn new(url: BrokerUrl, name: &str) -> Result<Self, String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if !(1..=MAX_NAME).contains(&name.len()) || !name.bytes().all(plain) {
            return Err(format!(
                "`{name}` is no name for a broker; 1 to {MAX_NAME} of A-Za-z0-9_-"
            ));
        }
        Ok(Self { url, name: name.to_owned() })
    }

    /// Where it is.
    pub fn url(&self) -> &BrokerUrl {
        &self.url
    }

    /// What is wrong with its set-up, in words. An empty list is good news. Nothing is made: what is
    /// missing is made by whoever starts to use it.
    ///
    /// # Errors
    /// It cannot be reached.
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

    /// Dials, and makes what is missing. RabbitMQ's queues are made by those who consume them.
    ///
    /// # Errors
    /// It cannot be reached, or what is there is not what is needed.
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

    /// Somebody else may have made the stream, and it is left as it is.
    async fn warn_of_window(&self, client: &Client) {
        let found = jetstream::new(client.clone()).get_stream(&self.name).await;
        let window = found.map(|stream| stream.cached_info().config.duplicate_window);
        if let Some(window) = window.ok().filter(|window| *window > WINDOW) {
            tracing::warn!(
                "the stream {} was made by somebody else and recognises repeats for {window:?}: what \
                 is sent again within that time does not come twice",
                self.name
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
                "start the server with JetStream (-js, or jetstream {} in its file), and let this \
                  account use it"
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
        // It is there, so nothing is made.
        match self.topology().ensure(client).await {
            Ok(()) => Ok(Vec::new()),
            Err(TopologyError::Unavailable(why)) => Ok(vec![unavailable(why)]),
            Err(error) => Ok(vec![Finding {
                severity: Severity::Error,
                code: "nats-stream",
                found: error.to_string(),
                fix: "change the stream by hand as it says, or choose another name".to_owned(),
            }]),
        }
    }

    /// What a RabbitMQ that answered has to say against this set-up.
    ///
    /// # Errors
    /// It did not answer, or was never asked.
    fn amqp_finding(&self, error: SetupError) -> Result<Finding, ExitError> {
        let (code, fix) = match &error {
            SetupError::Differs { .. } => (
                "amqp-exchange",
                "delete it if nobody needs it, or choose another name with --broker-name",
            ),
            SetupError::Denied { .. } => {
                ("amqp-denied", "see that user and password are right, and what the user may do")
            }
            SetupError::Unavailable { .. } | SetupError::Setting { .. } => {
                return Err(self.unset(error));
            }
        };
        let (severity, found, fix) = (Severity::Error, error.to_string(), fix.to_owned());
        Ok(Finding { severity, code, found, fix })
    }

    /// Why RabbitMQ cannot be used: only one that does not answer is out of reach.
    pub(crate) fn unset(&self, error: SetupError) -> ExitError {
        match error {
            SetupError::Unavailable { .. } => self.away(error),
            SetupError::Setting { .. } => ExitError::usage(format_args!("{}: {error}", self.url)),
            SetupError::Differs { .. } | SetupError::Denied { .. } => {
                ExitError::failed(format_args!("{}: {error}", self.url))
            }
        }
    }

    /// It cannot be reached, said with its address.
    pub(crate) fn away(&self, error: impl std::error::Error + 'static) -> ExitError {
        let url = &self.url;
        ExitError::unreachable(format_args!("cannot reach the broker {url}: {}", chain(&error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_which_broker_it_means() {
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
    fn a_name_is_one_that_every_broker_takes() {
        let named = |name: &str| BrokerHandle::new("bus".parse().unwrap(), name);
        assert!(named("semel-demo_2").is_ok() && named(&"a".repeat(40)).is_ok());
        for wrong in ["", "a b", "a.b", "a*", "{a}", "ä", &"a".repeat(41)] {
            assert!(named(wrong).is_err(), "{wrong}");
        }
    }
}
