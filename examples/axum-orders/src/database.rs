//! The tables of the orders, in the same file as the ledger.
//!
//! The ledger creates its own tables. Those of the orders come in numbered steps, and SQLite's
//! `user_version` is the number of steps that were applied to the file.

use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, SqlitePool};

const STEPS: [&str; 2] =
    [include_str!("../migrations/1-orders.sql"), include_str!("../migrations/2-refunds.sql")];

/// Applies the missing steps and returns their number.
///
/// # Errors
/// The errors of SQLite; the file is then unchanged.
pub async fn migrate(path: &Path) -> sqlx::Result<usize> {
    let options = SqliteConnectOptions::new().filename(path).busy_timeout(Duration::from_secs(5));
    let mut connection = options.connect().await?;
    // Immediate: of two services that start at once, the second waits and then finds nothing to do.
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    let (seen,): (i64,) =
        sqlx::query_as("PRAGMA user_version").fetch_one(&mut *transaction).await?;
    let seen = usize::try_from(seen).unwrap_or(usize::MAX);
    let left = STEPS.get(seen..).unwrap_or_default();
    for step in left {
        transaction.execute(*step).await?;
    }
    if !left.is_empty() {
        // A pragma takes no parameters; the number is not input.
        let note = format!("PRAGMA user_version = {}", STEPS.len());
        transaction.execute(sqlx::AssertSqlSafe(note)).await?;
    }
    transaction.commit().await?;
    connection.close().await?;
    Ok(left.len())
}

/// Returns a pool of read-only connections. Only the ledger's connections write: a handler that
/// wrote on any other connection would wait for its own transaction to end.
pub fn reading(path: &Path) -> SqlitePool {
    let options = SqliteConnectOptions::new().filename(path).read_only(true);
    SqlitePoolOptions::new().max_connections(4).connect_lazy_with(options)
}
