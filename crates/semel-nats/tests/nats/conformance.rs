//! Tests the behaviours that every broker must have.

use crate::place::Place;

semel_testkit::broker_conformance!(Place::shared(); ordered, raw);

mod killed {
    use super::*;

    semel_testkit::broker_conformance!(only restart: Place::private());
    semel_testkit::broker_conformance!(only outage: Place::private());
}
