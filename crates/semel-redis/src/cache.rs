//! The cache that the nodes of a resolver of public ids share (L2), and the invalidations that they
//! publish.
//!
//! A cache is read before the map and may be unreachable: every call ends within
//! [`CacheBuilder::timeout`], with an answer or an error, and nothing is repeated. The resolver
//! decides what entries mean and when they are written; this module reads and writes them.
//!
//! ```
//! use semel_redis::RedisCache;
//!
//! let cache = RedisCache::open("redis://127.0.0.1:6379")?;
//! # Ok::<(), semel_core::store::Error>(())
//! ```
//!
//! # Clusters
//!
//! Every call takes at most one trip to each node that has some of the keys, and all trips are
//! concurrent. Invalidations are published on the node that has the entry, after the entry is
//! changed, and the nodes of the cluster forward them to each other. If the nodes cannot reach each
//! other, a listener misses invalidations from the other side although its own node answers;
//! entries then live until their TTL ends.

mod invalidations;
mod settings;
mod value;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Cmd, Value};
use semel_core::store::{BoxFuture, Error, ErrorKind, Result};
use semel_ids::shared::{CacheFill, CacheSlot, CorruptEntry, Invalidations, SharedCache};
use ulid::Ulid;

pub use settings::CacheBuilder;

use invalidations::Subscription;

use crate::error::{Effect, Failure, unexpected};
use crate::script::{By, Call, Script};
use crate::settings::Settings;
use crate::spread::{Batch, Spread};
use crate::transport::Transport;
use crate::{listen, reply};

/// How long subscribing may take on each node. Only the listener waits for that.
const SUBSCRIBING: Duration = Duration::from_secs(2);

static APPEAR: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/cache/appear.lua")));
static REVOKE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/cache/revoke.lua")));
static CLEAR: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lua/cache/clear.lua")));

/// A cache on Redis. Cheap to clone: clones share the connection.
#[derive(Clone)]
pub struct RedisCache(Arc<Inner>);

struct Inner {
    settings: Settings,
    prefix: String,
    channel: String,
    timeout: Duration,
    pong_timeout: Duration,
    /// The connection, opened by the first call that needs it.
    transport: tokio::sync::OnceCell<Transport>,
    spread: Spread,
    unreadable: Arc<AtomicU64>,
}

impl fmt::Debug for RedisCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (prefix, cluster) = (&self.0.prefix, self.0.settings.cluster);
        f.debug_struct("RedisCache")
            .field("prefix", prefix)
            .field("cluster", &cluster)
            .finish_non_exhaustive()
    }
}

impl RedisCache {
    /// Returns the settings to open a cache with.
    pub fn builder() -> CacheBuilder {
        CacheBuilder::new()
    }

    /// Returns the cache at `url` with the default settings. It connects when it is first used.
    ///
    /// # Errors
    /// As [`CacheBuilder::open`].
    pub fn open(url: &str) -> Result<Self> {
        Self::builder().open(url)
    }

    /// Returns how many invalidations could not be read. They are counted as
    /// `semel_idresolve_unreadable_invalidations_total` as well.
    pub fn unreadable_invalidations(&self) -> u64 {
        self.0.unreadable.load(Ordering::Relaxed)
    }
}

impl Inner {
    fn name(&self, key: &str) -> Vec<u8> {
        [self.prefix.as_bytes(), key.as_bytes()].concat()
    }

    async fn transport(&self) -> std::result::Result<&Transport, Failure> {
        self.transport.get_or_try_init(|| self.settings.dial()).await
    }

    /// Runs `call`, and fails if it exceeds the cache's timeout.
    async fn within<T>(
        &self,
        operation: &'static str,
        effect: Effect,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match tokio::time::timeout(self.timeout, call).await {
            Ok(ended) => ended,
            Err(_) => {
                let kind = match effect {
                    Effect::Reads => ErrorKind::Unavailable,
                    Effect::Writes => ErrorKind::Ambiguous,
                };
                let what = format!("the cache did not answer within {:?}", self.timeout);
                Err(Error::new(kind, operation, what))
            }
        }
    }

