//! What a business table must offer: its rows page by page, and rows by their public ids.
//!
//! A table returns what is stored, valid or not; see [`RefusalReason`](super::RefusalReason).

use std::fmt;
use std::future::Future;

use semel_core::store::Result;
use serde::{Deserialize, Serialize};

/// The value of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field<T> {
    /// A value.
    Value(T),
    /// NULL.
    Null,
    /// A value of an unexpected type, or bytes that are not text.
    Unreadable,
}

/// A row that has, or should have, a public id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusinessRow {
    /// The row's key as text, for people.
    pub key: String,
    /// The tenant. Integers as decimal text.
    pub tenant: Field<String>,
    /// The public id.
    pub public: Field<String>,
    /// The internal id: 16 bytes, or the 26 characters of a ULID.
    pub internal: Field<Vec<u8>>,
}

/// Where reading a table continues. Only the table that returned it can read it; it can be stored and used by
/// another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TableCursor(String);

impl TableCursor {
    /// Creates a cursor from its text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text.
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
    /// The rows.
    pub rows: Vec<BusinessRow>,
    /// Where reading continues; `None` at the end of the table.
    pub next: Option<TableCursor>,
}

/// A table whose rows have public ids. It is only read, and must be read from the primary: a replica that lags
/// is not the source of truth.
pub trait BusinessTable: Send + Sync + 'static {
    /// Returns a description of what is read, the same in every run: a checkpoint belongs to one of them.
    fn describe(&self) -> String;

    /// Returns the tenant of all rows; `None` where each row has its own.
    fn tenant(&self) -> Option<&str>;

    /// Returns at most `limit` rows after the cursor, in the order of a unique key. A row that cannot be read
    /// is returned as far as it can be, and is no error.
    fn page(
        &self,
        after: Option<&TableCursor>,
        limit: u32,
    ) -> impl Future<Output = Result<TablePage>> + Send;

    /// Returns the rows with these public ids, compared byte for byte, in any order, also those whose other
    /// columns cannot be read. One statement; at most 200 ids.
    fn find(
        &self,
        tenant: &str,
        publics: &[&str],
    ) -> impl Future<Output = Result<Vec<BusinessRow>>> + Send;

    /// Returns about how many rows there are, if that is cheap to estimate.
    fn estimate(&self) -> impl Future<Output = Result<Option<u64>>> + Send {
        async { Ok(None) }
    }

    /// Returns how many rows have no value in the key column: paging never reads them.
    fn keyless(&self) -> impl Future<Output = Result<u64>> + Send {
        async { Ok(0) }
    }
}
