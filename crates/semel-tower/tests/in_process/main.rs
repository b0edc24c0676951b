//! The HTTP layer where routers nest, layers stack, stores fail and callers leave: in process, so
//! that every one of these can be made to happen at the moment that matters.
//!
//! The protocol itself is in `tests/http`; what needs bytes on a socket is in `tests/wire`.

#[path = "../backend.rs"]
mod backend;

mod recorder;
mod stage;

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