    async fn get(&self, keys: &[&str]) -> Result<Vec<CacheSlot>> {
        let failed = |failure: Failure| failure.during("get", Effect::Reads);
        let transport = self.transport().await.map_err(failed)?;
        let Transport::Single(link) = transport else {
            return self.get_spread(transport, keys).await;
        };
        let size = keys.iter().map(|key| self.prefix.len() + key.len()).sum();
        let mut command = Cmd::with_capacity(1 + keys.len(), size);
        command.arg("MGET");
        let mut name = self.prefix.clone();
        for key in keys {
            name.truncate(self.prefix.len());
            name.push_str(key);
            command.arg(&name);
        }
        let value = link.send(&command).await.map_err(failed)?;
        let values = reply::array(&value).filter(|values| values.len() == keys.len());
        let values = values.ok_or_else(|| unexpected("get", &value))?;
        values.iter().map(slot).collect()
    }

    async fn get_spread(&self, transport: &Transport, keys: &[&str]) -> Result<Vec<CacheSlot>> {
        let names = self.names(keys.iter().copied());
        let command = |at: usize| {
            let mut command = redis::cmd("GET");
            command.arg(&names[at]);
            command
        };
        let batch = Batch { keys: &names, command: &command, after: &|_| Vec::new() };
        let answers = self.spread.send(transport, &batch).await.into_iter();
        let slots = answers.map(|answer| match answer {
            Ok(value) => slot(&value),
            Err(Failure::Refused(error)) if error.code() == "WRONGTYPE" => Ok(CacheSlot::Damaged),
            Err(failure) => Err(failure.during("get", Effect::Reads)),
        });
        slots.collect()
    }

    /// Writes entries that a reader found, if there is no entry yet.
    async fn fill(&self, notes: &[CacheFill]) -> Result<()> {
        let names = self.names(notes.iter().map(|note| &*note.key));
        let command = |at: usize| {
            let mut command = set(&names[at], notes[at].internal, notes[at].ttl);
            command.arg("NX");
            command
        };
        self.each("fill", &names, &command, &|_| Vec::new()).await
    }

    async fn registered(&self, keys: &[String], absences: Duration) -> Result<()> {
        let names = self.names(keys.iter().map(String::as_str));
        let absences = millis(absences).to_string();
        let command = |at: usize| {
            let args: &[&[u8]] = &[absences.as_bytes()];
            Call { script: &APPEAR, key: &names[at], args }.command(By::Source)
        };
        let announcement =
            |of: &[usize]| self.publish(invalidations::registered(of.iter().map(|at| &*keys[*at])));
        self.each("invalidate", &names, &command, &announcement).await
    }

    async fn revoked(&self, keys: &[String], ttl: Duration) -> Result<()> {
        let names = self.names(keys.iter().map(String::as_str));
        let (absent, ttl) = (value::write(None), millis(ttl).to_string());
        let command = |at: usize| {
            let args: &[&[u8]] = &[absent.as_bytes(), ttl.as_bytes()];
            Call { script: &REVOKE, key: &names[at], args }.command(By::Source)
        };
        let announcement =
            |of: &[usize]| self.publish(invalidations::revoked(of.iter().map(|at| &*keys[*at])));
        self.each("invalidate", &names, &command, &announcement).await
    }

    async fn repaired(&self, keys: &[String]) -> Result<()> {
        let names = self.names(keys.iter().map(String::as_str));
        let command = |at: usize| {
            let mut command = redis::cmd("DEL");
            command.arg(&names[at]);
            command
        };
        let announcement =
            |of: &[usize]| self.publish(invalidations::repaired(of.iter().map(|at| &*keys[*at])));
        self.each("invalidate", &names, &command, &announcement).await
    }

