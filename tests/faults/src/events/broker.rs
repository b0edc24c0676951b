//! The brokers under test: how each is started, reached, cut off and killed.
//!
//! Every run has its own server, because it is killed, behind a proxy whose connections are cut.
//! Children connect to the proxy. Operators' URLs, and what can be wrong with them, are the subject of
//! `semel-server`'s `broker`.

use std::fmt;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use semel_amqp::{AmqpPublisher, AmqpSource};
use semel_core::inbox::AnySource;
use semel_core::outbox::AnyPublisher;
use semel_nats::async_nats::Client;
use semel_nats::{NatsPublisher, NatsSource, Topology};
use semel_redis::stream::Streams;
use semel_servers::{Nats, Options, RabbitMq, Redis, Server};
use semel_testkit::proxy::FaultProxy;

use super::child::{GROUPS, ORDERED, Role};
use crate::BoxError;

/// Few, so that RabbitMQ restarts with few queues.
pub(super) const PARTITIONS: u16 = 8;
/// How long a broker waits for a consumer whose end it does not notice.
const PATIENCE: Duration = Duration::from_secs(1);

/// A broker and the port on which it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broker {
    kind: Kind,
    port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Inside the process.
    Bus,
    Nats,
    RabbitMq,
    /// Redis Streams.
    Streams,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Bus, Kind::Nats, Kind::RabbitMq, Kind::Streams];

    const fn name(self) -> &'static str {
        match self {
            Kind::Bus => "bus",
            Kind::Nats => "nats",
            Kind::RabbitMq => "rabbitmq",
            Kind::Streams => "streams",
        }
    }
}

impl Broker {
    /// Parses `name` or `name:port`.
    ///
    /// # Errors
    /// An unknown name, with the list of names.
    pub fn named(name: &str) -> Result<Self, BoxError> {
        let (name, port) = name.split_once(':').unwrap_or((name, "0"));
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        let unknown = || format!("no broker {name:?}; give bus, nats, rabbitmq or streams");
        Ok(Self { kind: kind.ok_or_else(unknown)?, port: port.parse()? })
    }

    /// Returns whether it is the bus, which is in the relay's own process.
    pub(super) fn is_bus(self) -> bool {
        self.kind == Kind::Bus
    }

    /// Starts a private server and a proxy in front of it; the bus has neither.
    pub(super) async fn start(self) -> Result<Running, BoxError> {
        let start = match self.kind {
            Kind::Bus => return Ok(Running { broker: self, behind: None }),
            Kind::Nats => Nats::start,
            Kind::RabbitMq => RabbitMq::start,
            Kind::Streams => Redis::start,
        };
        let mut options = Options::new();
        if self.kind == Kind::Streams {
            // Acknowledged writes survive a `kill -9`.
            options = options.flags(["--appendonly", "yes", "--appendfsync", "always"]);
        }
        let server = tokio::task::spawn_blocking(move || start(options)).await??;
        let proxy =
            FaultProxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()))).await?;
        let broker = Self { port: proxy.addr().port(), ..self };
        Ok(Running { broker, behind: Some((server, proxy)) })
    }

    /// Returns the broker's publisher. Retries while the broker restarts.
    pub(super) async fn publisher(self) -> Result<AnyPublisher, BoxError> {
        retried(|| self.open_publisher()).await
    }

    async fn open_publisher(self) -> Result<AnyPublisher, BoxError> {
        Ok(match self.kind {
            Kind::Bus => return Err("the bus has its own publisher".into()),
            Kind::Nats => AnyPublisher::new(NatsPublisher::new(self.nats().await?, topology())?),
            Kind::RabbitMq => {
                let publisher = AmqpPublisher::builder(&self.amqp()).timeout(PATIENCE * 2);
                AnyPublisher::new(publisher.build()?)
            }
            Kind::Streams => AnyPublisher::new(self.streams().await?.publisher()),
        })
    }

    /// Returns the source of a group's messages. Retries while the broker restarts.
    pub(super) async fn source(self, group: &str) -> Result<AnySource, BoxError> {
        retried(|| self.open_source(group)).await
    }

    async fn open_source(self, group: &str) -> Result<AnySource, BoxError> {
        Ok(match self.kind {
            Kind::Bus => return Err("the bus has no source".into()),
            Kind::Nats => {
                let source = NatsSource::builder(self.nats().await?, topology(), group);
                AnySource::new(source.ordered(group == ORDERED).ack_wait(PATIENCE).build()?)
            }
            Kind::RabbitMq => AnySource::new(self.amqp_source(group).build()?),
            Kind::Streams => AnySource::new(self.stream_source(group).await?.open().await?),
        })
    }

    /// Creates streams and queues before the first publish: an event without a route waits.
    pub(super) async fn prepare(self) -> Result<(), BoxError> {
        match self.kind {
            Kind::Bus => {}
            Kind::Nats => topology().ensure(&self.nats().await?).await?,
            Kind::RabbitMq => {
                for group in GROUPS {
                    // Slow on a broker that has just started.
                    let source = self.amqp_source(group).timeout(Duration::from_secs(60));
                    drop(source.connect().await?);
                }
            }
            Kind::Streams => {
                for group in GROUPS {
                    drop(self.stream_source(group).await?.open().await?);
                }
            }
        }
        Ok(())
    }

    async fn nats(self) -> Result<Client, BoxError> {
        Ok(semel_nats::connect(&format!("nats://127.0.0.1:{}", self.port)).await?)
    }

    fn amqp(self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    fn amqp_source(self, group: &str) -> semel_amqp::SourceBuilder {
        let source = AmqpSource::builder(&self.amqp(), group).patience(PATIENCE);
        if group == ORDERED { source.ordered(PARTITIONS) } else { source }
    }

    async fn streams(self) -> semel_core::store::Result<Streams> {
        let streams = Streams::builder().partitions(PARTITIONS);
        streams.connect(&format!("redis://127.0.0.1:{}", self.port)).await
    }

    async fn stream_source(
        self,
        group: &str,
    ) -> Result<semel_redis::stream::SourceBuilder, BoxError> {
        let source = self.streams().await?.source(group).patience(PATIENCE);
        Ok(if group == ORDERED { source.ordered() } else { source })
    }
}

