//! What the suites over sockets stand on: a store of each kind, a server, and clients.
//!
//! Included by `#[path = "../backend.rs"] mod backend;`. Nothing in it asserts anything about the
//! layers; those sentences are in the suites.

#![allow(dead_code, unused_imports, unused_macros, reason = "each suite uses its own part")]

#[path = "backend/client.rs"]
mod client;
#[path = "backend/server.rs"]
mod server;
#[path = "backend/stores.rs"]
mod stores;

use std::future::Future;
use std::time::Duration;

use semel_core::executor::Builder;
use semel_core::store::TransactionalStore;
use semel_core::{AnyStore, Executor};
use semel_testkit::Fixture;

pub(crate) use client::{Answer, Client, Protocol, Sent, body, chunked, get, keyed, post, request};
pub(crate) use server::Server;
pub(crate) use stores::{MariaDb, Memory, MemoryOverH2, Postgres, Redis, Sqlite};

/// No test takes so long, on any machine; one that hangs must say so.
const PATIENCE: Duration = Duration::from_secs(300);

/// A place for one test's records. [`Fixture::store`] gives another handle on the same records, and
/// [`Fixture::advance`] lets their time pass. In memory and in SQLite the clock stands still until
/// then.
pub(crate) trait Backend: Fixture {
    /// A fresh one.
    fn open() -> impl Future<Output = Self> + Send;

    /// What the tests on this backend speak when they do not say. Every test speaks both in memory.
    fn protocol(&self) -> Protocol;

    /// An executor of its own on the backend's records: a second one is another process.
    fn executor(&self) -> impl Future<Output = Executor<Self::Store>> + Send {
        self.executor_with(|builder| builder)
    }

    /// The same with settings.
    fn executor_with(
        &self,
        settings: impl FnOnce(Builder<Self::Store>) -> Builder<Self::Store> + Send,
    ) -> impl Future<Output = Executor<Self::Store>> + Send {
        async {
            settings(Executor::builder(self.store().await)).build().expect("settings that work")
        }
    }

    /// A handle on the records whose type is the same on every backend: what is built on it is
    /// compiled once.
    fn any_store(&self) -> impl Future<Output = AnyStore> + Send {
        async { AnyStore::new(self.store().await) }
    }
}

/// A backend whose store joins transactions, with a table `orders (note text)` for handlers.
pub(crate) trait AtomicBackend: Backend<Store: TransactionalStore> {
    /// Writes a row in a handler's transaction.
    fn insert<'c>(
        connection: &'c mut <Self::Store as TransactionalStore>::Connection,
        note: &'c str,
    ) -> impl Future<Output = ()> + Send + 'c;

    /// The rows that are committed, in the order of their notes.
    fn rows(&self) -> impl Future<Output = Vec<String>> + Send;
}

/// Runs one test on its own runtime of two workers, and not for ever.
pub(crate) fn run(test: impl Future<Output = ()>) {
    semel_testkit::fixture::run(async {
        tokio::time::timeout(PATIENCE, test).await.expect("the test hangs");
    });
}

/// Waits until `met` holds; a test that has no signal to wait for polls with this.
pub(crate) async fn until<Fut: Future<Output = bool>>(mut met: impl FnMut() -> Fut) {
    while !met().await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Makes one `#[test]` per store of each `async fn name<G: Backend>(backend: G)` in this module; in
/// memory over HTTP/1.1 and over HTTP/2.
macro_rules! on_every_store {
    ($($test:ident,)*) => {
        crate::backend::tests_on! { memory Memory $($test)* }
        crate::backend::tests_on! { memory_h2 MemoryOverH2 $($test)* }
        crate::backend::tests_on! { sqlite Sqlite $($test)* }
        crate::backend::tests_on! { postgres Postgres $($test)* }
        crate::backend::tests_on! { mariadb MariaDb $($test)* }
        crate::backend::tests_on! { redis Redis $($test)* }
    };
}

/// The same where the store does not matter.
macro_rules! in_memory {
    ($($test:ident,)*) => {
        crate::backend::tests_on! { memory_only Memory $($test)* }
        crate::backend::tests_on! { memory_only_h2 MemoryOverH2 $($test)* }
    };
}

/// The same for `async fn name<G: AtomicBackend>(backend: G)`, on the stores that join transactions.
macro_rules! on_every_database {
    ($($test:ident,)*) => {
        crate::backend::tests_on! { sqlite Sqlite $($test)* }
        crate::backend::tests_on! { postgres Postgres $($test)* }
        crate::backend::tests_on! { mariadb MariaDb $($test)* }
    };
}

macro_rules! tests_on {
    ($store:ident $backend:ident $($test:ident)*) => {
        mod $store {
            $(
                #[test]
                fn $test() {
                    crate::backend::run(async {
                        let backend = <crate::backend::$backend as crate::backend::Backend>::open().await;
                        super::$test(backend).await;
                    });
                }
            )*
        }
    };
}

pub(crate) use {in_memory, on_every_database, on_every_store, tests_on};
