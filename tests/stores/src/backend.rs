//! A store by its URL, opened as [`AnyStore`] or as its own type.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use semel_core::AnyStore;
use semel_core::store::memory::MemoryStore;
use semel_core::store::{Error, ErrorKind, Result};
use semel_redis::RedisStore;
use semel_sql::mysql::MySqlStore;
use semel_sql::postgres::PgStore;
use semel_sql::sqlite::SqliteStore;

/// The URLs that [`Backend::parse`] accepts.
const ACCEPTED: &str = "memory:, sqlite:PATH, postgres://…, mysql://…, redis://HOST:PORT[?prefix=P] \
                        or redis+cluster://HOST:PORT,HOST:PORT[?prefix=P]";

/// A store that is not open yet. Opening it twice returns two handles on the same records.
#[derive(Clone, Debug)]
pub struct Backend {
    address: Address,
    timeout: Option<Duration>,
}

/// The address of a store.
#[derive(Clone, Debug)]
pub enum Address {
    /// A store in this process.
    Memory(MemoryStore),
    /// A SQLite file.
    Sqlite(PathBuf),
    /// The URL of a PostgreSQL database.
    Postgres(String),
    /// The URL of a MySQL or MariaDB database.
    MySql(String),
    /// One Redis server or a cluster.
    Redis {
        /// The URL of the server, or of the nodes of a cluster.
        url: String,
        /// The prefix of the store's keys.
        prefix: String,
    },
}

impl Backend {
    /// Parses the URL of a store.
    ///
    /// # Errors
    /// `Misconfigured`, with a list of the accepted URLs.
    pub fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once(':').ok_or_else(|| wrong(url))?;
        let address = match (scheme, rest) {
            ("memory", "") => Address::Memory(MemoryStore::new()),
            ("sqlite", "") => return Err(wrong(url)),
            ("sqlite", path) => Address::Sqlite(PathBuf::from(path)),
            ("postgres" | "postgresql", rest) if rest.starts_with("//") => {
                Address::Postgres(url.to_owned())
            }
            ("mysql" | "mariadb", rest) if rest.starts_with("//") => Address::MySql(url.to_owned()),
            ("redis" | "redis+cluster", rest) if rest.starts_with("//") => {
                let (url, prefix) = url.split_once("?prefix=").unwrap_or((url, "idem:"));
                Address::Redis { url: url.to_owned(), prefix: prefix.to_owned() }
            }
            _ => return Err(wrong(url)),
        };
        Ok(Self { address, timeout: None })
    }

    /// Sets how long one statement or command may take. Default: the store's own limit.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Returns the address of the store.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the short name for reports.
    pub fn name(&self) -> &'static str {
        match &self.address {
            Address::Memory(_) => "memory",
            Address::Sqlite(_) => "sqlite",
            Address::Postgres(_) => "postgres",
            Address::MySql(_) => "mysql",
            Address::Redis { url, .. } if url.starts_with(semel_redis::CLUSTER_SCHEME) => {
                "redis-cluster"
            }
            Address::Redis { .. } => "redis",
        }
    }

    /// Returns whether the caller's own writes can be part of the store's transactions.
    pub fn is_atomic(&self) -> bool {
        match &self.address {
            Address::Sqlite(_) | Address::Postgres(_) | Address::MySql(_) => true,
            Address::Memory(_) | Address::Redis { .. } => false,
        }
    }

    /// Opens the store. Its schema must exist.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn open(&self) -> Result<AnyStore> {
        Ok(match &self.address {
            Address::Memory(store) => AnyStore::new(store.clone()),
            Address::Sqlite(_) => AnyStore::new(self.sqlite().await?),
            Address::Postgres(_) => AnyStore::new(self.postgres().await?),
            Address::MySql(_) => AnyStore::new(self.mysql().await?),
            Address::Redis { .. } => AnyStore::new(self.redis().await?),
        })
    }

    /// Opens the SQLite store.
    ///
    /// # Errors
    /// `Misconfigured` if the backend is another store; else the errors of the store.
    pub async fn sqlite(&self) -> Result<SqliteStore> {
        let Address::Sqlite(path) = &self.address else {
            return Err(wrong(&self.to_string()));
        };
        SqliteStore::open(path).await
    }

    /// Opens the Redis store.
    ///
    /// # Errors
    /// `Misconfigured` if the backend is another store; else the errors of the store.
    pub async fn redis(&self) -> Result<RedisStore> {
        let Address::Redis { url, prefix } = &self.address else {
            return Err(wrong(&self.to_string()));
        };
        let mut builder = RedisStore::builder().prefix(prefix);
        if let Some(timeout) = self.timeout {
            builder = builder.connect_timeout(timeout).response_timeout(timeout);
        }
        builder.connect(url).await
    }

    /// Opens the PostgreSQL store.
    ///
    /// # Errors
    /// `Misconfigured` if the backend is another store; else the errors of the store.
    pub async fn postgres(&self) -> Result<PgStore> {
        let Address::Postgres(url) = &self.address else {
            return Err(wrong(&self.to_string()));
        };
        let mut builder = PgStore::builder(url);
        if let Some(timeout) = self.timeout {
            builder = builder.statement_timeout(timeout).transaction_wait(timeout);
        }
        builder.connect().await
    }

    /// Opens the MySQL or MariaDB store.
    ///
    /// # Errors
    /// `Misconfigured` if the backend is another store; else the errors of the store.
    pub async fn mysql(&self) -> Result<MySqlStore> {
        let Address::MySql(url) = &self.address else {
            return Err(wrong(&self.to_string()));
        };
        let mut builder = MySqlStore::builder(url);
        if let Some(timeout) = self.timeout {
            builder = builder.statement_timeout(timeout);
        }
        builder.connect().await
    }

    /// Returns the same store through another port of this machine, such as a proxy's.
    #[must_use]
    pub fn through_port(&self, port: u16) -> Self {
        let moved = |url: &str| {
            let (head, rest) = url.split_once("://").unwrap_or(("", url));
            let (host, tail) = match rest.find('/') {
                Some(at) => rest.split_at(at),
                None => (rest, ""),
            };
            let user = host.rsplit_once('@').map_or(String::new(), |(user, _)| format!("{user}@"));
            format!("{head}://{user}127.0.0.1:{port}{tail}")
        };
        let address = match &self.address {
            Address::Postgres(url) => Address::Postgres(moved(url)),
            Address::MySql(url) => Address::MySql(moved(url)),
            Address::Redis { url, prefix } => {
                Address::Redis { url: moved(url), prefix: prefix.clone() }
            }
            embedded @ (Address::Memory(_) | Address::Sqlite(_)) => embedded.clone(),
        };
        Self { address, timeout: self.timeout }
    }
}

