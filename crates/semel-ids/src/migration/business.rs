//! The interface of a business table: its rows page by page, and rows by their public ids.
//!
//! A table returns its rows unchanged, valid or not; see [`RefusalReason`](super::RefusalReason).

use std::fmt;
use std::future::Future;

use semel_core::store::Result;
use serde::{Deserialize, Serialize};

/// The value of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field<T> {
    /// The column has a value.
    Value(T),
    /// The column is NULL.
    Null,
    /// The column has a value of an unexpected type, or bytes that are not text.
    Unreadable,
}

/// A row that has, or should have, a public id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusinessRow {
    /// The row's key as text, for reports.
    pub key: String,
    /// The tenant; an integer as decimal text.
    pub tenant: Field<String>,
    /// The public id.
    pub public: Field<String>,
    /// The internal id: 16 bytes, or the 26 characters of a ULID.
    pub internal: Field<Vec<u8>>,
}

/// The position at which reading a table continues. Only the table that returned the cursor can
/// interpret it; a cursor can be stored and used by another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TableCursor(String);

impl TableCursor {
    /// Creates a cursor from its text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text of the cursor.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TableCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A page of rows in the order of their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TablePage {
    /// The rows of this page.
    pub rows: Vec<BusinessRow>,
    /// The position of the next page; `None` at the end of the table.
    pub next: Option<TableCursor>,
}

/// A table whose rows have public ids. A migration only reads it, and must read from the primary,
/// because a replica that lags is not the source of truth.
pub trait BusinessTable: Send + Sync + 'static {
    /// Returns a description of the table that is the same in every run: a checkpoint is valid for
    /// one description.
    fn describe(&self) -> String;

    /// Returns the tenant of all rows; `None` if each row has its own tenant.
    fn tenant(&self) -> Option<&str>;

    /// Returns at most `limit` rows after the cursor, in the order of a unique key. A row with
    /// unreadable columns is returned with those columns as [`Field::Unreadable`]; it is not an
    /// error.
    fn page(
        &self,
        after: Option<&TableCursor>,
        limit: u32,
    ) -> impl Future<Output = Result<TablePage>> + Send;

    /// Returns the rows with these public ids, at most 200, compared byte for byte, in any order,
    /// including rows whose other columns cannot be read. Uses one statement.
    fn find(
        &self,
        tenant: &str,
        publics: &[&str],
    ) -> impl Future<Output = Result<Vec<BusinessRow>>> + Send;

    /// Returns the approximate number of rows, if it is cheap to estimate.
    fn estimate(&self) -> impl Future<Output = Result<Option<u64>>> + Send {
        async { Ok(None) }
    }

    /// Returns the number of rows that have no value in the key column, which paging never returns.
    fn keyless(&self) -> impl Future<Output = Result<u64>> + Send {
        async { Ok(0) }
    }
}
