//! What the author of a store implements to run the suites: opens the store and advances its clock.
//!
//! The assertions are in [`conformance`](mod@crate::conformance) and [`model`](crate::model).

mod any;

use std::future::Future;
use std::time::Duration;

use semel_core::Key;
use semel_core::store::{BoxFuture, Inspect};

pub use any::{AnyFixture, FixtureFuture};

use crate::model::SecondJudge;

/// The records of one test: a database, a key prefix, a directory. Dropping the fixture removes
/// them.
///
/// Every behaviour of the suites gets a fixture of its own, so nothing that one test stores is
/// visible to another.
pub trait Fixture: Send + Sync + 'static {
    /// The store under test.
    type Store: Inspect;

    /// Opens the store. Every further call returns another handle with its own connections **on the
    /// same records**.
    fn store(&self) -> impl Future<Output = Self::Store> + Send;

    /// Advances the store's clock by `span`: afterwards every stored time (`created_at`,
    /// `updated_at`, `lease_until`, `retry_at`, `completed_at`, `expires_at`) lies `span` further
    /// in the past, relative to the store's clock.
    ///
    /// Either move the clock, if the store accepts one, or move the stored times back by `span`
    /// (times that stand for "for ever" may stay). The default sleeps. That is enough for
    /// behaviours that call the store directly: they advance by less than half a second at a time.
    /// Behaviours with an executor need a clock that is moved, because an executor renews its
    /// leases during a sleep. The [model](crate::model) would need a shorter
    /// [`unit`](crate::model::Settings::unit).
    fn advance(&self, span: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(span)
    }

    /// Sets the store's clock `span` ahead, or back again: no time passes, and the store's
    /// [`Watermark`](semel_core::store::Watermark) stays. Returns `false`, the default, if that is
    /// not possible.
    ///
    /// If the clock belongs to a server, move the stored times and the watermark the other way.
    fn jump(&self, span: Duration, ahead: bool) -> impl Future<Output = bool> + Send {
        let _ = (span, ahead);
        async { false }
    }

    /// Returns whether a sweep removes nothing while the clock is far ahead of the watermark.
    /// Default `true`; `false` for a backend that expires records by its own clock.
    fn sweep_respects_watermark(&self) -> bool {
        true
    }

    /// Damages the stored record of `key` so that reading it must fail as
    /// [`Corrupt`](semel_core::store::ErrorKind::Corrupt): cuts it short, or writes a state that
    /// does not exist. Returns `None`, the default, if no other program can reach the records.
    fn corrupt<'a>(&'a self, key: &'a Key) -> Option<BoxFuture<'a, ()>> {
        let _ = key;
        None
    }

    /// Returns a second implementation of the protocol on the same records, such as functions in the
    /// database, which the [model](crate::model) then compares with the judge. Default `None`.
    fn second_judge(&self) -> Option<&dyn SecondJudge> {
        None
    }

    /// Returns whether the backend removes expired records by itself, by a TTL or when a new key is
    /// inserted. If so, an expired record may be gone before a sweep, and expected counts of
    /// removed records are upper bounds. Default `false`.
    fn forgets_by_itself(&self) -> bool {
        false
    }
}

/// Runs a test on a runtime with two worker threads, so that tasks really run in parallel.
///
/// The macros use this function; a test without them can use it too.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the operating system gives a test its threads")
        .block_on(test)
}
