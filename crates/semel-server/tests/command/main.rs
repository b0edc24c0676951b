//! What operators do by hand: each command of the built program, on a file and on a server.
#![allow(clippy::unwrap_used, reason = "tests say what they mean with it, their helpers too")]

#[allow(unreachable_pub, reason = "several test targets include it")]
#[path = "../program.rs"]
mod program;

mod auditing;
mod doctor;
mod doctor_tries;
mod ground;
mod ids;
mod inbox;
mod map;
mod migrate;
mod outbox;
mod promises;
mod purging;
mod records;
mod resolving;
mod seeds;
mod sweep;
mod timeline;
mod usage;
