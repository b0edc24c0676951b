//! The modes in which a layer runs its handlers: fenced, or atomic with the handler's own database.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use http::Extensions;
use semel_core::executor::Unit;
use semel_core::store::TransactionalStore;
use semel_core::{Command, Context, Error, Executor, Finished, Served, Store};

/// Adds the claim's context, and in an atomic layer the transaction, to the extensions of a
/// request. Returns the transaction that the handler must take, if there is one.
pub(crate) type AddExtensions<'a> = &'a mut dyn FnMut(&mut Extensions) -> Option<Offered>;

/// The transaction that is offered to a handler.
pub(crate) type Offered = Arc<dyn OfferedTransaction + Send + Sync>;

/// A transaction that is offered to a handler.
pub trait OfferedTransaction {
    /// Returns whether the handler took its transaction.
    fn is_taken(&self) -> bool;
}

impl<T> OfferedTransaction for Mutex<Option<T>> {
    fn is_taken(&self) -> bool {
        self.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

/// The mode in which a layer runs its handlers: [`Fenced`] or [`Atomic`]. Sealed.
pub trait Mode<S: Store>: sealed::Sealed + Copy + Send + Sync + 'static {
    /// Whether a handler can run without a claim while the store is unavailable.
    #[doc(hidden)]
    const CAN_FAIL_OPEN: bool;

    /// Runs `work` at most once per key. `work` gets a function that adds the context, and in an
    /// atomic layer the transaction, to the request.
    #[doc(hidden)]
    fn serve<A, F, Fut>(
        executor: &Executor<S>,
        command: Command,
        work: F,
    ) -> impl Future<Output = Result<Served<A>, Error>> + Send
    where
        A: Send + 'static,
        F: FnOnce(Context, AddExtensions<'_>) -> Fut + Send + 'static,
        Fut: Future<Output = Finished<A>> + Send + 'static;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Fenced {}
    impl Sealed for super::Atomic {}
}

/// Runs claim, handler and outcome as three steps, guarded by a fence. Works with every store.
#[derive(Clone, Copy, Debug)]
pub struct Fenced;

/// Commits claim, the handler's writes and the outcome at once. The handler takes its
/// [`Transaction`] from the request.
#[derive(Clone, Copy, Debug)]
pub struct Atomic;

impl<S: Store> Mode<S> for Fenced {
    const CAN_FAIL_OPEN: bool = true;

    fn serve<A, F, Fut>(
        executor: &Executor<S>,
        command: Command,
        work: F,
    ) -> impl Future<Output = Result<Served<A>, Error>> + Send
    where
        A: Send + 'static,
        F: FnOnce(Context, AddExtensions<'_>) -> Fut + Send + 'static,
        Fut: Future<Output = Finished<A>> + Send + 'static,
    {
        // Boxed, because the closure is moved through several futures, and each would grow by its
        // size.
        let work = Box::new(work);
        executor.serve(command, |context| {
            let extension = context.clone();
            work(context, &mut |extensions| {
                extensions.insert(extension.clone());
                None
            })
        })
    }
}

impl<S: TransactionalStore> Mode<S> for Atomic {
    const CAN_FAIL_OPEN: bool = false;

    async fn serve<A, F, Fut>(
        executor: &Executor<S>,
        command: Command,
        work: F,
    ) -> Result<Served<A>, Error>
    where
        A: Send + 'static,
        F: FnOnce(Context, AddExtensions<'_>) -> Fut + Send + 'static,
        Fut: Future<Output = Finished<A>> + Send + 'static,
    {
        let work = Box::new(work);
        executor
            .serve_transact(command, |unit: Unit<S>| {
                let context = unit.context().clone();
                let transaction = Transaction(Arc::new(Mutex::new(Some(unit))));
                let extension = context.clone();
                let working = work(context, &mut |extensions| {
                    extensions.insert(extension.clone());
                    extensions.insert(transaction.clone());
                    Some(transaction.0.clone())
                });
                async move {
                    let settlement = working.await;
                    // A transaction that the handler never took must not count as still in use.
                    drop(transaction.take());
                    settlement
                }
            })
            .await
    }
}

/// The open transaction of an [`Atomic`] request, in the extensions of the request. The handler
/// takes it once, writes through [`Unit::conn`], and drops it when it returns. A response that is
/// stored commits the transaction; any other rolls it back.
///
/// ```
/// use http::Request;
/// use semel_sql::sqlite::SqliteStore;
/// use semel_tower::Transaction;
///
/// async fn place<B>(request: Request<B>) -> Result<(), Box<dyn std::error::Error>> {
///     let transaction = request.extensions().get::<Transaction<SqliteStore>>();
///     let mut unit = transaction.and_then(Transaction::take).ok_or("no transaction")?;
///     sqlx::query("INSERT INTO customer_order (sku) VALUES ('tea')").execute(unit.conn()).await?;
///     Ok(())
/// }
/// ```
pub struct Transaction<S: TransactionalStore>(Arc<Mutex<Option<Unit<S>>>>);

impl<S: TransactionalStore> Transaction<S> {
    /// Takes the open transaction; `None` if it was taken before.
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
