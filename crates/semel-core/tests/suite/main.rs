//! The tests of the core as one program, because a program for each file would be linked nine
//! times.

mod bus;
mod crash_policies;
mod executor;
mod memory;
mod metrics;
mod outbox_memory;
mod relay;
mod relay_batches;
mod serve;
mod traces;
