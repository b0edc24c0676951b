//! Connections for the store's own statements, outside callers' transactions.
//!
//! The outbox, the id map and the operators have a pool each, so that none waits for another or for
//! the ledger. Their sessions run only the store's own statements and need no reset.

use std::sync::Arc;
use std::time::Duration;

use semel_core::store::{Error, ErrorKind, Result};
use sqlx::PgConnection;
use tokio::time::timeout;

use super::session::{Session, unopened};
use super::statement::{conflicted, ends_session, failed};
use crate::error::{Stage, timed_out};
use crate::pool::{ConnectionPool, Lifecycle, MAX_CONFLICTS, Pooled};

/// The future of statements that were sent on one connection.
pub(super) type Sent<'c, T> = std::pin::Pin<Box<dyn Future<Output = Result<T>> + Send + 'c>>;

/// A pool of sessions with the same settings.
#[derive(Debug)]
pub(super) struct SessionPool {
    connections: Arc<ConnectionPool<PgConnection>>,
    session: Session,
    /// How long a caller waits for a connection that is in use.
    wait: Duration,
    /// How long connecting may take.
    connect: Duration,
    /// How long the statements of one use may take.
    statements: Duration,
}

impl SessionPool {
    /// Creates a pool of at most `size` connections. Callers wait at most `limit` for a connection,
    /// and at most `limit` for an answer.
    pub(super) fn new(
        session: Session,
        size: usize,
        lifecycle: &Arc<Lifecycle>,
        limit: Duration,
    ) -> Self {
        let connections = ConnectionPool::new(size, lifecycle);
        Self { connections, session, wait: limit, connect: limit, statements: limit }
    }

    /// Returns the pool with limits for operators: callers wait for each other without a limit, and
    /// statements may take `times` as long.
    pub(super) fn patient(self, times: u32) -> Self {
        Self { wait: Duration::MAX, statements: self.statements * times, ..self }
    }

    /// Adds a session that was opened elsewhere.
    pub(super) fn add(&self, connection: PgConnection) {
        self.connections.add(connection);
    }

    /// Closes the pool: see [`ConnectionPool::close`].
    pub(super) fn close(&self) {
        self.connections.close();
    }

    /// Waits for a free connection.
    pub(super) async fn get(&self, operation: &'static str) -> Result<PooledSession<'_>> {
        let late = || timed_out(Stage::Connecting, operation, self.wait);
        let mut connection = self.connections.get(operation, self.wait, late).await?;
        let fresh = connection.reuse().is_none();
        Ok(PooledSession { pool: self, operation, connection, fresh, conflicts: 0 })
    }

    /// Runs a statement on a connection of the pool.
    pub(super) async fn run<T: Send>(
        &self,
        operation: &'static str,
        statement: impl for<'c> FnOnce(&'c mut PgConnection) -> Sent<'c, T> + Send,
    ) -> Result<T> {
        self.run_in(operation, statement, false).await
    }

    /// Runs several statements in one transaction.
    pub(super) async fn transact<T: Send>(
        &self,
        operation: &'static str,
        statements: impl for<'c> FnOnce(&'c mut PgConnection) -> Sent<'c, T> + Send,
    ) -> Result<T> {
        self.run_in(operation, statements, true).await
    }

    async fn run_in<T: Send>(
        &self,
        operation: &'static str,
        statements: impl for<'c> FnOnce(&'c mut PgConnection) -> Sent<'c, T> + Send,
        transaction: bool,
    ) -> Result<T> {
        let mut pooled = self.get(operation).await?;
        pooled.connect().await?;
        let connection = pooled.connection.connection();
        let sent = async {
            self.begin(connection, transaction).await.map_err(failed(operation))?;
            let answer = statements(connection).await?;
            self.commit(connection, transaction).await.map_err(failed(operation))?;
            Ok(answer)
        };
        let late = |_| timed_out(Stage::Running, operation, self.statements);
        let answer = timeout(self.statements, sent).await.map_err(late)??;
        pooled.connection.keep();
        Ok(answer)
    }

    async fn begin(&self, connection: &mut PgConnection, transaction: bool) -> sqlx::Result<()> {
        match transaction {
            true => self.session.begin(connection).await,
            false => self.session.enter(connection).await,
        }
    }

    async fn commit(&self, connection: &mut PgConnection, transaction: bool) -> sqlx::Result<()> {
        match transaction {
            true => sqlx::raw_sql("commit").execute(connection).await.map(drop),
            false => self.session.leave(connection, Ok(())).await,
        }
    }
}

