//! A few connections of the outbox's own, so that relays and the ledger never wait for each other.
//!
//! They are opened when first needed. Whoever has one has it alone, and gives it back only after a
//! clean use: what was cut short is closed, which also undoes what it had begun.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use semel_core::store::Result;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::error::{Stage, timed_out};

/// Connections at most. A claim or a mark takes a few milliseconds of one.
const SEATS: usize = 4;

/// The connections.
pub(crate) struct Seats<C> {
    permits: Semaphore,
    idle: Mutex<Vec<C>>,
}

impl<C> Seats<C> {
    pub(crate) fn new() -> Self {
        Self { permits: Semaphore::new(SEATS), idle: Mutex::default() }
    }

    /// Waits for a turn, but not for ever: behind a database that stands still the line would only
    /// grow. It comes with a connection if one is at rest.
    pub(crate) async fn take(
        &self,
        operation: &'static str,
        limit: Duration,
    ) -> Result<(SemaphorePermit<'_>, Option<C>)> {
        let permit = timeout(limit, self.permits.acquire()).await;
        let permit = permit.map_err(|_| timed_out(Stage::Connecting, operation, limit))?;
        let permit = permit.expect("the semaphore is never closed");
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Ok((permit, idle))
    }

    pub(crate) fn rest(&self, connection: C) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }
}

impl<C> fmt::Debug for Seats<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seats").finish_non_exhaustive()
    }
}
