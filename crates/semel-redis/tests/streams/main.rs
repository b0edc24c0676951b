//! Tests Redis Streams as a broker: the suite on one server, on a cluster and on a server that is
//! killed; and what only streams do.

mod fixture;
mod upkeep;

use fixture::Place;

mod single {
    use super::*;
    semel_testkit::broker_conformance!(Place::at("SEMEL_TEST_REDIS_URL"); ordered, raw);
}

mod cluster {
    use super::*;
    semel_testkit::broker_conformance!(Place::at("SEMEL_TEST_REDIS_CLUSTER_URL"); ordered, raw);
}

mod killed {
    use super::*;
    semel_testkit::broker_conformance!(only restart: Place::private());
    semel_testkit::broker_conformance!(only outage: Place::private());
}
