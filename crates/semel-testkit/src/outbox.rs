//! The behaviours that every outbox must have, and those of the relay on top of it: one async
//! function each, generic over an [`OutboxFixture`], and one macro that makes a named test of each.
//!
//! What not every outbox can do is a *capability*, a group of behaviours of its own that a store
//! names in [`outbox_conformance!`](crate::outbox_conformance!). Brokers are not tried here: the
//! relay speaks to a [scripted one](broker::Broker).
//!
//! | capability | what it takes |
//! |---|---|
//! | `rollback` | appends are part of a transaction that can be rolled back |
//! | `writers` | two transactions can be open and write at the same time |
//! | `damage` | rows can be damaged from outside |
//! | `executor` | the outbox is also a [`TransactionalStore`](semel_core::store::TransactionalStore) |
//!
//! Each behaviour was written against a wrong outbox that someone could have built: one that forgets
//! partitions, one whose claim goes by a cursor, one that marks without a token, one that leases nothing.
//! Those are in `tests/flaws`.
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
//!     // There is no transaction in memory: what is appended is there, and has rung.
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
//! // In a test file one line makes a `#[test]` of each behaviour:
//! semel_testkit::outbox_conformance!(Memory::new());
//!
//! // Here some are called by hand.
//! let ordering = outbox_behaviours!(Memory::new());
//! let ordering: Vec<_> = ordering.iter().filter(|(name, _)| name.starts_with("ordering::")).collect();
//! assert!(ordering.len() > 10);
//! for (_, behave) in ordering {
//!     behave();
//! }
//! ```

pub mod appending;
pub mod broker;
pub mod carrying;
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

/// The events of one test: a database, a schema, a directory. Dropping it cleans up.
///
/// Every behaviour gets a fixture of its own, and finds its outbox empty.
pub trait OutboxFixture: Send + Sync + 'static {
    /// The outbox under test.
    type Outbox: Outbox;
    /// An open transaction of the application.
    type Transaction: Send;

    /// Opens the outbox. A second call returns another handle with its own connections **on the same events**.
    fn outbox(&self) -> impl Future<Output = Self::Outbox> + Send;

    /// Begins a transaction, as an application does.
    fn begin(&self, outbox: &Self::Outbox) -> impl Future<Output = Self::Transaction> + Send;

    /// Returns the connection that [`append`](Outbox::append) writes on.
    fn connection(transaction: &mut Self::Transaction)
    -> &mut <Self::Outbox as Outbox>::Connection;

    /// Commits, and sees to it that the outbox's [bell](Outbox::bell) is rung, as an application
    /// does that commits by itself.
    fn commit(
        &self,
        outbox: &Self::Outbox,
        transaction: Self::Transaction,
    ) -> impl Future<Output = ()> + Send;

    /// Rolls back. Needed under the capability `rollback`.
    fn rollback(
        &self,
        outbox: &Self::Outbox,
        transaction: Self::Transaction,
    ) -> impl Future<Output = ()> + Send {
        let _ = (outbox, transaction);
        async { panic!("this fixture claims to roll back and does not say how") }
    }

    /// Advances the outbox's clock by `span`: afterwards every stored time (`created_at`,
    /// `due_at`, `settled_at`) lies `span` further in the past, as seen from the outbox's now.
    ///
    /// Move the clock where the outbox takes one, or move the stored times back by `span` (times
    /// that stand for "for ever" may stay). A relay may be at work meanwhile.
    fn advance(&self, span: Duration) -> impl Future<Output = ()> + Send;

    /// Sets the outbox's clock `span` ahead, or back again: no time passes, and its watermark stays. Returns
    /// `false`, the default, if that is not possible.
    fn jump(&self, span: Duration, ahead: bool) -> impl Future<Output = bool> + Send {
        let _ = (span, ahead);
        async { false }
    }

    /// Damages the row with this number so that reading its event fails: cuts a column short, or writes text
    /// in place of JSON. Needed for the capability `damage`.
    fn damage(&self, sequence: u64) -> impl Future<Output = ()> + Send {
        let _ = sequence;
        async { panic!("this fixture claims to damage rows and does not say how") }
    }
}

/// Makes one `#[test]` of every behaviour of outboxes and of the relay, in a module per group.
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

/// Every behaviour that all outboxes have, as a name (`group::behaviour`) and a function that panics
/// if the outbox does not have it: for tests that a wrong outbox is found.
///
/// The argument is as for [`outbox_conformance!`](crate::outbox_conformance!); what it uses of its
/// surroundings must be `Copy`.
#[macro_export]
macro_rules! outbox_behaviours {
    ($make:expr) => {
        $crate::__outbox_behaviours!(common, __suite_table, $make)
    };
}
