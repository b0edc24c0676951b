//! Make things happen exactly once.

pub mod claim;
pub mod clock;
pub mod executor;
pub mod fingerprint;
pub mod judge;
pub mod key;
mod measure;
mod operate;
pub mod outcome;
pub mod policy;
pub mod record;
pub mod store;
mod sweeper;
#[cfg(feature = "testing")]
pub mod testing;

pub use claim::{AttemptId, Fence, Lease, OperationId, Origin};
pub use clock::{Clock, Timestamp};
pub use executor::{Command, Consumed, Context, Error, Execution, Executor, Receipt};
pub use fingerprint::{Fingerprint, InvalidFingerprint};
pub use key::{Digest, Hint, InvalidKey, Key, Kind, Principal};
pub use operate::{Operate, Operated, Resolution};
pub use outcome::{ErrorText, InvalidReference, Outcome, Recorded, Reference};
pub use policy::{InvalidPolicy, OnCrash, OnFailure, Policy, Wait, Woken};
pub use record::{Entry, Record, State, Version};
pub use store::{AnyStore, Store};
pub use sweeper::Sweeping;
