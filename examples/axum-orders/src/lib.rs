//! An orders service in which nothing is ordered or refunded twice.
//!
//! Atomic on SQLite: the claim on the client's key, the order's rows and the answer are one commit.
//! [`service`] is the part to read first: what idempotency adds to an axum service is there, in
//! twenty lines; the handlers in [`orders`] and [`refunds`] know nothing of it but their transaction.
//!
//! Deliberately absent: payments (a refund's row waits for whoever talks to the provider), a real
//! gateway and a real identity provider (see [`identity`]).

pub mod client;
pub mod database;
pub mod demo;
pub mod identity;
pub mod orders;
pub mod refunds;
pub mod refusal;
pub mod server;
pub mod service;
pub mod turnstile;

/// Every block of the guide compiles, and runs where it can.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tutorials/axum-in-ten-minutes.md")]
mod guide {}
