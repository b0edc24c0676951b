//! The sessions that callers' transactions run in.

use std::sync::Arc;
use std::time::Duration;

use semel_core::store::{Error, ErrorKind, Result};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection, Postgres, SqlSafeStr};
use tokio::time::timeout;

use super::super::PgOptions;
use super::super::statement::{BEGIN, unconnected};
use crate::error::{Stage, timed_out};
use crate::pool::{ConnectionPool, Lifecycle, Pooled};
use crate::unit;

/// Connections for callers' transactions. An idle one is reset, and in no transaction.
pub(in crate::postgres) struct TransactionPool {
    connections: Arc<ConnectionPool<PgConnection>>,
    options: PgConnectOptions,
    limit: Duration,
    size: usize,
    wait: Duration,
}

impl TransactionPool {
    pub(in crate::postgres) fn new(
        options: PgConnectOptions,
        settings: &PgOptions,
        lifecycle: &Arc<Lifecycle>,
    ) -> Self {
        Self {
            connections: ConnectionPool::new(settings.transactions, lifecycle),
            options,
            limit: settings.statement_timeout,
            size: settings.transactions,
            wait: settings.transaction_wait,
        }
    }

    /// Begins a transaction.
    pub(super) async fn begin(&self) -> Result<Pooled<PgConnection>> {
        let mut session = self.connections.get("begin", self.wait, || self.exhausted()).await?;
        // An idle connection may have died. Nothing was sent but BEGIN, so a new one may be tried; a second
        // failure is the caller's answer.
        if session.reuse().is_some() {
            if self.start(session.connection()).await.is_ok() {
                return Ok(session);
            }
            session.close();
        }
        session.open(self.connect()).await?;
        self.start(session.connection()).await?;
        Ok(session)
    }

    /// Closes the pool: see [`ConnectionPool::close`].
    pub(in crate::postgres) fn close(&self) {
        self.connections.close();
    }

    /// Retires every session: an error pointed at the server.
    pub(super) fn retire(&self) {
        self.connections.retire();
    }

    async fn connect(&self) -> Result<PgConnection> {
        timeout(self.limit, self.options.connect())
            .await
            .map_err(|_| timed_out(Stage::Connecting, "begin", self.limit))?
            .map_err(unconnected("begin"))
    }

    /// Begins. sqlx counts how deep a connection is in transactions. That count is raised once and
    /// then stays for as long as the connection is pooled, so that a `begin` of the work is always a
    /// savepoint, and so that what ends a transaction can reset its session in the same trip.
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
