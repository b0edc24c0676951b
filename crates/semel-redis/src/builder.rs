//! The settings of a store, each with its default.

use std::sync::Arc;
use std::time::Duration;

use redis::ConnectionInfo;
use semel_core::store::{Error, ErrorKind, Replication, Result};

use crate::check::{self, Facts};
use crate::error::{Effect, Failure};
use crate::keys::Keys;
use crate::link::{self, Limits};
use crate::settings::Settings;
use crate::store::RedisStore;
use crate::transport::Replicas;

/// The URL scheme of a cluster: [`Builder::connect`] takes its nodes separated by commas.
pub const CLUSTER_SCHEME: &str = "redis+cluster://";

impl RedisStore {
    /// Returns the settings to connect with.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Connects to the server at `url` with the default settings.
    ///
    /// ```no_run
    /// # async fn example() -> semel_core::store::Result<()> {
    /// let store = semel_redis::RedisStore::connect("redis://127.0.0.1:6379").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Builder::connect`].
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder().connect(url).await
    }

    /// Connects to a cluster through the nodes at `urls`, with the default settings.
    ///
    /// ```no_run
    /// # async fn example() -> semel_core::store::Result<()> {
    /// let nodes = ["redis://10.0.0.1:6379", "redis://10.0.0.2:6379"];
    /// let store = semel_redis::RedisStore::connect_cluster(nodes).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Builder::connect_cluster`].
    pub async fn connect_cluster<I>(urls: I) -> Result<Self>
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        Self::builder().connect_cluster(urls).await
    }
}

/// Settings of a [`RedisStore`].
///
/// ```no_run
/// # async fn example() -> Result<(), semel_core::store::Error> {
/// use std::time::Duration;
/// use semel_redis::RedisStore;
///
/// let store = RedisStore::builder()
///     .prefix("shop:idem:")
///     .response_timeout(Duration::from_secs(1))
///     .connect("redis://127.0.0.1:6379")
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    prefix: String,
    group: String,
    limits: Limits,
    replicas: Option<Replicas>,
    replication: Option<Replication>,
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// The default prefix of all keys: `idem:`.
    pub const PREFIX: &'static str = "idem:";

    /// Returns the default settings.
    pub fn new() -> Self {
        Self {
            prefix: Self::PREFIX.to_owned(),
            group: "all".to_owned(),
            limits: Limits { connect: Duration::from_secs(2), response: Duration::from_secs(3) },
            replicas: None,
            replication: None,
        }
    }

    /// Sets the prefix of every key. Default `idem:`. Stores with different prefixes share nothing.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the group: processes with the same prefix and group wake each other's waiters. Default
    /// `all`.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = group.into();
        self
    }

    /// Sets how long connecting may take. Default 2 s.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.limits.connect = limit;
        self
    }

    /// Sets how long a command may wait for its answer; after that its outcome is unknown. Default
    /// 3 s.
    pub fn response_timeout(mut self, limit: Duration) -> Self {
        self.limits.response = limit;
        self
    }

    /// Requires `count` replicas to confirm every write within a time limit. Default none.
    ///
    /// This narrows the window in which a failover loses a claim, but does not close it: a store
    /// with this setting guarantees best effort. A claim that too few replicas confirm, new or
    /// taken over, is taken back under its own lease and reported as `Unavailable`: nothing ran
    /// under it. A renewal does not wait for replicas.
    ///
    /// Any other write that too few confirm is reported as `Ambiguous` although the master has it
    /// and keeps it. For a settle this means: the work is done, and its outcome is recorded and
    /// will be replayed, unless the master is lost before a replica has it. A caller that reads the
    /// record afterwards, as the executor does, finds it settled. After such a loss the claim
    /// exists without its outcome, lapses, and is treated as a crash.
    pub fn wait_replicas(mut self, count: u32, within: Duration) -> Self {
        self.replicas = (count > 0).then_some(Replicas { count, within });
        self
    }

    /// Declares what a failover may lose, instead of what the store observes. By default the store
    /// observes replicas when it connects, and at every check and sweep; replicas, a cluster and
    /// `wait_replicas` count as [`Replication::Asynchronous`].
    ///
    /// The same can be declared in the URL: `?replication=none`, `synchronous` or `asynchronous`.
    /// Without an AOF with `appendfsync always`, a store stays best effort whatever is declared.
    pub fn replication(mut self, declared: Replication) -> Self {
        self.replication = Some(declared);
        self
    }

    /// Connects to the server at `url`: `redis://…`, `unix://…`, or a cluster as
    /// `redis+cluster://host:port,host:port`.
    ///
    /// # Errors
    /// `Misconfigured` for a wrong URL or password, a version before 7, or a cluster node that was
    /// opened as a single server; `Unavailable` if no server answers.
    pub async fn connect(mut self, url: &str) -> Result<RedisStore> {
        let (nodes, cluster) = nodes(url)?;
        self.replication = declared(url)?.or(self.replication);
        self.open(nodes, cluster).await
    }

    /// Connects to a cluster through the nodes at `urls`; one that answers is enough.
    ///
    /// # Errors
    /// As [`Builder::connect`].
    pub async fn connect_cluster<I>(self, urls: I) -> Result<RedisStore>
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let nodes: Vec<_> =
            urls.into_iter().map(|url| parse(url.as_ref())).collect::<Result<_>>()?;
        if nodes.is_empty() {
            return Err(misconfigured("a cluster needs the URL of at least one of its nodes"));
        }
        self.open(nodes, true).await
    }

    async fn open(self, nodes: Vec<ConnectionInfo>, cluster: bool) -> Result<RedisStore> {
        if self.prefix.is_empty() {
            return Err(misconfigured(
                "the prefix is empty; sweeping would scan keys of other applications",
            ));
        }
        if self.replicas.is_some_and(|replicas| replicas.within >= self.limits.response) {
            return Err(misconfigured(
                "wait_replicas must end before response_timeout; shorten the one, extend the other",
            ));
        }
        let settings = Arc::new(Settings {
            keys: Keys::new(&self.prefix, &self.group),
            limits: self.limits,
            replicas: self.replicas,
            nodes,
            cluster,
            declared: self.replication,
        });
        let failed = |failure: Failure| failure.during("connect", Effect::Reads);
        let transport = match settings.dial().await {
            Ok(transport) => transport,
            // The server's own text: its code is a plain `ERR`, so only the text tells what is
            // wrong.
            Err(Failure::NotSent(error))
                if error.to_string().contains("cluster support disabled") =>
            {
                return Err(not_a_cluster());
            }
            Err(failure) => return Err(failed(failure)),
        };
        let servers = check::facts(&transport).await.map_err(failed)?;
        for (_, facts) in &servers {
            admit(facts, cluster)?;
        }
        let store = RedisStore::new(transport, settings);
        store.guarantee.observe(servers.iter().map(|(_, facts)| facts));
        Ok(store)
    }
}

