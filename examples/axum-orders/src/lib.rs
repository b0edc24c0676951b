//! An orders service in which nothing is ordered or refunded twice.
//!
//! Atomic on SQLite: the claim on the client's key, the order's rows and the response are one commit.
//! Read [`service`] first: it has the twenty lines that idempotency adds to an axum service. Of
//! idempotency, the handlers in [`orders`] and [`refunds`] use only their transaction.
//!
//! The example has no payments (a refund's row waits for a process that calls the provider), no real
//! gateway and no real identity provider (see [`identity`]).

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

/// Compiles every code block of the guide, and runs those that can run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tutorials/axum-in-ten-minutes.md")]
mod guide {}
