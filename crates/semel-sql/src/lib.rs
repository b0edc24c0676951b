//! Semel's ledger, outbox and id map in a SQL database: SQLite, PostgreSQL, MySQL and MariaDB.
//!
//! The dialects share how rows are read (`row`, `outbox`, `idmap`), how errors are classified
//! (`error`), how the schema is migrated ([`migrate`]) and how concurrent steps share statements
//! (`batcher`). Each dialect has its own statements. This crate decides nothing about records: the
//! judge in `semel-core` does.

// Each dialect uses a part of the shared modules: code that a build without all features leaves
// unused is not dead.
#![cfg_attr(
    not(all(feature = "sqlite", feature = "postgres", feature = "mysql", feature = "ids")),
    allow(dead_code)
)]

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod batcher;
#[cfg(feature = "ids")]
pub mod business;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod deferred;
mod error;
#[cfg(feature = "ids")]
mod idmap;
pub mod migrate;
mod missing;
mod outbox;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod pool;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod routine;
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
