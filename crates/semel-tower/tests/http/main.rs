//! Tests of the HTTP layer's protocol, over real sockets, on every store.
//!
//! Tests that need a raw socket are in `tests/wire`.

#[path = "../backend.rs"]
mod backend;

mod support;

mod atomic;
mod crashes;
mod duplicates;
mod endings;
mod identity;
mod keys;
mod later;
mod lifetimes;
mod limits;
mod order;
mod outages;
mod passing;
mod presets;
mod problems;
mod replays;
mod retries;
mod routing;
mod sameness;
mod services;
mod waiting;
