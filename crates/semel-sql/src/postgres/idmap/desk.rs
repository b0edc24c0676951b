//! The map's own connections, and what becomes of a statement on one of them.
//!
//! Only for statements outside anybody's transaction: see `insert` for those inside.

use std::time::Duration;

use semel_core::store::{Error, ErrorKind, Result};
use sqlx::PgConnection;
use tokio::sync::SemaphorePermit;
use tokio::time::timeout;

use super::super::session::{Session, unopened};
use super::super::statement::{failed, rivalled};
use crate::error::{Stage, timed_out};
use crate::idmap::RIVALS;
use crate::outbox::Seats;

/// A few connections.
#[derive(Debug)]
pub(in crate::postgres) struct Desk {
    seats: Seats<PgConnection>,
    session: Session,
    limit: Duration,
}

impl Desk {
    /// `ours` are the ledger's sessions; but here whoever holds an id is waited for, since nobody else
    /// waits behind us.
    pub(in crate::postgres) fn new(ours: Session, limit: Duration) -> Self {
        Self { seats: Seats::new(), session: ours.set("lock_timeout", "0"), limit }
    }

    /// Waits for a turn.
    pub(super) async fn seat(&self, operation: &'static str) -> Result<Seat<'_>> {
        let (permit, connection) = self.seats.take(operation, self.limit).await?;
        let fresh = connection.is_none();
        Ok(Seat { desk: self, operation, connection, fresh, rivals: 0, _permit: permit })
    }
}

/// A turn. Dropping it in the middle of a statement closes the connection, which rolls back.
pub(super) struct Seat<'d> {
    desk: &'d Desk,
    operation: &'static str,
    connection: Option<PgConnection>,
    /// Whether the connection never rested: one that did may have died since.
    fresh: bool,
    rivals: usize,
    _permit: SemaphorePermit<'d>,
}

impl Seat<'_> {
    /// Runs a statement that only reads. `None` if it is to be asked again: its connection had died at
    /// rest.
    pub(super) async fn read<T>(
        &mut self,
        sent: impl AsyncFnOnce(&mut PgConnection) -> sqlx::Result<T>,
    ) -> Result<Option<T>> {
        // A read that was not answered has changed nothing.
        let harmless = |error: Error| {
            let lost = error.kind() == ErrorKind::Ambiguous;
            if lost { error.with_kind(ErrorKind::Unavailable) } else { error }
        };
        let rested = !self.fresh;
        match self.run(sent, false).await.map_err(harmless)? {
            Ok(read) => Ok(Some(read)),
            Err(error) => {
                let error = failed(self.operation)(error);
                if rested && error.kind() == ErrorKind::Ambiguous {
                    return Ok(None);
                }
                Err(harmless(error))
            }
        }
    }

    /// Runs a transaction. `None` if a rival was in its way, and it is to be run again.
    pub(super) async fn write<T>(
        &mut self,
        sent: impl AsyncFnOnce(&mut PgConnection) -> sqlx::Result<T>,
    ) -> Result<Option<T>> {
        let written = self.run(sent, true).await?;
        self.unrivalled(written)
    }

    /// Runs one statement that writes: a transaction by itself. `None` as for [`write`](Self::write).
    pub(super) async fn write_one<T>(
        &mut self,
        sent: impl AsyncFnOnce(&mut PgConnection) -> sqlx::Result<T>,
    ) -> Result<Option<T>> {
        let written = self.run(sent, false).await?;
        self.unrivalled(written)
    }

    fn unrivalled<T>(&mut self, written: sqlx::Result<T>) -> Result<Option<T>> {
        match written {
            Ok(written) => Ok(Some(written)),
            Err(error) if rival(&error) && self.rivals < RIVALS => {
                self.rivals += 1;
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
        let (limit, session) = (self.desk.limit, &self.desk.session);
        // Taken out while in use: after a failure it is not used again.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let sent = async {
            if transaction {
                session.begin(&mut connection).await?;
            } else {
                session.enter(&mut connection).await?;
            }
            let answer = sent(&mut connection).await?;
            if transaction {
                sqlx::raw_sql("commit").execute(&mut connection).await?;
                return Ok(answer);
            }
            session.leave(&mut connection, Ok(answer)).await
        };
        let done = timeout(limit, sent).await;
        let done = done.map_err(|_| timed_out(Stage::Running, self.operation, limit))?;
        if done.is_ok() {
            self.connection = Some(connection);
        }
        Ok(done)
    }

    async fn connect(&mut self) -> Result<PgConnection> {
        self.fresh = true;
        let limit = self.desk.limit;
        timeout(limit, self.desk.session.connect())
            .await
            .map_err(|_| timed_out(Stage::Connecting, self.operation, limit))?
            .map_err(unopened(self.operation))
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.desk.seats.rest(connection);
        }
    }
}

/// Whether a rival was in the way of a transaction of ours: also one who took an id in its middle.
fn rival(error: &sqlx::Error) -> bool {
    let refusal = error.as_database_error();
    rivalled(error) || refusal.is_some_and(sqlx::error::DatabaseError::is_unique_violation)
}
