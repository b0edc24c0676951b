//! Runs a command, a message or an event once, through retries, duplicates, crashes and zombies.
//!
//! A command, a message and an event are doors to one **ledger**. Every door makes a claim on a
//! [`Key`]; the ledger grants it to one caller, as a fenced lease; the holder runs the work and
//! settles the claim with an [`Outcome`]. Everybody else replays the outcome, waits for it, or is
//! told plainly why not.
//!
//! ```
//! use semel::store::memory::MemoryStore;
//! use semel::{Command, Executor, Fingerprint, Key};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Debug, PartialEq, Serialize, Deserialize)]
//! struct Charge {
//!     id: String,
//!     cents: u64,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let executor = Executor::new(MemoryStore::new());
//!
//! // What the caller sent: its key, and a body whose fingerprint makes a repeat a repeat.
//! let body = br#"{"card":"tok_1","cents":1999}"#;
//! let command = Command::new(Key::command("acme", "CHARGE", "client-key-1")?)
//!     .fingerprint(Fingerprint::of_body(body));
//!
//! for attempt in 1..=3 {
//!     let charged = executor
//!         .run(command.clone(), |claim| async move {
//!             // Pass this on: the same in every retry of this operation, so that the payment
//!             // provider can recognise a repeat too.
//!             let id = claim.downstream_key("charge")?;
//!             Ok::<_, semel::executor::NoDurableClaim>(Charge { id, cents: 1999 })
//!         })
//!         .await?;
//!     assert_eq!(charged.replayed(), attempt > 1);
//! }
//!
//! // The same key for another request is refused, not answered with the first one's result.
//! let other = Command::new(Key::command("acme", "CHARGE", "client-key-1")?)
//!     .fingerprint(Fingerprint::of_body(br#"{"card":"tok_1","cents":2000}"#));
//! let refused = executor.run(other, |_| async { Ok::<u8, std::io::Error>(0) }).await;
//! assert!(matches!(refused, Err(semel::Error::Mismatch)));
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised
//!
//! | guarantee | where | what it means |
//! |---|---|---|
//! | Atomic | [`Executor::transact`] on SQLite, PostgreSQL, MySQL/MariaDB | claim, the work's writes and the outcome are one commit: exactly once, with no assumption about pauses, lease length or the application's clock |
//! | Fenced | [`Executor::run`] on any durable store | one live holder by the store's clock, at most one outcome, which does not change; a late holder is refused. An effect outside the store may run again if the process dies or pauses past its lease: hand on [`Context::fence`] or [`Context::downstream_key`] |
//! | At most once | [`OnCrash::Hold`] or [`Command::verify`] | a crashed attempt is not re-run by itself; a verifier or an operator decides |
//! | Best effort | the memory store, Redis with replicas or Cluster, a database that fails over to an asynchronous replica | an acknowledged claim can be lost with the process or in a failover |
//!
//! Each holds within [`Policy::keep`], by the store's clock: a key that comes again after that is new.
//!
//! # What is where
//!
//! [`judge`] decides, for every store and door, in one pure function. [`store`] is what a backend
//! must offer: a versioned map with a clock. [`executor`] carries decisions out: it claims, runs,
//! renews, waits and settles. Durable stores are in `semel-sql` and `semel-redis`; this crate itself
//! opens no socket and no file.

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
pub use event::{Envelope, EventId};
pub use executor::{
    Command, Consumed, Context, Error, Execution, Executor, Receipt, Served, Settlement,
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
