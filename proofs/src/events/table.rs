//! Where handled events leave their effect: one row per handling, in the order of handling, with no
//! unique constraint that could hide a second one.

use std::collections::HashMap;
use std::future::Future;

use semel_core::outbox::Outbox;
use semel_core::store::{Error, ErrorKind, Result, TransactionalStore};
use semel_sql::mysql::MySqlStore;
use semel_sql::postgres::PgStore;
use semel_sql::sqlite::SqliteStore;
use sqlx::mysql::MySqlConnection;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _};

use crate::effects::Database;
use crate::stores::{Address, Backend};

/// An event that a group handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HandledRow {
    pub(super) consumer: String,
    pub(super) event: String,
    pub(super) lane: String,
    pub(super) number: i64,
}

/// A store whose database has an outbox and the effects of events.
pub trait EventDatabase:
    Database + Clone + Outbox<Connection = <Self as TransactionalStore>::Connection>
{
    /// Writes that `consumer` handled number `number` of `lane`.
    fn handled(
        connection: &mut <Self as TransactionalStore>::Connection,
        consumer: &str,
        event: &str,
        lane: &str,
        number: i64,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;
}

const INSERT: &str =
    "INSERT INTO event_effects (consumer, event, lane, number) VALUES (?, ?, ?, ?)";
const INSERT_PG: &str =
    "INSERT INTO event_effects (consumer, event, lane, number) VALUES ($1, $2, $3, $4)";
const SELECT: &str = "SELECT consumer, event, lane, number FROM event_effects ORDER BY position";
const COUNT: &str = "SELECT consumer, lane, COUNT(*) FROM event_effects GROUP BY consumer, lane";

macro_rules! event_database {
    ($store:ty, $connection:ty, $insert:expr) => {
        impl EventDatabase for $store {
            async fn handled(
                connection: &mut $connection,
                consumer: &str,
                event: &str,
                lane: &str,
                number: i64,
            ) -> sqlx::Result<()> {
                let insert = sqlx::query($insert)
                    .bind(consumer.to_owned())
                    .bind(event.to_owned())
                    .bind(lane.to_owned())
                    .bind(number);
                connection.execute(insert).await.map(drop)
            }
        }
    };
}

event_database!(SqliteStore, SqliteConnection, INSERT);
event_database!(PgStore, PgConnection, INSERT_PG);
event_database!(MySqlStore, MySqlConnection, INSERT);

/// Does something with a store that has an outbox.
pub trait Visitor {
    /// What comes of it.
    type Output;

    /// Does it.
    fn visit<S: EventDatabase>(self, store: S) -> impl Future<Output = Self::Output> + Send;
}

/// Opens the store and lets `visitor` do it.
///
/// # Errors
/// The store's own, or `Misconfigured` for one without an outbox.
pub async fn visit<V: Visitor>(backend: &Backend, visitor: V) -> Result<V::Output> {
    match backend.address() {
        Address::Sqlite(_) => Ok(visitor.visit(backend.sqlite().await?).await),
        Address::Postgres(url) => Ok(visitor.visit(backend.postgres(url).await?).await),
        Address::MySql(url) => Ok(visitor.visit(backend.mysql(url).await?).await),
        Address::Memory(_) | Address::Redis { .. } => Err(no_events()),
    }
}

fn no_events() -> Error {
    let what = "events are proved on SQLite, PostgreSQL and MySQL";
    Error::new(ErrorKind::Misconfigured, "open the outbox", what)
}

/// A plain connection to the database, past the store.
enum Side {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
    MySql(MySqlConnection),
}

async fn side(backend: &Backend) -> Result<Side> {
    let opened = match backend.address() {
        Address::Sqlite(path) => {
            let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
            options.connect().await.map(Side::Sqlite)
        }
        Address::Postgres(url) => PgConnection::connect(url).await.map(Side::Postgres),
        Address::MySql(url) => MySqlConnection::connect(url).await.map(Side::MySql),
        Address::Memory(_) | Address::Redis { .. } => return Err(no_events()),
    };
    opened.map_err(failed)
}

fn failed(error: sqlx::Error) -> Error {
    Error::new(ErrorKind::Unavailable, "reach the effects", error)
}

/// Makes the table.
pub(super) async fn create(backend: &Backend) -> Result<()> {
    let table = |position: &str| {
        AssertSqlSafe(format!(
            "CREATE TABLE event_effects (position {position}, consumer VARCHAR(64) NOT NULL, \
             event VARCHAR(64) NOT NULL, lane VARCHAR(64) NOT NULL, number BIGINT NOT NULL)"
        ))
    };
    let created = match side(backend).await? {
        Side::Sqlite(mut connection) => {
            connection.execute(table("INTEGER PRIMARY KEY AUTOINCREMENT")).await.map(drop)
        }
        Side::Postgres(mut connection) => {
            connection.execute(table("BIGSERIAL PRIMARY KEY")).await.map(drop)
        }
        Side::MySql(mut connection) => {
            connection.execute(table("BIGINT AUTO_INCREMENT PRIMARY KEY")).await.map(drop)
        }
    };
    created.map_err(failed)
}

/// How many there are of each lane, by group and lane.
pub(super) async fn count(backend: &Backend) -> Result<HashMap<(String, String), u64>> {
    type Row = (String, String, i64);
    let counted: sqlx::Result<Vec<Row>> = match side(backend).await? {
        Side::Sqlite(mut connection) => sqlx::query_as(COUNT).fetch_all(&mut connection).await,
        Side::Postgres(mut connection) => sqlx::query_as(COUNT).fetch_all(&mut connection).await,
        Side::MySql(mut connection) => sqlx::query_as(COUNT).fetch_all(&mut connection).await,
    };
    let one = |(consumer, lane, count): Row| ((consumer, lane), u64::try_from(count).unwrap_or(0));
    Ok(counted.map_err(failed)?.into_iter().map(one).collect())
}

/// All of them, in the order in which they happened.
pub(super) async fn read(backend: &Backend) -> Result<Vec<HandledRow>> {
    type Row = (String, String, String, i64);
    let rows: sqlx::Result<Vec<Row>> = match side(backend).await? {
        Side::Sqlite(mut connection) => sqlx::query_as(SELECT).fetch_all(&mut connection).await,
        Side::Postgres(mut connection) => sqlx::query_as(SELECT).fetch_all(&mut connection).await,
        Side::MySql(mut connection) => sqlx::query_as(SELECT).fetch_all(&mut connection).await,
    };
    let row = |(consumer, event, lane, number): Row| HandledRow { consumer, event, lane, number };
    Ok(rows.map_err(failed)?.into_iter().map(row).collect())
}
