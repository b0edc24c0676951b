//! Transactions as `sqlx` counts them, on a connection that its caller owns.
//!
//! `sqlx` begins transactions only on borrowed connections or on a pool's. These two speak to its
//! transaction manager directly, so that an owned connection can be in a transaction that `sqlx`
//! knows of: a caller's nested `begin` on it is a savepoint, and its `commit` releases that alone.

use sqlx::{Database, SqlStr};
use sqlx_core::transaction::TransactionManager;

/// Begins a transaction, with a statement of ours if one is given.
pub(crate) async fn begin<DB: Database>(
    connection: &mut DB::Connection,
    statement: Option<SqlStr>,
) -> sqlx::Result<()> {
    <DB::TransactionManager>::begin(connection, statement).await
}

/// How deep it is: 0 outside, 1 in a transaction, more inside savepoints.
pub(crate) fn depth<DB: Database>(connection: &DB::Connection) -> usize {
    <DB::TransactionManager>::get_transaction_depth(connection)
}
