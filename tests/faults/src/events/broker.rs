//! The brokers under test: how each is started, reached, cut off and killed.
//!
//! Every run has its own server, because it is killed, behind a proxy whose connections are cut.
//! Children connect to the proxy. `semel-server`'s `broker` reads the URLs of operators and reports what
//! is wrong with them; it has no use here.

use std::fmt;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use semel_amqp::{AmqpPublisher, AmqpSource};
use semel_core::inbox::{Consumer, Group, Source};
use semel_core::outbox::Publisher;
use semel_nats::{NatsPublisher, NatsSource, Topology};
use semel_redis::stream::Streams;
use semel_servers::{Nats, Options, RabbitMq, Redis, Server};
use semel_testkit::proxy::FaultProxy;

use super::child::{GROUPS, ORDERED, Role};
use super::table::EventStore;
use crate::BoxError;

/// Few, so that RabbitMQ restarts with few queues.
const PARTITIONS: u16 = 8;
/// How long a broker waits for a consumer whose end it does not notice.
const PATIENCE: Duration = Duration::from_secs(1);

/// A broker and its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broker {
    /// The bus inside the process.
    Bus,
    /// NATS JetStream on this port.
    Nats(u16),
    /// RabbitMQ on this port.
    RabbitMq(u16),
    /// Redis Streams on this port.
    Streams(u16),
}

/// A function over a publisher of any type.
pub(super) trait Drive: Send {
    fn drive(self, publisher: impl Publisher) -> impl Future<Output = Result<(), BoxError>> + Send;
}

impl Broker {
    /// Parses `name` or `name:port`.
    ///
    /// # Errors
    /// An unknown name, with the list of names.
    pub fn named(name: &str) -> Result<Self, BoxError> {
        let (name, port) = name.split_once(':').unwrap_or((name, "0"));
        let port = port.parse()?;
        match name {
            "bus" => Ok(Broker::Bus),
            "nats" => Ok(Broker::Nats(port)),
            "rabbitmq" => Ok(Broker::RabbitMq(port)),
            "streams" => Ok(Broker::Streams(port)),
            other => {
                Err(format!("no broker {other:?}; give bus, nats, rabbitmq or streams").into())
            }
        }
    }

    const fn name(&self) -> &'static str {
        match self {
            Broker::Bus => "bus",
            Broker::Nats(_) => "nats",
            Broker::RabbitMq(_) => "rabbitmq",
            Broker::Streams(_) => "streams",
        }
    }

    /// Starts a private server and a proxy in front of it; the bus has neither.
    pub(super) async fn start(self) -> Result<Running, BoxError> {
        let start = match self {
            Broker::Bus => return Ok(Running { broker: self, behind: None }),
            Broker::Nats(_) => Nats::start,
            Broker::RabbitMq(_) => RabbitMq::start,
            Broker::Streams(_) => Redis::start,
        };
        let durable = match self {
            // Acknowledged writes survive a `kill -9`.
            Broker::Streams(_) => {
                Options::new().flags(["--appendonly", "yes", "--appendfsync", "always"])
            }
            Broker::Bus | Broker::Nats(_) | Broker::RabbitMq(_) => Options::new(),
        };
        let server = tokio::task::spawn_blocking(move || start(durable)).await??;
        let proxy =
            FaultProxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()))).await?;
        let port = proxy.addr().port();
        let broker = match self {
            Broker::Bus => Broker::Bus,
            Broker::Nats(_) => Broker::Nats(port),
            Broker::RabbitMq(_) => Broker::RabbitMq(port),
            Broker::Streams(_) => Broker::Streams(port),
        };
        Ok(Running { broker, behind: Some((server, proxy)) })
    }

    /// Runs `drive` with a publisher.
    pub(super) async fn publish_with(&self, drive: impl Drive) -> Result<(), BoxError> {
        match self {
            Broker::Bus => Err("the bus is in the relay's own process".into()),
            Broker::Nats(port) => {
                let client = retried(|| async { Ok(semel_nats::connect(&nats(*port)).await?) });
                drive.drive(NatsPublisher::new(client.await?, topology())?).await
            }
            Broker::RabbitMq(port) => {
                let publisher = AmqpPublisher::builder(&amqp(*port)).timeout(PATIENCE * 2);
                drive.drive(publisher.build()?).await
            }
            Broker::Streams(port) => {
                let streams = retried(|| async { Ok(streams(*port).await?) }).await?;
                drive.drive(streams.publisher()).await
            }
        }
    }

    /// Consumes with every group until the process ends.
    pub(super) async fn consume_with<S: EventStore>(
        &self,
        groups: impl IntoIterator<Item = Group<S>> + Send,
    ) -> Result<(), BoxError> {
        let mut consuming = Vec::new();
        for group in groups.into_iter().collect::<Vec<_>>() {
            let name = group.name().to_owned();
            consuming.push(match self {
                Broker::Bus => return Err("the bus is in the relay's own process".into()),
                Broker::Nats(port) => {
                    let client = retried(|| async { Ok(semel_nats::connect(&nats(*port)).await?) });
                    start(group, nats_source(client.await?, &name)?)?
                }
                Broker::RabbitMq(port) => start(group, amqp_source(*port, &name)?)?,
                Broker::Streams(port) => {
                    let source = retried(|| async {
                        let source = stream_source(&streams(*port).await?, &name);
                        Ok(source.open().await?)
                    });
                    start(group, source.await?)?
                }
            });
        }
        std::future::pending().await
    }

    /// Creates streams and queues before the first publish: an event without a route waits.
    pub(super) async fn prepare(&self) -> Result<(), BoxError> {
        match self {
            Broker::Bus => {}
            Broker::Nats(port) => {
                let client = semel_nats::connect(&nats(*port)).await?;
                topology().ensure(&client).await?;
            }
            Broker::RabbitMq(port) => {
                for group in GROUPS {
                    // Slow on a broker that has just started.
                    let source = amqp_builder(*port, group).timeout(Duration::from_secs(60));
                    drop(source.connect().await?);
                }
            }
            Broker::Streams(port) => {
                for group in GROUPS {
                    drop(stream_source(&streams(*port).await?, group).open().await?);
                }
            }
        }
        Ok(())
    }
}

