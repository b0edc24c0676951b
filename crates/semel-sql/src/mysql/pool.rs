//! Connections for the store's own statements, outside callers' transactions.
//!
//! The outbox, the id map and the operators have a pool each, so that none waits for another or for the
//! ledger. Their sessions run the store's own statements alone and need no reset.

use std::sync::Arc;
use std::time::Duration;

use semel_core::store::{Error, ErrorKind, Result};
use sqlx::{Connection as _, MySqlConnection};
use tokio::time::timeout;

use super::ledger::{Ledger, failed};
use super::session::{SHORTEST_WAIT, deadlock, is_lost, number};
use crate::error::{Stage, timed_out};
use crate::pool::{ConnectionPool, Lifecycle, Pooled, RIVALS};

/// How many statements' time an operator's use of a connection may take; a sweep of a full batch has
/// about a dozen short ones.
const OPERATOR_STATEMENTS: u32 = 4;

/// Sessions of one kind.
pub(super) struct SessionPool {
    connections: Arc<ConnectionPool<MySqlConnection>>,
    ledger: Arc<Ledger>,
    /// How long a caller waits for a connection that is in use.
    wait: Duration,
}

impl SessionPool {
    /// Creates a pool whose callers wait for one statement's time at most.
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

    /// Waits for a connection.
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
        Ok(PooledSession { ledger, operation, connection, was_idle, rivals: 0 })
    }
}

/// Returns whether the server is still there. It may have hung up on an idle connection (`wait_timeout`),
/// and a write that is sent into a closed connection would have to be reported as ambiguous.
async fn answers(connection: &mut MySqlConnection, limit: Duration) -> bool {
    matches!(timeout(limit, connection.ping()).await, Ok(Ok(())))
}

/// A session in use. Dropping it in the middle of a statement closes the connection, which rolls back.
pub(super) struct PooledSession<'p> {
    ledger: &'p Ledger,
    operation: &'static str,
    connection: Pooled<MySqlConnection>,
    /// Whether the connection was idle before: one that was may have died since.
    was_idle: bool,
    rivals: usize,
}

impl PooledSession<'_> {
    /// Runs what was sent, for a limited time. `None` if it lost a deadlock, or a concurrent transaction took
    /// a key in its middle: nothing was done, and it is to be sent again.
    pub(super) async fn settled<T>(
        &mut self,
        sent: impl AsyncFnOnce(&mut MySqlConnection) -> sqlx::Result<T>,
    ) -> Result<Option<T>> {
        match self.run(sent).await? {
            Ok(done) => Ok(Some(done)),
            Err(error) if rival(&error) && self.rivals < RIVALS => {
                self.rivals += 1;
                Ok(None)
            }
            Err(error) => Err(alone(failed(self.operation, error))),
        }
    }

    /// As [`settled`](Self::settled), of what only reads: also `None` if the connection had died while it was
    /// idle, and otherwise harmless.
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

    /// Runs a single statement outside a transaction, and gives the server's own refusal: after one the
    /// connection is as good as before.
    pub(super) async fn ask<T>(
        &mut self,
        sent: impl AsyncFnOnce(&mut MySqlConnection) -> sqlx::Result<T>,
    ) -> Result<sqlx::Result<T>> {
        self.run_keeping(sent, |error| !is_lost(error)).await
    }

    /// Runs an operator's statements, for a few statements' time at most: a server that went silent must not
    /// hold the connection for ever.
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
        // After a failure it is not used again, unless the server says that it rolled back.
        if done.as_ref().is_ok_and(|done| done.as_ref().map_or_else(keeps, |_| true)) {
            self.connection.keep();
        } else {
            self.connection.close();
        }
        done.map_err(|_| timed_out(Stage::Running, self.operation, limit))
    }

    /// Opens a connection where there is none.
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

/// Whether it was a deadlock, or a key that was free when it was looked at and is taken when it is written.
fn rival(error: &sqlx::Error) -> bool {
    deadlock(error) || number(error) == Some(1062)
}

/// There is no transaction of the caller's to run again: our own failed.
pub(super) fn alone(error: Error) -> Error {
    if error.kind() == ErrorKind::RetryTransaction {
        return error.with_kind(ErrorKind::Unavailable);
    }
    error
}

/// A read that was not answered has changed nothing.
fn unread(error: Error) -> Error {
    if error.kind() == ErrorKind::Ambiguous {
        return error.with_kind(ErrorKind::Unavailable);
    }
    error
}
