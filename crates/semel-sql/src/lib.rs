//! Semel's ledger, outbox and id map in a SQL database: SQLite, PostgreSQL, MySQL and MariaDB.
//!
//! The dialects share how rows are read (`row`, `outbox`, `idmap`), how failures are named (`error`), how the schema
//! comes about ([`migrate`]) and how concurrent steps share statements (`lanes`); each has its own
//! statements. Nothing here decides anything: the judge of `semel` does.

// Each dialect uses its part of the shared rooms: what a build without all three does not use is not
// dead.
#![cfg_attr(
    not(all(feature = "sqlite", feature = "postgres", feature = "mysql")),
    allow(dead_code)
)]

pub mod business;
mod error;
mod idmap;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod lanes;
pub mod migrate;
mod outbox;
mod row;
mod template;
mod unit;

#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use sqlx;
