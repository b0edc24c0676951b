//! Tests of the operators' commands: each command of the built program, on a file and on a server.
#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

#[allow(unreachable_pub, reason = "several test targets include it")]
#[path = "../program.rs"]
mod program;

mod auditing;
mod doctor;
mod doctor_tries;
mod fixture;
mod ids;
mod inbox;
mod map;
mod migrate;
mod outbox;
mod promises;
mod purging;
mod records;
mod relay;
mod relay_faults;
mod resolving;
mod seeds;
mod sweep;
mod timeline;
mod usage;
