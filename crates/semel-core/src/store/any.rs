//! Hides the type of a store, for programs that choose their store at run time.
//!
//! The object-safe variant of the trait is private: a public one would make every call ambiguous.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{
    BoxFuture, Change, Cursor, Draft, Filter, Finding, Guarantee, Inspect, Listed, Listen, Opened,
    Page, Peeked, Renewed, Renewer, Result, Settled, Settlement, Store, Swapped, Swept, Tally,
};
use crate::claim::Lease;
use crate::key::{Hint, Key};
use crate::record::Version;

/// A store of any type. Cheap to clone.
///
/// ```
/// use semel_core::store::memory::MemoryStore;
/// use semel_core::{AnyStore, Executor};
///
/// // As a program does that opens its store by a URL.
/// let store = AnyStore::new(MemoryStore::new());
/// let executor: Executor<AnyStore> = Executor::new(store);
/// ```
#[derive(Clone)]
pub struct AnyStore(Arc<dyn Erased>);

impl AnyStore {
    /// Erases the type of `store`.
    pub fn new(store: impl Inspect) -> Self {
        Self(Arc::new(store))
    }
}

impl fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnyStore({:?})", self.0.guarantee())
    }
}

trait Erased: Send + Sync {
    fn open<'a>(&'a self, draft: &'a Draft) -> BoxFuture<'a, Result<Opened>>;
    fn swap<'a>(
        &'a self,
        key: &'a Key,
        judged: Version,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<Swapped>>;
    fn settle<'a>(
        &'a self,
        lease: &'a Lease,
        settlement: &'a Settlement,
    ) -> BoxFuture<'a, Result<Settled>>;
    fn peek<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Peeked>>>;
    fn sweep(&self, limit: u32) -> BoxFuture<'_, Result<Swept>>;
    fn renewer(&self) -> BoxFuture<'_, Result<AnyRenewer>>;
    fn listen(&self) -> BoxFuture<'_, Result<Option<Box<dyn Listen>>>>;
    fn announce(&self, hint: Hint);
    fn check(&self) -> BoxFuture<'_, Result<Vec<Finding>>>;
    fn writable(&self) -> BoxFuture<'_, Result<()>>;
    fn guarantee(&self) -> Guarantee;
    fn max_retry_payload(&self) -> Option<usize>;

    fn is_in_process(&self) -> bool;
    fn list<'a>(
        &'a self,
        filter: &'a Filter,
        after: Option<&'a Cursor>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Page>>;
    fn survey<'a>(
        &'a self,
        filter: &'a Filter,
        after: Option<&'a Cursor>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Page<Listed>>>;
    fn tally<'a>(&'a self, filter: &'a Filter) -> BoxFuture<'a, Result<Tally>>;
}

impl<S: Inspect> Erased for S {
    fn open<'a>(&'a self, draft: &'a Draft) -> BoxFuture<'a, Result<Opened>> {
        Box::pin(Store::open(self, draft))
    }

    fn swap<'a>(
        &'a self,
        key: &'a Key,
        judged: Version,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<Swapped>> {
        Box::pin(Store::swap(self, key, judged, change))
    }

