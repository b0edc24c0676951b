//! Wraps any store and fails the calls that a test chooses.
//!
//! Every call can be refused, delayed or held, or its request or reply can be lost, as on a network,
//! but at the exact call that a test chooses. [`proxy`](crate::proxy) breaks connections instead.
//!
//! ```
//! use semel_core::store::memory::MemoryStore;
//! use semel_core::store::{ErrorKind, Store};
//! use semel_testkit::faulty::{Fault, FaultyStore, StoreCall};
//!
//! # semel_testkit::fixture::run(async {
//! let store = FaultyStore::new(MemoryStore::new());
//! store.faults().next(StoreCall::Sweep, Fault::LoseReply);
//!
//! let lost = store.sweep(10).await.expect_err("the reply was lost");
//! assert_eq!(lost.kind(), ErrorKind::Ambiguous);
//! assert!(store.sweep(10).await.is_ok());
//! assert_eq!(store.faults().happened(StoreCall::Sweep), 1);
//! # });
//! ```

mod script;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use semel_core::store::{
    Change, Committed, Cursor, Draft, Error, ErrorKind, Filter, Finding, Guarantee, Held, Inspect,
    Listed, Listen, Opened, Page, Peeked, Renewed, Renewer, Result, Settled, Settlement, Store,
    Swapped, Swept, Tally, TransactionalStore,
};
use semel_core::{Event, Hint, Key, Lease, Version};

pub use self::script::{Fault, Faults, StoreCall};

/// Wraps a store and injects faults. Clones share the store and the script of faults.
#[derive(Debug)]
pub struct FaultyStore<S> {
    store: Arc<S>,
    faults: Faults,
}

impl<S> Clone for FaultyStore<S> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store), faults: self.faults.clone() }
    }
}

impl<S> FaultyStore<S> {
    /// Wraps `store`. Without a script, every call goes to `store` unchanged.
    pub fn new(store: S) -> Self {
        Self { store: Arc::new(store), faults: Faults::new() }
    }

    /// Returns the script of faults and its counters.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Returns the wrapped store; calls on it never fail by the script.
    pub fn sound(&self) -> &S {
        &self.store
    }
}

impl Faults {
    fn fail(&self, verb: StoreCall, kind: ErrorKind, what: &'static str) -> Error {
        self.count(verb);
        Error::new(kind, verb.name(), what)
    }

    /// Makes the call, or injects the fault that the script has for it.
    async fn with_fault<T>(
        &self,
        verb: StoreCall,
        step: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match self.draw(verb) {
            None => step.await,
            Some(Fault::Refuse) => Err(self.refusal(verb)),
            Some(Fault::LoseRequest) => Err(self.lost_request(verb)),
            Some(Fault::LoseReply) => {
                step.await?;
                Err(self.fail(verb, ErrorKind::Ambiguous, "fault: the reply was lost"))
            }
            Some(Fault::Delay(span)) => {
                self.count(verb);
                tokio::time::sleep(span).await;
                step.await
            }
            Some(Fault::Hang) => {
                self.count(verb);
                self.hang().await;
                step.await
            }
        }
    }

    fn refusal(&self, verb: StoreCall) -> Error {
        self.fail(verb, ErrorKind::Unavailable, "fault: the store was not reached")
    }

    fn lost_request(&self, verb: StoreCall) -> Error {
        self.fail(verb, ErrorKind::Ambiguous, "fault: the request was lost")
    }
}

#[deny(clippy::missing_trait_methods, reason = "every call is passed on")]
impl<S: Store> Store for FaultyStore<S> {
    type Renewer = FaultyRenewer<S::Renewer>;

    async fn open(&self, draft: &Draft) -> Result<Opened> {
        self.faults.with_fault(StoreCall::Open, self.store.open(draft)).await
    }

    async fn swap(&self, key: &Key, judged: Version, change: &Change) -> Result<Swapped> {
        self.faults.with_fault(StoreCall::Swap, self.store.swap(key, judged, change)).await
    }

    async fn settle(&self, lease: &Lease, settlement: &Settlement) -> Result<Settled> {
        self.faults.with_fault(StoreCall::Settle, self.store.settle(lease, settlement)).await
    }

    async fn peek(&self, key: &Key) -> Result<Option<Peeked>> {
        self.faults.with_fault(StoreCall::Peek, self.store.peek(key)).await
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        self.faults.with_fault(StoreCall::Sweep, self.store.sweep(limit)).await
    }

    async fn renewer(&self) -> Result<Self::Renewer> {
        let renewer = self.faults.with_fault(StoreCall::Renewer, self.store.renewer()).await?;
        Ok(FaultyRenewer { renewer, faults: self.faults.clone() })
    }

    async fn listen(&self) -> Result<Option<Box<dyn Listen>>> {
        self.store.listen().await
    }

    fn announce(&self, hint: Hint) {
        self.store.announce(hint);
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        self.store.check().await
    }

    fn guarantee(&self) -> Guarantee {
        self.store.guarantee()
    }

    async fn writable(&self) -> Result<()> {
        self.store.writable().await
    }

    fn max_retry_payload(&self) -> Option<usize> {
        self.store.max_retry_payload()
    }

    /// Returns `false`, so that an executor caches outcomes as it does with a remote store: tests
    /// count the calls of the store.
    fn is_in_process(&self) -> bool {
        false
    }
}

#[deny(clippy::missing_trait_methods, reason = "every call is passed on")]
impl<S: Inspect> Inspect for FaultyStore<S> {
    async fn list(&self, filter: &Filter, after: Option<&Cursor>, limit: u32) -> Result<Page> {
        self.faults.with_fault(StoreCall::List, self.store.list(filter, after, limit)).await
    }

