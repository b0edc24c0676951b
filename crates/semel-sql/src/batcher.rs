//! Batches the ledger's concurrent steps over a few connections.
//!
//! A step that finds an idle connection is sent at once and alone: no step waits for others to fill
//! a batch. While all connections are busy, steps queue, and a connection that becomes free takes
//! as many queued steps as fit, of the oldest step's verb, in one statement. The connections come
//! from a [`ConnectionPool`], with the same lifetime and limits as the store's other connections.
//! The application never borrows one, and none is pinged before use. The statements are the
//! [`Dialect`]'s.
//!
//! No caller hangs: every statement has a time limit; a connection on which a statement did not end
//! cleanly (an error, a timeout, a cancelled caller) is closed, never reused; and a request whose
//! batch vanished without an answer gets `Ambiguous`.

mod queue;
mod step;

use std::collections::VecDeque;
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::key::{Digest, Key};
use semel_core::record::Version;
use semel_core::store::{
    Change, Draft, Error, ErrorKind, Opened, Peeked, Result, Settled, Swapped,
};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::error::{Stage, again, timed_out};
use crate::pool::{ConnectionPool, Pooled, closed};
use queue::{Queue, Queued, Verb, Waiting, WaitingSingle};
use step::Step;

pub(crate) use step::SettleRequest;

/// The largest number of steps in one statement. A larger batch gains little, and every step in it
/// waits for the slowest.
pub(crate) const BATCH: usize = 64;
/// The largest number of steps that wait for a connection. When the queue is full, a further step
/// fails at once with `Unavailable`.
pub(crate) const QUEUE: usize = 4096;

/// The statements that a batcher runs on one kind of database. Every batch holds at least one step
/// and each digest once; answers are in the order of the steps. An error of the whole batch applies
/// to every step in it.
pub(crate) trait Dialect: Send + Sync + 'static {
    /// A connection to the database. Dropping it closes it.
    type Connection: Send + 'static;

    /// Opens a connection. `Unavailable` or `Misconfigured` when it fails.
    fn connect(&self) -> impl Future<Output = Result<Self::Connection>> + Send;

    /// Inserts each draft as a record, or reads the record that already has its digest.
    fn open(
        &self,
        connection: &mut Self::Connection,
        drafts: &[Draft],
    ) -> impl Future<Output = Result<Vec<Result<Opened>>>> + Send;

    /// Writes each settlement to the record whose claim it ends.
    fn settle(
        &self,
        connection: &mut Self::Connection,
        settlements: &[SettleRequest],
    ) -> impl Future<Output = Result<Vec<Result<Settled>>>> + Send;

    /// Reads the records with these digests.
    fn peek(
        &self,
        connection: &mut Self::Connection,
        digests: &[Digest],
    ) -> impl Future<Output = Result<Vec<Result<Option<Peeked>>>>> + Send;

    /// Applies `change` to the record of `key` if the record still has the version `judged`.
    fn swap(
        &self,
        connection: &mut Self::Connection,
        key: &Key,
        judged: Version,
        change: &Change,
    ) -> impl Future<Output = Result<Swapped>> + Send;
}

struct State<D: Dialect> {
    /// The number of the pool's connections that no step uses, including those not opened yet.
    free: usize,
    queue: Queue<D>,
}

struct Inner<D: Dialect> {
    dialect: Arc<D>,
    limit: Duration,
    pool: Arc<ConnectionPool<D::Connection>>,
    state: Mutex<State<D>>,
    runtime: tokio::runtime::Handle,
}

/// Runs the steps of one ledger over its connections, and queues the steps that find none free.
pub(crate) struct Batcher<D: Dialect>(Arc<Inner<D>>);

impl<D: Dialect> Clone for Batcher<D> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<D: Dialect> Batcher<D> {
    /// Creates a batcher that alone uses the connections of `pool` and ends a statement after
    /// `limit`. Must be called on the runtime whose reactor the connections are to use.
    pub(crate) fn new(
        dialect: Arc<D>,
        pool: Arc<ConnectionPool<D::Connection>>,
        limit: Duration,
    ) -> Self {
        let state = Mutex::new(State { free: pool.size(), queue: Queue::new() });
        Self(Arc::new(Inner {
            dialect,
            limit,
            pool,
            state,
            runtime: tokio::runtime::Handle::current(),
        }))
    }

    /// Refuses further steps and closes the connections. Steps under way are answered.
    pub(crate) fn close(&self) {
        self.0.pool.close();
    }

