//! Binds and reads the columns of `semel_record` in MySQL's protocol.
//!
//! Text is sent and read as bytes, so that no character set of a session changes it. The meaning of
//! the columns is in `crate::row`.

use semel_core::clock::Timestamp;
use semel_core::key::Key;
use semel_core::record::Entry;
use semel_core::store::{Draft, Listed, Peeked, Result};
use sqlx::Row;
use sqlx::mysql::MySqlRow;

use super::message::{Bound, Value, bind};
use crate::row::{Cell, DraftRow, Raw, RawKey, cells, outlined, undecodable};

/// A record as it was read, with its digest and the server's clock.
pub(crate) struct Found {
    pub(crate) digest: Vec<u8>,
    pub(crate) now: Timestamp,
    pub(crate) raw: Raw,
}

impl Found {
    /// Reads the columns of [`super::statement::read`].
    pub(crate) fn read(row: &MySqlRow, operation: &'static str) -> Result<Self> {
        let read = || -> sqlx::Result<Self> {
            Ok(Self {
                digest: row.try_get("digest")?,
                now: Timestamp::from_micros(row.try_get("us")?),
                raw: Raw::read(row)?,
            })
        };
        read().map_err(|error| undecodable(operation, error))
    }

    pub(crate) fn peeked(self, operation: &'static str) -> Result<Peeked> {
        Ok(Peeked { record: self.raw.record(operation)?, now: self.now })
    }
}

/// Reads the record and key in a row of [`super::statement::read_with_key`].
pub(crate) fn read_entry(row: &MySqlRow, operation: &'static str) -> Result<Entry> {
    let key = RawKey::read(row).map_err(|error| undecodable(operation, error))?;
    key.entry(Found::read(row, operation)?.raw, operation)
}

/// Reads the record and key in a row of [`super::statement::outline`].
pub(crate) fn read_outline(row: &MySqlRow, operation: &'static str) -> Result<Listed> {
    let size = row.try_get("body_size").map_err(|error| undecodable(operation, error))?;
    Ok(outlined(read_entry(row, operation)?, size))
}

/// Returns the digest in a row of a listing.
pub(crate) fn read_digest(row: &MySqlRow) -> Vec<u8> {
    row.try_get("digest").unwrap_or_default()
}

cells!(MySqlRow: i16, i32, i64, Vec<u8>, Option<i64>, Option<Vec<u8>>);

impl Cell<MySqlRow> for String {
    fn read(row: &MySqlRow, column: &'static str) -> sqlx::Result<Self> {
        text(row.try_get(column)?, column)
    }
}

impl Cell<MySqlRow> for Option<String> {
    fn read(row: &MySqlRow, column: &'static str) -> sqlx::Result<Self> {
        let bytes: Option<Vec<u8>> = row.try_get(column)?;
        bytes.map(|bytes| text(bytes, column)).transpose()
    }
}

fn text(bytes: Vec<u8>, column: &'static str) -> sqlx::Result<String> {
    String::from_utf8(bytes)
        .map_err(|error| sqlx::Error::ColumnDecode { index: column.into(), source: error.into() })
}

/// Returns the values of one row of an insert, in the order of [`super::statement::insert`].
pub(crate) fn draft_values<'a>(row: &'a DraftRow<'_>, digest: &'a [u8; 32]) -> [Value<'a>; 17] {
    [
        Value::bytes(digest),
        Value::number(row.kind),
        Value::text(row.tenant),
        Value::text(row.scope),
        Value::bytes(row.principal),
        Value::text(row.id),
        Value::bytes(row.fingerprint),
        Value::bytes(&row.operation_id),
        Value::bytes(&row.attempt_id),
        Value::number(row.attempt),
        Value::text(row.owner),
        Value::number(row.lease_us),
        Value::number(row.on_crash),
        Value::number(row.keep_us),
        Value::Bytes(row.body),
        Value::maybe_text(row.content_type),
        Value::maybe_text(row.reference),
    ]
}

/// Binds one row of an insert.
pub(crate) fn bind_draft<'q>(query: Bound<'q>, draft: &Draft) -> Bound<'q> {
    bind(query, &draft_values(&DraftRow::of(draft), &identity(&draft.key)))
}

/// Returns the bytes under which a key is stored.
pub(crate) fn identity(key: &Key) -> [u8; 32] {
    #[cfg(feature = "testing")]
    if semel_core::testing::sabotaged(semel_core::testing::Guard::Identity) {
        return *merged(key).digest().as_bytes();
    }
    *key.digest().as_bytes()
}

/// Returns the key that a `utf8mb4_unicode_ci` column would treat as equal. Used only when a test
/// has disabled the guard of identity.
#[cfg(feature = "testing")]
fn merged(key: &Key) -> Key {
    let fold = |c: char| if c.is_ascii() { c.to_ascii_lowercase() } else { 'e' };
    let id: String = key.id().trim_end().chars().map(fold).collect();
    Key::new(key.kind(), key.tenant(), key.scope(), *key.principal(), &id)
        .unwrap_or_else(|_| key.clone())
}
