//! An exchange of its own for each test, on the broker given by the environment or on a private
//! one, and a plain client to inspect the broker.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use lapin::message::BasicGetMessage;
use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ExchangeDeleteOptions, QueueDeleteOptions,
};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use semel_amqp::{
    AmqpMessage, AmqpPublisher, AmqpSource, BUCKETS, PublisherBuilder, SourceBuilder,
};
use semel_core::AttemptId;
use semel_core::event::Event;
use semel_core::inbox::{BrokerReply, Message as _, Source as _};
use semel_core::outbox::{PublishError, Publisher as _};
use semel_servers::{Options, RabbitMq, Server};
use semel_testkit::BrokerFixture;

/// A time limit that is exceeded only by something that never happens.
const LIMIT: Duration = Duration::from_secs(90);
const PATIENCE: Duration = Duration::from_secs(2);
/// The number of queues of an ordered group.
const QUEUES: u16 = 3;
pub(crate) const GROUP: &str = "billing";

/// An exchange and its queues, which are deleted when this is dropped.
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) exchange: String,
    queues: Mutex<BTreeSet<String>>,
    server: Option<Arc<Mutex<Server>>>,
}

impl Place {
    /// Uses the broker of the test run.
    pub(crate) async fn new() -> Self {
        let variable = "SEMEL_TEST_AMQP_URL";
        let url = std::env::var(variable).unwrap_or_else(|_| {
            panic!("set {variable} or run `cargo xtask test`, which starts the servers")
        });
        Self::at(url, None)
    }

    /// Starts a broker for this test alone.
    pub(crate) async fn alone() -> Self {
        Self::alone_with(Options::new()).await
    }

    pub(crate) async fn alone_with(options: Options) -> Self {
        let starting = tokio::task::spawn_blocking(|| RabbitMq::start(options));
        let server = starting.await.expect("no panic").expect("RabbitMQ starts");
        Self::at(server.url().to_owned(), Some(Arc::new(Mutex::new(server))))
    }

    fn at(url: String, server: Option<Arc<Mutex<Server>>>) -> Self {
        let unique: String =
            AttemptId::generate().to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        Self { url, exchange: format!("test-{unique}"), queues: Mutex::default(), server }
    }

    pub(crate) fn publisher(&self) -> PublisherBuilder {
        AmqpPublisher::builder(&self.url).exchange(&self.exchange).timeout(self.timeout())
    }

    /// Returns how long the broker may take to confirm. The shared broker is busy but never dies; a
    /// private one is killed, so waiting for it must end soon.
    fn timeout(&self) -> Duration {
        if self.server.is_some() { Duration::from_secs(15) } else { LIMIT / 2 }
    }

    pub(crate) fn source(&self, group: &str, ordered: bool) -> SourceBuilder {
        let builder = AmqpSource::builder(&self.url, group)
            .exchange(&self.exchange)
            .patience(PATIENCE)
            .timeout(self.timeout())
            .tenant("foreign");
        let mut queues = self.queues.lock().expect("no panic");
        queues.insert(self.queue(group, ".dead"));
        if ordered {
            queues.extend((0..QUEUES).map(|it| self.queue(group, &format!(".p{it}"))));
            return builder.ordered(QUEUES);
        }
        queues.extend([self.queue(group, ""), self.queue(group, ".retry.1s")]);
        builder
    }

    pub(crate) fn queue(&self, group: &str, what: &str) -> String {
        format!("{}.{group}{what}", self.exchange)
    }

    /// Kills the broker and starts it again.
    pub(crate) async fn kill_and_restart(&self) {
        BrokerFixture::restart(self).await;
    }

