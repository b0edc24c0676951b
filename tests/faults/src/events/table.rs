//! The rows that handlers write: one per handling, in order, without a unique constraint.

use std::collections::HashMap;
use std::future::Future;

use semel_core::outbox::Outbox;
use semel_core::store::{Error, ErrorKind, Result, TransactionalStore};
use semel_sql::mysql::MySqlStore;
use semel_sql::postgres::PgStore;
use semel_sql::sqlite::SqliteStore;
use sqlx::Executor as _;
use sqlx::mysql::MySqlConnection;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::SqliteConnection;

use crate::effects::EffectStore;
use semel_stores::{Address, Backend, SqlConnection};

/// An event that a group handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HandledRow {
    pub(super) consumer: String,
    pub(super) event: String,
    pub(super) aggregate: String,
    pub(super) number: i64,
}

/// A store whose database has an outbox and the effects of events.
pub trait EventStore:
    EffectStore + Clone + Outbox<Connection = <Self as TransactionalStore>::Connection>
{
    /// Writes that `consumer` handled number `number` of `aggregate`.
    fn handled(
        connection: &mut <Self as TransactionalStore>::Connection,
        consumer: &str,
        event: &str,
        aggregate: &str,
        number: i64,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;
}

const INSERT: &str =
    "INSERT INTO event_effects (consumer, event, aggregate, number) VALUES (?, ?, ?, ?)";
const INSERT_PG: &str =
    "INSERT INTO event_effects (consumer, event, aggregate, number) VALUES ($1, $2, $3, $4)";
const SELECT: &str =
    "SELECT consumer, event, aggregate, number FROM event_effects ORDER BY position";
const COUNT: &str =
    "SELECT consumer, aggregate, COUNT(*) FROM event_effects GROUP BY consumer, aggregate";

macro_rules! event_database {
    ($store:ty, $connection:ty, $insert:expr) => {
        impl EventStore for $store {
            async fn handled(
                connection: &mut $connection,
                consumer: &str,
                event: &str,
                aggregate: &str,
                number: i64,
            ) -> sqlx::Result<()> {
                let insert = sqlx::query($insert)
                    .bind(consumer.to_owned())
                    .bind(event.to_owned())
                    .bind(aggregate.to_owned())
                    .bind(number);
                connection.execute(insert).await.map(drop)
            }
        }
    };
}

event_database!(SqliteStore, SqliteConnection, INSERT);
event_database!(PgStore, PgConnection, INSERT_PG);
event_database!(MySqlStore, MySqlConnection, INSERT);

/// A function over a store with an outbox, of any of these types.
pub trait Visitor {
    /// The result.
    type Output;

    /// Runs with the opened store.
    fn visit<S: EventStore>(self, store: S) -> impl Future<Output = Self::Output> + Send;
}

/// Opens the store as its own type and runs `visitor` with it.
///
/// # Errors
/// The store's own, or `Misconfigured` for one without an outbox.
pub async fn visit<V: Visitor>(backend: &Backend, visitor: V) -> Result<V::Output> {
    match backend.address() {
        Address::Sqlite(_) => Ok(visitor.visit(backend.sqlite().await?).await),
        Address::Postgres(_) => Ok(visitor.visit(backend.postgres().await?).await),
        Address::MySql(_) => Ok(visitor.visit(backend.mysql().await?).await),
        Address::Memory(_) | Address::Redis { .. } => Err(no_events()),
    }
}

fn no_events() -> Error {
    let what = "events are tested on SQLite, PostgreSQL and MySQL";
    Error::new(ErrorKind::Misconfigured, "open the outbox", what)
}

async fn connect(backend: &Backend) -> Result<SqlConnection> {
    SqlConnection::open(backend).await.map_err(failed)?.ok_or_else(no_events)
}

fn failed(error: sqlx::Error) -> Error {
    Error::new(ErrorKind::Unavailable, "reach the effects", error)
}

/// Creates the table.
pub(super) async fn create(backend: &Backend) -> Result<()> {
    let mut connection = connect(backend).await?;
    let position = match connection {
        SqlConnection::Sqlite(_) => "INTEGER PRIMARY KEY AUTOINCREMENT",
        SqlConnection::Postgres(_) => "BIGSERIAL PRIMARY KEY",
        SqlConnection::MySql(_) => "BIGINT AUTO_INCREMENT PRIMARY KEY",
    };
    let table = format!(
        "CREATE TABLE event_effects (position {position}, consumer VARCHAR(64) NOT NULL, \
         event VARCHAR(64) NOT NULL, aggregate VARCHAR(64) NOT NULL, number BIGINT NOT NULL)"
    );
    connection.execute(table).await.map_err(failed)
}

/// Counts the handled events by group and aggregate.
pub(super) async fn count(backend: &Backend) -> Result<HashMap<(String, String), u64>> {
    type Row = (String, String, i64);
    let rows: Vec<Row> = connect(backend).await?.fetch_all(COUNT).await.map_err(failed)?;
    let one = |(consumer, aggregate, count): Row| {
        ((consumer, aggregate), u64::try_from(count).unwrap_or(0))
    };
    Ok(rows.into_iter().map(one).collect())
}

/// Returns all handled events in the order of handling.
pub(super) async fn read(backend: &Backend) -> Result<Vec<HandledRow>> {
    type Row = (String, String, String, i64);
    let rows: Vec<Row> = connect(backend).await?.fetch_all(SELECT).await.map_err(failed)?;
    let row = |(consumer, event, aggregate, number): Row| HandledRow {
        consumer,
        event,
        aggregate,
        number,
    };
    Ok(rows.into_iter().map(row).collect())
}
