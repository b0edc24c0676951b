//! The domain of Semel: what a key, a record, a claim and an event are, and what happens to them.
//!
//! [`judge`](mod@judge) decides, for every store and protocol, in one pure function. [`store`] is what a backend
//! must offer: a versioned map with a clock. [`executor`] carries decisions out: it claims, runs,
//! renews, waits and settles. [`outbox`] and [`inbox`] are the two ends of an event.
//!
//! Applications depend on `semel`, which re-exports this crate beside the stores, the protocols and the
//! brokers. Depend on this one to write a store, an outbox or a broker of your own.
//!
//! Deliberately absent: sockets, files, SQL, HTTP and brokers.

/// Ends the process here where a crash test armed this point; expands to nothing without the feature
/// `testing`.
macro_rules! failpoint {
    ($name:expr) => {
        #[cfg(feature = "testing")]
        crate::testing::failpoint($name)
    };
}

/// Whether a guard stands. Always, but in a test process whose environment removes it to see a test
/// fail; a constant without the feature `testing`.
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
mod random;
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
pub use outcome::{ErrorText, InvalidReference, Outcome, Recorded, Reference};
pub use policy::{InvalidPolicy, OnCrash, OnFailure, Policy, Wait, Woken};
pub use record::{Entry, Record, State, Version};
pub use store::{AnyStore, Store};
pub use sweeper::Sweeping;

// For `semel-macros`, whose users may know serde by another name.
#[doc(hidden)]
pub use serde as __serde;
