//! Connections for the store's own statements, outside callers' transactions.
//!
//! The outbox, the id map and the operators have a pool each, so that none waits for another or for
//! the ledger. Their sessions run only the store's own statements and need no reset.

use std::sync::Arc;
use std::time::Duration;

use semel_core::store::{Error, ErrorKind, Result};
use sqlx::{Connection as _, MySqlConnection};
use tokio::time::timeout;

use super::ledger::{Ledger, failed};
use super::session::{SHORTEST_WAIT, deadlock, is_lost, number};
use crate::error::{Stage, timed_out};
use crate::pool::{ConnectionPool, Lifecycle, MAX_CONFLICTS, Pooled};

/// How many times the limit of one statement an operator's use of a connection may take. A sweep of
/// a full batch has about a dozen short statements.
const OPERATOR_STATEMENTS: u32 = 4;

/// A pool of sessions for one purpose.
pub(super) struct SessionPool {
    connections: Arc<ConnectionPool<MySqlConnection>>,
    ledger: Arc<Ledger>,
    /// How long a caller waits for a connection that is in use.
    wait: Duration,
}

impl SessionPool {
    /// Creates a pool of at most `size` connections, whose callers wait at most for the limit of
    /// one statement.
    pub(super) fn new(ledger: &Arc<Ledger>, size: usize, lifecycle: &Arc<Lifecycle>) -> Self {
        let connections = ConnectionPool::new(size, lifecycle);
        Self { connections, ledger: Arc::clone(ledger), wait: ledger.limit }
    }

    /// Creates the pool of the operators: one connection, whose callers wait for each other.
    pub(super) fn operators(ledger: &Arc<Ledger>, lifecycle: &Arc<Lifecycle>) -> Self {
        Self { wait: Duration::MAX, ..Self::new(ledger, 1, lifecycle) }
    }

    /// Closes the pool: see [`ConnectionPool::close`].
    pub(super) fn close(&self) {
        self.connections.close();
    }

    /// Waits for a free connection.
    pub(super) async fn get(&self, operation: &'static str) -> Result<PooledSession<'_>> {
        let limit = self.ledger.limit;
        let late = || timed_out(Stage::Connecting, operation, self.wait);
        let mut connection = self.connections.get(operation, self.wait, late).await?;
        let mut was_idle = false;
        if let Some(idle_for) = connection.reuse() {
            was_idle = idle_for < SHORTEST_WAIT || answers(connection.connection(), limit).await;
            if was_idle { connection.keep() } else { connection.close() }
        }
        let ledger = &*self.ledger;
        Ok(PooledSession { ledger, operation, connection, was_idle, conflicts: 0 })
    }
}

/// Returns whether the server still answers. It may have closed an idle connection
/// (`wait_timeout`), and a write that is sent on a closed connection would have to be reported as
/// ambiguous.
async fn answers(connection: &mut MySqlConnection, limit: Duration) -> bool {
    matches!(timeout(limit, connection.ping()).await, Ok(Ok(())))
}

/// A session in use. Dropping it in the middle of a statement closes the connection, which rolls back.
pub(super) struct PooledSession<'p> {
    ledger: &'p Ledger,
    operation: &'static str,
    connection: Pooled<MySqlConnection>,
    /// Whether the connection was idle before: then it may have died since.
    was_idle: bool,
    conflicts: usize,
}

