//! A fixed number of connections for a reference client, shared by its tasks.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

/// A pool of connections for a reference client.
pub(crate) struct ReferencePool<C> {
    free: Mutex<Vec<C>>,
    permits: Semaphore,
}

impl<C> ReferencePool<C> {
    pub(crate) fn new(connections: Vec<C>) -> Self {
        let permits = Semaphore::new(connections.len());
        Self { free: Mutex::new(connections), permits }
    }

    /// Waits for a free connection.
    pub(crate) async fn take(&self) -> PooledConnection<'_, C> {
        let permit = self.permits.acquire().await.expect("the semaphore is never closed");
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let connection = free.pop();
        PooledConnection { pool: self, connection, _permit: permit }
    }
}

/// A connection in use. Dropping it returns it to the pool.
pub(crate) struct PooledConnection<'a, C> {
    pool: &'a ReferencePool<C>,
    connection: Option<C>,
    _permit: SemaphorePermit<'a>,
}

impl<C> Deref for PooledConnection<'_, C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.connection.as_ref().expect("a permit stands for a connection")
    }
}

impl<C> DerefMut for PooledConnection<'_, C> {
    fn deref_mut(&mut self) -> &mut C {
        self.connection.as_mut().expect("a permit stands for a connection")
    }
}

impl<C> Drop for PooledConnection<'_, C> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
    }
}
