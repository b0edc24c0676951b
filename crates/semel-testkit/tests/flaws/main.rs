//! Runs the suites on stores, outboxes, id maps and brokers with one mistake each. A suite that
//! passes a wrong implementation proves nothing.

mod brokers;
mod idmaps;
mod memory_broker;
mod outboxes;
mod sound_broker;
mod stores;

/// A behaviour of a suite: its name, and a function that panics if the implementation does not have
/// it.
type Behaviour = (&'static str, Box<dyn Fn() + Send>);
