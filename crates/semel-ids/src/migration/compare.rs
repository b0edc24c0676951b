//! Compares a page of the table with the map, and a page of the map with the table.
//!
//! Every difference is read again before it counts, in an order in which live traffic causes no
//! differences: if a row and its mapping are written in one transaction
//! ([`Resolver::register`](crate::Resolver::register), [`revoke_in`](crate::Resolver::revoke_in)),
//! both are seen as they were before that transaction, or both as after it.

use std::collections::{BTreeMap, HashMap, HashSet};

use semel_core::store::Result;
use ulid::Ulid;

use super::business::{BusinessRow, BusinessTable, Field};
use super::reading::{RefusalReason, read};
use super::{LOOKUP, MapMigration};
use crate::codec::PublicId;
use crate::map::{Binding, IdMap, MapRow};

/// The defect of a row's mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Defect {
    /// The row has no mapping.
    Missing,
    /// The mapping has another internal id.
    Mismatched(Ulid),
    /// The mapping was revoked.
    Revoked,
}

/// A row whose mapping has a defect.
#[derive(Clone, Debug)]
pub(super) struct Suspect {
    pub(super) key: String,
    pub(super) binding: Binding,
    pub(super) defect: Defect,
}

/// The result of comparing a page of the table.
#[derive(Debug, Default)]
pub(super) struct Compared {
    pub(super) matched: u64,
    pub(super) unreadable: Vec<(BusinessRow, RefusalReason)>,
    pub(super) suspects: Vec<Suspect>,
}

/// The result of comparing a page of the map.
#[derive(Debug, Default)]
pub(super) struct Strays {
    /// The live mappings without a row.
    pub(super) extra: Vec<MapRow>,
    /// The rows whose public id another row has too.
    pub(super) duplicated: Vec<BusinessRow>,
}

impl<M: IdMap, T: BusinessTable> MapMigration<'_, M, T> {
    /// Compares rows with their mappings.
    pub(super) async fn compare(&self, rows: Vec<BusinessRow>) -> Result<Compared> {
        let mut compared = Compared::default();
        let mut tenants: BTreeMap<String, Vec<(String, Binding)>> = BTreeMap::new();
        for row in rows {
            match read(&row, self.kind, &self.codec) {
                Ok(binding) => {
                    let tenant = tenants.entry(binding.tenant().to_owned()).or_default();
                    tenant.push((row.key, binding));
                }
                Err(reason) => compared.unreadable.push((row, reason)),
            }
        }
        for (tenant, bindings) in &tenants {
            for chunk in bindings.chunks(LOOKUP) {
                let suspects = self.suspects(tenant, chunk).await?;
                let confirmed = self.confirmed(tenant, suspects).await?;
                compared.matched += (chunk.len() - confirmed.len()) as u64;
                compared.suspects.extend(confirmed);
            }
        }
        Ok(compared)
    }

    async fn suspects(&self, tenant: &str, rows: &[(String, Binding)]) -> Result<Vec<Suspect>> {
        let publics: Vec<PublicId> = rows.iter().map(|(_, binding)| *binding.public()).collect();
        let found = self.with_retries(|| self.map.find(tenant, self.kind, &publics)).await?;
        let found: HashMap<String, (Ulid, bool)> =
            found.into_iter().map(|row| (row.public, (row.internal, row.live))).collect();
        let suspect = |(key, binding): &(String, Binding)| {
            let defect = match found.get(binding.public().as_str()) {
                None => Defect::Missing,
                Some((_, false)) => Defect::Revoked,
                Some((internal, true)) if *internal != binding.internal() => {
                    Defect::Mismatched(*internal)
                }
                Some(_) => return None,
            };
            Some(Suspect { key: key.clone(), binding: binding.clone(), defect })
        };
        Ok(rows.iter().filter_map(suspect).collect())
    }

    /// Returns the suspects whose rows still exist. The map was read before the table: a row that
    /// exists now also existed when its mapping was read.
    async fn confirmed(&self, tenant: &str, suspects: Vec<Suspect>) -> Result<Vec<Suspect>> {
        if suspects.is_empty() {
            return Ok(suspects);
        }
        let existing =
            self.existing(tenant, suspects.iter().map(|suspect| &suspect.binding)).await?;
        let exists = |suspect: &Suspect| existing.contains(suspect.binding.public().as_str());
        Ok(suspects.into_iter().filter(exists).collect())
    }

    /// Returns the public ids of the given bindings of a tenant that are in the table.
    pub(super) async fn existing(
        &self,
        tenant: &str,
        bindings: impl Iterator<Item = &Binding>,
    ) -> Result<HashSet<String>> {
        let publics: Vec<&str> = bindings.map(|binding| binding.public().as_str()).collect();
        let mut existing = HashSet::new();
        for chunk in publics.chunks(LOOKUP) {
            for row in self.with_retries(|| self.table.find(tenant, chunk)).await? {
                if let Ok(binding) = read(&row, self.kind, &self.codec) {
                    existing.insert(binding.public().to_string());
                }
            }
        }
        Ok(existing)
    }

    /// Compares mappings, which must be ordered by tenant, with their rows.
    pub(super) async fn strays(&self, mappings: Vec<MapRow>) -> Result<Strays> {
        let mut strays = Strays::default();
        let live: Vec<MapRow> = mappings.into_iter().filter(|row| row.live).collect();
        for tenant in live.chunk_by(|one, other| one.tenant == other.tenant) {
            for chunk in tenant.chunks(LOOKUP) {
                let absent = self.absent(chunk, &mut strays.duplicated).await?;
                strays.extra.extend(self.still_live(absent).await?);
            }
        }
        Ok(strays)
    }

    /// Returns the mappings of one tenant that have no row. A row counts even if its columns other
    /// than the public id cannot be read.
    async fn absent(&self, chunk: &[MapRow], twice: &mut Vec<BusinessRow>) -> Result<Vec<MapRow>> {
        let Some(first) = chunk.first() else { return Ok(Vec::new()) };
        let publics: Vec<&str> = chunk.iter().map(|row| row.public.as_str()).collect();
        let mut seen = HashMap::<String, u32>::new();
        for row in self.with_retries(|| self.table.find(&first.tenant, &publics)).await? {
            let Field::Value(public) = &row.public else { continue };
            let times = seen.entry(public.clone()).or_default();
            *times += 1;
            if *times == 2 {
                twice.push(row);
            }
        }
        Ok(chunk.iter().filter(|row| !seen.contains_key(&row.public)).cloned().collect())
    }

    /// Returns the mappings of one tenant that are still live. The table was read before the map: a
    /// mapping that is live now was also live when its row was not found.
    async fn still_live(&self, rows: Vec<MapRow>) -> Result<Vec<MapRow>> {
        let Some(tenant) = rows.first().map(|row| row.tenant.clone()) else { return Ok(rows) };
        let parse = |row: &MapRow| PublicId::stored(&row.public);
        let publics: Vec<PublicId> = rows.iter().filter_map(parse).collect();
        let live: HashSet<String> = match publics.is_empty() {
            true => HashSet::new(),
            false => {
                let found =
                    self.with_retries(|| self.map.find(&tenant, self.kind, &publics)).await?;
                found.into_iter().filter(|row| row.live).map(|row| row.public).collect()
            }
        };
        // A text that is not a public id is kept: no application that uses this crate wrote or
        // revoked it meanwhile.
        let stays = |row: &MapRow| live.contains(&row.public) || parse(row).is_none();
        Ok(rows.into_iter().filter(stays).collect())
    }
}
