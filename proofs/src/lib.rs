//! The proofs: every store against every promise, under faults; and the benchmarks.
//!
//! Nothing here is published and nothing here is a dependency of what is. The binaries `faults` and
//! `bench` run from here (`cargo xtask faults`, `cargo xtask bench`), and the tests beside it are
//! their short forms.

#[cfg(feature = "testing")]
pub mod backfill;
pub mod bench;
#[cfg(feature = "testing")]
pub mod child;
#[cfg(feature = "testing")]
pub mod crash;
pub mod effects;
#[cfg(feature = "testing")]
pub mod events;
#[cfg(feature = "testing")]
pub mod histories;
pub mod place;
pub mod report;
#[cfg(feature = "testing")]
pub mod sabotage;
pub mod scene;
pub mod stores;
#[cfg(feature = "testing")]
pub mod subject;
#[cfg(feature = "testing")]
pub mod zombie;
