//! A shop whose parts talk by events: an order is placed, the shelf is emptied, a retry payload is packed, a
//! letter is sent. Each once, whatever is killed, repeated or lost on the way.
//!
//! `shop` is the business, `chain` is the road from a commit to the last consumer. Nothing here
//! retries, deduplicates or acknowledges by itself.
#![doc = include_str!("../../../docs/tutorials/from-dual-writes-to-outbox.md")]

pub mod chain;
pub mod shop;