fn topology() -> Topology {
    Topology::default().partitions(PARTITIONS)
}

/// Retries `open` while the broker restarts.
async fn retried<T, F>(open: impl Fn() -> F) -> Result<T, BoxError>
where
    F: Future<Output = Result<T, BoxError>>,
{
    for _ in 0..300 {
        if let Ok(opened) = open().await {
            return Ok(opened);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    open().await
}

/// The address, which [`Broker::named`] reads back.
impl fmt::Display for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.name(), self.port)
    }
}

/// A running broker.
#[derive(Debug)]
pub struct Running {
    broker: Broker,
    behind: Option<(Server, FaultProxy)>,
}

impl Running {
    /// Returns the address for children.
    pub(super) fn address(&self) -> Broker {
        self.broker
    }

    /// Returns the short name that reports show.
    pub(super) fn name(&self) -> &'static str {
        self.broker.kind.name()
    }

    /// Returns the roles of the children.
    pub(super) fn roles(&self) -> &'static [Role] {
        let all = &[Role::Relay, Role::Relay, Role::Consumer, Role::Consumer];
        // With the bus, relays handle the events too.
        if self.broker.is_bus() { &all[..2] } else { all }
    }

    /// RabbitMQ 3.10 forgets a quorum queue that was declared less than about a second before a
    /// `kill -9`, however much it confirmed into it. Waits until all are on its disk.
    pub(super) async fn settle(&self) -> Result<(), BoxError> {
        let (Kind::RabbitMq, Some((server, _))) = (self.broker.kind, &self.behind) else {
            return Ok(());
        };
        for group in GROUPS {
            let ordered =
                (0..PARTITIONS).map(|at| format!("{}.{group}.p{at}", semel_amqp::EXCHANGE));
            let queues: Vec<String> = match group == ORDERED {
                true => ordered.collect(),
                false => vec![format!("{}.{group}", semel_amqp::EXCHANGE)],
            };
            for queue in queues {
                for _ in 0..1_200 {
                    if RabbitMq::has_stored(server, &queue) {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                if !RabbitMq::has_stored(server, &queue) {
                    return Err(format!("the queue {queue} did not reach the disk").into());
                }
            }
        }
        Ok(())
    }

    /// Resets every connection; returns `false` if there is no proxy.
    pub(super) fn cut_links(&self) -> bool {
        match &self.behind {
            Some((_, proxy)) => {
                proxy.reset_all();
                true
            }
            None => false,
        }
    }

    pub(super) fn can_die(&self) -> bool {
        self.behind.is_some()
    }

    /// Kills the server, waits, and restarts it on its data.
    pub(super) async fn kill_and_restart(&mut self) -> Result<(), BoxError> {
        let Some((mut server, proxy)) = self.behind.take() else { return Ok(()) };
        let server = tokio::task::spawn_blocking(move || {
            server.kill9()?;
            std::thread::sleep(Duration::from_millis(500));
            server.restart()?;
            Ok::<_, semel_servers::Error>(server)
        });
        self.behind = Some((server.await??, proxy));
        Ok(())
    }

    pub(super) async fn stop(self) {
        if let Some((mut server, _)) = self.behind {
            let _ = tokio::task::spawn_blocking(move || server.stop()).await;
        }
    }
}
