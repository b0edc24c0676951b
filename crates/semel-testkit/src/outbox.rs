//! The behaviours that every outbox must have, and those of a relay on it: one async function per
//! behaviour, generic over an [`OutboxFixture`], and a macro that makes a named test of each.
//!
//! A *capability* is a group of behaviours that only some outboxes have; a test lists the
//! capabilities of its outbox in [`outbox_conformance!`](crate::outbox_conformance!). Real brokers
//! are not tested here: the relay publishes to a [scripted one](broker::Broker).
//!
//! | capability | requirement |
//! |---|---|
//! | `rollback` | appends are part of a transaction that can be rolled back |
//! | `writers` | two transactions can be open and write at the same time |
//! | `damage` | rows can be damaged from outside |
//! | `executor` | the outbox is also a [`TransactionalStore`](semel_core::store::TransactionalStore) |
//!
//! Each behaviour catches a plausible mistake: an outbox that ignores partitions, that claims by a
//! cursor, that marks without a token, that leases nothing. `tests/flaws` has such outboxes.
//!
//! ```
//! use std::time::Duration;
//!
//! use semel_core::outbox::memory::MemoryOutbox;
//! use semel_core::{Clock, Timestamp};
//! use semel_testkit::{OutboxFixture, outbox_behaviours};
//!
//! struct Memory {
//!     outbox: MemoryOutbox,
//!     clock: Clock,
//! }
//!
//! impl Memory {
//!     async fn new() -> Self {
//!         let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
//!         Memory { outbox: MemoryOutbox::with_clock(clock.clone()), clock }
//!     }
//! }
//!
//! impl OutboxFixture for Memory {
//!     type Outbox = MemoryOutbox;
//!     // An outbox in memory has no transactions: an append is visible at once and wakes the relay.
//!     type Transaction = MemoryOutbox;
//!
//!     async fn outbox(&self) -> MemoryOutbox {
//!         self.outbox.clone()
//!     }
//!
//!     async fn begin(&self, outbox: &MemoryOutbox) -> MemoryOutbox {
//!         outbox.clone()
//!     }
//!
//!     fn connection(transaction: &mut MemoryOutbox) -> &mut MemoryOutbox {
//!         transaction
//!     }
//!
//!     async fn commit(&self, _: &MemoryOutbox, _: MemoryOutbox) {}
//!
//!     async fn advance(&self, span: Duration) {
//!         self.clock.advance(span);
//!     }
//! }
//!
//! // In a test file, this line makes one `#[test]` per behaviour:
//! semel_testkit::outbox_conformance!(Memory::new());
//!
//! // This example calls the behaviours of one group directly.
//! let ordering = outbox_behaviours!(Memory::new());
//! let ordering: Vec<_> = ordering.iter().filter(|(name, _)| name.starts_with("ordering::")).collect();
//! assert!(ordering.len() > 10);
//! for (_, behave) in ordering {
//!     behave();
//! }
//! ```

pub mod appending;
pub mod background;
pub mod broker;
pub mod claiming;
pub mod cleaning;
pub mod damaged;
pub mod discarding;
pub mod failing;
pub mod held;
mod list;
pub mod marking;
pub mod operating;
pub mod ordering;
pub mod overlapping;
pub mod racing;
pub mod relaying;
pub mod rolling_back;
mod shorthand;
pub mod transacting;

use std::future::Future;
use std::time::Duration;

use semel_core::outbox::Outbox;

pub use list::BEHAVIOURS;

/// The events of one test: a database, a schema, a directory. Dropping the fixture removes them.
///
/// Every behaviour gets a fixture of its own, with an empty outbox.
pub trait OutboxFixture: Send + Sync + 'static {
    /// The outbox under test.
    type Outbox: Outbox;
    /// An open transaction of the application.
    type Transaction: Send;

    /// Opens the outbox. Every further call returns another handle with its own connections **on
    /// the same events**.
    fn outbox(&self) -> impl Future<Output = Self::Outbox> + Send;

    /// Begins a transaction, as an application does.
    fn begin(&self, outbox: &Self::Outbox) -> impl Future<Output = Self::Transaction> + Send;

    /// Returns the connection of the transaction, to pass to [`append`](Outbox::append).
    fn connection(transaction: &mut Self::Transaction)
    -> &mut <Self::Outbox as Outbox>::Connection;

    /// Commits the transaction and rings the outbox's [bell](Outbox::bell), as an application does
    /// that commits by itself.
    fn commit(
        &self,
        outbox: &Self::Outbox,
        transaction: Self::Transaction,
    ) -> impl Future<Output = ()> + Send;

    /// Rolls the transaction back. Needed for the capability `rollback`.
    fn rollback(
        &self,
        outbox: &Self::Outbox,
        transaction: Self::Transaction,
    ) -> impl Future<Output = ()> + Send {
        let _ = (outbox, transaction);
        async { panic!("a fixture with the capability `rollback` must implement `rollback`") }
    }

    /// Advances the outbox's clock by `span`: afterwards every stored time (`created_at`, `due_at`,
    /// `settled_at`) lies `span` further in the past, relative to the outbox's clock.
    ///
    /// Either move the clock, if the outbox accepts one, or move the stored times back by `span`
    /// (times that stand for "for ever" may stay). A relay may run meanwhile.
    fn advance(&self, span: Duration) -> impl Future<Output = ()> + Send;

    /// Sets the outbox's clock `span` ahead, or back again: no time passes, and the outbox's
    /// watermark stays. Returns `false`, the default, if that is not possible.
    fn jump(&self, span: Duration, ahead: bool) -> impl Future<Output = bool> + Send {
        let _ = (span, ahead);
        async { false }
    }

    /// Damages the row with this sequence number so that reading its event fails: cuts a column
    /// short, or writes text in place of JSON. Needed for the capability `damage`.
    fn damage(&self, sequence: u64) -> impl Future<Output = ()> + Send {
        let _ = sequence;
        async { panic!("a fixture with the capability `damage` must implement `damage`") }
    }
}

/// Makes one `#[test]` per behaviour of outboxes and of the relay, in one module per group.
///
/// The argument is a future that makes a fresh fixture; it is evaluated once per test, on the test's
/// own runtime. After a semicolon come the [capabilities](mod@crate::outbox). Use it once per module:
///
/// ```ignore
/// mod outbox {
///     semel_testkit::outbox_conformance!(MyFixture::new(); rollback, writers, damage, executor);
/// }
/// ```
#[macro_export]
macro_rules! outbox_conformance {
    ($make:expr $(; $($capability:ident),+ $(,)?)?) => {
        $crate::__outbox_behaviours!(common, __suite_tests, $make);
        $($($crate::__outbox_behaviours!($capability, __suite_tests, $make);)+)?
    };
}

/// Returns a table of the behaviours that all outboxes have. Each entry is a name
/// (`group::behaviour`) and a function that panics if the outbox does not have the behaviour, for
/// tests that the suite finds a wrong outbox.
///
/// The argument is as for [`outbox_conformance!`](crate::outbox_conformance!). Variables that it
/// captures must be `Copy`.
#[macro_export]
macro_rules! outbox_behaviours {
    ($make:expr) => {
        $crate::__outbox_behaviours!(common, __suite_table, $make)
    };
}
