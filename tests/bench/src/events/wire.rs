//! The brokers: Semel's publisher for each, the client library alone, and the number of messages in
//! the broker.
//!
//! All names on the brokers are private to the run and removed afterwards.

use std::future::Future;

use bytes::Bytes;
use futures_util::future::try_join_all;
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeleteOptions, QueueDeclareOptions,
    QueueDeleteOptions, QueuePurgeOptions,
};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use redis::aio::MultiplexedConnection;
use semel_amqp::{AmqpPublisher, AmqpSource};
use semel_core::Event;
use semel_core::outbox::{Publisher, partition};
use semel_nats::async_nats::jetstream::{self, context::Context};
use semel_nats::async_nats::{Client, HeaderMap};
use semel_nats::{NatsPublisher, Topology};
use semel_redis::stream::{StreamPublisher, Streams};

use super::KIND;
use crate::BoxError;
use crate::pool::ReferencePool;

/// The publishers' default number of partitions.
pub(super) const PARTITIONS: u16 = 16;

/// What a hand-written relay publishes.
pub(super) struct BareMessage {
    pub(super) id: String,
    /// One of the broker's partitions.
    pub(super) partition: u16,
    pub(super) payload: Bytes,
}

/// A broker and its contenders.
pub(super) trait Wire: Send + Sync + Sized + 'static {
    /// The name of the benchmark in reports.
    const BENCH: &'static str;
    /// The name of [`raw`](Self::raw) in reports.
    const RAW: &'static str;

    type Publisher: Publisher + Clone;

    /// Connects, and creates what the benchmark needs on the broker.
    fn connect() -> impl Future<Output = Result<Self, BoxError>> + Send;

    fn publisher(&self) -> Self::Publisher;

    /// Publishes a batch with the client library alone, and waits until all of it is confirmed.
    fn raw(&self, events: &[Event]) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// The same for messages of a hand-written relay, with nothing beside id and payload.
    fn bare(&self, messages: &[BareMessage]) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Returns the number of messages that the broker has.
    fn held(&self) -> impl Future<Output = Result<u64, BoxError>> + Send;

    /// Removes all messages.
    fn clear(&self) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Removes what [`connect`](Self::connect) created.
    fn remove(self) -> impl Future<Output = Result<(), BoxError>> + Send;
}

fn url(variable: &str) -> Result<String, BoxError> {
    std::env::var(variable).map_err(|_| {
        format!("set {variable} or run `cargo xtask bench events`, which starts the servers").into()
    })
}

/// NATS JetStream.
pub(super) struct Nats {
    pub(super) client: Client,
    pub(super) topology: Topology,
    context: Context,
    publisher: NatsPublisher,
    name: String,
}

impl Wire for Nats {
    const BENCH: &'static str = "relay to NATS";
    const RAW: &'static str = "async-nats alone";

    type Publisher = NatsPublisher;

    async fn connect() -> Result<Self, BoxError> {
        let client = semel_nats::connect(&url("SEMEL_TEST_NATS_URL")?).await?;
        let name = format!("bench{}", std::process::id());
        let topology = Topology::default().stream(&name).prefix(&name).partitions(PARTITIONS);
        topology.ensure(&client).await?;
        let publisher = NatsPublisher::new(client.clone(), topology.clone())?;
        let context = jetstream::new(client.clone());
        Ok(Self { client, topology, context, publisher, name })
    }

    fn publisher(&self) -> NatsPublisher {
        self.publisher.clone()
    }

    async fn raw(&self, events: &[Event]) -> Result<(), BoxError> {
        let mut confirms = Vec::with_capacity(events.len());
        for event in events {
            let label = format!("{}.{}.{KIND}", self.name, partition(event, PARTITIONS));
            let mut headers = HeaderMap::new();
            headers.insert("Nats-Msg-Id", event.id().to_string());
            let payload = event.payload().clone();
            let sent = self.context.publish_with_headers(label, headers, payload).await?;
            confirms.push(sent.into_future());
        }
        try_join_all(confirms).await?;
        Ok(())
    }

