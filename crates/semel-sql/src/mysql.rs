//! MySQL 8 and MariaDB 10.6: the ledger, the outbox and the id map in InnoDB.
//!
//! A [`MySqlStore`] has connections of its own: a few over which concurrent steps are batched, some for
//! transactions, one for sweeping and listing, one per renewer, and up to four each for the outbox and the id map.
//! It takes none from the application's pool, and nothing in it waits for a row that an open transaction holds.
//!
//! The statements were run on MariaDB 10.11 and on MySQL 9.7, which lacks `INSERT … RETURNING` and
//! `SET STATEMENT`; on MySQL 8 they were not, and `check` reports that.
//!
//! ```no_run
//! # async fn example() -> Result<(), semel_core::store::Error> {
//! use semel_sql::mysql::MySqlStore;
//!
//! let store = MySqlStore::connect("mysql://app@localhost/shop").await?;
//! store.migrate().await?;
//! for finding in store.check().await? {
//!     eprintln!("{}: {}", finding.found, finding.fix);
//! }
//! # Ok(())
//! # }
//! ```

mod batch;
#[cfg(feature = "ids")]
mod business;
mod check;
mod columns;
#[cfg(feature = "ids")]
mod idmap;
mod inspect;
mod ledger;
mod many;
mod outbox;
mod pool;
mod replication;
mod schema;
mod session;
mod statement;
mod sweep;
mod transaction;
mod variables;
mod watermark;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use semel_core::claim::Lease;
use semel_core::key::Key;
use semel_core::record::Version;
use semel_core::store::{
    Change, Draft, Error, ErrorKind, Finding, Guarantee, Opened, Peeked, Renewed, Renewer,
    Replication, ReplicationState, Result, Settled, Settlement, Store, Swapped, Swept,
};
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{MySqlConnection, MySqlPool};
use tokio::time::timeout;

#[cfg(feature = "ids")]
pub use business::MySqlTable;
pub use transaction::MySqlTransaction;

use self::ledger::Ledger;
use self::pool::SessionPool;
use self::session::{Idle, OVERHEAD, Role};
use self::transaction::TransactionPool;
use crate::batcher::{Batcher, SettleRequest};
use crate::error::{Stage, timed_out};
use crate::migrate::{self, Migration};
use crate::pool::{ConnectionPool, Lifecycle};

/// The ledger in a MySQL or MariaDB database. Cheap to clone: clones share the connections.
#[derive(Clone)]
pub struct MySqlStore {
    ledger: Arc<Ledger>,
    batcher: Batcher<Ledger>,
    transactions: Arc<TransactionPool>,
    /// Sessions for sweeping and for operators.
    operators: Arc<SessionPool>,
    outbox: Arc<outbox::OutboxSessions>,
    /// Sessions for the id map, and for checking whether another transaction holds a key.
    lookups: Arc<SessionPool>,
}

impl MySqlStore {
    /// Connects with the defaults of [`MySqlStore::builder`].
    ///
    /// # Errors
    /// As [`Builder::connect`].
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder(url).connect().await
    }

    /// Returns the settings of a store on the server at `url` (`mysql://user:password@host:port/database`).
    ///
    /// ```no_run
    /// # async fn example() -> semel_core::store::Result<()> {
    /// use semel_sql::mysql::MySqlStore;
    ///
    /// let store = MySqlStore::builder("mysql://app@localhost/shop").transactions(32).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(url: &str) -> Builder {
        Builder::at(Address::Url(url.to_owned()))
    }

    /// Connects to the server of the application's pool, with the pool's user, TLS and database. See
    /// [`Builder::from_pool`].
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use semel_sql::mysql::MySqlStore;
    /// use semel_sql::sqlx::MySqlPool;
    ///
    /// let pool = MySqlPool::connect("mysql://app@localhost/shop").await?;
    /// let store = MySqlStore::from_pool(&pool).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Builder::connect`].
    pub async fn from_pool(pool: &MySqlPool) -> Result<Self> {
        Builder::from_pool(pool).connect().await
    }

    /// Checks the server's settings and the schema, and returns what is wrong. An empty list means
    /// that nothing is.
    ///
    /// # Errors
    /// If the server cannot be queried.
    pub async fn check(&self) -> Result<Vec<Finding>> {
        let session = self.operators.get("check").await?;
        let check = async |connection: &mut MySqlConnection| {
            let Ledger { server, replication, .. } = &*self.ledger;
            let observed = self.ledger.observe(connection).await?;
            let declared = replication.declared();
            let mut findings = check::check(connection, server, declared, &observed).await?;
            findings.extend(schema::verify(connection).await?);
            Ok(findings)
        };
        session.operate(check).await
    }

    /// Closes the store: calls under way are answered, later ones fail with `Unavailable`, and
    /// every pooled connection is closed. Clones are closed with it. Renewers stay open: each ends
    /// with the executor that created it.
    pub async fn close(&self) {
        self.batcher.close();
        self.transactions.close();
        self.operators.close();
        self.outbox.close();
        self.lookups.close();
    }

    /// Applies the migrations that are missing and returns their numbers. Several instances may call
    /// it at once.
    ///
    /// ```no_run
    /// # async fn example() -> semel_core::store::Result<()> {
    /// use semel_sql::mysql::MySqlStore;
    ///
    /// let store = MySqlStore::connect("mysql://app@localhost/shop").await?;
    /// store.migrate().await?;
    /// for finding in store.check().await? {
    ///     eprintln!("{}: {}", finding.found, finding.fix);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Misconfigured` if the database ran other statements under the number of a known migration.
    pub async fn migrate(&self) -> Result<Vec<i32>> {
        // On a session without a statement timeout: building an index may take long.
        let role = Role::Migration;
        let (connection, _) =
            session::connect(&self.ledger.options, role, self.ledger.limit).await?;
        migrate::apply(&mut schema::SchemaMigrator(connection), schema::MIGRATIONS).await
    }

    /// Checks the schema and returns what is missing or wrong. An empty list means that nothing is.
    ///
    /// # Errors
    /// If the server cannot be queried.
    pub async fn verify(&self) -> Result<Vec<Finding>> {
        let session = self.operators.get("verify").await?;
        let verify = async |connection: &mut MySqlConnection| schema::verify(connection).await;
        session.operate(verify).await
    }

    /// Returns the migrations, for the application's own migration tools.
    pub fn migrations() -> &'static [Migration] {
        schema::MIGRATIONS
    }

    /// Returns the whole schema as a script, for migrating by hand.
    pub fn schema() -> String {
        schema::print()
    }

    /// Returns the version of the server, as the server reports it.
    pub fn server_version(&self) -> &str {
        &self.ledger.server.version
    }
}

