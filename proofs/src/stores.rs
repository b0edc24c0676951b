//! Choosing a store by its URL, which is a program's business and no library's.
//!
//! A chosen store is opened erased ([`Backend::open`]) or, where its database can hold the work's
//! own writes, as what it is ([`Backend::with_database`]): `transact` needs the concrete type.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use semel_core::AnyStore;
use semel_core::store::memory::MemoryStore;
use semel_core::store::{Error, ErrorKind, Result};
use semel_redis::RedisStore;
use semel_sql::mysql::MySqlStore;
use semel_sql::postgres::PgStore;
use semel_sql::sqlite::SqliteStore;

use crate::effects::Database;

/// What [`Backend::parse`] takes.
const ACCEPTED: &str = "memory:, sqlite:PATH, postgres://…, mysql://…, redis://HOST:PORT[?prefix=P] \
                        or redis+cluster://HOST:PORT,HOST:PORT[?prefix=P]";

/// A store that was named but not opened. Opening it twice gives two handles on the same records.
#[derive(Clone, Debug)]
pub struct Backend {
    address: Address,
    patience: Option<Duration>,
}

#[derive(Clone, Debug)]
pub(crate) enum Address {
    Memory(MemoryStore),
    Sqlite(PathBuf),
    Postgres(String),
    MySql(String),
    /// One server or a cluster.
    Redis {
        url: String,
        prefix: String,
    },
}

/// Does something with a store whose database can hold the work's own writes.
pub trait Visitor {
    /// What comes of it.
    type Output;

    /// Does it.
    fn visit<S: Database>(self, store: S) -> impl Future<Output = Self::Output>;
}

impl Backend {
    /// The store at `url`.
    ///
    /// # Errors
    /// `Misconfigured`, with a list of what is accepted.
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
        Ok(Self { address, patience: None })
    }

    /// How long one step may take before it counts as lost; without it, the store's own default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// A short name for tables.
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

    /// Whether the work's own writes can be in the same commit.
    pub fn is_atomic(&self) -> bool {
        match &self.address {
            Address::Sqlite(_) | Address::Postgres(_) | Address::MySql(_) => true,
            Address::Memory(_) | Address::Redis { .. } => false,
        }
    }

    /// Opens it, whatever it is. The schema must be there.
    ///
    /// # Errors
    /// The store's own.
    pub async fn open(&self) -> Result<AnyStore> {
        Ok(match &self.address {
            Address::Memory(store) => AnyStore::new(store.clone()),
            Address::Sqlite(_) => AnyStore::new(self.sqlite().await?),
            Address::Postgres(url) => AnyStore::new(self.postgres(url).await?),
            Address::MySql(url) => AnyStore::new(self.mysql(url).await?),
            Address::Redis { .. } => AnyStore::new(self.redis().await?),
        })
    }

    /// Opens it as what it is.
    ///
    /// # Errors
    /// `Misconfigured` for a store without transactions; else the store's own.
    pub async fn with_database<V: Visitor>(&self, visitor: V) -> Result<V::Output> {
        match &self.address {
            Address::Sqlite(_) => Ok(visitor.visit(self.sqlite().await?).await),
            Address::Postgres(url) => Ok(visitor.visit(self.postgres(url).await?).await),
            Address::MySql(url) => Ok(visitor.visit(self.mysql(url).await?).await),
            Address::Memory(_) | Address::Redis { .. } => {
                let what = format!("{} has no transactions; use SQLite or a server", self.name());
                Err(Error::new(ErrorKind::Misconfigured, "connect", what))
            }
        }
    }

    /// The SQLite store.
    ///
    /// # Errors
    /// `Misconfigured` if it is another.
    pub async fn sqlite(&self) -> Result<SqliteStore> {
        match &self.address {
            Address::Sqlite(path) => SqliteStore::open(path).await,
            Address::Memory(_)
            | Address::Postgres(_)
            | Address::MySql(_)
            | Address::Redis { .. } => Err(wrong(&self.to_string())),
        }
    }

    /// The Redis store.
    ///
    /// # Errors
    /// `Misconfigured` if it is another.
    pub async fn redis(&self) -> Result<RedisStore> {
        let Address::Redis { url, prefix } = &self.address else {
            return Err(wrong(&self.to_string()));
        };
        let mut builder = RedisStore::builder().prefix(prefix);
        if let Some(patience) = self.patience {
            builder = builder.connect_timeout(patience).response_timeout(patience);
        }
        builder.connect(url).await
    }

    pub(crate) async fn postgres(&self, url: &str) -> Result<PgStore> {
        let mut builder = PgStore::builder(url);
        if let Some(patience) = self.patience {
            builder = builder.statement_timeout(patience).transaction_wait(patience);
        }
        builder.connect().await
    }

    pub(crate) async fn mysql(&self, url: &str) -> Result<MySqlStore> {
        let mut builder = MySqlStore::builder(url);
        if let Some(patience) = self.patience {
            builder = builder.statement_timeout(patience);
        }
        builder.connect().await
    }

    /// The same store behind another port of this machine, such as a proxy's.
    #[must_use]
    pub fn by_way_of(&self, port: u16) -> Self {
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
        Self { address, patience: self.patience }
    }
}

/// The URL, which [`Backend::parse`] reads back.
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
    // Only the scheme: the rest may hold a password.
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
    fn a_detour_changes_host_and_port_alone() {
        let away = |url: &str| Backend::parse(url).expect(url).by_way_of(9).to_string();
        assert_eq!(away("postgres://app@db:5432/app"), "postgres://app@127.0.0.1:9/app");
        assert_eq!(away("redis://db:6379?prefix=p:"), "redis://127.0.0.1:9?prefix=p:");
    }
}
