//! Effects, in a table without a unique constraint: an effect that happened twice is there twice.
//!
//! In a database they are written in the work's own transaction; for stores without transactions there is
//! a [`Journal`], a file that only grows.

use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use semel_core::Context;
use semel_core::store::{Error, ErrorKind, Inspect, Result, TransactionalStore};
use semel_sql::mysql::MySqlStore;
use semel_sql::postgres::PgStore;
use semel_sql::sqlite::SqliteStore;
use serde::{Deserialize, Serialize};
use sqlx::Executor as _;
use sqlx::mysql::MySqlConnection;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::SqliteConnection;

use semel_stores::{Address, Backend, SqlConnection};

/// One effect. Its value is unique to the execution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effect {
    /// The id of the operation's key.
    pub key: String,
    /// The result of this execution.
    pub value: String,
    /// The operation, kept across attempts.
    pub operation: String,
    /// The attempt.
    pub attempt: u32,
    /// Its fence.
    pub fence: u64,
}

impl Effect {
    /// Returns the effect of the execution of `context`, with a new value.
    pub fn of(context: &Context) -> Self {
        Self {
            key: context.key().id().to_owned(),
            value: format!("{:016x}", fastrand::u64(..)),
            operation: context.operation_id().to_string(),
            attempt: context.attempt(),
            fence: context.fence().0,
        }
    }
}

/// A store whose database holds the effects.
pub trait EffectStore: TransactionalStore + Inspect {
    /// Writes the effect in the transaction of `connection`.
    fn perform(
        connection: &mut Self::Connection,
        effect: &Effect,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;
}

const TABLE: &str = "CREATE TABLE IF NOT EXISTS effects (key_id VARCHAR(255) NOT NULL, value VARCHAR(64) NOT NULL, \
                     operation VARCHAR(64) NOT NULL, attempt INTEGER NOT NULL, fence BIGINT NOT NULL)";
const INSERT: &str =
    "INSERT INTO effects (key_id, value, operation, attempt, fence) VALUES (?, ?, ?, ?, ?)";
const INSERT_PG: &str =
    "INSERT INTO effects (key_id, value, operation, attempt, fence) VALUES ($1, $2, $3, $4, $5)";
const SELECT: &str = "SELECT key_id, value, operation, attempt, fence FROM effects";

macro_rules! database {
    ($store:ty, $connection:ty, $insert:expr) => {
        impl EffectStore for $store {
            async fn perform(connection: &mut $connection, effect: &Effect) -> sqlx::Result<()> {
                let insert = sqlx::query($insert)
                    .bind(effect.key.clone())
                    .bind(effect.value.clone())
                    .bind(effect.operation.clone())
                    .bind(i32::try_from(effect.attempt).unwrap_or(i32::MAX))
                    .bind(i64::try_from(effect.fence).unwrap_or(i64::MAX));
                connection.execute(insert).await.map(drop)
            }
        }
    };
}

database!(SqliteStore, SqliteConnection, INSERT);
database!(PgStore, PgConnection, INSERT_PG);
database!(MySqlStore, MySqlConnection, INSERT);

/// A function over a store of any of these types: `transact` needs the concrete type.
pub trait Visitor {
    /// The result.
    type Output;

    /// Runs with the opened store.
    fn visit<S: EffectStore>(self, store: S) -> impl Future<Output = Self::Output>;
}

/// Opens the store as its own type and runs `visitor` with it.
///
/// # Errors
/// `Misconfigured` for a store without transactions; else the store's own.
pub async fn visit<V: Visitor>(backend: &Backend, visitor: V) -> Result<V::Output> {
    match backend.address() {
        Address::Sqlite(_) => Ok(visitor.visit(backend.sqlite().await?).await),
        Address::Postgres(_) => Ok(visitor.visit(backend.postgres().await?).await),
        Address::MySql(_) => Ok(visitor.visit(backend.mysql().await?).await),
        Address::Memory(_) | Address::Redis { .. } => {
            let what = format!("{} has no transactions; use SQLite or a server", backend.name());
            Err(Error::new(ErrorKind::Misconfigured, "connect", what))
        }
    }
}

fn failed(error: sqlx::Error) -> Error {
    Error::new(ErrorKind::Unavailable, "reach the effects", error)
}

/// Creates the table, where the store has a SQL database.
///
/// # Errors
/// The database's own.
pub async fn create(backend: &Backend) -> Result<()> {
    match SqlConnection::open(backend).await.map_err(failed)? {
        Some(mut connection) => connection.execute(TABLE).await.map_err(failed),
        None => Ok(()),
    }
}

/// Returns all effects in the database.
///
/// # Errors
/// The database's own.
pub async fn read(backend: &Backend) -> Result<Vec<Effect>> {
    type Row = (String, String, String, i32, i64);
    let Some(mut connection) = SqlConnection::open(backend).await.map_err(failed)? else {
        return Ok(Vec::new());
    };
    let rows: Vec<Row> = connection.fetch_all(SELECT).await.map_err(failed)?;
    let effect = |(key, value, operation, attempt, fence): Row| Effect {
        key,
        value,
        operation,
        attempt: u32::try_from(attempt).unwrap_or(0),
        fence: u64::try_from(fence).unwrap_or(0),
    };
    Ok(rows.into_iter().map(effect).collect())
}

/// Effects outside any database: a file to which lines are appended, each in one write.
#[derive(Clone, Debug)]
pub struct Journal(PathBuf);

impl Journal {
    /// The journal at `path`, which need not be there yet.
    pub fn at(path: impl AsRef<Path>) -> Self {
        Self(path.as_ref().to_owned())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes the effect.
    ///
    /// # Errors
    /// The file system's.
    pub fn perform(&self, effect: &Effect) -> io::Result<()> {
        let mut line = serde_json::to_vec(effect)?;
        line.push(b'\n');
        let mut file: File = OpenOptions::new().create(true).append(true).open(&self.0)?;
        file.write_all(&line)
    }

    /// All effects, in the order in which they were done. A line that a killed process left half
    /// written is no effect.
    ///
    /// # Errors
    /// The file system's.
    pub fn read(&self) -> io::Result<Vec<Effect>> {
        match std::fs::read_to_string(&self.0) {
            Ok(text) => {
                Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

impl<S: EffectStore> EffectStore for semel_testkit::faulty::FaultyStore<S> {
    async fn perform(connection: &mut S::Connection, effect: &Effect) -> sqlx::Result<()> {
        S::perform(connection, effect).await
    }
}
