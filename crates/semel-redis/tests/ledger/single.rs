//! Runs the conformance suite on one Redis server.

use crate::support::{Place, url};

semel_testkit::conformance!(async { Place::at(url("SEMEL_TEST_REDIS_URL")) });

semel_testkit::model_test!(async { Place::at(url("SEMEL_TEST_REDIS_URL")) });
