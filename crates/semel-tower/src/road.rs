//! The two roads through the executor: fenced, or atomic with the handler's own database. And the
//! way around it, where a rule allows that.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{Extensions, Request, Response};
use http_body::Body as HttpBody;
use metrics::counter;
use semel_core::executor::Unit;
use semel_core::store::{ErrorKind, TransactionalStore};
use semel_core::{Command, Context, Error, Executor, Finish, Served, Store};
use tower_service::Service;
use tracing::Instrument as _;

use crate::body::Body;

/// Puts what a request carries for its handler into its extensions.
pub(crate) type Carry<'a> = &'a mut dyn FnMut(&mut Extensions);

/// How a layer runs its handlers. [`Fenced`] or [`Atomic`]; nothing else implements it.
pub trait Road<S: Store>: sealed::Sealed + Copy + Send + Sync + 'static {
    /// Whether a handler can do without its claim while the store is away.
    #[doc(hidden)]
    const CAN_FAIL_OPEN: bool;

    /// Runs `work` once. It is told what its request carries for the handler.
    #[doc(hidden)]
    fn serve<A, F, Fut>(
        executor: &Executor<S>,
        command: Command,
        work: F,
    ) -> impl Future<Output = Result<Served<A>, Error>> + Send
    where
        A: Send + 'static,
        F: FnOnce(Context, Carry<'_>) -> Fut + Send + 'static,
        Fut: Future<Output = Finish<A>> + Send + 'static;
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

    fn serve<A, F, Fut>(
        executor: &Executor<S>,
        command: Command,
        work: F,
    ) -> impl Future<Output = Result<Served<A>, Error>> + Send
    where
        A: Send + 'static,
        F: FnOnce(Context, Carry<'_>) -> Fut + Send + 'static,
        Fut: Future<Output = Finish<A>> + Send + 'static,
    {
        // On the heap: it passes through several futures, and each would keep room for all of it.
        let work = Box::new(work);
        executor.serve(command, |context| {
            let carried = context.clone();
            work(context, &mut |extensions| {
                extensions.insert(carried.clone());
            })
        })
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
        F: FnOnce(Context, Carry<'_>) -> Fut + Send + 'static,
        Fut: Future<Output = Finish<A>> + Send + 'static,
    {
        let work = Box::new(work);
        executor
            .serve_transact(command, |unit: Unit<S>| {
                let context = unit.context().clone();
                let transaction = Transaction(Arc::new(Mutex::new(Some(unit))));
                let carried = context.clone();
                let working = work(context, &mut |extensions| {
                    extensions.insert(carried.clone());
                    extensions.insert(transaction.clone());
                });
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

/// In the extensions of a request that runs without its claim, because its route says so and the
/// store is away.
#[derive(Clone, Copy, Debug)]
pub struct Unprotected;

/// The handler without a claim, where a route asks for it: in a task of its own all the same, since
/// its caller may leave.
pub(crate) async fn unprotected<I, B, C>(
    mut inner: I,
    mut request: Request<Body<B>>,
) -> Result<Response<Body<C>>, I::Error>
where
    I: Service<Request<Body<B>>, Response = Response<C>> + Send + 'static,
    I::Future: Send + 'static,
    I::Error: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Send,
    C: HttpBody<Data = Bytes> + Send + 'static,
{
    counter!("semel_fail_open_requests_total").increment(1);
    request.extensions_mut().insert(Unprotected);
    let running = async move {
        std::future::poll_fn(|cx| inner.poll_ready(cx)).await?;
        inner.call(request).await
    };
    // Still this request's in the logs.
    match tokio::spawn(running.in_current_span()).await {
        Ok(answer) => answer.map(|response| response.map(Body::through)),
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is going down, and everybody on it: there is nobody to answer.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Whether a failure says that nothing is known to have run, so that a route may do without the
/// store. A record that cannot be read may be a success.
pub(crate) fn nothing_ran(error: &Error) -> bool {
    let away = [ErrorKind::Unavailable, ErrorKind::Ambiguous];
    matches!(error, Error::Capacity)
        || matches!(error, Error::Store(error) if away.contains(&error.kind()))
}