/// Refuses servers on which the scripts cannot run.
fn admit(facts: &Facts, cluster: bool) -> Result<()> {
    if let Some(version) = facts.old_version() {
        return Err(misconfigured(&format!(
            "the server is Redis {version}; the scripts need 7.0 or newer"
        )));
    }
    match (facts.get("cluster_enabled"), cluster) {
        (Some("1"), false) => Err(misconfigured(
            "the server is a node of a cluster; connect with connect_cluster or redis+cluster://",
        )),
        (Some("0"), true) => Err(not_a_cluster()),
        _ => Ok(()),
    }
}

/// Returns the replication that a URL declares.
fn declared(url: &str) -> Result<Option<Replication>> {
    let parameters = url.split_once('?').map_or("", |(_, parameters)| parameters);
    let named = parameters.split('&').find_map(|one| one.strip_prefix("replication="));
    match named {
        None => Ok(None),
        Some("none") => Ok(Some(Replication::None)),
        Some("synchronous") => Ok(Some(Replication::Synchronous)),
        Some("asynchronous") => Ok(Some(Replication::Asynchronous)),
        Some(_) => {
            Err(misconfigured("replication in the URL is one of none, synchronous, asynchronous"))
        }
    }
}

/// Returns the servers in a URL, and whether they are nodes of a cluster.
pub(crate) fn nodes(url: &str) -> Result<(Vec<ConnectionInfo>, bool)> {
    let Some(nodes) = url.strip_prefix(CLUSTER_SCHEME) else {
        return Ok((vec![parse(url)?], false));
    };
    let nodes = nodes.split(',').map(|node| parse(&format!("redis://{}", node.trim())));
    Ok((nodes.collect::<Result<_>>()?, true))
}

fn not_a_cluster() -> Error {
    misconfigured("the server is not a node of a cluster; connect with connect or redis://")
}

fn parse(url: &str) -> Result<ConnectionInfo> {
    // The URL may hold a password, so it is not part of the message.
    link::parse(url).map_err(|error| {
        misconfigured(&format!(
            "the URL is not one of a Redis server, as in redis://host:6379: {error}"
        ))
    })
}

pub(crate) fn misconfigured(what: &str) -> Error {
    Error::new(ErrorKind::Misconfigured, "connect", what)
}
