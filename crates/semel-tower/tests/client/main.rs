//! The client layer: its keys, its tries under a virtual clock, and whole calls over real sockets.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test that asked for it")]

mod keys;
mod provider;
mod retries;
mod script;
mod sockets;
mod streams;
