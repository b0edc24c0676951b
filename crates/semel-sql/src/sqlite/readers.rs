//! Connections that only read: replays, waiters and operators do not wait in the writer's queue.
//!
//! In WAL mode a reader neither waits for the writer nor delays it; it sees the committed state.

use std::sync::{Mutex, PoisonError};

use semel_core::store::{Error, Result};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::failure;
use crate::pool;

/// A few connections for reading, opened when they are first needed.
#[derive(Debug)]
pub(super) struct Readers {
    options: SqliteConnectOptions,
    idle: Mutex<Vec<SqliteConnection>>,
    turns: Semaphore,
}

/// A borrowed connection. Dropping it returns it to the readers.
pub(super) struct Reader<'a> {
    readers: &'a Readers,
    connection: Option<SqliteConnection>,
    _turn: SemaphorePermit<'a>,
}

impl Readers {
    pub(super) fn new(options: SqliteConnectOptions, count: usize) -> Self {
        Self { options, idle: Mutex::default(), turns: Semaphore::new(count) }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<SqliteConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a free connection.
    pub(super) async fn reader(&self, operation: &'static str) -> Result<Reader<'_>> {
        let Ok(turn) = self.turns.acquire().await else { return Err(pool::closed(operation)) };
        let idle = self.idle().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.connect(operation).await?,
        };
        Ok(Reader { readers: self, connection: Some(connection), _turn: turn })
    }

    async fn connect(&self, operation: &'static str) -> Result<SqliteConnection> {
        self.options.connect().await.map_err(|error| failure::in_transaction(operation, error))
    }

    /// Closes idle connections now, and those in use when they are returned, so that the files can
    /// be moved or removed. Later reads fail.
    pub(super) async fn close(&self) {
        self.turns.close();
        let idle = std::mem::take(&mut *self.idle());
        for connection in idle {
            let _ = connection.close().await;
        }
    }
}

impl Reader<'_> {
    pub(super) fn connection(&mut self) -> &mut SqliteConnection {
        self.connection.as_mut().expect("only `failed` takes it, and consumes the reader")
    }

    /// Converts the error, and closes the connection.
    pub(super) fn failed(mut self, operation: &'static str, error: sqlx::Error) -> Error {
        self.connection = None;
        failure::in_transaction(operation, error)
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        // A query whose caller was cancelled continues in the connection's own thread, and its
        // answer is dropped; the next query runs after it.
        if let Some(connection) = self.connection.take() {
            let mut idle = self.readers.idle();
            if !self.readers.turns.is_closed() {
                idle.push(connection);
            }
        }
    }
}
