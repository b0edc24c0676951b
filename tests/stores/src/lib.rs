//! Stores by name or URL, each in a private database, for the fault runs and the benchmarks.
//!
//! The program `semel` has a parser of its own (`semel-server`'s `store`), with TLS, pool sizes and
//! exit codes that tests do not need.

mod backend;
mod connection;
mod private;

pub use backend::{Address, Backend};
pub use connection::SqlConnection;
pub use private::{NAMES, PrivateStore, server_url};
