//! The business' own tables, in the ledger's database: `orders`, and `effects` of those who were told.
//!
//! `effects` has no unique constraint on purpose: an order that was handled twice would have two rows
//! of a group, and [`Tally::doubled`] would count it. Nothing here prevents that; the inbox does.

use std::future::Future;
use std::time::Duration;

use semel_core::outbox::Outbox;
use semel_core::store::{Inspect, TransactionalStore};
use semel_ids::create::CreatingStore;
use semel_sql::mysql::MySqlStore;
use semel_sql::postgres::PgStore;
use semel_sql::sqlite::SqliteStore;
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{Database, Executor as _, Pool, QueryBuilder};

use super::orders::{Order, OrderId};
use super::tally::{Counted, Tally};
use crate::store::StoreUrl;

/// Connections for what changes nothing. Writing is the ledger's: whoever wrote on another connection
/// would wait for its own transaction to end.
const READERS: u32 = 4;
/// How long a reader waits for one of them.
const PATIENCE: Duration = Duration::from_secs(5);
/// Orders in one query.
const BATCH: usize = 200;

/// What statements of this database run on.
pub(super) type Conn<S> = <S as TransactionalStore>::Connection;
/// Where this database is read.
pub(super) type Reading<S> = Pool<<S as Tables>::Db>;

/// The tables. Written for each database, because each has its own connections.
pub(super) trait Tables: CreatingStore + Inspect + Clone
where
    Self: Outbox<Connection = <Self as TransactionalStore>::Connection>,
{
    /// As sqlx knows it.
    type Db: Database;

    /// Connections for reading. Nothing is dialled yet.
    fn reading(url: &StoreUrl) -> sqlx::Result<Reading<Self>>;

    /// The columns of the table that a statement would mean by this name; none if there is no table.
    fn columns(
        reading: &Reading<Self>,
        table: &str,
    ) -> impl Future<Output = sqlx::Result<Vec<String>>> + Send;

    /// Makes the tables where they are missing.
    fn set_up(reading: &Reading<Self>) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// A name for what belongs to this database on a broker, made once: demos of one database share
    /// their events, those of two do not meet.
    fn name(reading: &Reading<Self>) -> impl Future<Output = sqlx::Result<String>> + Send;

    /// Writes an order.
    fn insert_order(
        connection: &mut Conn<Self>,
        tenant: &str,
        order: &Order,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Notes that `group` has handled an order. Nothing here stops a second one.
    fn insert_effect(
        connection: &mut Conn<Self>,
        tenant: &str,
        group: &str,
        order: OrderId,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Those of a tenant's orders that are there, in any order.
    fn orders(
        reading: &Reading<Self>,
        tenant: &str,
        ids: &[OrderId],
    ) -> impl Future<Output = sqlx::Result<Vec<Order>>> + Send;

    /// Every order of a tenant: its product and its id, in any order.
    fn placed(
        reading: &Reading<Self>,
        tenant: &str,
    ) -> impl Future<Output = sqlx::Result<Vec<(String, OrderId)>>> + Send;

    /// What there is: of one tenant, or of all.
    fn tally(
        reading: &Reading<Self>,
        tenant: Option<&str>,
    ) -> impl Future<Output = sqlx::Result<Tally>> + Send;
}

/// Our tables, and the columns that each has.
const OURS: [(&str, &[&str]); 3] = [
    ("demo_name", &["one", "name"]),
    ("orders", &["id", "tenant_id", "internal_id", "public_id", "sku", "quantity", "amount_cents"]),
    ("effects", &["tenant_id", "consumer_group", "order_id"]),
];

/// The first table of ours whose name somebody else has taken. Theirs is left as it is: it gets no
/// order, and no index.
pub(super) async fn taken<S: Tables>(reading: &Reading<S>) -> sqlx::Result<Option<&'static str>> {
    for (table, wanted) in OURS {
        let mut found = S::columns(reading, table).await?;
        found.iter_mut().for_each(|column| column.make_ascii_lowercase());
        found.sort_unstable();
        let mut wanted = wanted.to_vec();
        wanted.sort_unstable();
        if !found.is_empty() && found != wanted {
            return Ok(Some(table));
        }
    }
    Ok(None)
}

const SQLITE: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS demo_name (one INTEGER PRIMARY KEY, name VARCHAR(40) NOT NULL)",
    "CREATE TABLE IF NOT EXISTS orders (
        id           INTEGER PRIMARY KEY,
        tenant_id    TEXT    NOT NULL,
        internal_id  BLOB    NOT NULL UNIQUE,
        public_id    TEXT    NOT NULL,
        sku          TEXT    NOT NULL,
        quantity     INTEGER NOT NULL,
        amount_cents INTEGER NOT NULL
    )",
    "CREATE TABLE IF NOT EXISTS effects (
        tenant_id      TEXT NOT NULL,
        consumer_group TEXT NOT NULL,
        order_id       BLOB NOT NULL
    )",
    "CREATE INDEX IF NOT EXISTS orders_by_tenant ON orders (tenant_id)",
    "CREATE INDEX IF NOT EXISTS effects_by_tenant ON effects (tenant_id, consumer_group, order_id)",
];

