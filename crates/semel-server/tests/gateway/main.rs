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
mod calls;
mod identities;
mod lifetimes;
mod limits;
mod logs;
mod passing;
mod secure;
mod sharing;
mod starting;
mod stores;
