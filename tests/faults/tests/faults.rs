//! The short forms of the fault runs: processes that die and stop, links that break, servers that
//! are killed and paused. `cargo xtask faults` has the long forms.
//!
//! Every test asserts that its fault really happened.

#[path = "faults/backfill.rs"]
mod backfill;
#[path = "faults/events.rs"]
mod events;
#[path = "faults/links.rs"]
mod links;
#[path = "faults/processes.rs"]
mod processes;
#[path = "faults/servers.rs"]
mod servers;
