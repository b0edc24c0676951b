//! A stream for every test, and helpers for the tests.

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::{self, stream};
use bytes::Bytes;
use semel_core::event::{Event, EventId};
use semel_core::inbox::{BrokerReply, Message as _, Source as _};
use semel_core::outbox::{PublishError, Publisher as _};
use semel_nats::{NatsMessage, NatsPublisher, NatsSource, SourceBuilder, Topology, async_nats};
use semel_servers::{Fleet, Nats, Options, Server};
use semel_testkit::BrokerFixture;

/// A time limit that is exceeded only by something that never happens.
const LIMIT: Duration = Duration::from_secs(60);
/// How long the server waits for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// A stream, and the server that has it.
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) topology: Topology,
    /// The server, if this test has a private one.
    server: Option<Mutex<Server>>,
}

impl Place {
    /// Creates a stream on the server that all tests share.
    pub(crate) async fn shared() -> Self {
        let url = std::env::var(Fleet::NATS_URL).unwrap_or_else(|_| {
            panic!("set {} or run `cargo xtask test`, which starts the servers", Fleet::NATS_URL)
        });
        Self::with_stream(url, None).await
    }

    /// Creates a stream on a private server.
    pub(crate) async fn private() -> Self {
        let server = Nats::start(Options::new()).expect("a server starts");
        Self::with_stream(server.url().to_owned(), Some(Mutex::new(server))).await
    }

    async fn with_stream(url: String, server: Option<Mutex<Server>>) -> Self {
        let place = Self { url, topology: topology(), server };
        place.topology.ensure(&place.client().await).await.expect("the stream is made");
        place
    }

    pub(crate) async fn client(&self) -> async_nats::Client {
        semel_nats::connect(&self.url).await.expect("the server answers")
    }

    pub(crate) async fn publisher(&self) -> NatsPublisher {
        let publisher = NatsPublisher::builder(self.client().await, self.topology.clone());
        publisher.timeout(self.timeout()).build().expect("sound settings")
    }

    pub(crate) async fn source(&self, group: &str) -> SourceBuilder {
        let source = NatsSource::builder(self.client().await, self.topology.clone(), group);
        source.ack_wait(PATIENCE).timeout(self.timeout())
    }

    /// Returns how long the server may take to confirm. The shared server is busy but never dies; a
    /// private one is killed, so waiting for it must end soon.
    fn timeout(&self) -> Duration {
        if self.server.is_some() { Duration::from_secs(15) } else { LIMIT / 2 }
    }

    /// Returns the stream from the server.
    pub(crate) async fn stream(&self) -> stream::Stream {
        let context = jetstream::new(self.client().await);
        context.get_stream(name(&self.topology)).await.expect("the stream is there")
    }

    /// Returns how many messages the stream has.
    pub(crate) async fn stored(&self) -> u64 {
        self.stream().await.cached_info().state.messages
    }

    /// Runs `act` on the private server.
    pub(crate) fn to_server<T>(&self, act: impl FnOnce(&mut Server) -> T) -> T {
        let server = self.server.as_ref().expect("a private server");
        tokio::task::block_in_place(|| {
            act(&mut server.lock().unwrap_or_else(PoisonError::into_inner))
        })
    }
}

/// Returns a topology that no other test uses.
pub(crate) fn topology() -> Topology {
    let unique = EventId::generate().to_string();
    Topology::default().stream(&format!("T_{unique}")).prefix(&format!("t.{unique}"))
}

/// Returns the name of a topology's stream, derived from the subjects.
pub(crate) fn name(topology: &Topology) -> String {
    let subjects = topology.subjects();
    let unique = subjects[0].split('.').nth(1).expect("a prefix of two tokens");
    format!("T_{unique}")
}

pub(crate) fn event() -> Event {
    Event::builder("acme", "order.placed", "/orders").json(&"once").build().expect("an event")
}

pub(crate) fn events(count: usize) -> Vec<Event> {
    (0..count).map(|_| event()).collect()
}

/// Waits for a future, and panics if it takes longer than [`LIMIT`].
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(done) => done,
        Err(_) => panic!("not within {LIMIT:?}: {what}"),
    }
}

/// Publishes one event.
pub(crate) async fn publish(publisher: &NatsPublisher, event: &Event) -> Result<(), PublishError> {
    let answers = within("an answer", publisher.publish(std::slice::from_ref(event))).await;
    let [answer] = <[_; 1]>::try_from(answers).expect("one answer");
    answer
}

/// Publishes one event until the server has confirmed it.
pub(crate) async fn publish_until_confirmed(publisher: &NatsPublisher, event: &Event) {
    let publish_until_confirmeding = async {
        while publish(publisher, event).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within("the server confirms", publish_until_confirmeding).await;
}

/// Waits for the next message, retrying while the broker cannot be reached.
pub(crate) async fn next(source: &NatsSource) -> NatsMessage {
    let asking = async {
        loop {
            match source.next().await {
                Ok(message) => return message,
                Err(error) => {
                    // Shown only if the test fails.
                    println!("{error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    };
    within("a message comes", asking).await
}

/// Takes the next message and acks it.
pub(crate) async fn take(source: &NatsSource) -> Event {
    let message = next(source).await;
    within("the server confirms", message.answer(BrokerReply::Ack))
        .await
        .expect("the server is there");
    message.envelope().expect("an event")
}

impl BrokerFixture for Place {
    type Publisher = NatsPublisher;
    type Source = NatsSource;

    async fn publisher(&self) -> NatsPublisher {
        Place::publisher(self).await
    }

    async fn source(&self, group: &str, ordered: bool) -> NatsSource {
        Place::source(self, group).await.ordered(ordered).build().expect("sound settings")
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    async fn put_raw(&self, bytes: Bytes) {
        let context = jetstream::new(self.client().await);
        let subject = self.topology.subjects()[0].replace('>', "raw");
        let sent = context.publish(subject, bytes).await.expect("the server answers");
        sent.await.expect("the stream takes it");
    }

    async fn kill(&self) {
        // The server writes a confirmed ack to disk within about 100 ms, and there is no signal for
        // that. Killed before, it delivers the message again: that is how NATS works, and not what
        // the suite tests.
        tokio::time::sleep(Duration::from_secs(3)).await;
        self.to_server(|server| server.kill9().expect("it dies"));
    }

    async fn revive(&self) {
        self.to_server(|server| server.restart().expect("it starts again"));
    }
}
