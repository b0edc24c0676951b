//! A bounded pool of connections, opened when they are first needed.
//!
//! Every connection of a store comes from such a pool, except those for renewals, wake-ups and
//! migrations. A connection returns to its pool only after a clean use: if a statement did not end,
//! the connection is closed, which rolls back its transaction. The pools of a store share a
//! [`Lifecycle`]: a connection is replaced when its lifetime is over, and all connections of the
//! store are replaced when an error points at the server. After a switchover the old primary may
//! still answer, read-only, while a new connection would reach the new one.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::store::{Error, ErrorKind, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

/// A lifetime that no connection reaches.
const FOR_EVER: Duration = Duration::from_secs(30 * 365 * 86_400);

/// How often the store reruns one of its own transactions after a conflict with a concurrent one,
/// before the caller gets the error.
pub(crate) const MAX_CONFLICTS: usize = 5;

/// Decides when the connections of one store are replaced, in all of its pools.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    lifetime: Duration,
    /// Raised by [`retire`](Self::retire). Connections of an earlier generation are not used again.
    generation: AtomicU64,
}

impl Lifecycle {
    /// Creates a lifecycle in which each connection is used for about `lifetime`.
    pub(crate) fn new(lifetime: Duration) -> Arc<Self> {
        Arc::new(Self { lifetime, generation: AtomicU64::new(0) })
    }

    /// Retires every connection of the store: idle ones are closed when they are next taken from
    /// their pool, those in use when they are returned.
    pub(crate) fn retire(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    fn is_over(&self, open: &Stamp) -> bool {
        open.generation != self.generation.load(Ordering::SeqCst) || Instant::now() >= open.until
    }

    fn stamp(&self) -> Stamp {
        let generation = self.generation.load(Ordering::SeqCst);
        // Connections that were opened together do not all end together.
        let now = Instant::now();
        let lifetime = self.lifetime.mul_f64(0.8 + 0.2 * fastrand::f64());
        Stamp { generation, until: now.checked_add(lifetime).unwrap_or(now + FOR_EVER) }
    }
}

/// The generation of an open connection, and the end of its lifetime.
#[derive(Clone, Copy)]
struct Stamp {
    generation: u64,
    until: Instant,
}

/// The connections for one purpose: batches, the outbox, the id map, operators, or callers'
/// transactions.
pub(crate) struct ConnectionPool<C> {
    size: usize,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Idle<C>>>,
    lifecycle: Arc<Lifecycle>,
    open: Arc<AtomicUsize>,
}

struct Open<C> {
    connection: C,
    stamp: Stamp,
    _counted: Counted,
}

struct Idle<C> {
    open: Open<C>,
    since: Instant,
}

/// Counts one open connection for as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<C> ConnectionPool<C> {
    /// Creates a pool of at most `size` connections.
    pub(crate) fn new(size: usize, lifecycle: &Arc<Lifecycle>) -> Arc<Self> {
        Arc::new(Self {
            size,
            permits: Arc::new(Semaphore::new(size)),
            idle: Mutex::default(),
            lifecycle: Arc::clone(lifecycle),
            open: Arc::default(),
        })
    }

    /// Returns the largest number of connections that the pool opens.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns how many connections are open, idle or in use.
    pub(crate) fn opened(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Waits until a connection may be used. Fails with the error of `late` if none becomes free
    /// within `wait`, and at once if the pool is closed.
    pub(crate) async fn get(
        self: &Arc<Self>,
        operation: &'static str,
        wait: Duration,
        late: impl FnOnce() -> Error,
    ) -> Result<Pooled<C>> {
        match timeout(wait, Arc::clone(&self.permits).acquire_owned()).await {
            Ok(Ok(permit)) => Ok(self.pooled(permit)),
            Ok(Err(_)) => Err(closed(operation)),
            Err(_) => Err(late()),
        }
    }

    /// Returns the right to use a connection if one is free now.
    pub(crate) fn try_get(self: &Arc<Self>) -> Option<Pooled<C>> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        Some(self.pooled(permit))
    }

    fn pooled(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Pooled<C> {
        Pooled { open: None, is_clean: true, pool: Arc::clone(self), _permit: permit }
    }

    /// Adds a connection that was opened elsewhere.
    pub(crate) fn add(&self, connection: C) {
        let open = self.counted(self.lifecycle.stamp(), connection);
        self.idle().push(Idle { open, since: Instant::now() });
    }

    /// Retires every connection of the store, and closes the idle ones of this pool now.
    pub(crate) fn retire(&self) {
        self.lifecycle.retire();
        self.close_idle();
    }

    /// Refuses further uses and closes the connections: the idle ones now, those in use when they are returned.
    pub(crate) fn close(&self) {
        self.permits.close();
        self.close_idle();
    }

    /// Returns whether the pool was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.permits.is_closed()
    }