impl fmt::Debug for MySqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlStore").field("server", &self.ledger.server).finish_non_exhaustive()
    }
}

/// How the server is reached: by a URL or with connect options.
#[derive(Clone)]
enum Address {
    Url(String),
    Options(Box<MySqlConnectOptions>),
}

/// Shows no URL: it may hold a password.
impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// The settings with which a [`MySqlStore`] connects.
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    address: Address,
    connections: usize,
    transactions: usize,
    lifetime: Duration,
    statement_timeout: Duration,
    replication: Option<Replication>,
}

impl Builder {
    /// Returns the settings of a store that is reached with these options, for settings that a URL
    /// cannot express.
    pub fn with(options: MySqlConnectOptions) -> Self {
        Self::at(Address::Options(Box::new(options)))
    }

    /// Returns the settings of a store that is reached as the application's pool reaches its server: its connect
    /// options are copied. The store opens connections of its own with them and takes none from the pool, so that
    /// neither waits for the other; hooks of the pool (`after_connect`) do not run on them.
    pub fn from_pool(pool: &MySqlPool) -> Self {
        Self::with((*pool.connect_options()).clone())
    }

    fn at(address: Address) -> Self {
        Self {
            address,
            connections: 4,
            transactions: 16,
            lifetime: Duration::from_secs(30 * 60),
            statement_timeout: Duration::from_secs(5),
            replication: None,
        }
    }

    /// Sets the number of connections for claiming and settling. Default 4; more of them make
    /// smaller batches.
    pub fn connections(mut self, count: usize) -> Self {
        self.connections = count.max(1);
        self
    }

    /// Sets how many transactions of the store can be open at once; further ones wait. Default 16.
    pub fn transactions(mut self, count: usize) -> Self {
        self.transactions = count.max(1);
        self
    }

    /// Sets how long a pooled connection is used before a new one replaces it. Default 30 minutes:
    /// after a failover behind a name or a proxy, no connection stays with the old server for
    /// longer.
    pub fn max_lifetime(mut self, lifetime: Duration) -> Self {
        self.lifetime = lifetime;
        self
    }

    /// Declares what a failover may lose, instead of what the store observes: connected replicas,
    /// semi-synchronous replication, Galera and Group Replication.
    pub fn replication(mut self, replication: Replication) -> Self {
        self.replication = Some(replication);
        self
    }

    /// Sets the time limit of a connect, and of a step once it is connected. Default 5 s. A connect
    /// that takes longer fails with `Unavailable`, a step with `Ambiguous`: it may have taken
    /// effect.
    pub fn statement_timeout(mut self, limit: Duration) -> Self {
        self.statement_timeout = limit;
        self
    }

