//! Publishers of any broker by its URL, for processes that only send events.

use std::time::Duration;

use semel_amqp::AmqpPublisher;
use semel_core::outbox::AnyPublisher;
use semel_nats::async_nats::Client;
use semel_nats::{NatsPublisher, Topology};
use semel_redis::stream::Streams;

use super::{BrokerHandle, BrokerKind};
use crate::exit::ExitError;

/// The interval at which acknowledged events are removed from Redis Streams.
const TRIM_EVERY: Duration = Duration::from_secs(60);

/// A publisher of events, and what checks and maintains its broker. Cheap to clone.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one in a process, behind a pointer")]
pub(crate) enum BrokerPublisher {
    Nats(NatsPublisher),
    Amqp(AmqpPublisher),
    Redis(Streams),
}

impl BrokerHandle {
    /// Opens a publisher, which creates what is missing on the broker. On NATS and RabbitMQ it connects in the
    /// background, and the broker may be away; a Redis must answer.
    ///
    /// # Errors
    /// The broker is the bus of one process, the URL cannot be used, or a Redis does not answer.
    pub(crate) async fn publisher(&self) -> Result<BrokerPublisher, ExitError> {
        Ok(match self.url.kind {
            BrokerKind::Bus => {
                return Err(ExitError::usage(
                    "bus exists only inside one process; name a broker: nats://…, amqp://…, redis://… or \
                     redis+cluster://…",
                ));
            }
            BrokerKind::Nats => {
                let client = semel_nats::connect_lazy(&self.url.text).await;
                self.over_nats(client.map_err(|error| ExitError::usage(self.away(error)))?)?
            }
            BrokerKind::Amqp => {
                let publisher = AmqpPublisher::builder(&self.url.text).exchange(&self.name);
                BrokerPublisher::Amqp(publisher.build().map_err(|error| self.unset(error))?)
            }
            BrokerKind::Redis => BrokerPublisher::Redis(self.streams().await?),
        })
    }

    /// Opens a publisher as [`publisher`](Self::publisher) does, but waits until NATS has answered.
    ///
    /// # Errors
    /// Also if NATS cannot be reached.
    pub(crate) async fn connected_publisher(&self) -> Result<BrokerPublisher, ExitError> {
        match self.url.kind {
            BrokerKind::Nats => self.over_nats(self.nats().await?),
            BrokerKind::Bus | BrokerKind::Amqp | BrokerKind::Redis => self.publisher().await,
        }
    }

    fn over_nats(&self, client: Client) -> Result<BrokerPublisher, ExitError> {
        let topology = Topology::default().stream(&self.name).prefix(&self.name);
        let publisher = NatsPublisher::builder(client, topology).declare(true).build();
        Ok(BrokerPublisher::Nats(publisher.map_err(ExitError::usage)?))
    }
}

impl BrokerPublisher {
    /// Returns the publisher of events.
    pub(crate) fn events(&self) -> AnyPublisher {
        match self {
            BrokerPublisher::Nats(publisher) => AnyPublisher::new(publisher.clone()),
            BrokerPublisher::Amqp(publisher) => AnyPublisher::new(publisher.clone()),
            BrokerPublisher::Redis(streams) => AnyPublisher::new(streams.publisher()),
        }
    }

    /// Checks that the broker accepts events now.
    ///
    /// # Errors
    /// The reason why it does not.
    pub(crate) async fn check(&self) -> Result<(), String> {
        match self {
            BrokerPublisher::Nats(publisher) => publisher.check().await.map_err(|e| e.to_string()),
            BrokerPublisher::Amqp(publisher) => publisher.check().await.map_err(|e| e.to_string()),
            BrokerPublisher::Redis(streams) => match streams.check().await {
                Ok(_) => Ok(()),
                Err(error) => Err(error.to_string()),
            },
        }
    }

    /// Removes events that every group has acknowledged, or that are older than `keep`, where the broker does
    /// not do so by itself. Runs until it is dropped.
    pub(crate) async fn maintain(&self, keep: Duration) {
        match self {
            BrokerPublisher::Redis(streams) => trim(streams.clone(), keep).await,
            BrokerPublisher::Nats(_) | BrokerPublisher::Amqp(_) => std::future::pending().await,
        }
    }
}

/// Removes the events that every group has acknowledged from Redis, every [`TRIM_EVERY`].
pub(crate) async fn trim(streams: Streams, keep: Duration) {
    loop {
        tokio::time::sleep(TRIM_EVERY).await;
        if let Err(error) = streams.trim(keep).await {
            tracing::warn!(%error, "the Redis streams could not be trimmed; trying again in a minute");
        }
    }
}
