//! Tests of `semel gateway`, started as users start it, in front of a service that does not handle
//! keys.

#![expect(clippy::unwrap_used, reason = "a failed helper fails its test")]

#[path = "../program.rs"]
mod program;

mod caller;
mod fixture;
mod raw;
mod shop;

mod answers;
mod broken;
mod browser;
mod calls;
mod crowds;
mod fronts;
mod identities;
mod lifetimes;
mod limits;
mod logs;
mod passing;
mod readiness;
mod retries;
mod secure;
mod sharing;
mod spelling;
mod starting;
mod stores;
