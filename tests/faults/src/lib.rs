//! Fault runs: every promise on every store while processes, links, servers and brokers fail.
//!
//! Unpublished, and no published crate depends on it. The program `faults` has the long forms
//! (`cargo xtask faults`), the tests beside it the short ones. Without the feature `testing` this
//! crate is empty: its failpoints and guard switches are compiled into the crates under test.
#![cfg(feature = "testing")]

pub mod backfill;
pub mod child;
pub mod crash;
pub mod effects;
pub mod events;
pub mod harness;
pub mod process;
pub mod report;
pub mod sabotage;
pub mod zombie;

/// Any error that ends a run without a result.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
