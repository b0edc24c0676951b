//! The ledger in PostgreSQL: the suite that every store passes, and what only this one can show.
#![cfg(feature = "postgres")]

mod business;
mod database;
mod effects;
mod faults;
mod idmap;
mod outbox;
mod proxy;
mod rivals;
mod schema;
mod transactions;
mod trips;
mod wake;

mod conformance {
    use crate::database::Database;

    semel_testkit::conformance!(Database::new());
}
