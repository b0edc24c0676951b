//! Binds and reads the columns of `semel_record` in MySQL's protocol.
//!
//! Text is sent and read as bytes, so that no character set of a session changes it. The meaning of
//! the columns is in `crate::row`.

use semel_core::clock::Timestamp;
use semel_core::key::Key;
use semel_core::record::Entry;
use semel_core::store::{Draft, Listed, Peeked, Result};
use sqlx::mysql::{MySqlArguments, MySqlRow};
use sqlx::query::Query;
use sqlx::{MySql, Row};

use crate::row::{Cell, DraftRow, Raw, RawKey, cells, outlined, undecodable};

pub(crate) type Bound<'q> = Query<'q, MySql, MySqlArguments>;

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

/// Binds one row of an insert, in the order of [`super::statement::insert`].
pub(crate) fn bind_draft<'q>(query: Bound<'q>, draft: &Draft) -> Bound<'q> {
    let row = DraftRow::of(draft);
    query
        .bind(identity(&draft.key).to_vec())
        .bind(row.kind)
        .bind(row.tenant.as_bytes())
        .bind(row.scope.as_bytes())
        .bind(row.principal)
        .bind(row.id.as_bytes())
        .bind(row.fingerprint)
        .bind(row.operation_id.to_vec())
        .bind(row.attempt_id.to_vec())
        .bind(row.attempt)
        .bind(row.owner.as_bytes())
        .bind(row.lease_us)
        .bind(row.on_crash)
        .bind(row.keep_us)
        .bind(row.body)
        .bind(row.content_type.map(str::as_bytes))
        .bind(row.reference.map(str::as_bytes))
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
    Key::new(key.kind(), key.tenant(), key.scope(), *key.asked_by(), &id)
        .unwrap_or_else(|_| key.clone())
}