const POSTGRES: &[&str] = &[
    // What is there already is no news.
    "SET client_min_messages = warning",
    // Two that make a table at once may fail, even with IF NOT EXISTS.
    "SELECT pg_advisory_lock(7070)",
    "CREATE TABLE IF NOT EXISTS demo_name (one INTEGER PRIMARY KEY, name VARCHAR(40) NOT NULL)",
    "CREATE TABLE IF NOT EXISTS orders (
        id           BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        tenant_id    TEXT   NOT NULL,
        internal_id  BYTEA  NOT NULL UNIQUE,
        public_id    TEXT   NOT NULL,
        sku          TEXT   NOT NULL,
        quantity     BIGINT NOT NULL,
        amount_cents BIGINT NOT NULL
    )",
    "CREATE TABLE IF NOT EXISTS effects (
        tenant_id      TEXT  NOT NULL,
        consumer_group TEXT  NOT NULL,
        order_id       BYTEA NOT NULL
    )",
    "CREATE INDEX IF NOT EXISTS orders_by_tenant ON orders (tenant_id)",
    "CREATE INDEX IF NOT EXISTS effects_by_tenant ON effects (tenant_id, consumer_group, order_id)",
    "SELECT pg_advisory_unlock(7070)",
];

const MYSQL: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS demo_name (one INTEGER PRIMARY KEY, name VARCHAR(40) NOT NULL)",
    "CREATE TABLE IF NOT EXISTS orders (
        id           BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
        tenant_id    VARCHAR(64)    CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
        internal_id  BINARY(16)     NOT NULL UNIQUE,
        public_id    VARCHAR(64)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
        sku          VARCHAR(64)    CHARACTER SET utf8mb4 NOT NULL,
        quantity     BIGINT         NOT NULL,
        amount_cents BIGINT         NOT NULL,
        KEY orders_by_tenant (tenant_id)
    ) ENGINE = InnoDB",
    "CREATE TABLE IF NOT EXISTS effects (
        tenant_id      VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
        consumer_group VARCHAR(32) CHARACTER SET utf8mb4 NOT NULL,
        order_id       BINARY(16)  NOT NULL,
        KEY effects_by_tenant (tenant_id, consumer_group, order_id)
    ) ENGINE = InnoDB",
];

/// Begin to ask for the columns of a table: its name and a parenthesis are wanted behind them.
const SQLITE_COLUMNS: &str = "SELECT name FROM pragma_table_info(";
const POSTGRES_COLUMNS: &str = "SELECT attname::text FROM pg_attribute \
     WHERE attnum > 0 AND NOT attisdropped AND attrelid = to_regclass(";
const MYSQL_COLUMNS: &str = "SELECT CAST(column_name AS CHAR) FROM information_schema.columns \
     WHERE table_schema = DATABASE() AND table_name = (";

/// A row of `orders` as it is read.
type Row = (OrderId, String, i64, i64);

fn order((order_id, sku, quantity, amount_cents): Row) -> sqlx::Result<Order> {
    let whole = |error: std::num::TryFromIntError| sqlx::Error::Decode(error.into());
    let quantity = quantity.try_into().map_err(whole)?;
    let amount_cents = amount_cents.try_into().map_err(whole)?;
    Ok(Order { order_id, sku, quantity, amount_cents })
}

/// How a number that was checked is kept.
fn kept(number: u64) -> sqlx::Result<i64> {
    number.try_into().map_err(|error: std::num::TryFromIntError| sqlx::Error::Encode(error.into()))
}

