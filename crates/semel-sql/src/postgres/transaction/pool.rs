//! A pool of the sessions in which callers' transactions run.

use std::sync::Arc;
use std::time::Duration;

use semel_core::store::{Draft, Error, ErrorKind, Result};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection, Postgres, SqlSafeStr};
use tokio::time::{Instant, timeout};

use super::super::message::{self, Message};
use super::super::statement::{BEGIN, failed_in, unconnected};
use super::super::{PgOptions, Pooling};
use super::reserve::{Looked, look};
use crate::error::{Stage, timed_out};
use crate::pool::{ConnectionPool, Lifecycle, Pooled};
use crate::unit;

/// Connections for callers' transactions. An idle connection has been reset and is in no
/// transaction.
pub(in crate::postgres) struct TransactionPool {
    connections: Arc<ConnectionPool<PgConnection>>,
    options: PgConnectOptions,
    limit: Duration,
    size: usize,
    wait: Duration,
    pooling: Pooling,
    /// The statements that are sent to a new session before its first transaction.
    preparation: String,
}

impl TransactionPool {
    pub(in crate::postgres) fn new(
        options: PgConnectOptions,
        pooling: Pooling,
        settings: &PgOptions,
        lifecycle: &Arc<Lifecycle>,
    ) -> Self {
        Self {
            connections: ConnectionPool::new(settings.transactions, lifecycle),
            options,
            limit: settings.statement_timeout,
            size: settings.transactions,
            wait: settings.transaction_wait,
            pooling,
            preparation: message::preparation(pooling),
        }
    }

    /// Begins a transaction.
    pub(super) async fn begin(&self) -> Result<Pooled<PgConnection>> {
        let mut session = self.session().await?;
        // An idle connection may have died. Nothing was sent but BEGIN, so a new one may be tried;
        // a second failure is returned to the caller.
        if session.reuse().is_some() {
            if self.start(session.connection()).await.is_ok() {
                return Ok(session);
            }
            session.close();
        }
        self.open(&mut session).await?;
        Ok(session)
    }

    /// Closes the pool: see [`ConnectionPool::close`].
    pub(in crate::postgres) fn close(&self) {
        self.connections.close();
    }

    /// Begins a transaction and tries to reserve the key of a draft in it. Costs one trip on a
    /// connection that was used before.
    pub(super) async fn begin_looking(
        &self,
        draft: &Draft,
    ) -> Result<(Pooled<PgConnection>, Looked)> {
        let mut session = self.session().await?;
        // As in `begin`, a new connection may be tried: the message writes nothing, and its lock
        // ends with its session.
        if session.reuse().is_some() {
            let begin = Message::new(self.pooling, "begin");
            let limit = Instant::now() + self.limit;
            match self.look(session.connection(), begin, draft).await {
                Ok(looked) => return Ok((session, looked)),
                // The server may still be running the message, and its lock would make a second
                // session contend with the first.
                Err(error) if Instant::now() >= limit => return Err(error),
                Err(_) => {}
            }
            session.close();
        }
        self.open(&mut session).await?;
        let begun = Message::new(self.pooling, "");
        let looked = self.look(session.connection(), begun, draft).await?;
        Ok((session, looked))
    }

    async fn session(&self) -> Result<Pooled<PgConnection>> {
        self.connections.get("begin", self.wait, || self.exhausted()).await
    }

    /// Opens a new connection and begins a transaction on it.
    async fn open(&self, session: &mut Pooled<PgConnection>) -> Result<()> {
        session.open(self.connect()).await?;
        self.start(session.connection()).await
    }

    async fn look(
        &self,
        connection: &mut PgConnection,
        message: Message,
        draft: &Draft,
    ) -> Result<Looked> {
        timeout(self.limit, look(connection, message, draft))
            .await
            .map_err(|_| timed_out(Stage::Connecting, "open", self.limit))?
            .map_err(failed_in("open"))
    }

    /// Retires every connection of the store, after an error that points at the server.
    pub(super) fn retire(&self) {
        self.connections.retire();
    }

    async fn connect(&self) -> Result<PgConnection> {
        let connecting = async {
            let mut connection = self.options.connect().await?;
            if !self.preparation.is_empty() {
                // Not in one message with BEGIN: preparing takes a snapshot, and the work may
                // choose another isolation level only before the first snapshot.
                let preparation = AssertSqlSafe(self.preparation.as_str());
                sqlx::raw_sql(preparation).execute(&mut connection).await?;
            }
            Ok(connection)
        };
        timeout(self.limit, connecting)
            .await
            .map_err(|_| timed_out(Stage::Connecting, "begin", self.limit))?
            .map_err(unconnected("begin"))
    }

    /// Begins a transaction. sqlx counts how deep a connection is in transactions. That count is
    /// raised once and then stays while the connection is pooled, so that a `begin` of the work is
    /// always a savepoint, and so that one trip can end the transaction and reset its session.
    async fn start(&self, connection: &mut PgConnection) -> Result<()> {
        let begin = async {
            match unit::depth::<Postgres>(connection) {
                0 => unit::begin::<Postgres>(connection, Some(BEGIN.into_sql_str())).await,
                _ => sqlx::raw_sql(BEGIN).execute(connection).await.map(drop),
            }
        };
        timeout(self.limit, begin)
            .await
            .map_err(|_| timed_out(Stage::Connecting, "begin", self.limit))?
            .map_err(unconnected("begin"))
    }

    fn exhausted(&self) -> Error {
        let text = format!(
            "all {} transactions were in use for {:?}; shorten the work or allow more of them",
            self.size, self.wait
        );
        Error::new(ErrorKind::Unavailable, "begin", text)
    }
}
