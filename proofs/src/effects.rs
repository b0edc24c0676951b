//! Effects, written where nothing stops a second one: no unique constraint, no upsert.
//!
//! An effect that was done twice must be visible twice, so this is the one table of the project that
//! does not defend itself. In a database it is written by the work's own transaction; for stores
//! without transactions there is a [`Journal`], a file that only grows.

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
use sqlx::mysql::MySqlConnection;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _};

use crate::stores::{Address, Backend};

/// Something that happened. The value is new with every execution, so that no two can be mistaken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effect {
    /// The id of the operation's key.
    pub key: String,
    /// What this execution answered.
    pub value: String,
    /// The operation, kept across attempts.
    pub operation: String,
    /// Which execution it was.
    pub attempt: u32,
    /// Its fence.
    pub fence: u64,
}

impl Effect {
    /// The effect of the execution that `context` belongs to, with a value of its own.
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

/// A store whose database holds the effects as well.
pub trait Database: TransactionalStore + Inspect {
    /// Writes the effect on `connection`, inside whatever transaction it is in.
    fn perform(
        connection: &mut Self::Connection,
        effect: &Effect,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;
}

const TABLE: &str = "CREATE TABLE effects (key_id VARCHAR(255) NOT NULL, value VARCHAR(64) NOT NULL, \
                     operation VARCHAR(64) NOT NULL, attempt INTEGER NOT NULL, fence BIGINT NOT NULL)";
const INSERT: &str =
    "INSERT INTO effects (key_id, value, operation, attempt, fence) VALUES (?, ?, ?, ?, ?)";
const INSERT_PG: &str =
    "INSERT INTO effects (key_id, value, operation, attempt, fence) VALUES ($1, $2, $3, $4, $5)";
const SELECT: &str = "SELECT key_id, value, operation, attempt, fence FROM effects";

macro_rules! database {
    ($store:ty, $connection:ty, $insert:expr) => {
        impl Database for $store {
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

/// A plain connection to the store's database, past the store.
enum Side {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
    MySql(MySqlConnection),
}

impl Side {
    async fn of(backend: &Backend) -> sqlx::Result<Option<Self>> {
        Ok(Some(match backend.address() {
            Address::Sqlite(path) => {
                let options = SqliteConnectOptions::new().filename(path);
                Side::Sqlite(options.create_if_missing(true).connect().await?)
            }
            Address::Postgres(url) => Side::Postgres(PgConnection::connect(url).await?),
            Address::MySql(url) => Side::MySql(MySqlConnection::connect(url).await?),
            Address::Memory(_) | Address::Redis { .. } => return Ok(None),
        }))
    }
}

fn failed(error: sqlx::Error) -> Error {
    Error::new(ErrorKind::Unavailable, "reach the effects", error)
}

/// Makes the table.
///
/// # Errors
/// The database's own.
pub async fn create(backend: &Backend) -> Result<()> {
    let created = match Side::of(backend).await.map_err(failed)? {
        Some(Side::Sqlite(mut connection)) => connection.execute(TABLE).await.map(drop),
        Some(Side::Postgres(mut connection)) => connection.execute(TABLE).await.map(drop),
        Some(Side::MySql(mut connection)) => connection.execute(TABLE).await.map(drop),
        None => Ok(()),
    };
    created.map_err(failed)
}

/// All effects in the database.
///
/// # Errors
/// The database's own.
pub async fn read(backend: &Backend) -> Result<Vec<Effect>> {
    type Row = (String, String, String, i32, i64);
    let rows: sqlx::Result<Vec<Row>> = match Side::of(backend).await.map_err(failed)? {
        Some(Side::Sqlite(mut connection)) => {
            sqlx::query_as(SELECT).fetch_all(&mut connection).await
        }
        Some(Side::Postgres(mut connection)) => {
            sqlx::query_as(SELECT).fetch_all(&mut connection).await
        }
        Some(Side::MySql(mut connection)) => {
            sqlx::query_as(SELECT).fetch_all(&mut connection).await
        }
        None => Ok(Vec::new()),
    };
    let effect = |(key, value, operation, attempt, fence): Row| Effect {
        key,
        value,
        operation,
        attempt: u32::try_from(attempt).unwrap_or(0),
        fence: u64::try_from(fence).unwrap_or(0),
    };
    Ok(rows.map_err(failed)?.into_iter().map(effect).collect())
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

impl<S: Database> Database for semel_testkit::faulty::FaultyStore<S> {
    async fn perform(connection: &mut S::Connection, effect: &Effect) -> sqlx::Result<()> {
        S::perform(connection, effect).await
    }
}
