//! What a business table must offer: its rows page by page, and rows by their public ids.
//!
//! A table gives what is stored, readable or not. What it means is decided where it is read; see
//! [`RefusalReason`](super::RefusalReason).

use std::fmt;
use std::future::Future;

use semel_core::store::Result;
use serde::{Deserialize, Serialize};

/// A column of a row, as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field<T> {
    /// A value.
    Value(T),
    /// Nothing.
    Null,
    /// A value of another type than the column should have, or bytes that are no text.
    Unreadable,
}

/// A row that has, or should have, a public id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusinessRow {
    /// The row's key as text, for people.
    pub key: String,
    /// Whose it is. Integers as decimal text.
    pub tenant: Field<String>,
    /// Its public id.
    pub public: Field<String>,
    /// Its internal id: 16 bytes, or the 26 characters of a ULID.
    pub internal: Field<Vec<u8>>,
}

/// Where a walk goes on. Only the table that made it can read it; it can be kept and used by another
/// process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TableCursor(String);

impl TableCursor {
    /// A cursor that reads as `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TableCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Some rows in the order of their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TablePage {
    /// The rows.
    pub rows: Vec<BusinessRow>,
    /// Where to go on; nothing at the end of the table.
    pub next: Option<TableCursor>,
}

/// A table whose rows have public ids. Read-only, and to be read where it is written: a replica that
/// lags behind is not the truth.
pub trait BusinessTable: Send + Sync + 'static {
    /// What is read, in words that stay the same from run to run: a checkpoint is good for one of
    /// them only.
    fn describe(&self) -> String;

    /// The one tenant whose rows these are; nothing where rows say it themselves.
    fn tenant(&self) -> Option<&str>;

    /// At most `limit` rows after the cursor, by a unique key. A row that cannot be read is given
    /// as far as it can; it is no error.
    fn page(
        &self,
        after: Option<&TableCursor>,
        limit: u32,
    ) -> impl Future<Output = Result<TablePage>> + Send;

    /// The rows with these public ids, compared byte for byte, in no order. Rows whose other columns
    /// cannot be read are among them. One statement; at most 200 ids are asked for.
    fn find(
        &self,
        tenant: &str,
        publics: &[&str],
    ) -> impl Future<Output = Result<Vec<BusinessRow>>> + Send;

    /// About how many rows there are, if that is cheap to tell.
    fn estimate(&self) -> impl Future<Output = Result<Option<u64>>> + Send {
        async { Ok(None) }
    }

    /// How many rows have no key, so that no page shows them.
    fn keyless(&self) -> impl Future<Output = Result<u64>> + Send {
        async { Ok(0) }
    }
}