    fn close_idle(&self) {
        let idle = std::mem::take(&mut *self.idle());
        drop(idle);
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle<C>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_usable(&self, open: &Open<C>) -> bool {
        !self.is_closed() && !self.lifecycle.is_over(&open.stamp)
    }

    fn counted(&self, stamp: Stamp, connection: C) -> Open<C> {
        Open { connection, stamp, _counted: Counted::new(&self.open) }
    }
}

/// Returns the error for a call on a closed store.
pub(crate) fn closed(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, operation, "the store is closed; connect again")
}

impl<C> fmt::Debug for ConnectionPool<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionPool").field("size", &self.size).finish_non_exhaustive()
    }
}

/// A permit to use one connection, and the connection once it is taken or opened. When the permit
/// is dropped, a connection whose last use was clean returns to the pool; any other is closed.
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
        connecting: impl Future<Output = std::result::Result<C, E>>,
    ) -> std::result::Result<(), E> {
        let stamp = self.pool.lifecycle.stamp();
        let connection = connecting.await?;
        (self.open, self.is_clean) = (Some(self.pool.counted(stamp, connection)), true);
        Ok(())
    }

    /// Returns whether there is a connection.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns the connection. The use counts as unclean until [`keep`](Self::keep) is called.
    ///
    /// # Panics
    /// If no connection was taken or opened.
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

    /// Prepares for the next use: closes a connection whose last use was not clean, or whose
    /// lifetime is over.
    pub(crate) fn recycle(&mut self) {
        let ends = |open: &Open<C>| !self.is_clean || !self.pool.is_usable(open);
        if self.open.as_ref().is_some_and(ends) {
            self.close();
        }
    }

    /// Retires every connection of the store.
    pub(crate) fn retire_all(&self) {
        self.pool.retire();
    }
}

impl<C> Drop for Pooled<C> {
    fn drop(&mut self) {
        self.recycle();
        if let Some(open) = self.open.take() {
            self.pool.idle().push(Idle { open, since: Instant::now() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn pool() -> Arc<ConnectionPool<u32>> {
        ConnectionPool::new(1, &Lifecycle::new(LONG))
    }

    async fn got(pool: &Arc<ConnectionPool<u32>>, wait: Duration) -> Result<Pooled<u32>> {
        pool.get("test", wait, || Error::new(ErrorKind::Unavailable, "test", "late")).await
    }

    async fn opened(pool: &Arc<ConnectionPool<u32>>, number: u32) -> Pooled<u32> {
        let mut pooled = got(pool, LONG).await.expect("a connection is free");
        pooled.open(async { Ok::<_, ()>(number) }).await.expect("opens");
        pooled
    }

    async fn reused(pool: &Arc<ConnectionPool<u32>>) -> Option<u32> {
        let mut pooled = got(pool, LONG).await.expect("a connection is free");
        pooled.reuse()?;
        let number = *pooled.connection();
        pooled.keep();
        Some(number)
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_reused_only_after_a_clean_use() {
        let pool = pool();
        let mut pooled = opened(&pool, 1).await;
        let late = got(&pool, Duration::from_millis(1)).await.err().expect("one is the limit");
        assert!(late.to_string().contains("late"), "{late}");
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
        let pool = pool();
        drop(opened(&pool, 1).await);
        tokio::time::advance(LONG).await;
        assert_eq!(reused(&pool).await, None);
        let pooled = opened(&pool, 2).await;
        pool.retire();
        drop(pooled);
        assert_eq!(reused(&pool).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_in_one_pool_retires_the_connections_of_all_pools_of_the_store() {
        let lifecycle = Lifecycle::new(LONG);
        let (one, other) = (ConnectionPool::new(1, &lifecycle), ConnectionPool::new(1, &lifecycle));
        drop((opened(&one, 1).await, opened(&other, 2).await));
        assert_eq!((one.opened(), other.opened()), (1, 1));
        one.retire();
        assert_eq!((reused(&one).await, reused(&other).await), (None, None));
        assert_eq!((one.opened(), other.opened()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_pool_refuses_at_once_and_closes_what_is_returned() {
        let pool = pool();
        let in_use = opened(&pool, 1).await;
        let waiting = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { got(&pool, LONG).await.map(drop) }
        });
        tokio::task::yield_now().await;
        pool.close();
        let error = waiting.await.expect("ends").expect_err("closed");
        assert!(error.to_string().contains("the store is closed"), "{error}");
        assert_eq!(pool.opened(), 1, "a connection in use stays open");
        drop(in_use);
        assert_eq!(pool.opened(), 0);
    }
}
