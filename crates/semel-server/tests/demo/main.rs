//! Tests of `semel demo`, started as users start it, on every supported database and broker.

#[allow(unreachable_pub, reason = "shared by all test targets")]
#[path = "../program.rs"]
mod program;

mod brokers;
mod caller;
mod chaos;
mod fixture;
mod grpc;
mod http;
mod kills;
mod proto;
mod starting;
mod stopping;
