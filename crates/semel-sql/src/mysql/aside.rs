//! One connection beside the lanes, for what is rare and may take long: sweeping, listing, checking.
//!
//! Whoever uses it has it alone; a use that does not end cleanly does not give it back, and the next
//! one opens another.

use std::sync::Arc;

use semel_core::store::Result;
use sqlx::MySqlConnection;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::timeout;

use super::ledger::Ledger;
use super::session::Idle;
use crate::error::{Stage, timed_out};

/// How many statements' time one use may take; a sweep of a full batch has about a dozen short ones.
const STATEMENTS: u32 = 4;

/// The connection, if it is open and at rest.
pub(crate) struct Aside {
    ledger: Arc<Ledger>,
    slot: Arc<Mutex<Option<Idle>>>,
}

/// A turn on it.
pub(crate) struct Turn {
    slot: OwnedMutexGuard<Option<Idle>>,
    pub(crate) connection: MySqlConnection,
}

impl Turn {
    /// Gives the connection back, after a clean use.
    pub(crate) fn end(mut self) {
        *self.slot = Some(Idle::new(self.connection));
    }
}

impl Aside {
    pub(crate) fn new(ledger: Arc<Ledger>) -> Self {
        Self { ledger, slot: Arc::default() }
    }

    /// Waits for a turn. Unless it is [ended](Turn::end), the connection is closed.
    pub(crate) async fn take(&self, operation: &'static str) -> Result<Turn> {
        let mut slot = Arc::clone(&self.slot).lock_owned().await;
        let limit = self.ledger.limit;
        if let Some(idle) = slot.take()
            && let Some(connection) = idle.wake(limit).await
        {
            return Ok(Turn { slot, connection });
        }
        let connection = timeout(limit, self.ledger.session())
            .await
            .unwrap_or_else(|_| Err(timed_out(Stage::Connecting, operation, limit)))?;
        Ok(Turn { slot, connection })
    }

    /// Runs `work` for a few statements' time at most: a server that went silent must not hold the
    /// connection for ever.
    pub(crate) async fn bounded<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let limit = self.ledger.limit * STATEMENTS;
        timeout(limit, work)
            .await
            .unwrap_or_else(|_| Err(timed_out(Stage::Running, operation, limit)))
    }
}