    fn names<'k>(&self, keys: impl Iterator<Item = &'k str>) -> Vec<Vec<u8>> {
        keys.map(|key| self.name(key)).collect()
    }

    fn publish(&self, message: Option<String>) -> Vec<Cmd> {
        let publish = |message: String| {
            let mut command = redis::cmd("PUBLISH");
            command.arg(&self.channel).arg(message);
            command
        };
        message.into_iter().map(publish).collect()
    }

    /// Sends one command for each name, and after the commands for a server those that `after`
    /// returns.
    async fn each(
        &self,
        operation: &'static str,
        names: &[Vec<u8>],
        command: &(dyn Fn(usize) -> Cmd + Sync),
        after: &(dyn Fn(&[usize]) -> Vec<Cmd> + Sync),
    ) -> Result<()> {
        let failed = |failure: Failure| failure.during(operation, Effect::Writes);
        let transport = self.transport().await.map_err(failed)?;
        let batch = Batch { keys: names, command, after };
        let answers = self.spread.send(transport, &batch).await;
        answers.into_iter().try_for_each(|answer| answer.map(drop)).map_err(failed)
    }

    async fn clear(&self, wrong: &[CorruptEntry]) -> Result<()> {
        let names = self.names(wrong.iter().map(|one| &*one.key));
        let texts: Vec<Vec<u8>> = wrong.iter().map(|one| text_of(one).into_bytes()).collect();
        // Called by its text, so that a server that does not know it needs no second trip: it is
        // short and seldom used.
        let command = |at: usize| {
            Call { script: &CLEAR, key: &names[at], args: &[&texts[at]] }.command(By::Source)
        };
        self.each("clear", &names, &command, &|_| Vec::new()).await
    }

    async fn listen(&self) -> Result<Box<dyn Invalidations>> {
        let line = listen::subscribe(&self.settings.nodes, SUBSCRIBING, &self.channel).await?;
        let unreadable = Arc::clone(&self.unreadable);
        Ok(Box::new(Subscription::new(line, self.pong_timeout, unreadable)))
    }
}

impl SharedCache for RedisCache {
    fn get<'a>(&'a self, keys: &'a [&'a str]) -> BoxFuture<'a, Result<Vec<CacheSlot>>> {
        Box::pin(async move {
            if keys.is_empty() {
                return Ok(Vec::new());
            }
            self.0.within("get", Effect::Reads, self.0.get(keys)).await
        })
    }

    fn fill<'a>(&'a self, notes: &'a [CacheFill]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if notes.is_empty() {
                return Ok(());
            }
            self.0.within("fill", Effect::Writes, self.0.fill(notes)).await
        })
    }

    fn registered<'a>(
        &'a self,
        keys: &'a [String],
        absences: Duration,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if keys.is_empty() {
                return Ok(());
            }
            self.0.within("invalidate", Effect::Writes, self.0.registered(keys, absences)).await
        })
    }

    fn revoked<'a>(&'a self, keys: &'a [String], ttl: Duration) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if keys.is_empty() {
                return Ok(());
            }
            self.0.within("invalidate", Effect::Writes, self.0.revoked(keys, ttl)).await
        })
    }

    fn repaired<'a>(&'a self, keys: &'a [String]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if keys.is_empty() {
                return Ok(());
            }
            self.0.within("invalidate", Effect::Writes, self.0.repaired(keys)).await
        })
    }

    fn clear<'a>(&'a self, wrong: &'a [CorruptEntry]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if wrong.is_empty() {
                return Ok(());
            }
            self.0.within("clear", Effect::Writes, self.0.clear(wrong)).await
        })
    }

    fn listen(&self) -> BoxFuture<'_, Result<Box<dyn Invalidations>>> {
        Box::pin(self.0.listen())
    }
}

/// Returns the value of a corrupt entry as it was read; empty if it could not be read.
fn text_of(wrong: &CorruptEntry) -> String {
    wrong.value.map_or_else(String::new, |id| value::write(Some(id)))
}

fn set(name: &[u8], internal: Option<Ulid>, ttl: Duration) -> Cmd {
    let mut command = redis::cmd("SET");
    command.arg(name).arg(value::write(internal)).arg("PX").arg(millis(ttl));
    command
}

/// Converts a duration to milliseconds, limited to what Redis accepts.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX).clamp(1, 1 << 50)
}

fn slot(entry: &Value) -> Result<CacheSlot> {
    if *entry == Value::Nil {
        return Ok(CacheSlot::Empty);
    }
    reply::bytes(entry).map(value::read).ok_or_else(|| unexpected("get", entry))
}
