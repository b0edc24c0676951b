//! A bounded pool of connections, opened when they are first needed.
//!
//! A connection is returned to the pool after a clean use only: one on which a statement did not end is
//! closed, which rolls back what it had begun. It is replaced when its lifetime is over, and with all others
//! when an error points at the server: after a switchover the old primary may still answer, read-only, while
//! a new connection would reach the new one.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

/// A lifetime that no connection reaches.
const FOR_EVER: Duration = Duration::from_secs(30 * 365 * 86_400);

/// How often a transaction of the store's own that met a concurrent one is run again before its caller gets
/// the error.
pub(crate) const RIVALS: usize = 5;

/// The connections of one use: the outbox's, the id map's, the operators', the callers' transactions'.
pub(crate) struct ConnectionPool<C> {
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Idle<C>>>,
    lifetime: Duration,
    /// Raised by [`retire`](Self::retire). Connections of an earlier generation are not used again.
    generation: AtomicU64,
}

struct Open<C> {
    connection: C,
    generation: u64,
    until: Instant,
}

struct Idle<C> {
    open: Open<C>,
    since: Instant,
}

impl<C> ConnectionPool<C> {
    /// Creates a pool of at most `size` connections, each used for about `lifetime`.
    pub(crate) fn new(size: usize, lifetime: Duration) -> Arc<Self> {
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(size)),
            idle: Mutex::default(),
            lifetime,
            generation: AtomicU64::new(0),
        })
    }

    /// Waits until a connection may be used; `None` if none was given back within `wait`.
    pub(crate) async fn get(self: &Arc<Self>, wait: Duration) -> Option<Pooled<C>> {
        let permit = timeout(wait, Arc::clone(&self.permits).acquire_owned()).await;
        let permit = permit.ok()?.expect("the semaphore is never closed");
        Some(Pooled { open: None, is_clean: true, pool: Arc::clone(self), _permit: permit })
    }

    /// Adds a connection that was opened elsewhere.
    pub(crate) fn add(&self, connection: C) {
        let open = self.stamp().with(connection);
        self.idle().push(Idle { open, since: Instant::now() });
    }

    /// Retires every connection: the idle ones now, those in use when they are returned.
    pub(crate) fn retire(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        let retired = std::mem::take(&mut *self.idle());
        drop(retired);
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle<C>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_usable(&self, open: &Open<C>) -> bool {
        open.generation == self.generation.load(Ordering::SeqCst) && Instant::now() < open.until
    }

    fn stamp(&self) -> Open<()> {
        let generation = self.generation.load(Ordering::SeqCst);
        // Connections that were opened together do not all end together.
        let now = Instant::now();
        let lifetime = self.lifetime.mul_f64(0.8 + 0.2 * fastrand::f64());
        let until = now.checked_add(lifetime).unwrap_or(now + FOR_EVER);
        Open { connection: (), generation, until }
    }
}

impl Open<()> {
    fn with<C>(self, connection: C) -> Open<C> {
        Open { connection, generation: self.generation, until: self.until }
    }
}

impl<C> fmt::Debug for ConnectionPool<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionPool").finish_non_exhaustive()
    }
}

/// The right to use one connection, and the connection once there is one. Dropping it returns the
/// connection if its last use was clean, and closes it if not.
pub(crate) struct Pooled<C> {
    open: Option<Open<C>>,
    is_clean: bool,
    pool: Arc<ConnectionPool<C>>,
    _permit: OwnedSemaphorePermit,
}

impl<C> Pooled<C> {
    /// Takes an idle connection; returns how long it was idle, or `None` if there is none.
    pub(crate) fn reuse(&mut self) -> Option<Duration> {
        let mut idle = self.pool.idle();
        let found = loop {
            let idle = idle.pop()?;
            if self.pool.is_usable(&idle.open) {
                break idle;
            }
        };
        drop(idle);
        let idle_for = found.since.elapsed();
        (self.open, self.is_clean) = (Some(found.open), true);
        Some(idle_for)
    }

    /// Takes the connection that `connecting` opens.
    pub(crate) async fn open<E>(
        &mut self,
        connecting: impl Future<Output = Result<C, E>>,
    ) -> Result<(), E> {
        let stamp = self.pool.stamp();
        let connection = connecting.await?;
        (self.open, self.is_clean) = (Some(stamp.with(connection)), true);
        Ok(())
    }

    /// Returns whether there is a connection.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns the connection for a use that is not clean until [`keep`](Self::keep) says so.
    ///
    /// # Panics
    /// Without a connection.
    pub(crate) fn connection(&mut self) -> &mut C {
        self.is_clean = false;
        &mut self.open.as_mut().expect("a connection was taken or opened").connection
    }

    /// Declares the last use clean: no statement is under way, no transaction open.
    pub(crate) fn keep(&mut self) {
        self.is_clean = true;
    }

    /// Closes the connection.
    pub(crate) fn close(&mut self) {
        self.open = None;
    }

    /// Retires every connection of the pool.
    pub(crate) fn retire_all(&self) {
        self.pool.retire();
    }
}

impl<C> Drop for Pooled<C> {
    fn drop(&mut self) {
        if let Some(open) = self.open.take()
            && self.is_clean
            && self.pool.is_usable(&open)
        {
            self.pool.idle().push(Idle { open, since: Instant::now() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    async fn opened(pool: &Arc<ConnectionPool<u32>>, number: u32) -> Pooled<u32> {
        let mut pooled = pool.get(LONG).await.expect("there is room");
        pooled.open(async { Ok::<_, ()>(number) }).await.expect("opens");
        pooled
    }

    async fn reused(pool: &Arc<ConnectionPool<u32>>) -> Option<u32> {
        let mut pooled = pool.get(LONG).await.expect("there is room");
        pooled.reuse()?;
        let number = *pooled.connection();
        pooled.keep();
        Some(number)
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_reused_after_a_clean_use_alone() {
        let pool = ConnectionPool::new(1, LONG);
        let mut pooled = opened(&pool, 1).await;
        assert!(pool.get(Duration::from_millis(1)).await.is_none(), "one is the limit");
        pooled.connection();
        drop(pooled);
        assert_eq!(reused(&pool).await, None);
        let mut pooled = opened(&pool, 2).await;
        pooled.connection();
        pooled.keep();
        drop(pooled);
        assert_eq!(reused(&pool).await, Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_with_its_lifetime_and_with_its_generation() {
        let pool = ConnectionPool::new(1, LONG);
        drop(opened(&pool, 1).await);
        tokio::time::advance(LONG).await;
        assert_eq!(reused(&pool).await, None);
        let pooled = opened(&pool, 2).await;
        pool.retire();
        drop(pooled);
        assert_eq!(reused(&pool).await, None);
    }
}
