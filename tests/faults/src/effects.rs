//! Effects, in a table without a unique constraint: an effect that happened twice is there twice.
//!
//! They are written in the work's own transaction. For stores without transactions there is
//! [`EffectLedger`](semel_testkit::effects::EffectLedger), a file.

use std::future::Future;

use semel_core::store::{Error, ErrorKind, Inspect, Result, TransactionalStore};
use semel_sql::mysql::MySqlStore;
use semel_sql::postgres::PgStore;
use semel_sql::sqlite::SqliteStore;
use sqlx::Executor as _;
use sqlx::mysql::MySqlConnection;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::SqliteConnection;

use semel_stores::{Address, Backend, SqlConnection};
pub use semel_testkit::effects::Effect;

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

impl<S: EffectStore> EffectStore for semel_testkit::faulty::FaultyStore<S> {
    async fn perform(connection: &mut S::Connection, effect: &Effect) -> sqlx::Result<()> {
        S::perform(connection, effect).await
    }
}
