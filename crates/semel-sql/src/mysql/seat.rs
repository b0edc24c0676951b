//! A turn on one of a few connections of the outbox's or the map's own.
//!
//! The ledger's lanes and the transactions have theirs; nothing here is sent inside a caller's
//! transaction.

use std::time::Duration;

use semel_core::store::{Error, ErrorKind, Result};
use sqlx::MySqlConnection;
use tokio::sync::SemaphorePermit;
use tokio::time::timeout;

use super::MySqlStore;
use super::ledger::{Ledger, failed};
use super::session::{Idle, deadlock, is_lost, number};
use crate::error::{Stage, timed_out};
use crate::idmap::RIVALS;
use crate::outbox::Seats;

/// A turn. Dropping it in the middle of a statement closes the connection, which rolls back.
pub(super) struct Seat<'s> {
    seats: &'s Seats<Idle>,
    ledger: &'s Ledger,
    operation: &'static str,
    connection: Option<MySqlConnection>,
    /// Whether the connection has rested: one that did may have died since.
    rested: bool,
    rivals: usize,
    _permit: SemaphorePermit<'s>,
}

impl MySqlStore {
    /// Waits for a turn.
    pub(super) async fn seat<'s>(
        &'s self,
        seats: &'s Seats<Idle>,
        operation: &'static str,
    ) -> Result<Seat<'s>> {
        let ledger = &*self.ledger;
        let (permit, idle) = seats.take(operation, ledger.limit).await?;
        let connection = match idle {
            Some(idle) => idle.wake(ledger.limit).await,
            None => None,
        };
        let rested = connection.is_some();
        Ok(Seat { seats, ledger, operation, connection, rested, rivals: 0, _permit: permit })
    }
}

impl Seat<'_> {
    /// Waits for what was sent, but not for ever. `None` if it lost a deadlock, or a rival took a key
    /// in its middle, and with it nothing but time: it is to be sent again.
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

    /// As [`settled`](Self::settled), of what only reads: also `None` if the connection had died at
    /// rest, and otherwise harmless.
    pub(super) async fn read<T>(
        &mut self,
        sent: impl AsyncFnOnce(&mut MySqlConnection) -> sqlx::Result<T>,
    ) -> Result<Option<T>> {
        let rested = self.rested;
        match self.run(sent).await.map_err(unread)? {
            Ok(read) => Ok(Some(read)),
            Err(error) => {
                let error = alone(failed(self.operation, error));
                if rested && error.kind() == ErrorKind::Ambiguous {
                    return Ok(None);
                }
                Err(unread(error))
            }
        }
    }

    /// Waits for a single statement outside a transaction, and gives the server's own refusal: after
    /// one the connection is as good as before.
    pub(super) async fn ask<T>(
        &mut self,
        sent: impl AsyncFnOnce(&mut MySqlConnection) -> sqlx::Result<T>,
    ) -> Result<sqlx::Result<T>> {
        self.run_keeping(sent, |error| !is_lost(error)).await
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
        let limit: Duration = self.ledger.limit;
        // Taken out while in use: after a failure it is not used again, unless the server says that it
        // rolled back.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let done = timeout(limit, sent(&mut connection)).await;
        let done = done.map_err(|_| timed_out(Stage::Running, self.operation, limit))?;
        if done.as_ref().map_or_else(keeps, |_| true) {
            self.connection = Some(connection);
        }
        Ok(done)
    }

    async fn connect(&mut self) -> Result<MySqlConnection> {
        self.rested = false;
        let limit = self.ledger.limit;
        timeout(limit, self.ledger.session())
            .await
            .unwrap_or_else(|_| Err(timed_out(Stage::Connecting, self.operation, limit)))
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.seats.rest(Idle::new(connection));
        }
    }
}

/// A deadlock, or a key that was free when it was looked at and is taken when it is written.
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
