//! An id map in the memory of this process, for tests and development.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use semel_core::store::Result;
use ulid::Ulid;

use super::{Binding, IdMap, Inserted, MapKey, MapRow};
use crate::codec::PublicId;
use crate::resource::ResourceType;

type Id = (String, String, String);

/// An id map in memory. Clones share the rows. The map has no transactions: every write takes
/// effect at once.
#[derive(Clone, Debug, Default)]
pub struct MemoryMap(Arc<Mutex<BTreeMap<Id, (Ulid, bool)>>>);

impl MemoryMap {
    /// Creates an empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Inserts a row without validating it, as a foreign tool might.
    pub fn plant_raw(&self, tenant: &str, kind: &str, public: &str, internal: Ulid) {
        let id = (kind.to_owned(), tenant.to_owned(), public.to_owned());
        self.rows().insert(id, (internal, true));
    }

    fn rows(&self) -> MutexGuard<'_, BTreeMap<Id, (Ulid, bool)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn id(tenant: &str, kind: ResourceType, public: &str) -> Id {
    (kind.name().to_owned(), tenant.to_owned(), public.to_owned())
}

fn insert(rows: &mut BTreeMap<Id, (Ulid, bool)>, binding: &Binding) -> Inserted {
    let id = id(binding.tenant(), binding.kind(), binding.public());
    match rows.get(&id) {
        Some((internal, _)) if *internal != binding.internal() => return Inserted::Conflict,
        Some((_, true)) => return Inserted::Already,
        Some((_, false)) => return Inserted::Revoked,
        None => {}
    }
    let rival = |(other, (internal, _)): (&Id, &(Ulid, bool))| {
        (&other.0, &other.1) == (&id.0, &id.1) && *internal == binding.internal()
    };
    if rows.iter().any(rival) {
        return Inserted::Conflict;
    }
    rows.insert(id, (binding.internal(), true));
    Inserted::New
}

fn row((id, (internal, live)): (&Id, &(Ulid, bool))) -> MapRow {
    MapRow { tenant: id.1.clone(), public: id.2.clone(), internal: *internal, live: *live }
}

impl IdMap for MemoryMap {
    type Connection = Self;

    async fn insert(&self, connection: &mut Self, binding: &Binding) -> Result<Inserted> {
        Ok(insert(&mut connection.rows(), binding))
    }

    async fn insert_many(&self, bindings: &[Binding]) -> Result<Vec<Inserted>> {
        let mut rows = self.rows();
        Ok(bindings.iter().map(|binding| insert(&mut rows, binding)).collect())
    }

    async fn find(
        &self,
        tenant: &str,
        kind: ResourceType,
        publics: &[PublicId],
    ) -> Result<Vec<MapRow>> {
        let rows = self.rows();
        // Each row is returned once, even if its id is requested several times.
        let requested: BTreeSet<Id> =
            publics.iter().map(|public| id(tenant, kind, public)).collect();
        Ok(requested.iter().filter_map(|id| rows.get_key_value(id)).map(row).collect())
    }

    async fn revoke(&self, tenant: &str, kind: ResourceType, public: &PublicId) -> Result<bool> {
        let mut rows = self.rows();
        let live = rows.get_mut(&id(tenant, kind, public)).map(|(_, live)| live);
        Ok(live.is_some_and(std::mem::take))
    }

    async fn revoke_in(
        &self,
        connection: &mut Self,
        tenant: &str,
        kind: ResourceType,
        public: &PublicId,
    ) -> Result<bool> {
        connection.revoke(tenant, kind, public).await
    }

    async fn overwrite(&self, bindings: &[Binding]) -> Result<()> {
        let mut rows = self.rows();
        for binding in bindings {
            let id = id(binding.tenant(), binding.kind(), binding.public());
            rows.retain(|other, (internal, _)| {
                (&other.0, &other.1) != (&id.0, &id.1) || *internal != binding.internal()
            });
            rows.insert(id, (binding.internal(), true));
        }
        Ok(())
    }

    async fn revoke_rows(&self, kind: ResourceType, keys: &[MapKey]) -> Result<u32> {
        let mut rows = self.rows();
        let mut revoked = 0;
        for key in keys {
            let live = rows.get_mut(&id(&key.tenant, kind, &key.public)).map(|(_, live)| live);
            revoked += u32::from(live.is_some_and(std::mem::take));
        }
        Ok(revoked)
    }

    async fn list(
        &self,
        kind: ResourceType,
        tenant: Option<&str>,
        after: Option<&MapKey>,
        limit: u32,
    ) -> Result<Vec<MapRow>> {
        let rows = self.rows();
        let after = after.map(|key| id(&key.tenant, kind, &key.public));
        let matching = rows.iter().filter(|(id, _)| {
            id.0 == kind.name()
                && tenant.is_none_or(|tenant| id.1 == tenant)
                && after.as_ref().is_none_or(|after| *id > after)
        });
        Ok(matching.take(limit as usize).map(row).collect())
    }
}
