//! The SQL of the demo's tables, for each kind of database.
//!
//! `effects` has no unique constraint on purpose: an order that a group handled twice has two rows,
//! which the tally counts as doubled. The inbox must prevent that, not the table.

use std::future::Future;

use sqlx::{Database, Executor as _, MySql, Pool, Postgres, QueryBuilder, Sqlite};

use super::super::order::{Order, OrderId};
use super::super::tally::{Counted, Tally};

/// The largest number of orders in one query.
const BATCH: usize = 200;

/// The SQL statements of the demo, implemented for each database because each has its own
/// connection type.
pub(in crate::demo) trait Statements: Database {
    /// Returns the names of a table's columns; an empty list if there is no such table.
    fn columns(
        pool: &Pool<Self>,
        table: &str,
    ) -> impl Future<Output = sqlx::Result<Vec<String>>> + Send;

    /// Creates the tables that are missing.
    fn set_up(pool: &Pool<Self>) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Returns the name of this database's stream, exchange or keys on a broker. The name is
    /// generated once per database, so that only demos on the same database share events.
    fn name(pool: &Pool<Self>) -> impl Future<Output = sqlx::Result<String>> + Send;

    /// Inserts an order.
    fn insert_order(
        connection: &mut Self::Connection,
        tenant: &str,
        order: &Order,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Records that `group` has handled an order. Does not prevent a second row.
    fn insert_effect(
        connection: &mut Self::Connection,
        tenant: &str,
        group: &str,
        order: OrderId,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Returns the orders of a tenant that exist among `ids`, unsorted.
    fn orders(
        pool: &Pool<Self>,
        tenant: &str,
        ids: &[OrderId],
    ) -> impl Future<Output = sqlx::Result<Vec<Order>>> + Send;

    /// Returns the product and the id of every order of a tenant, unsorted.
    fn placed(
        pool: &Pool<Self>,
        tenant: &str,
    ) -> impl Future<Output = sqlx::Result<Vec<(String, OrderId)>>> + Send;

    /// Counts orders and effects, of one tenant or of all.
    fn tally(
        pool: &Pool<Self>,
        tenant: Option<&str>,
    ) -> impl Future<Output = sqlx::Result<Tally>> + Send;
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
    // Suppresses the notices of CREATE … IF NOT EXISTS.
    "SET client_min_messages = warning",
    // Serialises sessions: two that create a table at once may fail, even with IF NOT EXISTS.
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

/// The beginning of the query for a table's columns in SQLite. The table's name and a parenthesis
/// follow.
const SQLITE_COLUMNS: &str = "SELECT name FROM pragma_table_info(";
/// The beginning of the query for a table's columns in PostgreSQL.
const POSTGRES_COLUMNS: &str = "SELECT attname::text FROM pg_attribute \
     WHERE attnum > 0 AND NOT attisdropped AND attrelid = to_regclass(";
/// The beginning of the query for a table's columns in MySQL.
const MYSQL_COLUMNS: &str = "SELECT CAST(column_name AS CHAR) FROM information_schema.columns \
     WHERE table_schema = DATABASE() AND table_name = (";

/// A row of the table `orders`: id, product, quantity and amount.
type Row = (OrderId, String, i64, i64);

fn order((order_id, sku, quantity, amount_cents): Row) -> sqlx::Result<Order> {
    let whole = |error: std::num::TryFromIntError| sqlx::Error::Decode(error.into());
    let quantity = quantity.try_into().map_err(whole)?;
    let amount_cents = amount_cents.try_into().map_err(whole)?;
    Ok(Order { order_id, sku, quantity, amount_cents })
}

/// Converts a number to the type of its column.
fn stored(number: u64) -> sqlx::Result<i64> {
    number.try_into().map_err(|error: std::num::TryFromIntError| sqlx::Error::Encode(error.into()))
}

macro_rules! tables {
    ($db:ty, $columns:expr, $tables:expr) => {
        impl Statements for $db {
            async fn columns(pool: &Pool<Self>, table: &str) -> sqlx::Result<Vec<String>> {
                let mut select = QueryBuilder::<Self>::new($columns);
                let select = select.push_bind(table.to_owned()).push(")");
                select.build_query_scalar().fetch_all(pool).await
            }

            async fn set_up(pool: &Pool<Self>) -> sqlx::Result<()> {
                let mut connection = pool.acquire().await?;
                for statement in $tables {
                    connection.execute(*statement).await?;
                }
                Ok(())
            }

            async fn name(pool: &Pool<Self>) -> sqlx::Result<String> {
                const NAME: &str = "SELECT name FROM demo_name";
                if let Some(name) = sqlx::query_scalar(NAME).fetch_optional(pool).await? {
                    return Ok(name);
                }
                let fresh = format!("semel-demo-{:08x}", fastrand::u32(..));
                let mut insert = QueryBuilder::<Self>::new("INSERT INTO demo_name VALUES (1, ");
                let insert = insert.push_bind(fresh).push(")").build();
                match insert.execute(pool).await {
                    Ok(_) => {}
                    // Another process has inserted its name.
                    Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {}
                    Err(error) => return Err(error),
                }
                sqlx::query_scalar(NAME).fetch_one(pool).await
            }

            async fn insert_order(
                connection: &mut Self::Connection,
                tenant: &str,
                order: &Order,
            ) -> sqlx::Result<()> {
                let mut insert = QueryBuilder::<Self>::new(
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
                    .push_bind(stored(order.amount_cents)?);
                connection.execute(insert.push(")").build()).await.map(drop)
            }

            async fn insert_effect(
                connection: &mut Self::Connection,
                tenant: &str,
                group: &str,
                order: OrderId,
            ) -> sqlx::Result<()> {
                let mut insert = QueryBuilder::<Self>::new(
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
                pool: &Pool<Self>,
                tenant: &str,
                ids: &[OrderId],
            ) -> sqlx::Result<Vec<Order>> {
                let mut found = Vec::with_capacity(ids.len());
                for batch in ids.chunks(BATCH) {
                    let mut select = QueryBuilder::<Self>::new(
                        "SELECT internal_id, sku, quantity, amount_cents FROM orders \
                         WHERE tenant_id = ",
                    );
                    select.push_bind(tenant.to_owned()).push(" AND internal_id IN (");
                    let mut list = select.separated(", ");
                    for id in batch {
                        list.push_bind(*id);
                    }
                    let select = select.push(")");
                    let rows = select.build_query_as::<Row>().fetch_all(pool).await?;
                    for row in rows {
                        found.push(order(row)?);
                    }
                }
                Ok(found)
            }

            async fn placed(
                pool: &Pool<Self>,
                tenant: &str,
            ) -> sqlx::Result<Vec<(String, OrderId)>> {
                let mut select = QueryBuilder::<Self>::new(
                    "SELECT sku, internal_id FROM orders WHERE tenant_id = ",
                );
                select.push_bind(tenant.to_owned()).build_query_as().fetch_all(pool).await
            }

            async fn tally(
                pool: &Pool<Self>,
                tenant: Option<&str>,
            ) -> sqlx::Result<Tally> {
                // One statement, so that all counts belong to the same moment.
                let mut select = QueryBuilder::<Self>::new(
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
                select.build_query_as::<Counted>().fetch_all(pool).await.map(Tally::of)
            }
        }
    };
}

tables!(Sqlite, SQLITE_COLUMNS, SQLITE);
tables!(Postgres, POSTGRES_COLUMNS, POSTGRES);
tables!(MySql, MYSQL_COLUMNS, MYSQL);
