//! The Redis store: the conformance suite on one server and on a cluster, and what only Redis does.

mod cluster;
mod full;
mod layouts;
mod outage;
mod replicas;
mod single;
mod support;
