//! The demo's own tables, in the ledger's database: `orders`, and `effects` of the consumer groups.
//!
//! Reads use separate connections. Writes run in the ledger's transactions: a statement on another
//! connection would wait for the transaction of its own request to end.

pub(super) mod statements;

use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{MySql, MySqlPool, PgPool, Postgres, Sqlite, SqlitePool};

use self::statements::Statements as _;
use super::order::{Order, OrderId};
use super::tally::Tally;
use crate::store::database::{DatabaseTransaction, SqlConnection};
use crate::store::{StoreKind, StoreUrl};

/// The number of connections for reads.
const READERS: u32 = 4;
/// The longest time that a read waits for a connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// The tables of the demo, with a connection pool for reads.
#[derive(Clone, Debug)]
pub(super) enum Tables {
    Sqlite(SqlitePool),
    Postgres(PgPool),
    MySql(MySqlPool),
}

/// Evaluates `$work` with the database as `$db` and its pool as `$pool`.
macro_rules! on_pool {
    ($tables:expr, $db:ident, $pool:ident => $work:expr) => {
        match $tables {
            Tables::Sqlite($pool) => {
                type $db = Sqlite;
                $work
            }
            Tables::Postgres($pool) => {
                type $db = Postgres;
                $work
            }
            Tables::MySql($pool) => {
                type $db = MySql;
                $work
            }
        }
    };
}

impl Tables {
    /// Returns the tables of the database at `url`, without connecting; `None` if it is no SQL database.
    pub(super) fn at(url: &StoreUrl) -> sqlx::Result<Option<Self>> {
        Ok(match url.kind() {
            StoreKind::Sqlite => {
                let options = SqliteConnectOptions::new().busy_timeout(PATIENCE);
                let options = options.filename(url.path().unwrap_or_else(|| url.secret().as_ref()));
                let pool = SqlitePoolOptions::new().max_connections(READERS);
                let pool = pool.acquire_timeout(PATIENCE).connect_lazy_with(options);
                Some(Tables::Sqlite(pool))
            }
            StoreKind::Postgres => {
                let options: PgConnectOptions = url.secret().parse()?;
                let pool = PgPoolOptions::new().max_connections(READERS);
                let pool = pool.acquire_timeout(PATIENCE).connect_lazy_with(options);
                Some(Tables::Postgres(pool))
            }
            StoreKind::MySql => {
                let options: MySqlConnectOptions = url.secret().parse()?;
                let pool = MySqlPoolOptions::new().max_connections(READERS);
                let pool = pool.acquire_timeout(PATIENCE).connect_lazy_with(options);
                Some(Tables::MySql(pool))
            }
            StoreKind::Memory | StoreKind::Redis => None,
        })
    }

    /// Creates the tables that are missing.
    pub(super) async fn set_up(&self) -> sqlx::Result<()> {
        on_pool!(self, Db, pool => Db::set_up(pool).await)
    }

    /// Returns the name of this database's stream, exchange or keys on a broker.
    pub(super) async fn name(&self) -> sqlx::Result<String> {
        on_pool!(self, Db, pool => Db::name(pool).await)
    }

    /// Returns the orders of a tenant that exist among `ids`, unsorted.
    pub(super) async fn orders(&self, tenant: &str, ids: &[OrderId]) -> sqlx::Result<Vec<Order>> {
        on_pool!(self, Db, pool => Db::orders(pool, tenant, ids).await)
    }

    /// Returns the product and the id of every order of a tenant, unsorted.
    pub(super) async fn placed(&self, tenant: &str) -> sqlx::Result<Vec<(String, OrderId)>> {
        on_pool!(self, Db, pool => Db::placed(pool, tenant).await)
    }

    /// Counts orders and effects, of one tenant or of all.
    pub(super) async fn tally(&self, tenant: Option<&str>) -> sqlx::Result<Tally> {
        on_pool!(self, Db, pool => Db::tally(pool, tenant).await)
    }

    /// Returns the first table that has the name of one of the demo's tables but other columns.
    /// Such a table must not be changed.
    pub(super) async fn foreign(&self) -> sqlx::Result<Option<&'static str>> {
        for (table, expected) in OURS {
            let mut found = on_pool!(self, Db, pool => Db::columns(pool, table).await)?;
            found.iter_mut().for_each(|column| column.make_ascii_lowercase());
            found.sort_unstable();
            let mut expected = expected.to_vec();
            expected.sort_unstable();
            if !found.is_empty() && found != expected {
                return Ok(Some(table));
            }
        }
        Ok(None)
    }

    /// Closes the connections.
    pub(super) async fn close(&self) {
        on_pool!(self, _Db, pool => pool.close().await);
    }
}

/// The demo's tables, and the columns of each.
const OURS: [(&str, &[&str]); 3] = [
    ("demo_name", &["one", "name"]),
    ("orders", &["id", "tenant_id", "internal_id", "public_id", "sku", "quantity", "amount_cents"]),
    ("effects", &["tenant_id", "consumer_group", "order_id"]),
];

/// Writes an order in an open transaction.
pub(super) async fn insert_order(
    open: &mut DatabaseTransaction,
    tenant: &str,
    order: &Order,
) -> sqlx::Result<()> {
    match open.sql() {
        SqlConnection::Sqlite(open) => Sqlite::insert_order(open, tenant, order).await,
        SqlConnection::Postgres(open) => Postgres::insert_order(open, tenant, order).await,
        SqlConnection::MySql(open) => MySql::insert_order(open, tenant, order).await,
    }
}

/// Records in an open transaction that `group` has handled an order.
pub(super) async fn insert_effect(
    open: &mut DatabaseTransaction,
    tenant: &str,
    group: &str,
    order: OrderId,
) -> sqlx::Result<()> {
    match open.sql() {
        SqlConnection::Sqlite(open) => Sqlite::insert_effect(open, tenant, group, order).await,
        SqlConnection::Postgres(open) => Postgres::insert_effect(open, tenant, group, order).await,
        SqlConnection::MySql(open) => MySql::insert_effect(open, tenant, group, order).await,
    }
}