    async fn kill9(&self) {
        let server = Arc::clone(self.server.as_ref().expect("only a private broker is killed"));
        let queues = self.queues.lock().expect("no panic").clone();
        let killing = tokio::task::spawn_blocking(move || {
            let mut server = server.lock().expect("no panic");
            // A queue that was declared a moment ago would be lost.
            for queue in queues {
                while !RabbitMq::has_stored(&server, &queue) {
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
            server.kill9().expect("it is there");
        });
        within("the broker is dead", killing).await.expect("no panic");
    }

    /// Stops the broker's process without ending it.
    pub(crate) async fn pause(&self) {
        self.server().lock().expect("no panic").pause().expect("it is there");
    }

    pub(crate) async fn resume(&self) {
        self.server().lock().expect("no panic").resume().expect("it is there");
    }

    fn server(&self) -> &Mutex<Server> {
        self.server.as_ref().expect("only a private broker is harmed")
    }

    /// Returns a client that does not use the crate.
    pub(crate) async fn client(&self) -> Client {
        let properties = ConnectionProperties::default();
        let connecting = Connection::connect(&self.url, properties);
        let connection = within("connecting", connecting).await.expect("the broker is there");
        let channel = connection.create_channel().await.expect("the broker is there");
        Client { _connection: connection, channel }
    }
}

pub(crate) struct Client {
    _connection: Connection,
    pub(crate) channel: Channel,
}

impl Client {
    /// Publishes a message with any properties.
    pub(crate) async fn put(&self, exchange: &str, bytes: &[u8], properties: BasicProperties) {
        let options = BasicPublishOptions::default();
        let sent =
            self.channel.basic_publish(exchange.into(), "0.any".into(), options, bytes, properties);
        sent.await.expect("the broker is there").await.expect("the broker is there");
    }

    /// Waits for a message of a queue and takes it.
    pub(crate) async fn get(&self, queue: &str) -> BasicGetMessage {
        let getting = async {
            loop {
                let options = BasicGetOptions { no_ack: true };
                let got = self.channel.basic_get(queue.into(), options).await;
                if let Some(message) = got.expect("the queue is there") {
                    return message;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        within("a message is in the queue", getting).await
    }
}

impl BrokerFixture for Place {
    type Publisher = AmqpPublisher;
    type Source = AmqpSource;

    async fn publisher(&self) -> AmqpPublisher {
        Place::publisher(self).connect().await.expect("the broker is there")
    }

    async fn source(&self, group: &str, ordered: bool) -> AmqpSource {
        Place::source(self, group, ordered).connect().await.expect("the broker is there")
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    /// Partitions of two buckets may still share a queue; those that the suite uses do not.
    fn partitions(&self) -> u16 {
        BUCKETS
    }

    async fn put_raw(&self, bytes: Bytes) {
        self.client().await.put(&self.exchange, &bytes, BasicProperties::default()).await;
    }

    async fn kill(&self) {
        self.kill9().await;
    }

    async fn revive(&self) {
        let server = Arc::clone(self.server.as_ref().expect("only a private broker is killed"));
        let reviving = tokio::task::spawn_blocking(move || {
            server.lock().expect("no panic").restart().expect("it starts again");
        });
        within("the broker is back", reviving).await.expect("no panic");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.server.is_some() {
            return;
        }
        let queues = std::mem::take(&mut *self.queues.lock().expect("no panic"));
        let (url, exchange) = (self.url.clone(), self.exchange.clone());
        // On another thread, because the test's runtime is busy dropping this.
        let cleaning = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a thread of its own").block_on(async {
                let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
                let channel = connection.create_channel().await?;
                for queue in queues {
                    channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await?;
                }
                channel.exchange_delete(exchange.into(), ExchangeDeleteOptions::default()).await?;
                connection.close(200, "done".into()).await
            })
        });
        // Anything left behind ends with the broker.
        let _ = cleaning.join();
    }
}

/// Waits for a future, and panics if it takes longer than [`LIMIT`].
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(done) => done,
        Err(_) => panic!("not within {LIMIT:?}: {what}"),
    }
}

/// Returns an event about an order.
pub(crate) fn about(order: &str) -> Event {
    let event = Event::builder("acme", "order.placed", "/orders").about("order", order);
    event.json(&order).build().expect("a valid event")
}

/// Waits for the next message, retrying while the broker cannot be reached.
pub(crate) async fn next(source: &AmqpSource) -> AmqpMessage {
    let asking = async {
        loop {
            match source.next().await {
                Ok(message) => return message,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    within("a message comes", asking).await
}

/// Takes the next message, acks it and returns its event.
pub(crate) async fn take(source: &AmqpSource) -> Event {
    let message = next(source).await;
    message.answer(BrokerReply::Ack).await.expect("the broker is there");
    message.envelope().expect("the message is an event")
}

/// Publishes until the broker has confirmed the event, as a relay does.
pub(crate) async fn publish_until_confirmed(publisher: &AmqpPublisher, event: &Event) {
    let publish_until_confirmeding = async {
        loop {
            match &publisher.publish(std::slice::from_ref(event)).await[..] {
                [Ok(())] => return,
                [Err(PublishError::Unavailable(_) | PublishError::Failed(_))] => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                other => panic!("a broker that is away refuses nothing: {other:?}"),
            }
        }
    };
    within("the broker confirms", publish_until_confirmeding).await;
}
