//! Tests for a Semel store: a suite that every store must pass, a reference model, fault injection.
//!
//! The stores of this workspace pass these tests. The tests depend on no particular store, so they
//! also run on your own: a [`Fixture`] opens your store and advances its clock.
//!
//! | module | contents |
//! |---|---|
//! | [`conformance`](mod@conformance) | one test per behaviour, by [`conformance!`]; [`transactions!`] for stores that join a database transaction |
//! | [`broker`] | the behaviours of brokers, by [`broker_conformance!`] |
//! | [`outbox`] | the behaviours of outboxes and of the relay on top, by [`outbox_conformance!`] |
//! | [`idmap`] | the behaviours of id maps, by [`idmap_conformance!`] |
//! | [`model`] | random histories beside a reference ledger, by [`model_test!`] |
//! | [`faulty`] | any store, with scripted or random failures of every call |
//! | [`proxy`] | a TCP proxy: latency, resets, half-open connections, blackholes, replies cut short; it counts round trips too |
//! | [`effects`] | a ledger of effects, a history of responses, and a checker that counts broken guarantees in them |
//!
//! # Running the suite
//!
//! ```
//! use std::time::Duration;
//!
//! use semel_core::store::memory::MemoryStore;
//! use semel_core::{Clock, Timestamp};
//! use semel_testkit::{Fixture, behaviours};
//!
//! struct Memory {
//!     store: MemoryStore,
//!     clock: Clock,
//! }
//!
//! impl Memory {
//!     async fn new() -> Self {
//!         let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
//!         Memory { store: MemoryStore::with(1_000, clock.clone()), clock }
//!     }
//! }
//!
//! impl Fixture for Memory {
//!     type Store = MemoryStore;
//!
//!     async fn store(&self) -> MemoryStore {
//!         self.store.clone()
//!     }
//!
//!     async fn advance(&self, span: Duration) {
//!         self.clock.advance(span);
//!     }
//!
//!     // Inserting a new key removes expired records.
//!     fn forgets_by_itself(&self) -> bool {
//!         true
//!     }
//! }
//!
//! // In a test file, this line makes one `#[test]` per behaviour:
//! semel_testkit::conformance!(Memory::new());
//!
//! // This example calls the behaviours of one group directly.
//! let fencing = behaviours!(Memory::new());
//! let fencing: Vec<_> = fencing.iter().filter(|(name, _)| name.starts_with("fencing::")).collect();
//! assert!(fencing.len() > 10);
//! for (_, behave) in fencing {
//!     behave();
//! }
//! ```
//!
//! # How to test your own store
//!
//! 1. Implement [`Store`](semel_core::store::Store) and [`Inspect`](semel_core::store::Inspect). A store keeps
//!    records and decides nothing: [`MemoryStore`](semel_core::store::memory::MemoryStore) is the
//!    reference implementation.
//! 2. Write a [`Fixture`]: an empty store for each test, further handles on the same records, and a way
//!    to advance the store's clock. Implement [`corrupt`](Fixture::corrupt) if other programs can write your records, and return
//!    `true` from [`forgets_by_itself`](Fixture::forgets_by_itself) if your backend expires them.
//! 3. In `tests/conformance.rs`:
//!
//!    ```ignore
//!    semel_testkit::conformance!(MyFixture::new());
//!    semel_testkit::model_test!(MyFixture::new());
//!    ```
//!
//!    and, if your store implements `TransactionalStore`, [`transactions!`] with its own fixture.
//! 4. Run `SEMEL_MODEL_CASES=2000 cargo test random_histories` once in a while. A mismatch prints a
//!    reduced history and the seed that replays it.
//! 5. Put a [`FaultProxy`](proxy::FaultProxy) between your store and its server. Cut the reply of
//!    every store call after every number of bytes: a call whose reply did not arrive whole is
//!    [`Ambiguous`](semel_core::store::ErrorKind::Ambiguous), and only a connection that was never made,
//!    or a reply that proves that nothing ran, is
//!    [`Unavailable`](semel_core::store::ErrorKind::Unavailable). Assert on
//!    [`faults`](proxy::FaultProxy::faults) that the fault happened, and on
//!    [`traffic`](proxy::FaultProxy::traffic) that `open`, `settle` and `peek` are one trip each.
//! 6. Remove one guard of your store at a time and check that the suite fails. `tests/flaws` of this
//!    crate does so with deliberately flawed stores.

pub mod broker;
pub mod conformance;
pub mod effects;
pub mod faulty;
pub mod fixture;
pub mod idmap;
pub mod lateness;
pub mod model;
pub mod outbox;
pub mod proxy;
pub mod suite;

pub use broker::BrokerFixture;
pub use fixture::{AnyFixture, Fixture};
pub use idmap::IdMapFixture;
pub use outbox::OutboxFixture;
