//! The HTTP layer's protocol, over real sockets, on every store.
//!
//! What only a raw socket can show is in `tests/wire`.

#[path = "../backend.rs"]
mod backend;

mod stage;

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