    async fn bare(&self, messages: &[BareMessage]) -> Result<(), BoxError> {
        let mut confirms = Vec::with_capacity(messages.len());
        for BareMessage { id, partition, payload } in messages {
            let label = format!("{}.{partition}.{KIND}", self.name);
            let mut headers = HeaderMap::new();
            headers.insert("Nats-Msg-Id", id.as_str());
            let sent = self.context.publish_with_headers(label, headers, payload.clone()).await?;
            confirms.push(sent.into_future());
        }
        try_join_all(confirms).await?;
        Ok(())
    }

    async fn held(&self) -> Result<u64, BoxError> {
        Ok(self.context.get_stream(&self.name).await?.cached_info().state.messages)
    }

    async fn clear(&self) -> Result<(), BoxError> {
        self.context.get_stream(&self.name).await?.purge().await?;
        Ok(())
    }

    async fn remove(self) -> Result<(), BoxError> {
        self.context.delete_stream(&self.name).await?;
        Ok(())
    }
}

/// RabbitMQ, with one quorum queue.
pub(super) struct RabbitMq {
    publisher: AmqpPublisher,
    /// A channel without confirms. It ends with its connection.
    channel: Channel,
    confirming: ReferencePool<Channel>,
    exchange: ShortString,
    queue: ShortString,
    _connection: Connection,
}

impl Wire for RabbitMq {
    const BENCH: &'static str = "relay to RabbitMQ";
    const RAW: &'static str = "lapin alone";

    type Publisher = AmqpPublisher;

    async fn connect() -> Result<Self, BoxError> {
        let url = url("SEMEL_TEST_AMQP_URL")?;
        let exchange = format!("bench{}", std::process::id());
        let source = AmqpSource::builder(&url, "BENCH").exchange(&exchange).connect().await?;
        drop(source);
        let publisher = AmqpPublisher::builder(&url).exchange(&exchange);
        let publisher = publisher.connect().await?;
        let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
        let mut channels = Vec::new();
        for _ in 0..2 {
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            channels.push(channel);
        }
        Ok(Self {
            publisher,
            channel: connection.create_channel().await?,
            confirming: ReferencePool::new(channels),
            queue: format!("{exchange}.BENCH").into(),
            exchange: exchange.into(),
            _connection: connection,
        })
    }

    fn publisher(&self) -> AmqpPublisher {
        self.publisher.clone()
    }

    async fn raw(&self, events: &[Event]) -> Result<(), BoxError> {
        let channel = self.confirming.take().await;
        let mut confirms = Vec::with_capacity(events.len());
        for event in events {
            let key = format!("{}.{KIND}", partition(event, PARTITIONS));
            let properties = BasicProperties::default()
                .with_message_id(event.id().to_string().into())
                .with_delivery_mode(2);
            let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            let exchange = self.exchange.clone();
            let sent =
                channel.basic_publish(exchange, key.into(), options, event.payload(), properties);
            confirms.push(sent.await?);
        }
        for confirmation in try_join_all(confirms).await? {
            if !matches!(confirmation, lapin::Confirmation::Ack(None)) {
                return Err(format!("not confirmed: {confirmation:?}").into());
            }
        }
        Ok(())
    }

    async fn bare(&self, messages: &[BareMessage]) -> Result<(), BoxError> {
        let channel = self.confirming.take().await;
        let mut confirms = Vec::with_capacity(messages.len());
        for BareMessage { id, partition, payload } in messages {
            let key = format!("{partition}.{KIND}");
            let properties =
                BasicProperties::default().with_message_id(id.clone().into()).with_delivery_mode(2);
            let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            let exchange = self.exchange.clone();
            let sent = channel.basic_publish(exchange, key.into(), options, payload, properties);
            confirms.push(sent.await?);
        }
        for confirmation in try_join_all(confirms).await? {
            if !matches!(confirmation, lapin::Confirmation::Ack(None)) {
                return Err(format!("not confirmed: {confirmation:?}").into());
            }
        }
        Ok(())
    }

