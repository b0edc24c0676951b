//! Binding to and reading from the columns of `semel_record`, as this protocol carries them.
//!
//! Text travels as bytes in both directions, so that no character set of a session touches it. What
//! the columns mean is `crate::row`'s business.

use semel_core::clock::Timestamp;
use semel_core::key::Key;
use semel_core::record::Entry;
use semel_core::store::{Draft, Listed, Peeked, Result};
use sqlx::mysql::{MySqlArguments, MySqlRow};
use sqlx::query::Query;
use sqlx::{MySql, Row};

use crate::error::corrupt;
use crate::row::{DraftRow, Raw, RawKey, outlined, undecodable};

pub(crate) type Bound<'q> = Query<'q, MySql, MySqlArguments>;

/// A row that begins with digest and clock, as all our reads do.
pub(crate) struct Found {
    pub(crate) digest: Vec<u8>,
    pub(crate) now: Timestamp,
    pub(crate) raw: Raw,
}

impl Found {
    /// Reads the columns of [`super::statement::READ`].
    pub(crate) fn read(row: &MySqlRow, operation: &'static str) -> Result<Self> {
        let reader = Reader { row, operation };
        Ok(Self {
            digest: reader.get(0)?,
            now: Timestamp::from_micros(reader.get(1)?),
            raw: reader.raw(2)?,
        })
    }

    pub(crate) fn peeked(self, operation: &'static str) -> Result<Peeked> {
        Ok(Peeked { record: self.raw.record(operation)?, now: self.now })
    }
}

/// Reads the key columns that follow those of [`Found`].
fn read_key(row: &MySqlRow, digest: Vec<u8>, operation: &'static str) -> Result<RawKey> {
    let reader = Reader { row, operation };
    Ok(RawKey {
        digest,
        kind: reader.get(23)?,
        tenant: reader.text(24, "tenant")?,
        scope: reader.text(25, "scope")?,
        principal: reader.get(26)?,
        id: reader.text(27, "id")?,
    })
}

/// The record and key in a row of [`super::statement::read_with_key`].
pub(crate) fn read_entry(row: &MySqlRow, operation: &'static str) -> Result<Entry> {
    let found = Found::read(row, operation)?;
    read_key(row, found.digest, operation)?.entry(found.raw, operation)
}

/// The record and key in a row of [`super::statement::outline`].
pub(crate) fn read_outline(row: &MySqlRow, operation: &'static str) -> Result<Listed> {
    let size = Reader { row, operation }.get(28)?;
    Ok(outlined(read_entry(row, operation)?, size))
}

/// The digest in a row of either.
pub(crate) fn read_digest(row: &MySqlRow) -> Vec<u8> {
    row.try_get(0).unwrap_or_default()
}

struct Reader<'r> {
    row: &'r MySqlRow,
    operation: &'static str,
}

impl Reader<'_> {
    fn get<'r, T>(&'r self, index: usize) -> Result<T>
    where
        T: sqlx::Decode<'r, MySql> + sqlx::Type<MySql>,
    {
        self.row.try_get(index).map_err(|error| undecodable(self.operation, error))
    }

    fn text(&self, index: usize, column: &'static str) -> Result<String> {
        String::from_utf8(self.get(index)?).map_err(|_| corrupt(self.operation, column))
    }

    fn maybe_text(&self, index: usize, column: &'static str) -> Result<Option<String>> {
        let bytes: Option<Vec<u8>> = self.get(index)?;
        let text = |bytes| String::from_utf8(bytes).map_err(|_| corrupt(self.operation, column));
        bytes.map(text).transpose()
    }

    fn raw(&self, first: usize) -> Result<Raw> {
        let at = |offset: usize| first + offset;
        Ok(Raw {
            number: self.get(at(0))?,
            fingerprint: self.get(at(1))?,
            state: self.get(at(2))?,
            operation_id: self.get(at(3))?,
            attempt_id: self.get(at(4))?,
            attempt: self.get(at(5))?,
            fence: self.get(at(6))?,
            owner: self.text(at(7), "owner")?,
            lease_until: self.get(at(8))?,
            retry_at: self.get(at(9))?,
            on_crash: self.get(at(10))?,
            keep_us: self.get(at(11))?,
            body: self.get(at(12))?,
            content_type: self.maybe_text(at(13), "content_type")?,
            reference: self.maybe_text(at(14), "reference")?,
            omitted_bytes: self.get(at(15))?,
            error: self.maybe_text(at(16), "error")?,
            created_at: self.get(at(17))?,
            updated_at: self.get(at(18))?,
            completed_at: self.get(at(19))?,
            expires_at: self.get(at(20))?,
        })
    }
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

/// The bytes under which a key is stored.
pub(crate) fn identity(key: &Key) -> [u8; 32] {
    #[cfg(feature = "testing")]
    if semel_core::testing::sabotaged(semel_core::testing::Guard::Identity) {
        return *merged(key).digest().as_bytes();
    }
    *key.digest().as_bytes()
}

/// What a `utf8mb4_unicode_ci` key column would take for the same id.
#[cfg(feature = "testing")]
fn merged(key: &Key) -> Key {
    let fold = |c: char| if c.is_ascii() { c.to_ascii_lowercase() } else { 'e' };
    let id: String = key.id().trim_end().chars().map(fold).collect();
    Key::new(key.kind(), key.tenant(), key.scope(), *key.asked_by(), &id)
        .unwrap_or_else(|_| key.clone())
}