/// Writes the URL, which [`Backend::parse`] accepts.
impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Memory(_) => f.write_str("memory:"),
            Address::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Address::Postgres(url) | Address::MySql(url) => f.write_str(url),
            Address::Redis { url, prefix } => write!(f, "{url}?prefix={prefix}"),
        }
    }
}

fn wrong(url: &str) -> Error {
    // Only the scheme is shown: the rest may contain a password.
    let scheme = url.split(':').next().unwrap_or_default();
    let what = format!("no store is named by {scheme:?}; give {ACCEPTED}");
    Error::new(ErrorKind::Misconfigured, "choose a store", what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_names_no_store_is_refused_with_a_list_of_what_is_accepted() {
        for url in ["", "sqlite", "sqlite:", "memory:x", "postgres:host", "file:x", "redis:6379"] {
            let error = Backend::parse(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::Misconfigured, "{url}");
            assert!(error.to_string().contains("redis+cluster://"), "{error}");
        }
    }

    #[test]
    fn the_refusal_of_a_url_does_not_repeat_its_password() {
        let error = Backend::parse("postgre://app:hunter2@host/db").expect_err("a wrong scheme");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    #[test]
    fn every_accepted_url_reads_back() {
        for url in [
            "memory:",
            "sqlite:/var/ledger.db",
            "postgres://app@localhost:5432/app",
            "mysql://root@localhost:3306/app",
            "redis://localhost:6379?prefix=a:b:",
            "redis+cluster://localhost:1,localhost:2?prefix=idem:",
        ] {
            assert_eq!(Backend::parse(url).expect(url).to_string(), url);
        }
    }

    #[test]
    fn a_proxy_changes_host_and_port_alone() {
        let moved = |url: &str| Backend::parse(url).expect(url).through_port(9).to_string();
        assert_eq!(moved("postgres://app@db:5432/app"), "postgres://app@127.0.0.1:9/app");
        assert_eq!(moved("redis://db:6379?prefix=p:"), "redis://127.0.0.1:9?prefix=p:");
    }
}
