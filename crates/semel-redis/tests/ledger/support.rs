//! What the tests of this crate share: a prefix of their own on the servers that the environment
//! names, and a plain client to look behind the store's back.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use semel_core::store::{BoxFuture, Draft, Opened, Store};
use semel_core::{AttemptId, Fingerprint, Key, Lease, OnCrash, OperationId};
use semel_redis::{Builder, RedisStore};
use semel_testkit::Fixture;

/// Longer than anything takes that only a busy machine is late with.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The server under test.
pub(crate) fn url(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("set {variable} or run `cargo xtask test`, which starts the servers")
    })
}

/// A prefix that no other test has.
pub(crate) fn prefix() -> String {
    let unique: String =
        AttemptId::generate().to_bytes().iter().map(|b| format!("{b:02x}")).collect();
    format!("test:{unique}:")
}

/// A prefix on a server, and the way to its records.
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) prefix: String,
}

impl Place {
    pub(crate) fn at(url: String) -> Self {
        Self { url, prefix: prefix() }
    }

    /// Settings of a store, which a busy machine does not make impatient.
    pub(crate) fn builder(&self) -> Builder {
        let builder = RedisStore::builder().prefix(&self.prefix);
        builder.connect_timeout(LONG).response_timeout(LONG)
    }

    pub(crate) async fn open(&self) -> RedisStore {
        self.builder().connect(&self.url).await.expect("the server answers")
    }

    /// The record's name in Redis.
    pub(crate) fn name(&self, key: &Key) -> String {
        let digits: String =
            key.digest().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}{digits}", self.prefix)
    }

    /// Runs a command behind the store's back.
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
    // Its own limit would be half a second.
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

    // Redis forgets by the server's clock, whatever we do.
    fn doubts_its_clock(&self) -> bool {
        false
    }

    fn corrupt<'a>(&'a self, key: &'a Key) -> Option<BoxFuture<'a, ()>> {
        Some(Box::pin(async move {
            let mut cut = redis::cmd("SETRANGE");
            let _: i64 = self.raw(cut.arg(self.name(key)).arg(1).arg(b"\x09")).await;
        }))
    }

    // Redis forgets expired records by itself, but ten seconds late: within a test it does not.
    fn forgets_by_itself(&self) -> bool {
        false
    }
}

/// Claims a key that is free.
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
