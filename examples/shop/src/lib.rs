//! A shop as a whole service: orders over HTTP, public ids, an outbox, and consumer groups that
//! reserve goods, pack parcels and send letters. Each effect happens once, whatever is repeated,
//! killed or lost on the way.
//!
//! `orders` has the HTTP routes, `tables` the rows of the shop, `groups` the handlers of its events, and
//! `service` starts and stops them. None of this code retries, deduplicates or acknowledges by itself.
#![doc = include_str!("../../../docs/tutorials/from-dual-writes-to-outbox.md")]

pub mod groups;
pub mod orders;
pub mod service;
pub mod tables;

/// Any error that keeps the shop from starting or stopping.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
