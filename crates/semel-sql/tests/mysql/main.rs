//! The ledger on MariaDB: every behaviour of the conformance suite, and what only this server can
//! get wrong.
#![cfg(feature = "mysql")]

mod business;
mod claims;
mod effects;
mod fixture;
mod healing;
mod idmap;
mod outbox;
mod partial;
mod schema;
mod transactions;
mod trips;

mod conforms {
    use crate::fixture::Ground;

    semel_testkit::conformance!(Ground::new());
}
