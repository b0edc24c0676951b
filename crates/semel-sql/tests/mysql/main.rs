//! The ledger on MariaDB and MySQL: every behaviour of the conformance suite, and what only these
//! servers can get wrong.
#![cfg(feature = "mysql")]

#[cfg(feature = "ids")]
mod business;
mod claims;
mod deadlocks;
mod deferred;
mod effects;
mod fixture;
mod healing;
#[cfg(feature = "ids")]
mod idle;
#[cfg(feature = "ids")]
mod idmap;
mod indexes;
mod isolation;
mod large;
mod mysql9;
mod outbox;
mod partial;
mod procedures;
#[path = "../functions/race.rs"]
mod race;
mod replicas;
mod schema;
#[path = "../functions/session.rs"]
mod session;
mod sessions;
mod transactions;
mod trips;

mod conforms {
    use crate::fixture::TestDatabase;

    semel_testkit::conformance!(TestDatabase::new());
}
