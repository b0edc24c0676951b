//! The settings of a store in PostgreSQL, each with its default.

use std::str::FromStr;
use std::time::Duration;

use semel_core::store::{Error, ErrorKind, Replication, Result};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgPool};

use super::PgStore;
use super::session::Pooling;

/// How to reach PostgreSQL, and with how many connections.
///
/// A store holds at most `connections + transactions` connections, one each for sweeping, sending wake-ups and,
/// where a process listens, receiving them, and one to three for renewing. A relay that claims from it takes up to
/// four, and so does the id map.
///
/// Best given the server's own address: statements stay prepared on their connections, a step is one
/// trip, and `LISTEN` wakes waiters in other processes. A pooler that hands out the server's sessions
/// per transaction is recognised when the store connects, and then nothing of a session is relied on:
/// see [`Pooling`]. Wake-ups do not cross it, and waiters poll.
///
/// ```no_run
/// # async fn example() -> semel_core::store::Result<()> {
/// use semel_sql::postgres::PgOptions;
/// use semel_sql::sqlx::postgres::{PgConnectOptions, PgSslMode};
///
/// let address = PgConnectOptions::new().host("db").database("app").ssl_mode(PgSslMode::VerifyFull);
/// let store = PgOptions::with(address).connections(4).connect().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct PgOptions {
    address: Address,
    pub(super) connections: usize,
    pub(super) transactions: usize,
    pub(super) transaction_wait: Duration,
    pub(super) max_lifetime: Duration,
    pub(super) statement_timeout: Duration,
    pub(super) pooling: Option<Pooling>,
    pub(super) replication: Option<Replication>,
}

#[derive(Clone)]
enum Address {
    Url(String),
    Options(Box<PgConnectOptions>),
}

/// Shows no URL: it may hold a password.
impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

impl PgOptions {
    /// Returns the settings of a store at this URL.
    pub fn new(url: &str) -> Self {
        Self::at(Address::Url(url.to_owned()))
    }

    /// Returns the settings of a store that is reached with these options, for what a URL cannot say.
    pub fn with(options: PgConnectOptions) -> Self {
        Self::at(Address::Options(Box::new(options)))
    }

    /// Returns the settings of a store that is reached as the application's pool reaches its server: its connect
    /// options are copied. The store opens connections of its own with them and takes none from the pool, so that
    /// neither waits for the other, and what work leaves in a session is reset before other work has it; hooks of
    /// the pool (`after_connect`) do not run on them.
    pub fn from_pool(pool: &PgPool) -> Self {
        Self::with((*pool.connect_options()).clone())
    }

    fn at(address: Address) -> Self {
        Self {
            address,
            connections: 2,
            transactions: 16,
            transaction_wait: Duration::from_secs(5),
            max_lifetime: Duration::from_secs(30 * 60),
            statement_timeout: Duration::from_secs(5),
            pooling: None,
            replication: None,
        }
    }

    /// Connections that callers' steps share. Default 2; more of them make smaller batches.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// Most transactions of callers at a time. Default 16.
    pub fn transactions(mut self, transactions: usize) -> Self {
        self.transactions = transactions.max(1);
        self
    }

    /// How long a caller waits for one of them before it gets `Unavailable`. Default 5 s.
    pub fn transaction_wait(mut self, wait: Duration) -> Self {
        self.transaction_wait = wait;
        self
    }

    /// How long a pooled connection is used before it is replaced by a new one. Default 30 minutes. What the
    /// work sets in its session never lasts that long: the session is reset when its transaction ends.
    pub fn max_lifetime(mut self, lifetime: Duration) -> Self {
        self.max_lifetime = lifetime;
        self
    }

    /// How long one statement of ours may take. Default 5 s. It bounds what a connection that died
    /// without a word can cost; a caller's own statements are not limited by it.
    pub fn statement_timeout(mut self, timeout: Duration) -> Self {
        self.statement_timeout = timeout;
        self
    }

    /// What stands between the store and the server. By default the store looks whether a connection
    /// keeps the setting that it was started with, and whether two of them share a session; if not, or if
    /// they do, it takes what stands there for [`Pooling::Unprepared`].
    pub fn pooling(mut self, pooling: Pooling) -> Self {
        self.pooling = Some(pooling);
        self
    }

    /// How acknowledged commits reach the servers that can be promoted, for operators that know more than
    /// the store can see: that only synchronous standbys are ever promoted, or that copies are made
    /// from archived log. By default the store looks for standbys, when it connects and whenever it
    /// is checked or swept. See [`guarantee`](semel_core::store::Store::guarantee).
    pub fn replication(mut self, replication: Replication) -> Self {
        self.replication = Some(replication);
        self
    }

    /// Connects. To be called on the runtime that will use the store.
    ///
    /// # Errors
    /// As [`PgStore::connect`].
    pub async fn connect(self) -> Result<PgStore> {
        PgStore::assemble(&self).await
    }

    pub(super) fn plain(&self) -> Result<PgConnectOptions> {
        let options = match &self.address {
            Address::Url(url) => PgConnectOptions::from_str(url)
                .map_err(|error| Error::new(ErrorKind::Misconfigured, "connect", error))?,
            Address::Options(options) => (**options).clone(),
        };
        let options = match options.get_application_name() {
            Some(_) => options,
            None => options.application_name("semel"),
        };
        // A start-up parameter that poolers refuse, and that has been of no use since PostgreSQL 12.
        Ok(options.extra_float_digits(None).disable_statement_logging())
    }
}
