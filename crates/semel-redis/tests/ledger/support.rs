//! Shared helpers: a prefix for each test on the servers given by the environment, and a plain
//! client to inspect the records.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use semel_core::store::{BoxFuture, Draft, Opened, Store};
use semel_core::{AttemptId, Fingerprint, Key, Lease, OnCrash, OperationId};
use semel_redis::{Builder, RedisStore};
use semel_testkit::Fixture;

/// A time limit that is not exceeded even on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Returns the URL of the server in an environment variable.
pub(crate) fn url(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("set {variable} or run `cargo xtask test`, which starts the servers")
    })
}

/// Returns a prefix that no other test uses.
pub(crate) fn prefix() -> String {
    let unique: String =
        AttemptId::generate().to_bytes().iter().map(|b| format!("{b:02x}")).collect();
    format!("test:{unique}:")
}

/// A server, and a prefix on it that no other test uses.
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) prefix: String,
}

impl Place {
    pub(crate) fn at(url: String) -> Self {
        Self { url, prefix: prefix() }
    }

    /// Returns settings of a store, with limits that a busy machine does not exceed.
    pub(crate) fn builder(&self) -> Builder {
        let builder = RedisStore::builder().prefix(&self.prefix);
        builder.connect_timeout(LONG).response_timeout(LONG)
    }

    pub(crate) async fn open(&self) -> RedisStore {
        self.builder().connect(&self.url).await.expect("the server answers")
    }

    /// Returns the name of a record in Redis.
    pub(crate) fn name(&self, key: &Key) -> String {
        let digits: String =
            key.digest().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}{digits}", self.prefix)
    }

    /// Runs a command without the store.
    pub(crate) async fn raw<T: redis::FromRedisValue>(&self, command: &mut redis::Cmd) -> T {
        match self.url.strip_prefix("redis+cluster://") {
            None => {
                let mut connection = client(&self.url).await;
                command.query_async(&mut connection).await.expect("the server answers")
            }
            Some(nodes) => {
                let nodes = nodes.split(',').map(|node| format!("redis://{node}"));
                let client = redis::cluster::ClusterClient::builder(nodes);
                let client = client.connection_timeout(LONG).response_timeout(LONG);
                let client = client.build().expect("URLs");
                let mut connection = client.get_async_connection().await.expect("a cluster");
                command.query_async(&mut connection).await.expect("the cluster answers")
            }
        }
    }
}

pub(crate) async fn client(url: &str) -> MultiplexedConnection {
    let client = redis::Client::open(url).expect("a URL");
    // The client's own limit would be half a second.
    let patient = redis::AsyncConnectionConfig::new();
    let patient = patient.set_connection_timeout(Some(LONG)).set_response_timeout(Some(LONG));
    let connection = client.get_multiplexed_async_connection_with_config(&patient).await;
    connection.expect("the server answers")
}

impl Fixture for Place {
    type Store = RedisStore;

    async fn store(&self) -> RedisStore {
        self.open().await
    }

    async fn advance(&self, span: Duration) {
        self.open().await.rewind(span).await.expect("the server answers");
    }

    async fn jump(&self, span: Duration, ahead: bool) -> bool {
        let store = self.open().await;
        let moved = if ahead { store.rewind(span).await } else { store.set_back(span).await };
        moved.expect("the server answers");
        true
    }

    // Redis expires keys by the server's clock, which the test cannot move.
    fn sweep_respects_watermark(&self) -> bool {
        false
    }

    fn corrupt<'a>(&'a self, key: &'a Key) -> Option<BoxFuture<'a, ()>> {
        Some(Box::pin(async move {
            let mut cut = redis::cmd("SETRANGE");
            let _: i64 = self.raw(cut.arg(self.name(key)).arg(1).arg(b"\x09")).await;
        }))
    }

    // Redis expires records by itself, but ten seconds late: within a test it does not.
    fn forgets_by_itself(&self) -> bool {
        false
    }
}

/// Claims a free key.
pub(crate) async fn claim(store: &RedisStore, draft: &Draft) -> Lease {
    let Opened::Inserted { fence } = store.open(draft).await.expect("the server answers") else {
        panic!("{:?} was held", draft.key);
    };
    Lease { digest: draft.key.digest(), fence, attempt_id: draft.attempt_id }
}

pub(crate) fn key(id: &str) -> Key {
    Key::command("acme", "PAY", id).expect("a valid key")
}

pub(crate) fn draft(key: &Key) -> Draft {
    Draft {
        key: key.clone(),
        fingerprint: Fingerprint::opaque("request"),
        operation_id: OperationId::generate(),
        attempt_id: AttemptId::generate(),
        attempt: 1,
        owner: Arc::from("host:1:a"),
        lease: Duration::from_secs(30),
        on_crash: OnCrash::Rerun,
        keep: Duration::from_secs(3_600),
        retry_payload: None,
    }
}
