//! The publisher and the source against real servers: a shared one with a stream per test, and
//! private ones where the server itself must suffer.

mod conformance;
mod outage;
mod place;
mod publishing;
mod source;
mod topology;
