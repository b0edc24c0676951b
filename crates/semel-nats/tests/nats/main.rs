//! The publisher and the source against real servers: a shared one with a stream per test, and
//! private ones for tests that kill or stop the server.

mod conformance;
mod outage;
mod place;
mod publishing;
mod source;
mod topology;
