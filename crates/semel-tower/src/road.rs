//! The two roads through the executor: fenced, or atomic with the handler's own database.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use http::Extensions;
use semel::executor::Unit;
use semel::store::TransactionalStore;
use semel::{Command, Context, Error, Executor, Served, Settlement, Store};

/// How a layer runs its handlers. [`Fenced`] or [`Atomic`]; nothing else implements it.
pub trait Road<S: Store>: sealed::Sealed + Copy + Send + Sync + 'static {
    /// Whether a handler can do without its claim while the store is away.
    #[doc(hidden)]
    const CAN_FAIL_OPEN: bool;

    /// Runs `work` once. It is given what its request carries for the handler.
    #[doc(hidden)]
    fn serve<A, F, Fut>(
        executor: &Executor<S>,
        command: Command,
        work: F,
    ) -> impl Future<Output = Result<Served<A>, Error>> + Send
    where
        A: Send + 'static,
        F: FnOnce(Context, Extensions) -> Fut + Send + 'static,
        Fut: Future<Output = Settlement<A>> + Send + 'static;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Fenced {}
    impl Sealed for super::Atomic {}
}

/// Claim, handler, outcome: three steps, guarded by a fence. Works with every store.
#[derive(Clone, Copy, Debug)]
pub struct Fenced;

/// Claim, the handler's writes and the outcome are one commit. The handler takes its
/// [`Transaction`] from the request.
#[derive(Clone, Copy, Debug)]
pub struct Atomic;

impl<S: Store> Road<S> for Fenced {
    const CAN_FAIL_OPEN: bool = true;

    async fn serve<A, F, Fut>(
        executor: &Executor<S>,
        command: Command,
        work: F,
    ) -> Result<Served<A>, Error>
    where
        A: Send + 'static,
        F: FnOnce(Context, Extensions) -> Fut + Send + 'static,
        Fut: Future<Output = Settlement<A>> + Send + 'static,
    {
        executor
            .serve(command, |context| {
                let mut carried = Extensions::new();
                carried.insert(context.clone());
                work(context, carried)
            })
            .await
    }
}

impl<S: TransactionalStore> Road<S> for Atomic {
    const CAN_FAIL_OPEN: bool = false;

    async fn serve<A, F, Fut>(
        executor: &Executor<S>,
        command: Command,
        work: F,
    ) -> Result<Served<A>, Error>
    where
        A: Send + 'static,
        F: FnOnce(Context, Extensions) -> Fut + Send + 'static,
        Fut: Future<Output = Settlement<A>> + Send + 'static,
    {
        executor
            .serve_transact(command, |unit: Unit<S>| {
                let context = unit.context().clone();
                let transaction = Transaction(Arc::new(Mutex::new(Some(unit))));
                let mut carried = Extensions::new();
                carried.insert(context.clone());
                carried.insert(transaction.clone());
                let working = work(context, carried);
                async move {
                    let settlement = working.await;
                    // A handler that never asked for its transaction must not seem to keep it.
                    drop(transaction.take());
                    settlement
                }
            })
            .await
    }
}

/// The open transaction of an [`Atomic`] request, in its extensions. The handler takes it once,
/// writes through [`Unit::conn`], and lets it go when it returns: an answer that is kept commits it,
/// any other rolls it back.
pub struct Transaction<S: TransactionalStore>(Arc<Mutex<Option<Unit<S>>>>);

impl<S: TransactionalStore> Transaction<S> {
    /// The unit of work; `None` if it was taken before.
    pub fn take(&self) -> Option<Unit<S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<S: TransactionalStore> Clone for Transaction<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: TransactionalStore> fmt::Debug for Transaction<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transaction")
    }
}