fn start<S: EventStore>(
    group: Group<S>,
    source: impl Source,
) -> Result<semel_core::inbox::Consuming, BoxError> {
    let consumer = Consumer::new(group, source)?.at_once(usize::from(PARTITIONS));
    Ok(consumer.retry_every(Duration::from_millis(200)).start())
}

fn nats(port: u16) -> String {
    format!("nats://127.0.0.1:{port}")
}

fn amqp(port: u16) -> String {
    format!("amqp://guest:guest@127.0.0.1:{port}/%2f")
}

fn topology() -> Topology {
    Topology::default().partitions(PARTITIONS)
}

fn nats_source(
    client: semel_nats::async_nats::Client,
    group: &str,
) -> Result<NatsSource, BoxError> {
    let source = NatsSource::builder(client, topology(), group);
    Ok(source.ordered(group == ORDERED).ack_wait(PATIENCE).build()?)
}

fn amqp_builder(port: u16, group: &str) -> semel_amqp::SourceBuilder {
    let source = AmqpSource::builder(&amqp(port), group).patience(PATIENCE);
    if group == ORDERED { source.ordered(PARTITIONS) } else { source }
}

fn amqp_source(port: u16, group: &str) -> Result<AmqpSource, BoxError> {
    Ok(amqp_builder(port, group).build()?)
}

fn stream_source(streams: &Streams, group: &str) -> semel_redis::stream::SourceBuilder {
    let source = streams.source(group).patience(PATIENCE);
    if group == ORDERED { source.ordered() } else { source }
}

async fn streams(port: u16) -> semel_core::store::Result<Streams> {
    let streams = Streams::builder().partitions(PARTITIONS);
    streams.connect(&format!("redis://127.0.0.1:{port}")).await
}

/// Retries `open` while the broker restarts.
async fn retried<T, F, Fut>(open: F) -> Result<T, BoxError>
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<T, BoxError>>,
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
        match self {
            Broker::Bus => f.write_str("bus"),
            Broker::Nats(port) | Broker::RabbitMq(port) | Broker::Streams(port) => {
                write!(f, "{}:{port}", self.name())
            }
        }
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
        self.broker.clone()
    }

    /// Returns the short name that reports show.
    pub(super) fn name(&self) -> &'static str {
        self.broker.name()
    }

    /// Returns the roles of the children.
    pub(super) fn roles(&self) -> &'static [Role] {
        match self.broker {
            Broker::Bus => &[Role::Relay, Role::Relay],
            Broker::Nats(_) | Broker::RabbitMq(_) | Broker::Streams(_) => {
                &[Role::Relay, Role::Relay, Role::Consumer, Role::Consumer]
            }
        }
    }

    /// RabbitMQ 3.10 forgets a quorum queue that was declared less than about a second before a
    /// `kill -9`, however much it confirmed into it. Waits until all are on its disk.
    pub(super) async fn settle(&self) -> Result<(), BoxError> {
        let (Broker::RabbitMq(_), Some((server, _))) = (&self.broker, &self.behind) else {
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