/// A session in use. Dropping it in the middle of a statement closes the connection, which rolls back.
pub(super) struct PooledSession<'p> {
    pool: &'p SessionPool,
    operation: &'static str,
    connection: Pooled<PgConnection>,
    /// Whether the connection was opened for this use. An idle one may have died.
    fresh: bool,
    conflicts: usize,
}

impl PooledSession<'_> {
    /// Runs a statement that only reads. Returns `None` if it is to be sent again because its
    /// connection had died while it was idle.
    pub(super) async fn read<T>(
        &mut self,
        sent: impl AsyncFnOnce(&mut PgConnection) -> sqlx::Result<T>,
    ) -> Result<Option<T>> {
        // A read that was not answered has changed nothing.
        let harmless = |error: Error| {
            let lost = error.kind() == ErrorKind::Ambiguous;
            if lost { error.with_kind(ErrorKind::Unavailable) } else { error }
        };
        let was_idle = !self.fresh;
        match self.run(sent, false).await.map_err(harmless)? {
            Ok(read) => Ok(Some(read)),
            Err(error) => {
                let error = failed(self.operation)(error);
                if was_idle && error.kind() == ErrorKind::Ambiguous {
                    return Ok(None);
                }
                Err(harmless(error))
            }
        }
    }

    /// Runs a transaction. Returns `None` if it conflicted with a concurrent one and is to be run
    /// again.
    pub(super) async fn write<T>(
        &mut self,
        sent: impl AsyncFnOnce(&mut PgConnection) -> sqlx::Result<T>,
    ) -> Result<Option<T>> {
        let written = self.run(sent, true).await?;
        self.unless_conflict(written)
    }

    /// Runs one statement that writes, a transaction by itself. Returns `None` as
    /// [`write`](Self::write) does.
    pub(super) async fn write_one<T>(
        &mut self,
        sent: impl AsyncFnOnce(&mut PgConnection) -> sqlx::Result<T>,
    ) -> Result<Option<T>> {
        let written = self.run(sent, false).await?;
        self.unless_conflict(written)
    }

    fn unless_conflict<T>(&mut self, written: sqlx::Result<T>) -> Result<Option<T>> {
        match written {
            Ok(written) => Ok(Some(written)),
            Err(error) if conflicts(&error) && self.conflicts < MAX_CONFLICTS => {
                self.conflicts += 1;
                Ok(None)
            }
            Err(error) => Err(failed(self.operation)(error)),
        }
    }

    async fn run<T>(
        &mut self,
        sent: impl AsyncFnOnce(&mut PgConnection) -> sqlx::Result<T>,
        transaction: bool,
    ) -> Result<sqlx::Result<T>> {
        let pool = self.pool;
        self.connect().await?;
        let connection = self.connection.connection();
        let sent = async {
            pool.begin(connection, transaction).await?;
            let answer = sent(connection).await?;
            pool.commit(connection, transaction).await?;
            Ok(answer)
        };
        let done = timeout(pool.statements, sent).await;
        match &done {
            Ok(Ok(_)) => self.connection.keep(),
            // After a failure the connection is not used again; if the failure points at the
            // server, no connection of the store is.
            Ok(Err(error)) => {
                self.connection.close();
                if ends_session(error) {
                    self.connection.retire_all();
                }
            }
            Err(_) => self.connection.close(),
        }
        done.map_err(|_| timed_out(Stage::Running, self.operation, pool.statements))
    }

    /// Opens a connection if there is none.
    async fn connect(&mut self) -> Result<()> {
        if self.connection.is_open() {
            return Ok(());
        }
        self.fresh = true;
        let (limit, operation) = (self.pool.connect, self.operation);
        let connecting = async {
            timeout(limit, self.pool.session.connect())
                .await
                .map_err(|_| timed_out(Stage::Connecting, operation, limit))?
                .map_err(unopened(operation))
        };
        self.connection.open(connecting).await
    }
}

/// Returns whether a concurrent transaction conflicted with this one, or inserted the same id
/// meanwhile.
fn conflicts(error: &sqlx::Error) -> bool {
    let refusal = error.as_database_error();
    conflicted(error) || refusal.is_some_and(sqlx::error::DatabaseError::is_unique_violation)
}