    fn settle<'a>(
        &'a self,
        lease: &'a Lease,
        settlement: &'a Settlement,
    ) -> BoxFuture<'a, Result<Settled>> {
        Box::pin(Store::settle(self, lease, settlement))
    }

    fn peek<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Peeked>>> {
        Box::pin(Store::peek(self, key))
    }

    fn sweep(&self, limit: u32) -> BoxFuture<'_, Result<Swept>> {
        Box::pin(Store::sweep(self, limit))
    }

    fn renewer(&self) -> BoxFuture<'_, Result<AnyRenewer>> {
        Box::pin(async { Ok(AnyRenewer(Box::new(Store::renewer(self).await?))) })
    }

    fn listen(&self) -> BoxFuture<'_, Result<Option<Box<dyn Listen>>>> {
        Box::pin(Store::listen(self))
    }

    fn announce(&self, hint: Hint) {
        Store::announce(self, hint);
    }

    fn check(&self) -> BoxFuture<'_, Result<Vec<Finding>>> {
        Box::pin(Store::check(self))
    }

    fn writable(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(Store::writable(self))
    }

    fn guarantee(&self) -> Guarantee {
        Store::guarantee(self)
    }

    fn max_retry_payload(&self) -> Option<usize> {
        Store::max_retry_payload(self)
    }

    fn is_in_process(&self) -> bool {
        Store::is_in_process(self)
    }

    fn list<'a>(
        &'a self,
        filter: &'a Filter,
        after: Option<&'a Cursor>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Page>> {
        Box::pin(Inspect::list(self, filter, after, limit))
    }

    fn survey<'a>(
        &'a self,
        filter: &'a Filter,
        after: Option<&'a Cursor>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Page<Listed>>> {
        Box::pin(Inspect::survey(self, filter, after, limit))
    }

    fn tally<'a>(&'a self, filter: &'a Filter) -> BoxFuture<'a, Result<Tally>> {
        Box::pin(Inspect::tally(self, filter))
    }
}

#[deny(clippy::missing_trait_methods, reason = "every call is passed on")]
impl Store for AnyStore {
    type Renewer = AnyRenewer;

    async fn open(&self, draft: &Draft) -> Result<Opened> {
        self.0.open(draft).await
    }

    async fn swap(&self, key: &Key, judged: Version, change: &Change) -> Result<Swapped> {
        self.0.swap(key, judged, change).await
    }

    async fn settle(&self, lease: &Lease, settlement: &Settlement) -> Result<Settled> {
        self.0.settle(lease, settlement).await
    }

    async fn peek(&self, key: &Key) -> Result<Option<Peeked>> {
        self.0.peek(key).await
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        self.0.sweep(limit).await
    }

    async fn renewer(&self) -> Result<AnyRenewer> {
        self.0.renewer().await
    }

    async fn listen(&self) -> Result<Option<Box<dyn Listen>>> {
        self.0.listen().await
    }

    fn announce(&self, hint: Hint) {
        self.0.announce(hint);
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        self.0.check().await
    }

    async fn writable(&self) -> Result<()> {
        self.0.writable().await
    }

    fn guarantee(&self) -> Guarantee {
        self.0.guarantee()
    }

    fn max_retry_payload(&self) -> Option<usize> {
        self.0.max_retry_payload()
    }

    fn is_in_process(&self) -> bool {
        self.0.is_in_process()
    }
}

#[deny(clippy::missing_trait_methods, reason = "every call is passed on")]
impl Inspect for AnyStore {
    async fn list(&self, filter: &Filter, after: Option<&Cursor>, limit: u32) -> Result<Page> {
        self.0.list(filter, after, limit).await
    }

    async fn survey(
        &self,
        filter: &Filter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Listed>> {
        self.0.survey(filter, after, limit).await
    }

    async fn tally(&self, filter: &Filter) -> Result<Tally> {
        self.0.tally(filter).await
    }
}

/// The renewer of an [`AnyStore`].
pub struct AnyRenewer(Box<dyn ErasedRenewer>);

impl fmt::Debug for AnyRenewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyRenewer")
    }
}

trait ErasedRenewer: Send {
    fn renew<'a>(
        &'a mut self,
        leases: &'a [(Lease, Duration)],
    ) -> BoxFuture<'a, Result<Vec<Renewed>>>;
}

impl<R: Renewer> ErasedRenewer for R {
    fn renew<'a>(
        &'a mut self,
        leases: &'a [(Lease, Duration)],
    ) -> BoxFuture<'a, Result<Vec<Renewed>>> {
        Box::pin(Renewer::renew(self, leases))
    }
}

impl Renewer for AnyRenewer {
    async fn renew(&mut self, leases: &[(Lease, Duration)]) -> Result<Vec<Renewed>> {
        self.0.renew(leases).await
    }
}
