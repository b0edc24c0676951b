//! Transactions that a claim shares with the caller's own writes.
//!
//! They run on a bounded set of connections of our own: a pool would ping each connection on its
//! way back, and four trips are all that a protected transaction may cost. What the work does on
//! the connection is its own business, as long as it leaves the transaction open.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel::claim::Lease;
use semel::key::Key;
use semel::record::Version;
use semel::store::{
    Change, Draft, Ending, Error, ErrorKind, Opened, Result, Settled, Swapped, TransactionalStore,
};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection, Postgres, SqlSafeStr};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::busy::{Patience, is_busy};
use super::ledger;
use super::statement::{BEGIN, codes, failed_in, unconnected};
use super::{PgOptions, PgStore, storable_change, storable_draft, storable_ending};
use crate::error::{Stage, classify, timed_out};
use crate::unit;

/// Where transactions' connections live between two transactions.
pub(super) struct Home {
    options: PgConnectOptions,
    limit: Duration,
    most: usize,
    wait: Duration,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<PgConnection>>,
}

impl Home {
    pub(super) fn new(options: PgConnectOptions, settings: &PgOptions) -> Arc<Self> {
        Arc::new(Self {
            options,
            limit: settings.statement_timeout,
            most: settings.transactions,
            wait: settings.transaction_wait,
            permits: Arc::new(Semaphore::new(settings.transactions)),
            idle: Mutex::default(),
        })
    }

    async fn begin(self: &Arc<Self>) -> Result<PgTransaction> {
        let permit = timeout(self.wait, Arc::clone(&self.permits).acquire_owned())
            .await
            .ok()
            .and_then(std::result::Result::ok)
            .ok_or_else(|| self.crowded())?;
        let rested = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // A connection that rested may have died since. Nothing was sent but BEGIN, so a new one
        // may simply be tried; a second failure is an answer.
        let begun = match rested {
            Some(mut connection) => self.start(&mut connection).await.ok().map(|()| connection),
            None => None,
        };
        let connection = match begun {
            Some(connection) => connection,
            None => {
                let mut connection = self.connect().await?;
                self.start(&mut connection).await?;
                connection
            }
        };
        Ok(PgTransaction { connection: Some(connection), home: Arc::clone(self), _permit: permit })
    }

    async fn connect(&self) -> Result<PgConnection> {
        let mut connection = timeout(self.limit, self.options.connect())
            .await
            .map_err(|_| timed_out(Stage::Connecting, "begin", self.limit))?
            .map_err(unconnected("begin"))?;
        if connection.server_version_num().is_some_and(|version| version >= 140_000) {
            // A transaction that is dropped in the middle of a long statement keeps its locks until
            // the server looks whether anybody is still there.
            timeout(self.limit, sqlx::query(LOOK_FOR_US).execute(&mut connection))
                .await
                .map_err(|_| timed_out(Stage::Connecting, "begin", self.limit))?
                .map_err(unconnected("begin"))?;
        }
        Ok(connection)
    }

    async fn start(&self, connection: &mut PgConnection) -> Result<()> {
        let begin = unit::begin::<Postgres>(connection, Some(BEGIN.into_sql_str()));
        timeout(self.limit, begin)
            .await
            .map_err(|_| timed_out(Stage::Connecting, "begin", self.limit))?
            .map_err(unconnected("begin"))
    }

    fn crowded(&self) -> Error {
        let text = format!(
            "all {} transactions were in use for {:?}; shorten the work or allow more of them",
            self.most, self.wait
        );
        Error::new(ErrorKind::Unavailable, "begin", text)
    }

    fn rest(&self, connection: PgConnection) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }
}

const LOOK_FOR_US: &str = "set client_connection_check_interval = 1000";

/// An open transaction that owns its connection. Dropping it closes the connection, which rolls
/// back.
pub struct PgTransaction {
    connection: Option<PgConnection>,
    home: Arc<Home>,
    _permit: OwnedSemaphorePermit,
}

