//! The core of Semel: keys, records, claims and events, and the rules for them.
//!
//! [`judge`](mod@judge) decides what happens to a request, for every store and protocol, in one
//! pure function. [`store`] defines what a backend implements: a versioned map with a clock.
//! [`executor`] applies the decisions: it claims keys, runs work, renews leases, waits for other
//! calls and settles claims. [`outbox`] publishes events, and [`inbox`] handles them.
//!
//! Applications depend on `semel`, which re-exports this crate with the stores, the protocols and
//! the brokers. Depend on `semel-core` to implement your own store, outbox or broker.
//!
//! This crate has no code for sockets, files, SQL, HTTP or brokers.

/// Aborts the process if a crash test has set this failpoint; expands to nothing without the
/// feature `testing`.
macro_rules! failpoint {
    ($name:expr) => {
        #[cfg(feature = "testing")]
        crate::testing::failpoint($name)
    };
}

/// Returns whether a guard is in place. It always is, except in a test process whose environment
/// removes the guard to make a test fail. Without the feature `testing` this is a constant.
macro_rules! guard {
    ($guard:ident) => {{
        #[cfg(feature = "testing")]
        let stands = !crate::testing::sabotaged(crate::testing::Guard::$guard);
        #[cfg(not(feature = "testing"))]
        let stands = true;
        stands
    }};
}

pub mod bus;
pub mod claim;
pub mod clock;
pub mod event;
pub mod executor;
pub mod fingerprint;
pub mod inbox;
pub mod judge;
pub mod key;
mod measure;
mod operate;
pub mod outbox;
pub mod outcome;
pub mod policy;
pub mod record;
pub mod store;
mod sweeper;
#[cfg(feature = "testing")]
pub mod testing;

pub use claim::{AttemptId, Fence, InvalidOperationId, Lease, OperationId, Origin};
pub use clock::{Clock, Timestamp};
pub use event::{Event, EventId};
pub use executor::{
    Command, Consumed, Context, Error, Execution, Executor, Finished, Receipt, Served,
};
pub use fingerprint::{Fingerprint, InvalidFingerprint, Pointer};
pub use key::{Digest, Hint, InvalidKey, Key, Kind, Principal};
pub use operate::{Holder, Operate, Operated, Resolution};
pub use outcome::{ErrorText, InvalidOutcome, InvalidReference, Outcome, Recorded, Reference};
pub use policy::{InvalidPolicy, OnCrash, OnFailure, Policy, Wait, Woken};
pub use record::{Entry, Record, State, Version};
pub use store::{AnyStore, Store};
pub use sweeper::Sweeping;

// Used by code that `semel-macros` generates, since the user's crate may rename serde or not depend
// on it.
#[doc(hidden)]
pub use serde as __serde;
