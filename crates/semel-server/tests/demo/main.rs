//! `semel demo`, started as people start it, on every database and broker that it promises.

#[allow(unreachable_pub, reason = "shared by all test targets")]
#[path = "../program.rs"]
mod program;

mod brokers;
mod caller;
mod chaos;
mod doors;
mod ground;
mod grpc;
mod kills;
mod proto;
mod starting;
mod stopping;
