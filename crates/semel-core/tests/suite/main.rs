//! The tests of the core, one program: a program of its own for each file would be linked nine times.

mod bus;
mod care;
mod executor;
mod memory;
mod metrics;
mod outbox_memory;
mod relay;
mod relay_batches;
mod serve;
mod traces;
