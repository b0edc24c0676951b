//! Tests of the client layer: its keys, its tries under a virtual clock, and whole calls over real
//! sockets.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod keys;
mod provider;
mod retries;
mod script;
mod sockets;
mod streams;
