//! A prefix for each test on a server, for the suite of brokers.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use semel_core::AttemptId;
use semel_redis::{StreamPublisher, StreamSource, Streams};
use semel_servers::{Options, Redis, Server};
use semel_testkit::BrokerFixture;

pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// A time limit that is not exceeded even on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Streams that no other test uses.
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) prefix: String,
    /// The server, if this test has a private one.
    server: Option<Arc<Mutex<Server>>>,
}

impl Place {
    pub(crate) async fn at(variable: &str) -> Self {
        let url = std::env::var(variable).unwrap_or_else(|_| {
            panic!("set {variable} or run `cargo xtask test`, which starts the servers")
        });
        Self { url, prefix: prefix(), server: None }
    }

    /// Starts a private server that writes to its disk before it answers.
    pub(crate) async fn private() -> Self {
        let start = || Redis::start(Options::new().flags(["--appendfsync", "always"]));
        let server = tokio::task::spawn_blocking(start)
            .await
            .expect("the server answers")
            .expect("the server answers");
        let url = server.url().to_owned();
        Self { url, prefix: prefix(), server: Some(Arc::new(Mutex::new(server))) }
    }

    pub(crate) async fn streams(&self) -> Streams {
        Streams::builder()
            .prefix(&self.prefix)
            .connect_timeout(LONG)
            .response_timeout(LONG)
            .connect(&self.url)
            .await
            .expect("the server answers")
    }

    /// Returns the key of a partition's stream.
    pub(crate) fn key(&self, partition: u16) -> String {
        format!("{{{}:{partition}}}", self.prefix)
    }

    /// Runs a command without the streams.
    pub(crate) async fn raw<T: redis::FromRedisValue>(&self, command: &mut redis::Cmd) -> T {
        match self.url.strip_prefix("redis+cluster://") {
            None => {
                let client = redis::Client::open(&*self.url).expect("the server answers");
                // The client's own limit would be half a second.
                let patient = redis::AsyncConnectionConfig::new();
                let patient = patient.set_connection_timeout(Some(LONG));
                let patient = patient.set_response_timeout(Some(LONG));
                let connection = client.get_multiplexed_async_connection_with_config(&patient);
                let mut connection = connection.await.expect("the server answers");
                command.query_async(&mut connection).await.expect("the server answers")
            }
            Some(nodes) => {
                let nodes = nodes.split(',').map(|node| format!("redis://{node}"));
                let client = redis::cluster::ClusterClient::builder(nodes);
                let client = client.connection_timeout(LONG).response_timeout(LONG);
                let client = client.build().expect("the server answers");
                let mut connection =
                    client.get_async_connection().await.expect("the server answers");
                command.query_async(&mut connection).await.expect("the server answers")
            }
        }
    }

    pub(crate) async fn with_server<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Server) -> T + Send + 'static,
    ) -> T {
        let server = Arc::clone(self.server.as_ref().expect("a server of its own"));
        let acting = move || act(&mut server.lock().unwrap_or_else(PoisonError::into_inner));
        tokio::task::spawn_blocking(acting).await.expect("the server answers")
    }
}

fn prefix() -> String {
    let unique = AttemptId::generate().to_bytes();
    let unique: String = unique.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("test:{unique}")
}

impl BrokerFixture for Place {
    type Publisher = StreamPublisher;
    type Source = StreamSource;

    async fn publisher(&self) -> StreamPublisher {
        self.streams().await.publisher()
    }

    async fn source(&self, group: &str, ordered: bool) -> StreamSource {
        let source = self.streams().await.source(group).patience(PATIENCE);
        let source = if ordered { source.ordered() } else { source };
        source.open().await.expect("the server answers")
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    async fn put_raw(&self, bytes: Bytes) {
        let mut add = redis::cmd("XADD");
        let _: String = self.raw(add.arg(self.key(5)).arg("*").arg("event").arg(&bytes[..])).await;
    }

    async fn kill(&self) {
        self.with_server(|server| server.kill9().expect("it dies")).await;
    }

    async fn revive(&self) {
        self.with_server(|server| server.restart().expect("it starts again")).await;
    }
}
