//! Tests of the HTTP layer with nested routers, stacked layers, failing stores and leaving callers.
//! They run in process, so that each event can be triggered at the right moment.
//!
//! The tests of the protocol itself are in `tests/http`; those that need a socket are in
//! `tests/wire`.

#[path = "../backend.rs"]
mod backend;

mod recorder;
mod support;

mod atomic;
mod bodies;
mod breaks;
mod later;
mod layers;
mod logs;
mod new_keys;
mod outages;
mod passing;
mod places;
mod rules;
mod sameness;
