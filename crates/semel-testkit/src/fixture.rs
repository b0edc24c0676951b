//! What the author of a store provides for the suites: how to open it and how to advance its time.
//!
//! The assertions are in [`conformance`](mod@crate::conformance) and [`model`](crate::model).

mod any;

use std::future::Future;
use std::time::Duration;

use semel_core::Key;
use semel_core::store::{BoxFuture, Inspect};

pub use any::{AnyFixture, FixtureFuture};

/// The records of one test: a database, a key prefix, a directory. Dropping it cleans up.
///
/// Every behaviour of the suites gets a fixture of its own, so nothing that one test stores can be
/// seen by another.
pub trait Fixture: Send + Sync + 'static {
    /// The store under test.
    type Store: Inspect;

    /// Opens the store. A second call returns another handle with its own connections **on the same
    /// records**.
    fn store(&self) -> impl Future<Output = Self::Store> + Send;

    /// Advances the store's clock by `span`: afterwards every stored time (`created_at`,
    /// `updated_at`, `lease_until`, `retry_at`, `completed_at`, `expires_at`) lies `span` further
    /// in the past, as seen from the store's now.
    ///
    /// Move the clock where the store takes one, or move the stored times back by `span` (times
    /// that stand for "for ever" may stay). The default sleeps, which is enough for the behaviours
    /// of the store's own verbs: they ask for less than half a second at a time. The behaviours
    /// with an executor on top need a time that is moved, because an executor renews its leases
    /// while one sleeps; and the [model](crate::model) would have to be told to use short units.
    fn advance(&self, span: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(span)
    }

    /// Sets the store's clock `span` ahead, or back again: no time passes, and the store's
    /// [`Watermark`](semel_core::store::Watermark) stays. Returns `false`, the default, if that is not
    /// possible.
    ///
    /// Where the clock is a server's, the stored times and the mark are moved the other way.
    fn jump(&self, span: Duration, ahead: bool) -> impl Future<Output = bool> + Send {
        let _ = (span, ahead);
        async { false }
    }

    /// Returns whether a sweep does nothing while the clock is far ahead. Default `true`; `false` for a
    /// backend that expires records by its own clock.
    fn doubts_its_clock(&self) -> bool {
        true
    }

    /// Damages the stored record of `key` so that reading it must fail as
    /// [`Corrupt`](semel_core::store::ErrorKind::Corrupt): cut it short, or give it a state that does
    /// not exist. `None`, the default, is for stores whose records no other program can reach.
    fn corrupt<'a>(&'a self, key: &'a Key) -> Option<BoxFuture<'a, ()>> {
        let _ = key;
        None
    }

    /// Returns whether the backend removes expired records by itself, by a TTL or with the next new key. A
    /// record past its retention may then be gone before a sweep, and counts of removed records are upper
    /// bounds. Default `false`.
    fn forgets_by_itself(&self) -> bool {
        false
    }
}

/// Runs a test on a runtime with two workers, so that races are real.
///
/// The macros use it; a test that is written by hand may use it too.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the operating system gives a test its threads")
        .block_on(test)
}