impl std::fmt::Debug for PgTransaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PgTransaction").finish_non_exhaustive()
    }
}

impl PgTransaction {
    fn connection(&mut self) -> &mut PgConnection {
        self.connection.as_mut().expect("the connection leaves only with the transaction")
    }

    async fn commit(mut self) -> Result<()> {
        let limit = self.home.limit;
        let connection = self.connection();
        if unit::depth::<Postgres>(connection) != 1 {
            // COMMIT would only release a savepoint that the work forgot to end.
            return Err(Error::new(
                ErrorKind::Misconfigured,
                "commit",
                "the work left a savepoint open",
            ));
        }
        timeout(limit, unit::commit::<Postgres>(connection))
            .await
            .map_err(|_| timed_out(Stage::Running, "commit", limit))?
            // Unlike everything else in this room a commit can have happened without our knowing.
            .map_err(|error| classify(codes, Stage::Running, "commit", error))?;
        self.rest();
        Ok(())
    }

    async fn rollback(mut self) {
        let limit = self.home.limit;
        let connection = self.connection();
        while unit::depth::<Postgres>(connection) > 0 {
            match timeout(limit, unit::rollback::<Postgres>(connection)).await {
                Ok(Ok(())) => {}
                // Closing the connection rolls back as well.
                Ok(Err(_)) | Err(_) => return,
            }
        }
        self.rest();
    }

    fn rest(mut self) {
        if let Some(connection) = self.connection.take() {
            self.home.rest(connection);
        }
    }
}

impl TransactionalStore for PgStore {
    type Connection = PgConnection;
    type Transaction = PgTransaction;

    async fn begin(&self) -> Result<PgTransaction> {
        self.0.transactions.begin().await
    }

    fn connection(transaction: &mut PgTransaction) -> &mut PgConnection {
        transaction.connection()
    }

    async fn open_in(&self, connection: &mut PgConnection, draft: &Draft) -> Result<Opened> {
        storable_draft("open", draft)?;
        self.within("open", ledger::open(connection, draft)).await?
    }

    async fn swap_in(
        &self,
        connection: &mut PgConnection,
        key: &Key,
        judged: Version,
        change: &Change,
    ) -> Result<Swapped> {
        storable_change(change)?;
        self.within("swap", ledger::swap(connection, key, judged, change)).await
    }

    async fn settle_in(
        &self,
        connection: &mut PgConnection,
        lease: &Lease,
        ending: &Ending,
    ) -> Result<Settled> {
        storable_ending("settle", ending)?;
        // A rival's takeover that holds the row may still be rolled back, so the claim is not lost
        // yet; but it may also take as long as its work, so it is not waited for.
        let patience = Patience::new();
        loop {
            let settling = ledger::settle_in(connection, lease, ending);
            let settled = self.within("settle", settling).await?.ok_or_else(ended_by_work)?;
            if !patience.again(settled.as_ref().is_err_and(is_busy)).await {
                return settled;
            }
        }
    }

    async fn commit(&self, transaction: PgTransaction) -> Result<()> {
        transaction.commit().await
    }

    async fn rollback(&self, transaction: PgTransaction) {
        transaction.rollback().await;
    }
}

fn ended_by_work() -> Error {
    let text = "the work ended its transaction itself; leave COMMIT and ROLLBACK to the executor, \
                which commits the claim and the work together";
    Error::new(ErrorKind::Misconfigured, "settle", text)
}

impl PgStore {
    /// Runs a statement of ours inside a transaction. Whatever fails, nothing was committed.
    async fn within<T>(
        &self,
        operation: &'static str,
        statement: impl Future<Output = sqlx::Result<T>> + Send,
    ) -> Result<T> {
        timeout(self.0.limit, statement)
            .await
            .map_err(|_| {
                let late = timed_out(Stage::Running, operation, self.0.limit);
                late.with_kind(ErrorKind::Unavailable)
            })?
            .map_err(failed_in(operation))
    }
}
