//! The settings of a cache, each with its default.

use std::sync::Arc;
use std::time::Duration;

use semel_core::store::Result;

use super::{Inner, RedisCache};
use crate::builder::{misconfigured, nodes};
use crate::keys::Keys;
use crate::link::Limits;
use crate::settings::Settings;

/// Settings of a [`RedisCache`].
///
/// ```
/// use std::time::Duration;
/// use semel_redis::RedisCache;
///
/// let cache = RedisCache::builder()
///     .prefix("bc:pid:")
///     .timeout(Duration::from_millis(100))
///     .open("redis://127.0.0.1:6379")?;
/// # Ok::<(), semel_core::store::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct CacheBuilder {
    prefix: String,
    timeout: Duration,
    pong_timeout: Duration,
}

impl Default for CacheBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl CacheBuilder {
    /// Returns the default settings.
    pub fn new() -> Self {
        Self {
            prefix: "semel:pid:".to_owned(),
            timeout: Duration::from_millis(250),
            pong_timeout: Duration::from_millis(600),
        }
    }

    /// Sets the prefix of every key and of the channel of invalidations. Default `semel:pid:`.
    /// Caches with different prefixes share nothing; with `bc:pid:` a cache shares the entries of
    /// BlueCone's resolver.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets how long a call may take, including connecting. Default 250 ms: a cache that is slower
    /// than the map behind it does not help. At least 1 ms.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Sets how long the server may take to answer a ping on the subscription, which is sent every
    /// 400 ms while no message comes. Default 600 ms: so a listener gets a message, an answer or an
    /// error every second.
    pub fn pong_timeout(mut self, limit: Duration) -> Self {
        self.pong_timeout = limit;
        self
    }

    /// Returns the cache at `url`: `redis://…`, `unix://…`, or a cluster as
    /// `redis+cluster://host:port,host:port`. It connects when it is first used, so a service can
    /// start while its cache is unreachable.
    ///
    /// # Errors
    /// `Misconfigured` for a URL that is not valid, or a setting that cannot work.
    pub fn open(self, url: &str) -> Result<RedisCache> {
        if self.prefix.is_empty() {
            return Err(misconfigured("the prefix is empty; entries would mix with foreign keys"));
        }
        if self.timeout < Duration::from_millis(1) {
            return Err(misconfigured("a cache needs at least a millisecond to answer"));
        }
        let (nodes, cluster) = nodes(url)?;
        // Ends just before the call's own timeout, so that a connection without an answer is
        // detected and replaced before the call fails.
        let inner = self.timeout - self.timeout / 8;
        let limits = Limits { connect: inner, response: inner };
        let keys = Keys::new(&self.prefix, "cache");
        Ok(RedisCache(Arc::new(Inner {
            channel: format!("{}news", self.prefix),
            settings: Settings { keys, limits, replicas: None, nodes, cluster, declared: None },
            prefix: self.prefix,
            timeout: self.timeout,
            pong_timeout: self.pong_timeout,
            transport: tokio::sync::OnceCell::new(),
            spread: crate::spread::Spread::default(),
            unreadable: Arc::default(),
        })))
    }
}