    async fn held(&self) -> Result<u64, BoxError> {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = self.channel.queue_declare(self.queue.clone(), passive, FieldTable::default());
        Ok(u64::from(queue.await?.message_count()))
    }

    async fn clear(&self) -> Result<(), BoxError> {
        self.channel.queue_purge(self.queue.clone(), QueuePurgeOptions::default()).await?;
        Ok(())
    }

    async fn remove(self) -> Result<(), BoxError> {
        for part in ["", ".dead", ".retry.1s", ".retry.5s", ".retry.30s", ".retry.5m"] {
            let queue = format!("{}{part}", self.queue);
            self.channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await?;
        }
        let exchange = self.exchange.clone();
        Ok(self.channel.exchange_delete(exchange, ExchangeDeleteOptions::default()).await?)
    }
}

/// Redis Streams.
pub(super) struct RedisStreams {
    publisher: StreamPublisher,
    connection: MultiplexedConnection,
    prefix: String,
}

impl RedisStreams {
    /// Returns the names of the existing streams.
    async fn streams(&self) -> Result<Vec<String>, BoxError> {
        let (mut names, mut cursor) = (Vec::new(), 0_u64);
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor)
                .arg("MATCH")
                .arg(format!("*{}*", self.prefix))
                .arg("COUNT")
                .arg(10_000);
            let (next, mut some): (u64, Vec<String>) =
                scan.arg("TYPE").arg("stream").query_async(&mut self.connection.clone()).await?;
            names.append(&mut some);
            if next == 0 {
                // `SCAN` may return a name twice.
                names.sort_unstable();
                names.dedup();
                return Ok(names);
            }
            cursor = next;
        }
    }
}

impl Wire for RedisStreams {
    const BENCH: &'static str = "relay to Redis";
    const RAW: &'static str = "redis alone, XADD in a pipeline";

    type Publisher = StreamPublisher;

    async fn connect() -> Result<Self, BoxError> {
        let url = url("SEMEL_TEST_REDIS_URL")?;
        let prefix = format!("bench:events:{}:", std::process::id());
        let streams = Streams::builder().prefix(prefix.as_str()).partitions(PARTITIONS);
        let publisher = streams.connect(&url).await?.publisher();
        let client = redis::Client::open(url.as_str())?;
        let connection = client.get_multiplexed_async_connection().await?;
        Ok(Self { publisher, connection, prefix })
    }

    fn publisher(&self) -> StreamPublisher {
        self.publisher.clone()
    }

    async fn raw(&self, events: &[Event]) -> Result<(), BoxError> {
        let mut pipeline = redis::pipe();
        for event in events {
            let stream = format!("{}raw:{}", self.prefix, partition(event, PARTITIONS));
            pipeline.cmd("XADD").arg(stream).arg("*").arg("event").arg(event.to_json()).ignore();
        }
        Ok(pipeline.query_async::<()>(&mut self.connection.clone()).await?)
    }

    async fn bare(&self, messages: &[BareMessage]) -> Result<(), BoxError> {
        let mut pipeline = redis::pipe();
        for BareMessage { id, partition, payload } in messages {
            let stream = format!("{}bare:{partition}", self.prefix);
            let add = pipeline.cmd("XADD").arg(stream).arg("*");
            add.arg("id").arg(id).arg("payload").arg(&payload[..]).ignore();
        }
        Ok(pipeline.query_async::<()>(&mut self.connection.clone()).await?)
    }

    async fn held(&self) -> Result<u64, BoxError> {
        let mut all = 0;
        for stream in self.streams().await? {
            let length = redis::cmd("XLEN").arg(stream).to_owned();
            all += length.query_async::<u64>(&mut self.connection.clone()).await?;
        }
        Ok(all)
    }

    async fn clear(&self) -> Result<(), BoxError> {
        for stream in self.streams().await? {
            let unlink = redis::cmd("UNLINK").arg(stream).to_owned();
            unlink.query_async::<()>(&mut self.connection.clone()).await?;
        }
        Ok(())
    }

    async fn remove(self) -> Result<(), BoxError> {
        self.clear().await
    }
}
