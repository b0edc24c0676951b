//! The business: what is written, and what is told. Every write is in somebody's transaction.

use std::future::Future;

use semel::event::{Event, InvalidEvent};
use semel::executor::{Context, Unit};
use semel::outbox::Outbox;
use semel::store::{Inspect, TransactionalStore};
use semel_sql::postgres::PgStore;
use semel_sql::sqlite::SqliteStore;
use serde::{Deserialize, Serialize};
use sqlx::{Executor as _, PgConnection, SqliteConnection};

/// An order, and the event that tells of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Its id: that of the operation that placed it.
    pub id: String,
    /// What was ordered.
    pub sku: String,
    /// How many.
    pub quantity: i64,
}

/// The type of the event that an order was placed.
pub const PLACED: &str = "order.placed";
/// The type of the event that an order's goods were taken off the shelf.
pub const RESERVED: &str = "order.reserved";

impl Order {
    /// The event that it was placed.
    ///
    /// # Errors
    /// A part of it is too long.
    pub fn placed(&self, tenant: &str) -> Result<Event, InvalidEvent> {
        Event::builder(tenant, PLACED, "/orders").about("order", &self.id).json(self).build()
    }
}

/// The shop's tables. Written for each database, because each has its own connections.
pub trait Tables: TransactionalStore + Inspect + Clone
where
    Self: Outbox<Connection = <Self as TransactionalStore>::Connection>,
{
    /// Makes the tables where they are missing, with a hundred of everything on the shelf.
    fn set_up(connection: &mut Conn<Self>) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Writes an order.
    fn insert(
        connection: &mut Conn<Self>,
        order: &Order,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Takes an order's goods off the shelf; `false` if there are too few.
    fn take(
        connection: &mut Conn<Self>,
        order: &Order,
    ) -> impl Future<Output = sqlx::Result<bool>> + Send;

    /// Notes that a retry payload was packed for an order. Nothing here stops a second one.
    fn pack(
        connection: &mut Conn<Self>,
        order: &Order,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Orders placed, pieces left on the shelf, retry payloads packed.
    fn count(
        connection: &mut Conn<Self>,
    ) -> impl Future<Output = sqlx::Result<(i64, i64, i64)>> + Send;
}

/// What statements of this database run on.
pub type Conn<S> = <S as TransactionalStore>::Connection;

const COUNT: &str = "SELECT (SELECT COUNT(*) FROM shop_order), (SELECT pieces FROM shop_shelf), \
                     (SELECT COUNT(*) FROM shop_retry_payload)";
const TABLES: [&str; 4] = [
    "CREATE TABLE IF NOT EXISTS shop_order (id TEXT PRIMARY KEY, sku TEXT NOT NULL, quantity BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS shop_shelf (sku TEXT PRIMARY KEY, pieces BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS shop_retry_payload (order_id TEXT NOT NULL)",
    "INSERT INTO shop_shelf (sku, pieces) VALUES ('tea', 100) ON CONFLICT DO NOTHING",
];

macro_rules! tables {
    ($store:ty, $connection:ty) => {
        impl Tables for $store {
            async fn set_up(connection: &mut $connection) -> sqlx::Result<()> {
                for statement in TABLES {
                    connection.execute(statement).await?;
                }
                Ok(())
            }

            async fn insert(connection: &mut $connection, order: &Order) -> sqlx::Result<()> {
                let insert = "INSERT INTO shop_order (id, sku, quantity) VALUES ($1, $2, $3)";
                let insert = sqlx::query(insert)
                    .bind(order.id.clone())
                    .bind(order.sku.clone())
                    .bind(order.quantity);
                connection.execute(insert).await.map(drop)
            }

            async fn take(connection: &mut $connection, order: &Order) -> sqlx::Result<bool> {
                let take = "UPDATE shop_shelf SET pieces = pieces - $1 \
                            WHERE sku = $2 AND pieces >= $1";
                let take = sqlx::query(take).bind(order.quantity).bind(order.sku.clone());
                Ok(connection.execute(take).await?.rows_affected() == 1)
            }

            async fn pack(connection: &mut $connection, order: &Order) -> sqlx::Result<()> {
                let pack = "INSERT INTO shop_retry_payload (order_id) VALUES ($1)";
                connection.execute(sqlx::query(pack).bind(order.id.clone())).await.map(drop)
            }

            async fn count(connection: &mut $connection) -> sqlx::Result<(i64, i64, i64)> {
                sqlx::query_as(COUNT).fetch_one(connection).await
            }
        }
    };
}

tables!(SqliteStore, SqliteConnection);
tables!(PgStore, PgConnection);

/// Places an order and tells of it, in one commit.
///
/// # Errors
/// In words; nothing is placed, and nothing is told.
pub async fn place<S: Tables>(
    mut unit: Unit<S>,
    tenant: &str,
    sku: &str,
    quantity: i64,
) -> Result<Order, String> {
    let id = unit.context().operation_id().to_string();
    let order = Order { id, sku: sku.to_owned(), quantity };
    S::insert(unit.conn(), &order).await.map_err(|error| error.to_string())?;
    let placed = order.placed(tenant).map_err(|error| error.to_string())?;
    unit.append([placed]).await.map_err(|error| error.to_string())?;
    Ok(order)
}

/// Takes the goods of an order off the shelf, and tells of it: also one commit.
///
/// # Errors
/// In words; it is tried again.
pub async fn reserve<S: Tables>(event: &Event, mut unit: Unit<S>) -> Result<(), String> {
    let order: Order = event.parse().map_err(|error| error.to_string())?;
    if !S::take(unit.conn(), &order).await.map_err(|error| error.to_string())? {
        return Err(format!("only a few {} are left", order.sku));
    }
    let reserved = event.followed_by(RESERVED, "/inventory").about("order", &order.id);
    let reserved = reserved.json(&order).build().map_err(|error| error.to_string())?;
    unit.append([reserved]).await.map_err(|error| error.to_string())
}

/// Packs a retry payload for an order whose goods were taken.
///
/// # Errors
/// In words; it is tried again.
pub async fn pack<S: Tables>(event: &Event, mut unit: Unit<S>) -> Result<(), String> {
    let order: Order = event.parse().map_err(|error| error.to_string())?;
    S::pack(unit.conn(), &order).await.map_err(|error| error.to_string())
}

/// Writes the letter that thanks for an order. A letter cannot be taken back, so whoever sends it is
/// given a key by which it recognises a repeat.
///
/// # Errors
/// In words; it is tried again.
pub fn thank(event: &Event, claim: &Context) -> Result<String, String> {
    let order: Order = event.parse().map_err(|error| error.to_string())?;
    let key = claim.downstream_key("letter").map_err(|error| error.to_string())?;
    Ok(format!("letter {key}: thank you for {} {}", order.quantity, order.sku))
}
