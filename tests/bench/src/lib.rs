//! The measuring part of the benchmarks: turns of several contenders, and the HTTP client of the
//! load generator.
//!
//! The measured operations are in the program `bench`, which is not built with the tests, because
//! it instantiates the executor for every store.

pub mod connection;
pub mod request;
pub mod turns;

/// Any error; it ends the run.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
