//! A fixed number of connections for a reference client, shared by its tasks.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

/// The connections.
pub(crate) struct Seats<C> {
    free: Mutex<Vec<C>>,
    permits: Semaphore,
}

impl<C> Seats<C> {
    pub(crate) fn new(connections: Vec<C>) -> Self {
        let permits = Semaphore::new(connections.len());
        Self { free: Mutex::new(connections), permits }
    }

    /// Waits for one.
    pub(crate) async fn take(&self) -> Seat<'_, C> {
        let permit = self.permits.acquire().await.expect("the semaphore is never closed");
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let connection = free.pop();
        Seat { seats: self, connection, _permit: permit }
    }
}

/// A connection in use. It goes back when this is dropped.
pub(crate) struct Seat<'a, C> {
    seats: &'a Seats<C>,
    connection: Option<C>,
    _permit: SemaphorePermit<'a>,
}

impl<C> Deref for Seat<'_, C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.connection.as_ref().expect("a permit stands for a connection")
    }
}

impl<C> DerefMut for Seat<'_, C> {
    fn deref_mut(&mut self) -> &mut C {
        self.connection.as_mut().expect("a permit stands for a connection")
    }
}

impl<C> Drop for Seat<'_, C> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.seats.free.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
    }
}
