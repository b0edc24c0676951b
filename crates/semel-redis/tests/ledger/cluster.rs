//! Runs the conformance suite on a Redis Cluster of three masters.

use crate::support::{Place, url};

semel_testkit::conformance!(async { Place::at(url("SEMEL_TEST_REDIS_CLUSTER_URL")) });

semel_testkit::model_test!(async { Place::at(url("SEMEL_TEST_REDIS_CLUSTER_URL")) });
