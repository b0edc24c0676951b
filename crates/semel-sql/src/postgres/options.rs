//! The settings of a store in PostgreSQL, each with its default.

use std::str::FromStr;
use std::time::Duration;

use semel_core::store::{Error, ErrorKind, Replication, Result};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgPool};

use super::PgStore;
use super::session::Pooling;

/// The settings with which a [`PgStore`] connects: the address, connections and time limits.
///
/// A store holds at most `connections + transactions` connections, one each for sweeping, for
/// sending wake-ups and, in a process that listens, for receiving them, and one to three for
/// renewing. A relay that claims from it uses up to four, and so does the id map.
///
/// Use the server's own address if possible: statements stay prepared on their connections, a step
/// is one trip, and `LISTEN` wakes waiters in other processes. The store recognises, when it
/// connects, a pooler that hands out the server's sessions per transaction, and then relies on no
/// state of a session: see [`Pooling`]. Wake-ups do not pass a pooler, so waiters poll.
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

    /// Returns the settings of a store that is reached with these options, for settings that a URL
    /// cannot express.
    pub fn with(options: PgConnectOptions) -> Self {
        Self::at(Address::Options(Box::new(options)))
    }

    /// Returns the settings of a store that is reached as the application's pool reaches its
    /// server: its connect options are copied. The store opens connections of its own with them and
    /// takes none from the pool, so that neither waits for the other, and session state that work
    /// leaves behind is reset before other work gets the session; hooks of the pool
    /// (`after_connect`) do not run on them.
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

    /// Sets the number of connections that callers' steps share. Default 2; more of them make
    /// smaller batches.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// Sets how many transactions of callers can be open at once. Default 16.
    pub fn transactions(mut self, transactions: usize) -> Self {
        self.transactions = transactions.max(1);
        self
    }

    /// Sets how long a caller waits for a transaction before it gets `Unavailable`. Default 5 s.
    pub fn transaction_wait(mut self, wait: Duration) -> Self {
        self.transaction_wait = wait;
        self
    }

    /// Sets how long a pooled connection is used before a new one replaces it. Default 30 minutes.
    /// Session state that the work sets does not last that long: the session is reset when its
    /// transaction ends.
    pub fn max_lifetime(mut self, lifetime: Duration) -> Self {
        self.max_lifetime = lifetime;
        self
    }

    /// Sets how long one statement of the store may take. Default 5 s. It bounds the wait on a
    /// connection that died silently; a caller's own statements are not limited by it.
    pub fn statement_timeout(mut self, timeout: Duration) -> Self {
        self.statement_timeout = timeout;
        self
    }

    /// Sets what is between the store and the server. By default the store opens two connections
    /// and checks whether one keeps its start-up setting and whether both share a session. If the
    /// setting is lost or the session is shared, the store assumes [`Pooling::Unprepared`].
    pub fn pooling(mut self, pooling: Pooling) -> Self {
        self.pooling = Some(pooling);
        self
    }

    /// Declares how acknowledged commits reach the servers that can be promoted, for operators that
    /// know more than the store can observe: that only synchronous standbys are ever promoted, or
    /// that copies are made from archived log. By default the store looks for standbys when it
    /// connects and whenever it is checked or swept. See
    /// [`guarantee`](semel_core::store::Store::guarantee).
    pub fn replication(mut self, replication: Replication) -> Self {
        self.replication = Some(replication);
        self
    }

    /// Connects to the server. Must be called on the runtime that will use the store.
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
        // Poolers refuse this start-up parameter, and it has been of no use since PostgreSQL 12.
        Ok(options.extra_float_digits(None).disable_statement_logging())
    }
}