    /// Connects, reads the server's version and its replication, and returns the store. Must be
    /// called on the runtime that will drive the connections. The schema is created by
    /// [`MySqlStore::migrate`].
    ///
    /// # Errors
    /// `Misconfigured` if the URL is wrong or the server too old; `Unavailable` if the server
    /// cannot be reached.
    pub async fn connect(self) -> Result<MySqlStore> {
        let limit = self.statement_timeout;
        let options = self.address.options()?;
        let opened = timeout(limit, session::connect(&options, Role::Ledger, limit)).await;
        let (mut connection, server) =
            opened.unwrap_or_else(|_| Err(timed_out(Stage::Connecting, "connect", limit)))?;
        let replication = ReplicationState::new(self.replication);
        let observing = replication::observe(&mut connection, server.flavour);
        let observed = timeout(limit, observing).await;
        let observed =
            observed.unwrap_or_else(|_| Err(timed_out(Stage::Connecting, "connect", limit)))?;
        replication.observe(observed.replication());
        let ledger = Arc::new(Ledger::new(options, server, limit, replication));
        let lifecycle = Lifecycle::new(self.lifetime);
        let batched = ConnectionPool::new(self.connections, &lifecycle);
        Ok(MySqlStore {
            batcher: Batcher::new(Arc::clone(&ledger), batched, limit),
            transactions: Arc::new(TransactionPool::new(&ledger, self.transactions, &lifecycle)),
            operators: Arc::new(SessionPool::operators(&ledger, &lifecycle)),
            outbox: Arc::new(outbox::OutboxSessions::new(&ledger, &lifecycle)),
            lookups: Arc::new(SessionPool::new(&ledger, 4, &lifecycle)),
            ledger,
        })
    }
}

impl Address {
    fn options(&self) -> Result<MySqlConnectOptions> {
        let wrong = |why: String| Error::new(ErrorKind::Misconfigured, "connect", why);
        let (options, fix) = match self {
            Address::Url(url) => {
                if !(url.starts_with("mysql://") || url.starts_with("mariadb://")) {
                    let why = "the URL must be mysql://user:password@host:port/database";
                    return Err(wrong(why.into()));
                }
                let parsed: std::result::Result<MySqlConnectOptions, sqlx::Error> = url.parse();
                let options =
                    parsed.map_err(|error| wrong(format!("the URL is not valid: {error}")))?;
                (options, "the URL names no database; add one after the host, as in …/shop")
            }
            Address::Options(options) => (
                (**options).clone(),
                "the connect options name no database; set it with `database`",
            ),
        };
        if options.get_database().is_none_or(str::is_empty) {
            return Err(wrong(fix.into()));
        }
        Ok(options)
    }
}

impl Store for MySqlStore {
    type Renewer = MySqlRenewer;

    async fn open(&self, draft: &Draft) -> Result<Opened> {
        self.batcher.step(draft).await
    }

    async fn swap(&self, key: &Key, judged: Version, change: &Change) -> Result<Swapped> {
        self.batcher.swap(key, judged, change).await
    }

    async fn settle(&self, lease: &Lease, settlement: &Settlement) -> Result<Settled> {
        self.batcher.step(&SettleRequest { lease: *lease, settlement: settlement.clone() }).await
    }

    async fn peek(&self, key: &Key) -> Result<Option<Peeked>> {
        self.batcher.step(&key.digest()).await
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        let session = self.operators.get("sweep").await?;
        let sweep = async |connection: &mut MySqlConnection| {
            self.ledger.observe(connection).await?;
            sweep::sweep(connection, self.ledger.server.flavour, limit).await
        };
        session.operate(sweep).await
    }

    async fn renewer(&self) -> Result<MySqlRenewer> {
        let mut renewer = MySqlRenewer { ledger: Arc::clone(&self.ledger), connection: None };
        renewer.connection = Some(Idle::new(renewer.connect().await?));
        Ok(renewer)
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        MySqlStore::check(self).await
    }

    fn guarantee(&self) -> Guarantee {
        self.ledger.replication.effective().limit(Guarantee::Fenced)
    }

    fn max_retry_payload(&self) -> Option<usize> {
        Some(self.ledger.server.packet.saturating_sub(OVERHEAD))
    }
}

/// Renews leases over a connection of its own, and reconnects when that connection is lost.
pub struct MySqlRenewer {
    ledger: Arc<Ledger>,
    connection: Option<Idle>,
}

impl MySqlRenewer {
    async fn connect(&self) -> Result<MySqlConnection> {
        let limit = self.ledger.limit;
        timeout(limit, self.ledger.session())
            .await
            .unwrap_or_else(|_| Err(timed_out(Stage::Connecting, "renew", limit)))
    }
}

impl fmt::Debug for MySqlRenewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlRenewer").finish_non_exhaustive()
    }
}

impl Renewer for MySqlRenewer {
    async fn renew(&mut self, leases: &[(Lease, Duration)]) -> Result<Vec<Renewed>> {
        let limit = self.ledger.limit;
        // Taken out while in use: if this future is dropped in mid-statement, the connection is not
        // kept.
        let rested = match self.connection.take() {
            Some(idle) => idle.wake(limit).await,
            None => None,
        };
        let mut connection = match rested {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let mut answers = vec![Renewed::Unknown; leases.len()];
        let done = timeout(limit, self.ledger.renew(&mut connection, leases, &mut answers))
            .await
            .unwrap_or_else(|_| Err(timed_out(Stage::Running, "renew", limit)));
        match done {
            Ok(()) => self.connection = Some(Idle::new(connection)),
            // The leases that were renewed are reported even if others could not be.
            Err(_) if answers.iter().any(|answer| *answer != Renewed::Unknown) => {}
            Err(error) => return Err(error),
        }
        Ok(answers)
    }
}
