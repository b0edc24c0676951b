//! `semel gateway`, started the way people start it, in front of a service that knows nothing of keys.

#![expect(clippy::unwrap_used, reason = "what a test prepares is there, or the test has failed")]

#[path = "../program.rs"]
mod program;

mod caller;
mod ground;
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
