//! Tests the ledger in PostgreSQL: the suite that every store passes, and behaviours that only this
//! store has.
#![cfg(feature = "postgres")]

#[cfg(feature = "ids")]
mod business;
mod crowds;
mod database;
mod deferred;
mod effects;
mod failover;
mod faults;
mod functions;
#[cfg(feature = "ids")]
mod idmap;
mod isolation;
mod outbox;
mod pooled;
mod proxy;
#[path = "../functions/race.rs"]
mod race;
mod reserved;
mod rivals;
mod schema;
#[path = "../functions/session.rs"]
mod session;
mod sessions;
mod transactions;
mod trips;
mod wake;

mod conformance {
    use crate::database::Database;

    semel_testkit::conformance!(Database::new());
}
