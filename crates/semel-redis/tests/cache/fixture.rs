//! A key prefix for each test on a server, and access to its keys.

use std::time::Duration;

use redis::FromRedisValue;
use semel_core::AttemptId;
use semel_core::store::Result;
use semel_ids::shared::{
    CacheFill, CacheSlot, CorruptEntry, Invalidation, Invalidations, SharedCache as _,
};
use semel_redis::RedisCache;
use ulid::Ulid;

/// The environment variables of both kinds of servers.
pub(crate) const PLACES: [&str; 2] = ["SEMEL_TEST_REDIS_URL", "SEMEL_TEST_REDIS_CLUSTER_URL"];

/// A timeout that is not exceeded even on a busy machine.
pub(crate) const GENEROUS: Duration = Duration::from_secs(60);

/// A server, and a prefix that no other test uses.
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

    /// Returns a cache as another node would have it.
    pub(crate) fn cache(&self) -> RedisCache {
        let builder = RedisCache::builder().prefix(&self.prefix);
        builder
            .timeout(GENEROUS)
            .pong_timeout(GENEROUS)
            .open(&self.url)
            .expect("settings that work")
    }

    /// Returns a cache with a short timeout.
    pub(crate) fn impatient(&self, timeout: Duration) -> RedisCache {
        let builder = RedisCache::builder().prefix(&self.prefix);
        builder.timeout(timeout).pong_timeout(timeout).open(&self.url).expect("settings that work")
    }

    /// Returns the name of an entry in Redis.
    pub(crate) fn name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Runs a command without the cache.
    pub(crate) async fn raw<T: FromRedisValue>(&self, command: &mut redis::Cmd) -> T {
        match self.url.strip_prefix("redis+cluster://") {
            None => {
                let client = redis::Client::open(&*self.url).expect("a URL");
                // The client's own limit would be half a second.
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

/// Returns `count` ids, which a cluster spreads over all its nodes.
pub(crate) fn keys(count: u32) -> Vec<String> {
    (0..count).map(|at| format!("acme:ORDER:ord_{at:026}")).collect()
}

/// Longer than any absence lives in a test.
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) fn note(key: &str, internal: Option<u128>) -> CacheFill {
    CacheFill { key: key.to_owned(), internal: internal.map(Ulid), ttl: Duration::from_secs(60) }
}

pub(crate) async fn read(cache: &RedisCache, keys: &[String]) -> Result<Vec<CacheSlot>> {
    cache.get(&keys.iter().map(String::as_str).collect::<Vec<_>>()).await
}

/// Returns corrupt entries for these keys.
pub(crate) fn wrong(keys: &[String]) -> Vec<CorruptEntry> {
    keys.iter().map(|key| CorruptEntry { key: key.clone(), value: None }).collect()
}

/// Waits for the next invalidation, ignoring heartbeats.
pub(crate) async fn next_invalidation(messages: &mut dyn Invalidations) -> Invalidation {
    let listening = async {
        loop {
            let heard = messages.next().await.expect("the subscription works");
            if heard != Invalidation::Heartbeat {
                return heard;
            }
        }
    };
    tokio::time::timeout(GENEROUS, listening).await.expect("an invalidation arrives")
}