    /// Runs a step, alone on an idle connection or with others on the next one that becomes free.
    pub(crate) async fn step<S: Queued<D>>(&self, step: &S) -> Result<S::Answer> {
        let waiting = {
            let mut state = self.0.state();
            match self.0.checkout(&mut state, S::NAME)? {
                Some(checkout) => Ok(checkout),
                None => Err(self.0.enqueue(&mut state, step)?),
            }
        };
        match waiting {
            Ok(mut checkout) => {
                let mut answers = checkout.run(std::slice::from_ref(step)).await?;
                answers.pop().unwrap_or_else(|| Err(unanswered(S::NAME)))
            }
            Err(reply) => reply.await.unwrap_or_else(|_| Err(unanswered(S::NAME))),
        }
    }

    /// Applies `change` if the record still has the version `judged`. Runs alone on a connection:
    /// re-grants are rare and differ in shape.
    pub(crate) async fn swap(
        &self,
        key: &Key,
        judged: Version,
        change: &Change,
    ) -> Result<Swapped> {
        let mut checkout = self.single("swap").await?;
        let dialect = Arc::clone(&self.0.dialect);
        checkout.connect("swap").await?;
        let limit = self.0.limit;
        let connection = checkout.pooled().connection();
        let swapped = timeout(limit, dialect.swap(connection, key, judged, change))
            .await
            .unwrap_or_else(|_| Err(timed_out(Stage::Running, "swap", limit)));
        checkout.end(swapped)
    }

    async fn single(&self, operation: &'static str) -> Result<Checkout<D>> {
        let checkout = {
            let mut state = self.0.state();
            if let Some(checkout) = self.0.checkout(&mut state, operation)? {
                return Ok(checkout);
            }
            if state.queue.len() >= QUEUE {
                return Err(full(operation));
            }
            let (reply, checkout) = oneshot::channel();
            let ticket = state.queue.ticket();
            state.queue.singles.push_back(WaitingSingle { ticket, reply });
            checkout
        };
        let lost = |_| Error::new(ErrorKind::Unavailable, operation, "the store is shutting down");
        checkout.await.map_err(lost)
    }
}

impl<D: Dialect> Inner<D> {
    fn state(&self) -> MutexGuard<'_, State<D>> {
        // Every change under this lock is a push or a pop, so a poisoned lock is still good.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a free connection, if there is one.
    fn checkout(
        self: &Arc<Self>,
        state: &mut State<D>,
        operation: &'static str,
    ) -> Result<Option<Checkout<D>>> {
        if self.pool.is_closed() {
            return Err(closed(operation));
        }
        if state.free == 0 {
            return Ok(None);
        }
        let mut pooled = self.pool.try_get().ok_or_else(|| closed(operation))?;
        state.free -= 1;
        pooled.reuse();
        Ok(Some(Checkout::new(self, pooled)))
    }

    fn enqueue<S: Queued<D>>(
        &self,
        state: &mut State<D>,
        step: &S,
    ) -> Result<oneshot::Receiver<Result<S::Answer>>> {
        if state.queue.len() >= QUEUE {
            return Err(full(S::NAME));
        }
        let (reply, answer) = oneshot::channel();
        let ticket = state.queue.ticket();
        S::line(&mut state.queue).push_back(Waiting { ticket, step: step.clone(), reply });
        Ok(answer)
    }

    /// Hands a connection to the oldest waiting step, or returns it to the pool if no step waits.
    fn release(self: &Arc<Self>, mut pooled: Pooled<D::Connection>) {
        pooled.recycle();
        let mut state = self.state();
        // Callers that were cancelled while they waited need no connection.
        while state.queue.singles.front().is_some_and(|single| single.reply.is_closed()) {
            state.queue.singles.pop_front();
        }
        let Some(verb) = state.queue.oldest() else {
            // The connection is back in the pool before it counts as free.
            drop(pooled);
            state.free += 1;
            return;
        };
        if verb == Verb::Single
            && let Some(single) = state.queue.singles.pop_front()
        {
            drop(state);
            let _ = single.reply.send(Checkout::new(self, pooled));
            return;
        }
        drop(state);
        // A batch runs in a task of its own: if one of its callers is cancelled, the others still
        // get their answers.
        let mut checkout = Checkout::new(self, pooled);
        checkout.unpolled = true;
        self.runtime.spawn(checkout.drain());
    }

    /// Drops all queued steps, because the runtime that would run them has ended.
    fn abandon(&self) {
        let queue = std::mem::replace(&mut self.state().queue, Queue::new());
        // Dropped after the lock is released: the closed reply channels wake the callers with an
        // error.
        drop(queue);
    }
}

/// A connection in use. Dropping the checkout hands the connection to the next waiting step, or
/// returns it to the pool. A connection on which a statement did not end cleanly is closed first.
pub(crate) struct Checkout<D: Dialect> {
    inner: Arc<Inner<D>>,
    /// `None` only while the checkout is being dropped.
    pooled: Option<Pooled<D::Connection>>,
    /// Whether the checkout was moved into a spawned task that has not been polled yet. If the
    /// checkout is dropped in this state, the runtime has ended, and another spawn would drop it
    /// again, without end.
    unpolled: bool,
}