impl PooledSession<'_> {
    /// Runs statements within the time limit. Returns `None` if they lost a deadlock, or if a
    /// concurrent transaction took a key meanwhile: nothing was done, and they are to be sent
    /// again.
    pub(super) async fn settled<T>(
        &mut self,
        sent: impl AsyncFnOnce(&mut MySqlConnection) -> sqlx::Result<T>,
    ) -> Result<Option<T>> {
        match self.run(sent).await? {
            Ok(done) => Ok(Some(done)),
            Err(error) if conflicts(&error) && self.conflicts < MAX_CONFLICTS => {
                self.conflicts += 1;
                Ok(None)
            }
            Err(error) => Err(alone(failed(self.operation, error))),
        }
    }

    /// As [`settled`](Self::settled), for statements that only read. Also returns `None` if the
    /// connection had died while it was idle, and never an ambiguous error.
    pub(super) async fn read<T>(
        &mut self,
        sent: impl AsyncFnOnce(&mut MySqlConnection) -> sqlx::Result<T>,
    ) -> Result<Option<T>> {
        let was_idle = self.was_idle;
        match self.run(sent).await.map_err(unread)? {
            Ok(read) => Ok(Some(read)),
            Err(error) => {
                let error = alone(failed(self.operation, error));
                if was_idle && error.kind() == ErrorKind::Ambiguous {
                    return Ok(None);
                }
                Err(unread(error))
            }
        }
    }

    /// Runs a single statement outside a transaction, and returns the server's own error, after
    /// which the connection can still be used.
    pub(super) async fn run_single<T>(
        &mut self,
        sent: impl AsyncFnOnce(&mut MySqlConnection) -> sqlx::Result<T>,
    ) -> Result<sqlx::Result<T>> {
        self.run_keeping(sent, |error| !is_lost(error)).await
    }

    /// Runs an operator's statements, for at most the time of a few statements: a server that does
    /// not answer must not keep the connection for ever.
    pub(super) async fn operate<T>(
        mut self,
        work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T>,
    ) -> Result<T> {
        let limit = self.ledger.limit * OPERATOR_STATEMENTS;
        self.connect().await?;
        let late = |_| timed_out(Stage::Running, self.operation, limit);
        let done = timeout(limit, work(self.connection.connection())).await.map_err(late)??;
        self.connection.keep();
        Ok(done)
    }

    async fn run<T>(
        &mut self,
        sent: impl AsyncFnOnce(&mut MySqlConnection) -> sqlx::Result<T>,
    ) -> Result<sqlx::Result<T>> {
        self.run_keeping(sent, deadlock).await
    }

    async fn run_keeping<T>(
        &mut self,
        sent: impl AsyncFnOnce(&mut MySqlConnection) -> sqlx::Result<T>,
        keeps: impl FnOnce(&sqlx::Error) -> bool,
    ) -> Result<sqlx::Result<T>> {
        let limit = self.ledger.limit;
        self.connect().await?;
        let done = timeout(limit, sent(self.connection.connection())).await;
        // After a failure the connection is not used again, unless the server reported that it
        // rolled back.
        if done.as_ref().is_ok_and(|done| done.as_ref().map_or_else(keeps, |_| true)) {
            self.connection.keep();
        } else {
            self.connection.close();
        }
        done.map_err(|_| timed_out(Stage::Running, self.operation, limit))
    }

    /// Opens a connection if there is none.
    async fn connect(&mut self) -> Result<()> {
        if self.connection.is_open() {
            return Ok(());
        }
        self.was_idle = false;
        let (ledger, operation) = (self.ledger, self.operation);
        let connecting = async {
            timeout(ledger.limit, ledger.session())
                .await
                .unwrap_or_else(|_| Err(timed_out(Stage::Connecting, operation, ledger.limit)))
        };
        self.connection.open(connecting).await
    }
}

/// Returns whether the error was a deadlock, or a key that was free when it was read and taken when
/// it was written.
fn conflicts(error: &sqlx::Error) -> bool {
    deadlock(error) || number(error) == Some(1062)
}

/// Converts `RetryTransaction` to `Unavailable`: no transaction of the caller is to be run again,
/// since the store's own failed.
pub(super) fn alone(error: Error) -> Error {
    if error.kind() == ErrorKind::RetryTransaction {
        return error.with_kind(ErrorKind::Unavailable);
    }
    error
}

/// Converts `Ambiguous` to `Unavailable`: a read that was not answered has changed nothing.
fn unread(error: Error) -> Error {
    if error.kind() == ErrorKind::Ambiguous {
        return error.with_kind(ErrorKind::Unavailable);
    }
    error
}
