//! The behaviours that every id map must have: one async function each, generic over an
//! [`IdMapFixture`], and one macro that makes a named test of each.
//!
//! What not every map can do is a *capability*, a group of behaviours of its own that a store names in
//! [`idmap_conformance!`](crate::idmap_conformance!). Caching is not tried here: nothing between a map
//! and its caller.
//!
//! | capability | what it takes |
//! |---|---|
//! | `rollback` | what is inserted is part of a transaction that can be rolled back |
//! | `writers` | two transactions can be open and write at the same time |
//! | `foreign` | other programs can write rows |
//! | `executor` | the map is also a [`TransactionalStore`](semel_core::store::TransactionalStore) |
//!
//! Each behaviour was written against a wrong map that someone could have built: one without the
//! tenant in its key, one that is case-insensitive, one that forgets that internal ids are unique, one
//! that shows revoked rows as live. Those are in `tests/flaws`.
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
//!     // There is no transaction in memory: what is inserted is there.
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
//! // In a test file one line makes a `#[test]` of each behaviour:
//! semel_testkit::idmap_conformance!(Memory::new());
//!
//! // Here they are called by hand.
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

/// A place for one test's ids: a database, a directory. Dropping it cleans up.
///
/// Every behaviour gets a fixture of its own, and finds its map empty.
pub trait IdMapFixture: Send + Sync + 'static {
    /// The map under test.
    type Map: IdMap;
    /// An open transaction of the application.
    type Transaction: Send;

    /// A handle on the rows. A second call gives another handle, over connections of its own where
    /// the map has connections, **on the same rows**.
    fn map(&self) -> impl Future<Output = Self::Map> + Send;

    /// Begins a transaction, as an application does.
    fn begin(&self, map: &Self::Map) -> impl Future<Output = Self::Transaction> + Send;

    /// What [`insert`](IdMap::insert) writes on.
    fn connection(transaction: &mut Self::Transaction) -> &mut <Self::Map as IdMap>::Connection;

    /// Commits.
    fn commit(
        &self,
        map: &Self::Map,
        transaction: Self::Transaction,
    ) -> impl Future<Output = ()> + Send;

    /// Rolls back. Needed under the capability `rollback`.
    fn rollback(
        &self,
        map: &Self::Map,
        transaction: Self::Transaction,
    ) -> impl Future<Output = ()> + Send {
        let _ = (map, transaction);
        async { panic!("this fixture claims to roll back and does not say how") }
    }

    /// Writes a live row past the map, with these very texts. Needed under the capability `foreign`.
    fn plant(
        &self,
        kind: &str,
        tenant: &str,
        public: &str,
        internal: [u8; 16],
    ) -> impl Future<Output = ()> + Send {
        let _ = (kind, tenant, public, internal);
        async { panic!("this fixture claims to plant rows and does not say how") }
    }
}

/// Makes one `#[test]` of every behaviour of id maps, in a module per group.
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

/// Every behaviour that all id maps have, as a name (`group::behaviour`) and a function that panics
/// if the map does not have it: for tests that a wrong map is found.
///
/// The argument is as for [`idmap_conformance!`](crate::idmap_conformance!); what it uses of its
/// surroundings must be `Copy`.
#[macro_export]
macro_rules! idmap_behaviours {
    ($make:expr) => {
        $crate::__idmap_behaviours!(common, __suite_table, $make)
    };
}
