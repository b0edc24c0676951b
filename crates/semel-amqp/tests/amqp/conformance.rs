//! Tests the behaviours that every broker must have.

use semel_testkit::broker_conformance;

use crate::fixture::Place;

broker_conformance!(Place::new(); ordered, raw);

mod faults_killed {
    use super::*;

    broker_conformance!(only restart: Place::alone());
}

/// Not one of the `faults_` tests, which run one at a time: it sleeps for a minute.
mod killed {
    use super::*;

    broker_conformance!(only outage: Place::alone());
}
