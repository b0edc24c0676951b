//! A business table in memory, for tests and development.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use semel_core::store::{Error, ErrorKind, Result};

use super::business::{BusinessRow, BusinessTable, Field, TableCursor, TablePage};
use crate::codec::Codec;

/// A business table in memory whose keys are numbers. Clones share the rows.
#[derive(Clone, Debug, Default)]
pub struct MemoryTable {
    rows: Arc<Mutex<BTreeMap<u64, BusinessRow>>>,
    tenant: Option<String>,
}

impl MemoryTable {
    /// Creates an empty table of many tenants.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty table of one tenant.
    pub fn of_tenant(tenant: &str) -> Self {
        Self { tenant: Some(tenant.to_owned()), ..Self::default() }
    }

    /// Adds a row with this public id, and with the internal id that [`Codec::new`] decodes from
    /// it, if any. Returns the key of the row.
    pub fn put(&self, tenant: &str, public: &str) -> u64 {
        let internal = Codec::new().decode(public).map(|(_, id)| id.to_bytes().to_vec());
        self.insert(BusinessRow {
            key: String::new(),
            tenant: Field::Value(tenant.to_owned()),
            public: Field::Value(public.to_owned()),
            internal: internal.map_or(Field::Null, Field::Value),
        })
    }

    /// Adds a row under a new key, and returns the key.
    pub fn insert(&self, mut row: BusinessRow) -> u64 {
        let mut rows = self.rows();
        let key = rows.last_key_value().map_or(1, |(last, _)| last + 1);
        row.key = key.to_string();
        rows.insert(key, row);
        key
    }

    /// Removes the row with this key, and returns it.
    pub fn remove(&self, key: u64) -> Option<BusinessRow> {
        self.rows().remove(&key)
    }

    fn rows(&self) -> MutexGuard<'_, BTreeMap<u64, BusinessRow>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BusinessTable for MemoryTable {
    fn describe(&self) -> String {
        String::from("a table in memory")
    }

    fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    async fn page(&self, after: Option<&TableCursor>, limit: u32) -> Result<TablePage> {
        let after = after.map(|cursor| cursor.as_str().parse::<u64>());
        let after = after
            .transpose()
            .map_err(|error| Error::new(ErrorKind::Misconfigured, "read the cursor", error))?;
        let rows = self.rows();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = rows.range((from, Bound::Unbounded));
        let page: Vec<_> = rest.by_ref().take(limit as usize).collect();
        let last = page.last().map(|(key, _)| TableCursor::new(key.to_string()));
        let next = rest.next().and(last);
        Ok(TablePage { rows: page.into_iter().map(|(_, row)| row.clone()).collect(), next })
    }

    async fn find(&self, tenant: &str, publics: &[&str]) -> Result<Vec<BusinessRow>> {
        let matches = |row: &&BusinessRow| {
            matches!(&row.tenant, Field::Value(own) if own == tenant)
                && matches!(&row.public, Field::Value(public) if publics.contains(&public.as_str()))
        };
        Ok(self.rows().values().filter(matches).cloned().collect())
    }

    async fn estimate(&self) -> Result<Option<u64>> {
        Ok(Some(self.rows().len() as u64))
    }
}
