//! How the benchmarks measure: turns of several contenders, and the load generator's half of HTTP.
//!
//! What is measured is in the program `bench`, which is not built with the tests: it instantiates the
//! executor for every store.

pub mod connection;
pub mod request;
pub mod turns;

/// Any error; it ends the run.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
