//! Semel's ledger, outbox and id map in a SQL database: SQLite, PostgreSQL, MySQL and MariaDB.
//!
//! The dialects share how rows are read (`row`, `outbox`, `idmap`), how failures are named (`error`), how the schema
//! comes about ([`migrate`]) and how concurrent steps share statements (`batcher`); each has its own
//! statements. Nothing here decides anything: the judge of `semel` does.

// Each dialect uses its part of the shared modules: what a build without all three does not use is not
// dead code.
#![cfg_attr(
    not(all(feature = "sqlite", feature = "postgres", feature = "mysql", feature = "ids")),
    allow(dead_code)
)]

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod batcher;
#[cfg(feature = "ids")]
pub mod business;
mod error;
#[cfg(feature = "ids")]
mod idmap;
pub mod migrate;
mod missing;
mod outbox;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod pool;
mod row;
mod template;
mod unit;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod watermark;

#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use sqlx;