macro_rules! tables {
    ($store:ty, $db:ty, $pool:ty, $options:expr, $columns:expr, $tables:expr) => {
        impl Tables for $store {
            type Db = $db;

            fn reading(url: &StoreUrl) -> sqlx::Result<Reading<Self>> {
                let options = $options(url)?;
                let pool = <$pool>::new().max_connections(READERS).acquire_timeout(PATIENCE);
                Ok(pool.connect_lazy_with(options))
            }

            async fn columns(reading: &Reading<Self>, table: &str) -> sqlx::Result<Vec<String>> {
                let mut select = QueryBuilder::<$db>::new($columns);
                let select = select.push_bind(table.to_owned()).push(")");
                select.build_query_scalar().fetch_all(reading).await
            }

            async fn set_up(reading: &Reading<Self>) -> sqlx::Result<()> {
                let mut connection = reading.acquire().await?;
                for statement in $tables {
                    connection.execute(*statement).await?;
                }
                Ok(())
            }

            async fn name(reading: &Reading<Self>) -> sqlx::Result<String> {
                const NAME: &str = "SELECT name FROM demo_name";
                if let Some(name) = sqlx::query_scalar(NAME).fetch_optional(reading).await? {
                    return Ok(name);
                }
                let fresh = format!("semel-demo-{:08x}", fastrand::u32(..));
                let mut insert = QueryBuilder::<$db>::new("INSERT INTO demo_name VALUES (1, ");
                let insert = insert.push_bind(fresh).push(")").build();
                match insert.execute(reading).await {
                    Ok(_) => {}
                    // Another process was first.
                    Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {}
                    Err(error) => return Err(error),
                }
                sqlx::query_scalar(NAME).fetch_one(reading).await
            }

            async fn insert_order(
                connection: &mut Conn<Self>,
                tenant: &str,
                order: &Order,
            ) -> sqlx::Result<()> {
                let mut insert = QueryBuilder::<$db>::new(
                    "INSERT INTO orders \
                     (tenant_id, internal_id, public_id, sku, quantity, amount_cents) VALUES (",
                );
                insert
                    .separated(", ")
                    .push_bind(tenant.to_owned())
                    .push_bind(order.order_id)
                    .push_bind(order.order_id.public())
                    .push_bind(order.sku.clone())
                    .push_bind(i64::from(order.quantity))
                    .push_bind(kept(order.amount_cents)?);
                connection.execute(insert.push(")").build()).await.map(drop)
            }

            async fn insert_effect(
                connection: &mut Conn<Self>,
                tenant: &str,
                group: &str,
                order: OrderId,
            ) -> sqlx::Result<()> {
                let mut insert = QueryBuilder::<$db>::new(
                    "INSERT INTO effects (tenant_id, consumer_group, order_id) VALUES (",
                );
                insert
                    .separated(", ")
                    .push_bind(tenant.to_owned())
                    .push_bind(group.to_owned())
                    .push_bind(order);
                connection.execute(insert.push(")").build()).await.map(drop)
            }

            async fn orders(
                reading: &Reading<Self>,
                tenant: &str,
                ids: &[OrderId],
            ) -> sqlx::Result<Vec<Order>> {
                let mut found = Vec::with_capacity(ids.len());
                for batch in ids.chunks(BATCH) {
                    let mut select = QueryBuilder::<$db>::new(
                        "SELECT internal_id, sku, quantity, amount_cents FROM orders \
                         WHERE tenant_id = ",
                    );
                    select.push_bind(tenant.to_owned()).push(" AND internal_id IN (");
                    let mut list = select.separated(", ");
                    for id in batch {
                        list.push_bind(*id);
                    }
                    let select = select.push(")");
                    let rows = select.build_query_as::<Row>().fetch_all(reading).await?;
                    for row in rows {
                        found.push(order(row)?);
                    }
                }
                Ok(found)
            }

            async fn placed(
                reading: &Reading<Self>,
                tenant: &str,
            ) -> sqlx::Result<Vec<(String, OrderId)>> {
                let mut select = QueryBuilder::<$db>::new(
                    "SELECT sku, internal_id FROM orders WHERE tenant_id = ",
                );
                select.push_bind(tenant.to_owned()).build_query_as().fetch_all(reading).await
            }

            async fn tally(
                reading: &Reading<Self>,
                tenant: Option<&str>,
            ) -> sqlx::Result<Tally> {
                // One statement, so that all of it is of one moment.
                let mut select = QueryBuilder::<$db>::new(
                    "SELECT NULL, COUNT(*), COUNT(DISTINCT sku), COUNT(*) FROM orders",
                );
                if let Some(tenant) = tenant {
                    select.push(" WHERE tenant_id = ").push_bind(tenant.to_owned());
                }
                select.push(
                    " UNION ALL SELECT e.consumer_group, COUNT(*), COUNT(DISTINCT e.order_id), \
                     COUNT(DISTINCT o.internal_id) FROM effects e LEFT JOIN orders o \
                     ON o.internal_id = e.order_id AND o.tenant_id = e.tenant_id",
                );
                if let Some(tenant) = tenant {
                    select.push(" WHERE e.tenant_id = ").push_bind(tenant.to_owned());
                }
                let select = select.push(" GROUP BY e.consumer_group");
                select.build_query_as::<Counted>().fetch_all(reading).await.map(Tally::of)
            }
        }
    };
}

fn sqlite(url: &StoreUrl) -> sqlx::Result<SqliteConnectOptions> {
    let options = SqliteConnectOptions::new().busy_timeout(PATIENCE);
    Ok(options.filename(url.path().unwrap_or_else(|| url.secret().as_ref())))
}

fn postgres(url: &StoreUrl) -> sqlx::Result<PgConnectOptions> {
    url.secret().parse()
}

fn mysql(url: &StoreUrl) -> sqlx::Result<MySqlConnectOptions> {
    url.secret().parse()
}

tables!(SqliteStore, sqlx::Sqlite, SqlitePoolOptions, sqlite, SQLITE_COLUMNS, SQLITE);
tables!(PgStore, sqlx::Postgres, PgPoolOptions, postgres, POSTGRES_COLUMNS, POSTGRES);
tables!(MySqlStore, sqlx::MySql, MySqlPoolOptions, mysql, MYSQL_COLUMNS, MYSQL);
