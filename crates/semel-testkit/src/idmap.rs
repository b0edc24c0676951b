//! The behaviours that every id map must have: one async function per behaviour, generic over an
//! [`IdMapFixture`], and a macro that makes a named test of each.
//!
//! A *capability* is a group of behaviours that only some maps have; a test lists the capabilities of
//! its map in [`idmap_conformance!`](crate::idmap_conformance!). Caches are not tested here: the
//! behaviours call the map directly.
//!
//! | capability | requirement |
//! |---|---|
//! | `rollback` | inserts are part of a transaction that can be rolled back |
//! | `writers` | two transactions can be open and write at the same time |
//! | `foreign` | other programs can write rows |
//! | `executor` | the map is also a [`TransactionalStore`](semel_core::store::TransactionalStore) |
//!
//! Each behaviour catches a plausible mistake: a map without the tenant in its key, a case-insensitive
//! map, a map that does not keep internal ids unique, a map that returns revoked rows as live.
//! `tests/flaws` has such maps.
//!
//! ```
//! use semel_ids::map::memory::MemoryMap;
//! use semel_testkit::{IdMapFixture, idmap_behaviours};
//!
//! struct Memory(MemoryMap);
//!
//! impl Memory {
//!     async fn new() -> Self {
//!         Memory(MemoryMap::new())
//!     }
//! }
//!
//! impl IdMapFixture for Memory {
//!     type Map = MemoryMap;
//!     // A map in memory has no transactions: an insert is visible at once.
//!     type Transaction = MemoryMap;
//!
//!     async fn map(&self) -> MemoryMap {
//!         self.0.clone()
//!     }
//!
//!     async fn begin(&self, map: &MemoryMap) -> MemoryMap {
//!         map.clone()
//!     }
//!
//!     fn connection(transaction: &mut MemoryMap) -> &mut MemoryMap {
//!         transaction
//!     }
//!
//!     async fn commit(&self, _: &MemoryMap, _: MemoryMap) {}
//! }
//!
//! // In a test file, this line makes one `#[test]` per behaviour:
//! semel_testkit::idmap_conformance!(Memory::new());
//!
//! // This example calls them directly.
//! for (_, behave) in idmap_behaviours!(Memory::new()) {
//!     behave();
//! }
//! ```

pub mod comparing;
pub mod finding;
pub mod foreign;
mod list;
pub mod listing;
pub mod moving;
pub mod overlapping;
pub mod racing;
pub mod registering;
pub mod repairing;
pub mod revoking;
pub mod rolling_back;
mod shorthand;
pub mod transacting;

use std::future::Future;

use semel_ids::IdMap;

pub use list::BEHAVIOURS;

/// The ids of one test: a database or a directory. Dropping the fixture removes them.
///
/// Every behaviour gets a fixture of its own, with an empty map.
pub trait IdMapFixture: Send + Sync + 'static {
    /// The map under test.
    type Map: IdMap;
    /// An open transaction of the application.
    type Transaction: Send;

    /// Returns a handle on the map. Every further call returns another handle, with connections of
    /// its own if the map has connections, **on the same rows**.
    fn map(&self) -> impl Future<Output = Self::Map> + Send;

    /// Begins a transaction, as an application does.
    fn begin(&self, map: &Self::Map) -> impl Future<Output = Self::Transaction> + Send;

    /// Returns the connection of the transaction, to pass to [`insert`](IdMap::insert).
    fn connection(transaction: &mut Self::Transaction) -> &mut <Self::Map as IdMap>::Connection;

    /// Commits the transaction.
    fn commit(
        &self,
        map: &Self::Map,
        transaction: Self::Transaction,
    ) -> impl Future<Output = ()> + Send;

    /// Rolls the transaction back. Needed for the capability `rollback`.
    fn rollback(
        &self,
        map: &Self::Map,
        transaction: Self::Transaction,
    ) -> impl Future<Output = ()> + Send {
        let _ = (map, transaction);
        async { panic!("a fixture with the capability `rollback` must implement `rollback`") }
    }

    /// Writes a live row with exactly these texts, not through the map. Needed for the capability
    /// `foreign`.
    fn plant(
        &self,
        kind: &str,
        tenant: &str,
        public: &str,
        internal: [u8; 16],
    ) -> impl Future<Output = ()> + Send {
        let _ = (kind, tenant, public, internal);
        async { panic!("a fixture with the capability `foreign` must implement `plant`") }
    }
}

/// Makes one `#[test]` per behaviour of id maps, in one module per group.
///
/// The argument is a future that makes a fresh fixture; it is evaluated once per test, on the test's
/// own runtime. After a semicolon come the [capabilities](mod@crate::idmap). Use it once per module:
///
/// ```ignore
/// mod idmap {
///     semel_testkit::idmap_conformance!(MyFixture::new(); rollback, writers, foreign, executor);
/// }
/// ```
#[macro_export]
macro_rules! idmap_conformance {
    ($make:expr $(; $($capability:ident),+ $(,)?)?) => {
        $crate::__idmap_behaviours!(common, __suite_tests, $make);
        $($($crate::__idmap_behaviours!($capability, __suite_tests, $make);)+)?
    };
}

/// Returns a table of the behaviours that all id maps have. Each entry is a name
/// (`group::behaviour`) and a function that panics if the map does not have the behaviour, for
/// tests that the suite finds a wrong map.
///
/// The argument is as for [`idmap_conformance!`](crate::idmap_conformance!). Variables that it
/// captures must be `Copy`.
#[macro_export]
macro_rules! idmap_behaviours {
    ($make:expr) => {
        $crate::__idmap_behaviours!(common, __suite_table, $make)
    };
}
