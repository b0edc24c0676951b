//! A place of its own for one run: a database, a key prefix, a directory.
//!
//! So that runs on one server never meet, and so that what a run left behind can be thrown away
//! whole.

use std::path::{Path, PathBuf};

use semel_core::store::{Error, ErrorKind, Result};
use sqlx::mysql::MySqlConnection;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};

use crate::effects;
use crate::stores::{Address, Backend};

/// A private store with its schema, a table for effects where it can have one, and a directory for
/// whatever else the run writes.
#[derive(Debug)]
pub struct Place {
    backend: Backend,
    /// The server's own URL and our database on it.
    database: Option<(String, String)>,
    directory: PathBuf,
}

/// The stores that [`Place::named`] knows, in the order in which reports list them.
pub const NAMES: [&str; 6] = ["memory", "sqlite", "postgres", "mysql", "redis", "redis-cluster"];

impl Place {
    /// A place on the store of that name, on the servers that the environment names; or on the
    /// server of a URL.
    ///
    /// # Errors
    /// `Misconfigured` for an unknown name or a variable that is not set; else the store's own.
    pub async fn named(name: &str) -> Result<Self> {
        let from = |variable: &str| {
            std::env::var(variable).map_err(|_| {
                let what =
                    format!("set {variable} or run `cargo xtask test`, which starts the servers");
                Error::new(ErrorKind::Misconfigured, "find the server", what)
            })
        };
        let url = match name {
            "memory" | "memory:" => "memory:".to_owned(),
            "sqlite" | "sqlite:" => "sqlite:ledger.db".to_owned(),
            "postgres" => from("SEMEL_TEST_POSTGRES_URL")?,
            "mysql" | "mariadb" => from("SEMEL_TEST_MYSQL_URL")?,
            "mysql9" => from("SEMEL_TEST_MYSQL9_URL")?,
            "redis" => from("SEMEL_TEST_REDIS_URL")?,
            "redis-cluster" => from("SEMEL_TEST_REDIS_CLUSTER_URL")?,
            url => url.to_owned(),
        };
        Self::on(&url).await
    }

    /// A place on the server of `url`. Of a SQLite path only the file's name is used: the file is
    /// new, in the place's own directory.
    ///
    /// # Errors
    /// The store's own.
    pub async fn on(url: &str) -> Result<Self> {
        let unique = format!("{}_{:016x}", std::process::id(), fastrand::u64(..));
        let directory = std::env::temp_dir().join(format!("semel-proof-{unique}"));
        std::fs::create_dir_all(&directory)
            .map_err(|error| Error::new(ErrorKind::Unavailable, "make a directory", error))?;
        let mut place =
            Self { backend: Backend::parse(url)?, database: None, directory: directory.clone() };
        let name = format!("semel_proof_{unique}");
        let private = match place.backend.address() {
            Address::Memory(_) => return Ok(place),
            Address::Sqlite(path) => {
                let file = path.file_name().unwrap_or_default();
                format!("sqlite:{}", directory.join(file).display())
            }
            Address::Redis { url, .. } => format!("{url}?prefix=proof:{unique}:"),
            Address::Postgres(url) | Address::MySql(url) => {
                place.database = Some((url.clone(), name.clone()));
                let url = url.clone();
                place.on_server(format!("CREATE DATABASE {name}")).await?;
                with_database(&url, &name)
            }
        };
        place.backend = Backend::parse(&private)?;
        place.set_up().await?;
        Ok(place)
    }

    async fn set_up(&self) -> Result<()> {
        match self.backend.address() {
            Address::Memory(_) | Address::Redis { .. } => return Ok(()),
            Address::Sqlite(_) => self.backend.sqlite().await?.close().await,
            Address::Postgres(url) => {
                self.backend.postgres(url).await?.migrate().await?;
            }
            Address::MySql(url) => {
                self.backend.mysql(url).await?.migrate().await?;
            }
        }
        effects::create(&self.backend).await
    }

    /// The private store.
    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    /// A directory of this run's own.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    async fn on_server(&self, statement: String) -> Result<()> {
        let Some((url, _)) = &self.database else { return Ok(()) };
        let text = AssertSqlSafe(statement);
        let done = match self.backend.address() {
            Address::Postgres(_) => match PgConnection::connect(url).await {
                Ok(mut connection) => connection.execute(text).await.map(drop),
                Err(error) => Err(error),
            },
            Address::MySql(_) => match MySqlConnection::connect(url).await {
                Ok(mut connection) => connection.execute(text).await.map(drop),
                Err(error) => Err(error),
            },
            Address::Memory(_) | Address::Sqlite(_) | Address::Redis { .. } => Ok(()),
        };
        done.map_err(|error| Error::new(ErrorKind::Unavailable, "set up a private place", error))
    }

    /// Removes the private database. Best effort: the server is somebody's test server.
    pub async fn remove(self) {
        let Some((_, name)) = &self.database else { return };
        let force = match self.backend.address() {
            Address::Postgres(_) => " WITH (FORCE)",
            Address::Memory(_) | Address::Sqlite(_) | Address::MySql(_) | Address::Redis { .. } => {
                ""
            }
        };
        let _ = self.on_server(format!("DROP DATABASE IF EXISTS {name}{force}")).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// `url` with another database.
fn with_database(url: &str, database: &str) -> String {
    let start = url.find("://").map_or(0, |at| at + 3);
    let host = url[start..].find(['/', '?']).map_or(url.len(), |at| start + at);
    let query = url[host..].find('?').map_or("", |at| &url[host + at..]);
    format!("{}/{database}{query}", &url[..host])
}

#[cfg(test)]
mod tests {
    use super::with_database;

    #[test]
    fn the_database_of_a_url_is_replaced_and_nothing_else() {
        let moved = |url| with_database(url, "mine");
        assert_eq!(moved("postgres://a@h:1/postgres"), "postgres://a@h:1/mine");
        assert_eq!(moved("mysql://h"), "mysql://h/mine");
        assert_eq!(moved("postgres://h/db?sslmode=disable"), "postgres://h/mine?sslmode=disable");
    }
}
