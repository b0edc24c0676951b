//! A private store for one run: its own database, key prefix or file, and a directory.
//!
//! Runs on one server never see each other's rows, and everything is removed together.

use std::path::{Path, PathBuf};

use semel_core::store::{Error, ErrorKind, Result};

use crate::backend::{Address, Backend};
use crate::connection::SqlConnection;

/// A private store with its schema, and a directory for the run's files.
#[derive(Debug)]
pub struct PrivateStore {
    backend: Backend,
    /// The URL of the server and the name of the private database on it.
    database: Option<(String, String)>,
    directory: PathBuf,
}

/// The names that [`PrivateStore::named`] accepts, in the order in which reports list them.
pub const NAMES: [&str; 6] = ["memory", "sqlite", "postgres", "mysql", "redis", "redis-cluster"];

/// Returns the URL of the store with this name, on the servers whose URLs are in the environment. A
/// URL is returned unchanged.
///
/// # Errors
/// `Misconfigured` if the variable with the server's URL is not set.
pub fn server_url(name: &str) -> Result<String> {
    let variable = match name {
        "memory" | "memory:" => return Ok("memory:".to_owned()),
        "sqlite" | "sqlite:" => return Ok("sqlite:ledger.db".to_owned()),
        "postgres" => "SEMEL_TEST_POSTGRES_URL",
        "mysql" | "mariadb" => "SEMEL_TEST_MYSQL_URL",
        "mysql9" => "SEMEL_TEST_MYSQL9_URL",
        "redis" => "SEMEL_TEST_REDIS_URL",
        "redis-cluster" => "SEMEL_TEST_REDIS_CLUSTER_URL",
        url => return Ok(url.to_owned()),
    };
    std::env::var(variable).map_err(|_| {
        let what = format!("set {variable} or run `cargo xtask test`, which starts the servers");
        Error::new(ErrorKind::Misconfigured, "find the server", what)
    })
}

impl PrivateStore {
    /// Creates a private store with this name on the servers whose URLs are in the environment, or
    /// on the server of a URL.
    ///
    /// # Errors
    /// `Misconfigured` for an unknown name or a variable that is not set; else the errors of the store.
    pub async fn named(name: &str) -> Result<Self> {
        Self::on(&server_url(name)?).await
    }

    /// Creates a private store on the server of `url`. Of a SQLite path only the file's name is
    /// used: the file is new, in the run's own directory.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn on(url: &str) -> Result<Self> {
        let unique = format!("{}_{:016x}", std::process::id(), fastrand::u64(..));
        let directory = std::env::temp_dir().join(format!("semel-test-{unique}"));
        std::fs::create_dir_all(&directory)
            .map_err(|error| Error::new(ErrorKind::Unavailable, "make a directory", error))?;
        let mut private =
            Self { backend: Backend::parse(url)?, database: None, directory: directory.clone() };
        let name = format!("semel_test_{unique}");
        let url = match private.backend.address() {
            Address::Memory(_) => return Ok(private),
            Address::Sqlite(path) => {
                let file = path.file_name().unwrap_or_default();
                format!("sqlite:{}", directory.join(file).display())
            }
            Address::Redis { url, .. } => format!("{url}?prefix=test:{unique}:"),
            Address::Postgres(url) | Address::MySql(url) => {
                private.database = Some((url.clone(), name.clone()));
                let url = url.clone();
                private.on_server(format!("CREATE DATABASE {name}")).await?;
                with_database(&url, &name)
            }
        };
        private.backend = Backend::parse(&url)?;
        private.set_up().await?;
        Ok(private)
    }

    async fn set_up(&self) -> Result<()> {
        match self.backend.address() {
            Address::Memory(_) | Address::Redis { .. } => {}
            Address::Sqlite(_) => self.backend.sqlite().await?.close().await,
            Address::Postgres(_) => {
                self.backend.postgres().await?.migrate().await?;
            }
            Address::MySql(_) => {
                self.backend.mysql().await?.migrate().await?;
            }
        }
        Ok(())
    }

    /// Returns the address of the private store.
    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Returns the directory for the run's files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Runs a statement on the server, outside the private database.
    async fn on_server(&self, statement: String) -> Result<()> {
        let Some((url, _)) = &self.database else { return Ok(()) };
        let failed = |error: sqlx::Error| {
            Error::new(ErrorKind::Unavailable, "set up a private database", error)
        };
        let connection = SqlConnection::open(&Backend::parse(url)?).await.map_err(failed)?;
        match connection {
            Some(mut connection) => connection.execute(statement).await.map_err(failed),
            None => Ok(()),
        }
    }

    /// Removes the private database, as far as the server allows it.
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

impl Drop for PrivateStore {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Returns `url` with another database.
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
