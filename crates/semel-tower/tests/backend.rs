//! Test support for the suites over sockets: a store of each kind, a server, and clients.
//!
//! Included by `#[path = "../backend.rs"] mod backend;`. It asserts nothing about the layers; the
//! suites do.

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

/// The time limit of a test. It is longer than any test takes on any machine, and ends a test that
/// hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// The records of one test. [`Fixture::store`] returns another handle on the same records, and
/// [`Fixture::advance`] advances their clock. In memory and in SQLite the clock does not advance
/// otherwise.
pub(crate) trait Backend: Fixture {
    /// Creates a backend without records.
    fn open() -> impl Future<Output = Self> + Send;

    /// Returns the default protocol of the tests on this backend. In memory every test runs with
    /// both protocols.
    fn protocol(&self) -> Protocol;

    /// Creates an executor on the backend's records. A second executor stands for another process.
    fn executor(&self) -> impl Future<Output = Executor<Self::Store>> + Send {
        self.executor_with(|builder| builder)
    }

    /// Creates an executor with these settings on the backend's records.
    fn executor_with(
        &self,
        settings: impl FnOnce(Builder<Self::Store>) -> Builder<Self::Store> + Send,
    ) -> impl Future<Output = Executor<Self::Store>> + Send {
        async {
            settings(Executor::builder(self.store().await)).build().expect("settings that work")
        }
    }

    /// Returns a handle on the records whose type is the same on every backend, so that code that
    /// uses it is compiled once.
    fn any_store(&self) -> impl Future<Output = AnyStore> + Send {
        async { AnyStore::new(self.store().await) }
    }
}

/// A backend whose store supports transactions, with a table `orders (note text)` for handlers.
pub(crate) trait AtomicBackend: Backend<Store: TransactionalStore> {
    /// Inserts a row in a handler's transaction.
    fn insert<'c>(
        connection: &'c mut <Self::Store as TransactionalStore>::Connection,
        note: &'c str,
    ) -> impl Future<Output = ()> + Send + 'c;

    /// Returns the committed rows, ordered by their notes.
    fn rows(&self) -> impl Future<Output = Vec<String>> + Send;
}

/// Runs one test on a separate runtime with two workers, with a time limit.
pub(crate) fn run(test: impl Future<Output = ()>) {
    semel_testkit::fixture::run(async {
        tokio::time::timeout(PATIENCE, test).await.expect("the test hangs");
    });
}

/// Polls until `met` returns true, for tests that have no signal to wait for.
pub(crate) async fn until<Fut: Future<Output = bool>>(mut met: impl FnMut() -> Fut) {
    while !met().await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Creates one `#[test]` per store for each `async fn name<G: Backend>(backend: G)` in the module;
/// in memory over HTTP/1.1 and over HTTP/2.
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

/// Creates the tests of `on_every_store` for memory only, where the store does not matter.
macro_rules! in_memory {
    ($($test:ident,)*) => {
        crate::backend::tests_on! { memory_only Memory $($test)* }
        crate::backend::tests_on! { memory_only_h2 MemoryOverH2 $($test)* }
    };
}

/// Creates the tests for each `async fn name<G: AtomicBackend>(backend: G)`, on the stores that
/// support transactions.
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
