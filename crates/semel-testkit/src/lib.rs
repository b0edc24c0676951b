//! Tests a Semel store: the suite that every store passes, a reference model, and fault injection.
//!
//! The stores of this toolkit pass these tests, and so can yours: nothing here knows a particular store.
//! A [`Fixture`] opens it and advances its time.
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
//! | [`effects`] | a ledger of effects, a history of responses, and a checker that compares them with the promises |
//!
//! # A store under the suite
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
//!     // A new key takes expired ones with it.
//!     fn forgets_by_itself(&self) -> bool {
//!         true
//!     }
//! }
//!
//! // In a test file one line makes a `#[test]` of each behaviour:
//! semel_testkit::conformance!(Memory::new());
//!
//! // Here they are called by hand.
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
//!    reference, in 300 lines.
//! 2. Write a [`Fixture`]: new records for each test, a second handle on them, and a way to advance their
//!    time. Implement [`corrupt`](Fixture::corrupt) if other programs can write your records, and return
//!    `true` from [`forgets_by_itself`](Fixture::forgets_by_itself) if your backend expires them.
//! 3. In `tests/conformance.rs`:
//!
//!    ```ignore
//!    semel_testkit::conformance!(MyFixture::new());
//!    semel_testkit::model_test!(MyFixture::new());
//!    ```
//!
//!    and, where your store joins transactions, [`transactions!`] with its own fixture.
//! 4. Run `SEMEL_MODEL_CASES=2000 cargo test random_histories` once in a while. A mismatch prints a
//!    thinned history and the seed that replays it.
//! 5. Put a [`FaultProxy`](proxy::FaultProxy) between your store and its server. Cut the reply of
//!    every verb after every number of bytes: a step whose reply did not arrive whole is
//!    [`Ambiguous`](semel_core::store::ErrorKind::Ambiguous), and only a connection that was never made,
//!    or a reply that proves that nothing ran, is
//!    [`Unavailable`](semel_core::store::ErrorKind::Unavailable). Assert on
//!    [`faults`](proxy::FaultProxy::faults) that the fault happened, and on
//!    [`traffic`](proxy::FaultProxy::traffic) that `open`, `settle` and `peek` are one trip each.
//! 6. Break your store on purpose, one guard at a time, and see the suite fail. This crate does so with
//!    its own stores in `tests/flaws`.

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