    async fn survey(
        &self,
        filter: &Filter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Listed>> {
        self.faults.with_fault(StoreCall::List, self.store.survey(filter, after, limit)).await
    }

    async fn tally(&self, filter: &Filter) -> Result<Tally> {
        self.faults.with_fault(StoreCall::List, self.store.tally(filter)).await
    }
}

#[deny(clippy::missing_trait_methods, reason = "every call is passed on")]
impl<S: TransactionalStore> TransactionalStore for FaultyStore<S> {
    type Connection = S::Connection;
    type Transaction = S::Transaction;

    async fn begin(&self) -> Result<S::Transaction> {
        self.faults.with_fault(StoreCall::Begin, self.store.begin()).await
    }

    fn connection(transaction: &mut S::Transaction) -> &mut S::Connection {
        S::connection(transaction)
    }

    async fn adopt(&self, connection: &mut S::Connection) -> Result<()> {
        self.store.adopt(connection).await
    }

    async fn open_in(&self, connection: &mut S::Connection, draft: &Draft) -> Result<Opened> {
        self.faults.with_fault(StoreCall::OpenIn, self.store.open_in(connection, draft)).await
    }

    async fn swap_in(
        &self,
        connection: &mut S::Connection,
        key: &Key,
        judged: Version,
        change: &Change,
    ) -> Result<Swapped> {
        let step = self.store.swap_in(connection, key, judged, change);
        self.faults.with_fault(StoreCall::SwapIn, step).await
    }

    async fn hold_in(&self, connection: &mut S::Connection, lease: &Lease) -> Result<Held> {
        self.store.hold_in(connection, lease).await
    }

    async fn settle_in(
        &self,
        connection: &mut S::Connection,
        lease: &Lease,
        settlement: &Settlement,
    ) -> Result<Settled> {
        self.faults
            .with_fault(StoreCall::SettleIn, self.store.settle_in(connection, lease, settlement))
            .await
    }

    async fn begin_and_open(&self, draft: &Draft) -> Result<(S::Transaction, Opened)> {
        let opening =
            self.faults.with_fault(StoreCall::OpenIn, Box::pin(self.store.begin_and_open(draft)));
        self.faults.with_fault(StoreCall::Begin, Box::pin(opening)).await
    }

    fn defer_events(&self, transaction: &mut S::Transaction, events: Vec<Event>) -> Vec<Event> {
        self.store.defer_events(transaction, events)
    }

    async fn settle_and_commit(
        &self,
        transaction: S::Transaction,
        lease: &Lease,
        settlement: &Settlement,
    ) -> Committed {
        // Whether the request or the reply is lost, the transaction is rolled back, so the
        // settlement never becomes visible.
        if let Err(error) = self.faults.with_fault(StoreCall::SettleIn, async { Ok(()) }).await {
            self.store.rollback(transaction).await;
            return Committed::Unsettled(error);
        }
        let fault = match self.commit_fault().await {
            Ok(fault) => fault,
            Err(error) => {
                self.store.rollback(transaction).await;
                return Committed::Failed(error);
            }
        };
        let ending = Box::pin(self.store.settle_and_commit(transaction, lease, settlement));
        match (ending.await, fault) {
            (Committed::Done, Some(lost)) => Committed::Failed(lost),
            (committed, _) => committed,
        }
    }

    async fn commit(&self, transaction: S::Transaction) -> Result<()> {
        let fault = match self.commit_fault().await {
            Ok(fault) => fault,
            Err(error) => {
                self.store.rollback(transaction).await;
                return Err(error);
            }
        };
        self.store.commit(transaction).await?;
        fault.map_or(Ok(()), Err)
    }

    async fn rollback(&self, transaction: S::Transaction) {
        self.store.rollback(transaction).await;
    }

    fn work_limit(&self, lease: Duration) -> Option<Duration> {
        self.store.work_limit(lease)
    }
}

impl<S> FaultyStore<S> {
    /// Draws the fault of a commit. `Err`: the commit is not made; the caller must roll back,
    /// because the transaction is used up. `Ok(Some(error))`: the commit is made, and its reply is
    /// replaced by the error.
    async fn commit_fault(&self) -> Result<Option<Error>> {
        match self.faults.draw(StoreCall::Commit) {
            None => Ok(None),
            Some(Fault::Refuse) => Err(self.faults.refusal(StoreCall::Commit)),
            Some(Fault::LoseRequest) => Err(self.faults.lost_request(StoreCall::Commit)),
            Some(Fault::LoseReply) => {
                let what = "fault: the reply was lost";
                Ok(Some(self.faults.fail(StoreCall::Commit, ErrorKind::Ambiguous, what)))
            }
            Some(Fault::Delay(span)) => {
                self.faults.count(StoreCall::Commit);
                tokio::time::sleep(span).await;
                Ok(None)
            }
            Some(Fault::Hang) => {
                self.faults.count(StoreCall::Commit);
                self.faults.hang().await;
                Ok(None)
            }
        }
    }
}

/// The renewer of a [`FaultyStore`], under the same script.
#[derive(Debug)]
pub struct FaultyRenewer<R> {
    renewer: R,
    faults: Faults,
}

impl<R: Renewer> Renewer for FaultyRenewer<R> {
    async fn renew(&mut self, leases: &[(Lease, Duration)]) -> Result<Vec<Renewed>> {
        self.faults.with_fault(StoreCall::Renew, self.renewer.renew(leases)).await
    }
}