impl<D: Dialect> Checkout<D> {
    fn new(inner: &Arc<Inner<D>>, pooled: Pooled<D::Connection>) -> Self {
        Self { inner: Arc::clone(inner), pooled: Some(pooled), unpolled: false }
    }

    fn pooled(&mut self) -> &mut Pooled<D::Connection> {
        self.pooled.as_mut().expect("a checkout has its connection until it is dropped")
    }

    async fn run<S: Step<D>>(&mut self, steps: &[S]) -> Result<Vec<Result<S::Answer>>> {
        self.connect(S::NAME).await?;
        let inner = Arc::clone(&self.inner);
        let connection = self.pooled().connection();
        let answers = timeout(inner.limit, S::run(&inner.dialect, connection, steps))
            .await
            .unwrap_or_else(|_| Err(timed_out(Stage::Running, S::NAME, inner.limit)));
        self.end(answers)
    }

    /// Ends the use that [`Pooled::connection`] began: keeps the connection after a success, closes
    /// it after a failure.
    fn end<T>(&mut self, result: Result<T>) -> Result<T> {
        match &result {
            Ok(_) => self.pooled().keep(),
            Err(_) => self.pooled().close(),
        }
        result
    }

    async fn connect(&mut self, operation: &'static str) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        // A checkout may serve many batches: a connection that reached its lifetime meanwhile is
        // replaced here.
        self.pooled().recycle();
        if self.pooled().is_open() {
            return Ok(());
        }
        let connecting = async {
            timeout(inner.limit, inner.dialect.connect())
                .await
                .unwrap_or_else(|_| Err(timed_out(Stage::Connecting, operation, inner.limit)))
        };
        self.pooled().open(connecting).await
    }

    /// Runs batches until the queue is empty or its oldest entry is a caller that needs a
    /// connection for itself.
    async fn drain(mut self) {
        self.unpolled = false;
        loop {
            let next = self.inner.state().queue.oldest();
            match next {
                Some(Verb::Open) => self.batch::<Draft>().await,
                Some(Verb::Settle) => self.batch::<SettleRequest>().await,
                Some(Verb::Peek) => self.batch::<Digest>().await,
                Some(Verb::Single) | None => return,
            }
        }
    }

    async fn batch<S: Queued<D>>(&mut self) {
        let batch = self.inner.state().queue.take::<S>();
        if batch.is_empty() {
            return;
        }
        let (steps, replies): (Vec<S>, Vec<_>) =
            batch.into_iter().map(|waiting| (waiting.step, waiting.reply)).unzip();
        match self.run(&steps).await {
            Ok(answers) => {
                // If the dialect returned too few answers, the other callers get `Ambiguous` from
                // their closed channels.
                for (reply, answer) in replies.into_iter().zip(answers) {
                    let _ = reply.send(answer);
                }
            }
            Err(error) => {
                for reply in replies {
                    let _ = reply.send(Err(again(&error, S::NAME)));
                }
                self.refuse_if_unreachable(&error);
            }
        }
    }

    /// Fails all queued steps if no connection is open and none can be opened, instead of after one
    /// connect timeout each.
    fn refuse_if_unreachable(&self, error: &Error) {
        let unreachable = error.kind() == ErrorKind::Unavailable && self.inner.pool.opened() == 0;
        if !unreachable {
            return;
        }
        let (opens, settles, peeks) = {
            let queue = &mut self.inner.state().queue;
            (take(&mut queue.opens), take(&mut queue.settles), take(&mut queue.peeks))
        };
        refuse(opens, error);
        refuse(settles, error);
        refuse(peeks, error);
    }
}

fn refuse<S: Step<D>, D: Dialect>(line: VecDeque<Waiting<S, D>>, error: &Error) {
    for waiting in line {
        let _ = waiting.reply.send(Err(again(error, S::NAME)));
    }
}

impl<D: Dialect> Drop for Checkout<D> {
    fn drop(&mut self) {
        if self.unpolled {
            self.inner.abandon();
        }
        // If the caller was cancelled in the middle of a statement, the server's reply may still
        // arrive: the connection is not clean, and `release` closes it.
        if let Some(pooled) = self.pooled.take() {
            self.inner.release(pooled);
        }
    }
}

fn full(operation: &'static str) -> Error {
    let text = format!(
        "{QUEUE} steps already wait for the store's connections; send fewer requests or give the store more connections"
    );
    Error::new(ErrorKind::Unavailable, operation, text)
}

fn unanswered(operation: &'static str) -> Error {
    let text = "the statement of this step ended without an answer for the step";
    Error::new(ErrorKind::Ambiguous, operation, text)
}

#[cfg(test)]
mod tests;
