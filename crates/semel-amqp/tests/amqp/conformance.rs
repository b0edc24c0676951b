//! The behaviours that every broker has.

use semel_testkit::broker_conformance;

use crate::fixture::Place;

broker_conformance!(Place::new(); ordered, raw);

mod faults_killed {
    use super::*;

    broker_conformance!(only restart: Place::alone());
}
