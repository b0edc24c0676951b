//! Tests of `semel deliver`: the built program, an outbox that a library writes, and endpoints that fail in every
//! way.
#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

#[allow(unreachable_pub, reason = "several test targets include it")]
#[path = "../program.rs"]
mod program;

mod endpoint;
mod fixture;
mod guide;
mod kills;
mod responses;
mod targets;
