//! The tables of the shop, in the database that also has the ledger, the outbox and the id map.
//!
//! Every write is on the connection of a transaction that `semel` opened, so it commits together
//! with the claim and the events, or not at all.

use std::future::Future;

use semel::ids::create::CreatingStore;
use semel::outbox::Outbox;
use semel::postgres::PgStore;
use semel::sqlite::SqliteStore;
use semel::store::{Inspect, TransactionalStore};
use sqlx::{Executor as _, PgConnection, SqliteConnection};

use crate::orders::{Order, OrderId};

/// The number of pieces of tea in stock in a new shop.
pub const STOCK: i64 = 100;

/// The connection of a store's transactions.
pub type Conn<S> = <S as TransactionalStore>::Connection;

/// The numbers that tests and the log show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of orders.
    pub orders: i64,
    /// The number of pieces left in stock.
    pub pieces: i64,
    /// The number of packed parcels.
    pub parcels: i64,
}

/// A store with the tables of the shop beside its own. Implemented for each database, because each
/// has its own connections.
pub trait Tables: CreatingStore + Inspect + Clone
where
    Self: Outbox<Connection = Conn<Self>>,
{
    /// Creates the tables that are missing.
    fn create_tables(connection: &mut Conn<Self>) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Inserts an order.
    fn insert_order(
        connection: &mut Conn<Self>,
        tenant: &str,
        order: &Order,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Reads an order.
    fn find_order(
        connection: &mut Conn<Self>,
        tenant: &str,
        id: OrderId,
    ) -> impl Future<Output = sqlx::Result<Option<Order>>> + Send;

    /// Takes the goods of an order from stock; returns `false` if there are too few.
    fn take_goods(
        connection: &mut Conn<Self>,
        order: &Order,
    ) -> impl Future<Output = sqlx::Result<bool>> + Send;

    /// Inserts a packed parcel. The table has no unique constraint: the inbox prevents a second
    /// one.
    fn insert_parcel(
        connection: &mut Conn<Self>,
        order: &Order,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Counts the rows.
    fn counts(connection: &mut Conn<Self>) -> impl Future<Output = sqlx::Result<Counts>> + Send;
}

const INSERT: &str = "INSERT INTO shop_order (id, tenant, sku, quantity) VALUES ($1, $2, $3, $4)";
const FIND: &str = "SELECT sku, quantity FROM shop_order WHERE id = $1 AND tenant = $2";
const TAKE: &str = "UPDATE shop_shelf SET pieces = pieces - $1 WHERE sku = $2 AND pieces >= $1";
const COUNT: &str = "SELECT (SELECT COUNT(*) FROM shop_order), (SELECT pieces FROM shop_shelf), \
                     (SELECT COUNT(*) FROM shop_parcel)";

macro_rules! tables {
    ($store:ty, $connection:ty, $bytes:literal) => {
        impl Tables for $store {
            async fn create_tables(connection: &mut $connection) -> sqlx::Result<()> {
                for statement in [
                    concat!(
                        "CREATE TABLE IF NOT EXISTS shop_order (id ",
                        $bytes,
                        " PRIMARY KEY, tenant TEXT NOT NULL, sku TEXT NOT NULL, \
                         quantity BIGINT NOT NULL)"
                    ),
                    "CREATE TABLE IF NOT EXISTS shop_shelf \
                     (sku TEXT PRIMARY KEY, pieces BIGINT NOT NULL)",
                    concat!(
                        "CREATE TABLE IF NOT EXISTS shop_parcel (order_id ",
                        $bytes,
                        " NOT NULL)"
                    ),
                    "INSERT INTO shop_shelf (sku, pieces) VALUES ('tea', 100) \
                     ON CONFLICT DO NOTHING",
                ] {
                    connection.execute(statement).await?;
                }
                Ok(())
            }

            async fn insert_order(
                connection: &mut $connection,
                tenant: &str,
                order: &Order,
            ) -> sqlx::Result<()> {
                let insert = sqlx::query(INSERT)
                    .bind(order.id)
                    .bind(tenant.to_owned())
                    .bind(order.sku.clone())
                    .bind(order.quantity);
                connection.execute(insert).await.map(drop)
            }

            async fn find_order(
                connection: &mut $connection,
                tenant: &str,
                id: OrderId,
            ) -> sqlx::Result<Option<Order>> {
                let find = sqlx::query_as(FIND).bind(id).bind(tenant.to_owned());
                let found: Option<(String, i64)> = find.fetch_optional(connection).await?;
                Ok(found.map(|(sku, quantity)| Order { id, sku, quantity }))
            }

            async fn take_goods(connection: &mut $connection, order: &Order) -> sqlx::Result<bool> {
                let take = sqlx::query(TAKE).bind(order.quantity).bind(order.sku.clone());
                Ok(connection.execute(take).await?.rows_affected() == 1)
            }

            async fn insert_parcel(
                connection: &mut $connection,
                order: &Order,
            ) -> sqlx::Result<()> {
                let pack = sqlx::query("INSERT INTO shop_parcel (order_id) VALUES ($1)");
                connection.execute(pack.bind(order.id)).await.map(drop)
            }

            async fn counts(connection: &mut $connection) -> sqlx::Result<Counts> {
                let (orders, pieces, parcels) = sqlx::query_as(COUNT).fetch_one(connection).await?;
                Ok(Counts { orders, pieces, parcels })
            }
        }
    };
}

tables!(SqliteStore, SqliteConnection, "BLOB");
tables!(PgStore, PgConnection, "BYTEA");
