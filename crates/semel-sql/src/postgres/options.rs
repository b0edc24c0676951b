//! The settings of a store in PostgreSQL, each with its default.

use std::str::FromStr;
use std::time::Duration;

use semel::store::{Error, ErrorKind, Result};
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;

use super::PgStore;
use super::statement::ledger_session;

/// How to reach PostgreSQL, and with how many connections.
///
/// A store holds at most `lanes + transactions` connections and four more: one each for renewing,
/// sweeping, sending wake-ups and, where somebody listens, receiving them. Where a relay claims from
/// it there are up to four for that.
///
/// Statements stay prepared on their connections. A pooler that hands out connections per
/// transaction is supported only if it tracks prepared statements, as pgbouncer does from 1.21 on
/// with `max_prepared_statements` above zero, and lets the startup parameter `options` pass; wake-ups
/// do not cross it, and waiters poll. Behind any other such pooler a statement could run with
/// somebody else's parameters: give the store a direct connection there, which the ledger's sessions
/// and `LISTEN` want anyway.
#[derive(Clone, Debug)]
#[must_use]
pub struct PgOptions {
    address: Address,
    pub(super) lanes: usize,
    pub(super) transactions: usize,
    pub(super) transaction_wait: Duration,
    pub(super) statement_timeout: Duration,
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
    /// Settings for a store at this URL.
    pub fn new(url: &str) -> Self {
        Self::at(Address::Url(url.to_owned()))
    }

    /// Settings for a store that is reached with these options, for what a URL cannot say.
    pub fn with(options: PgConnectOptions) -> Self {
        Self::at(Address::Options(Box::new(options)))
    }

    fn at(address: Address) -> Self {
        Self {
            address,
            lanes: 2,
            transactions: 16,
            transaction_wait: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(5),
        }
    }

    /// Connections that callers' steps share. Default 2; more of them make smaller batches.
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = lanes.max(1);
        self
    }

    /// Most transactions of callers at a time. Default 16.
    pub fn transactions(mut self, transactions: usize) -> Self {
        self.transactions = transactions.max(1);
        self
    }

    /// How long a caller waits for one of them before it is told `Unavailable`. Default 5 s.
    pub fn transaction_wait(mut self, wait: Duration) -> Self {
        self.transaction_wait = wait;
        self
    }

    /// How long one statement of ours may take. Default 5 s. It bounds what a connection that died
    /// without a word can cost; a caller's own statements are not limited by it.
    pub fn statement_timeout(mut self, timeout: Duration) -> Self {
        self.statement_timeout = timeout;
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
        Ok(options.disable_statement_logging())
    }

    pub(super) fn ledger_session(&self, plain: &PgConnectOptions) -> PgConnectOptions {
        ledger_session(plain.clone(), self.statement_timeout.as_millis())
    }
}
