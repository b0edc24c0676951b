//! The HTTP layer under bad lines, bad bytes and bad manners: what only a raw socket can show.
//!
//! What well-behaved clients see is in `tests/http`.

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
