//! A prefix of its own on a server, and the way to what lies under it.

use std::time::Duration;

use redis::FromRedisValue;
use semel_core::AttemptId;
use semel_core::store::Result;
use semel_ids::shared::{
    CacheFill, CacheSlot, CorruptEntry, Invalidation, Invalidations, SharedCache as _,
};
use semel_redis::RedisCache;
use ulid::Ulid;

/// Both kinds of servers that the environment names.
pub(crate) const PLACES: [&str; 2] = ["SEMEL_TEST_REDIS_URL", "SEMEL_TEST_REDIS_CLUSTER_URL"];

/// So long that a busy machine does not matter.
pub(crate) const GENEROUS: Duration = Duration::from_secs(60);

/// Keys that no other test has.
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) prefix: String,
}

impl Place {
    pub(crate) fn of(variable: &str) -> Self {
        Self::at(std::env::var(variable).unwrap_or_else(|_| {
            panic!("set {variable} or run `cargo xtask test`, which starts the servers")
        }))
    }

    pub(crate) fn at(url: String) -> Self {
        let unique = AttemptId::generate().to_bytes();
        let unique: String = unique.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { url, prefix: format!("test:{unique}:pid:") }
    }

    /// A cache of a node of its own.
    pub(crate) fn cache(&self) -> RedisCache {
        let builder = RedisCache::builder().prefix(&self.prefix);
        builder
            .timeout(GENEROUS)
            .pong_timeout(GENEROUS)
            .open(&self.url)
            .expect("settings that work")
    }

    /// A cache that gives up soon.
    pub(crate) fn impatient(&self, timeout: Duration) -> RedisCache {
        let builder = RedisCache::builder().prefix(&self.prefix);
        builder.timeout(timeout).pong_timeout(timeout).open(&self.url).expect("settings that work")
    }

    /// The name of an entry.
    pub(crate) fn name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Runs a command behind the cache's back.
    pub(crate) async fn raw<T: FromRedisValue>(&self, command: &mut redis::Cmd) -> T {
        match self.url.strip_prefix("redis+cluster://") {
            None => {
                let client = redis::Client::open(&*self.url).expect("a URL");
                // Its own limit would be half a second.
                let patient = redis::AsyncConnectionConfig::new();
                let patient = patient.set_connection_timeout(Some(GENEROUS));
                let patient = patient.set_response_timeout(Some(GENEROUS));
                let connection = client.get_multiplexed_async_connection_with_config(&patient);
                let connection = connection.await;
                command.query_async(&mut connection.expect("a server")).await.expect("an answer")
            }
            Some(nodes) => {
                let nodes = nodes.split(',').map(|node| format!("redis://{node}"));
                let client = redis::cluster::ClusterClient::builder(nodes);
                let client = client.connection_timeout(GENEROUS).response_timeout(GENEROUS);
                let connection = client.build().expect("URLs").get_async_connection().await;
                command.query_async(&mut connection.expect("a cluster")).await.expect("an answer")
            }
        }
    }

    pub(crate) async fn stored(&self, key: &str) -> Option<String> {
        self.raw(redis::cmd("GET").arg(self.name(key))).await
    }

    pub(crate) async fn ttl(&self, key: &str) -> i64 {
        self.raw(redis::cmd("PTTL").arg(self.name(key))).await
    }

    pub(crate) async fn put(&self, key: &str, value: &[u8]) {
        let () = self.raw(redis::cmd("SET").arg(self.name(key)).arg(value)).await;
    }
}

/// So many ids, which a cluster spreads over all its nodes.
pub(crate) fn keys(count: u32) -> Vec<String> {
    (0..count).map(|at| format!("acme:ORDER:ord_{at:026}")).collect()
}

/// Longer than any absence of a test lives.
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) fn note(key: &str, internal: Option<u128>) -> CacheFill {
    CacheFill { key: key.to_owned(), internal: internal.map(Ulid), ttl: Duration::from_secs(60) }
}

pub(crate) async fn read(cache: &RedisCache, keys: &[String]) -> Result<Vec<CacheSlot>> {
    cache.get(&keys.iter().map(String::as_str).collect::<Vec<_>>()).await
}

/// Entries that could not be read.
pub(crate) fn wrong(keys: &[String]) -> Vec<CorruptEntry> {
    keys.iter().map(|key| CorruptEntry { key: key.clone(), says: None }).collect()
}

/// What is said next, pulses aside.
pub(crate) async fn said(messages: &mut dyn Invalidations) -> Invalidation {
    let listening = async {
        loop {
            let heard = messages.next().await.expect("the line works");
            if heard != Invalidation::Heartbeat {
                return heard;
            }
        }
    };
    tokio::time::timeout(GENEROUS, listening).await.expect("something is said")
}
