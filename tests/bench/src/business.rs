//! The caller's own write in a transaction: one order in one table.

use std::future::Future;

use semel_core::store::TransactionalStore;
use semel_sql::mysql::MySqlStore;
use semel_sql::postgres::PgStore;
use semel_sql::sqlite::SqliteStore;
use sqlx::{MySqlConnection, PgConnection, SqliteConnection};

use super::ours::BODY;

/// A store in whose database orders are placed.
pub(crate) trait Business: TransactionalStore {
    /// Inserts one order.
    fn place(
        connection: &mut Self::Connection,
        id: u64,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;
}

/// Returns the number as a database id. Numbers count from 1 and never reach the sign bit.
pub(crate) fn id(number: u64) -> i64 {
    number.cast_signed()
}

impl Business for PgStore {
    async fn place(connection: &mut PgConnection, number: u64) -> sqlx::Result<()> {
        sqlx::query("insert into bench_order (id, body) values ($1, $2)")
            .bind(id(number))
            .bind(BODY.as_slice())
            .execute(connection)
            .await
            .map(drop)
    }
}

impl Business for MySqlStore {
    async fn place(connection: &mut MySqlConnection, number: u64) -> sqlx::Result<()> {
        sqlx::query("INSERT INTO bench_order (id, body) VALUES (?, ?)")
            .bind(id(number))
            .bind(BODY.as_slice())
            .execute(connection)
            .await
            .map(drop)
    }
}

impl Business for SqliteStore {
    async fn place(connection: &mut SqliteConnection, number: u64) -> sqlx::Result<()> {
        sqlx::query("INSERT INTO bench_order (id, body) VALUES (?, ?)")
            .bind(id(number))
            .bind(BODY.as_slice())
            .execute(connection)
            .await
            .map(drop)
    }
}
