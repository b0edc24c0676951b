//! Tests of the HTTP layer with broken connections, malformed bytes and misbehaving clients, for
//! which a raw socket is needed.
//!
//! The tests with well-behaved clients are in `tests/http`.

#[path = "../backend.rs"]
mod backend;

mod frames;
mod raw;
mod shop;

mod curl;
mod early;
mod keys;
mod leaving;
mod panics;
mod records;
mod shutdown;
mod smuggling;
mod streams;
