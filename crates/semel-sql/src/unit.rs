//! Begins transactions that `sqlx` counts, on a connection that the caller owns.
//!
//! `sqlx` begins transactions only on borrowed connections or on a pool's. These functions call its
//! transaction manager directly, so that `sqlx` counts a transaction on an owned connection: a
//! nested `begin` on it creates a savepoint, and the nested `commit` releases only that.

use sqlx::{Database, SqlStr};
use sqlx_core::transaction::TransactionManager;

/// Begins a transaction, with `statement` if it is given and with sqlx's own otherwise.
pub(crate) async fn begin<DB: Database>(
    connection: &mut DB::Connection,
    statement: Option<SqlStr>,
) -> sqlx::Result<()> {
    <DB::TransactionManager>::begin(connection, statement).await
}

/// Returns the transaction depth of a connection: 0 outside a transaction, 1 in one, more inside
/// savepoints.
pub(crate) fn depth<DB: Database>(connection: &DB::Connection) -> usize {
    <DB::TransactionManager>::get_transaction_depth(connection)
}
