//! Looks up ids that are not in L1: in L2, in the map, and in business tables if they are enabled.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use semel_core::store::{self, BoxFuture};
use ulid::Ulid;

use super::key::{CacheKey, KeyGroup};
use super::l1::L1;
use super::l2::L2;
use super::load::{Load, LoadResult, MissingId};
use super::resolved::{ResolveError, ResolveReason};
use crate::codec::PublicId;
use crate::fallback::Fallback;
use crate::map::{IdMap, MapRow};
use crate::resource::ResourceType;
use crate::settings::ResolverSettings;
use crate::shared::{CacheFill, CacheSlot, CorruptEntry};

pub(super) struct Loader {
    pub(super) map: Box<dyn DynMap>,
    pub(super) l1: Arc<L1>,
    pub(super) l2: Option<Arc<L2>>,
    pub(super) fallbacks: Vec<Box<dyn Fallback>>,
    pub(super) settings: ResolverSettings,
}

impl Loader {
    /// Looks up the ids that this load is responsible for, each of them once.
    pub(super) async fn run(self: Arc<Self>, guard: LoadGuard) {
        let load = Arc::clone(&guard.load);
        let mut lookup = Lookup::new(&load, &guard.own);
        self.look_up_in_l2(&mut lookup).await;
        // Ids that were found in L2 are not written to L2 again.
        let not_in_l2 = lookup.open.clone();
        if let Err(error) = self.look_up_in_map(&mut lookup).await {
            lookup.fail(error);
        }
        let mut cached = guard.finish(lookup.finish());
        cached.retain(|index| not_in_l2.binary_search(index).is_ok());
        self.fill_l2(&load, &cached).await;
    }

    async fn look_up_in_l2(&self, lookup: &mut Lookup<'_>) {
        let Some(l2) = &self.l2 else { return };
        let load = lookup.load;
        let keys: Vec<&str> = lookup.open.iter().map(|index| load.l2_key(*index)).collect();
        let Some(slots) = l2.get(&keys).await else { return };
        let mut corrupt = Vec::new();
        let mut slots = keys.iter().zip(slots);
        lookup.answer(|index, id| match slots.next()? {
            (_, CacheSlot::Empty) => None,
            (_, slot @ (CacheSlot::Known(_) | CacheSlot::Absent))
                if self.l1.distrusts_l2(&load.key_ref(index), slot == CacheSlot::Absent) =>
            {
                None
            }
            (_, CacheSlot::Known(internal)) if id.candidates.contains(internal) => {
                Some(Ok((Some(internal), ResolveReason::HitL2)))
            }
            (_, CacheSlot::Absent) => Some(Ok((None, ResolveReason::NotFound))),
            (key, CacheSlot::Known(other)) => {
                corrupt.push(CorruptEntry { key: (*key).to_owned(), value: Some(other) });
                None
            }
            (key, CacheSlot::Damaged) => {
                corrupt.push(CorruptEntry { key: (*key).to_owned(), value: None });
                None
            }
        });
        l2.remove_corrupt(corrupt);
    }

    async fn look_up_in_map(&self, lookup: &mut Lookup<'_>) -> store::Result<()> {
        let KeyGroup { tenant, kind } = &*lookup.load.group;
        let mut found = Vec::new();
        let publics: Vec<PublicId> = lookup.open().map(|id| id.public).collect();
        for batch in publics.chunks(self.settings.batch_max_in.max(1)) {
            found.extend(self.map.find(tenant, *kind, batch).await?);
        }
        let rows = found.iter().map(|row| (row.public.as_str(), row));
        let rows: HashMap<&str, &MapRow, RandomState> = rows.collect();
        let mut revoked = Vec::new();
        lookup.answer(|_, id| match rows.get(id.public.as_str()) {
            Some(row) if row.live && id.candidates.contains(row.internal) => {
                Some(Ok((Some(row.internal), ResolveReason::HitDb)))
            }
            Some(row) => {
                if row.live {
                    // The text encodes the internal id, so the row is wrong.
                    metrics::counter!("semel_idresolve_mismatch_total").increment(1);
                    tracing::error!(
                        kind = kind.name(),
                        "a row of the id map holds another internal id than its public id encodes; \
                         run `map verify`"
                    );
                }
                revoked.push(id.public);
                None
            }
            None => None,
        });
        self.look_up_in_business_tables(lookup, &revoked).await
    }

    /// Looks up ids that have no row in the map. Revoked ids have a row, so they are not looked up.
    async fn look_up_in_business_tables(
        &self,
        lookup: &mut Lookup<'_>,
        revoked: &[PublicId],
    ) -> store::Result<()> {
        if !self.settings.fallback_to_biz_table {
            return Ok(());
        }
        let KeyGroup { tenant, kind } = &*lookup.load.group;
        for fallback in self.fallbacks.iter().filter(|fallback| fallback.supports(*kind)) {
            let open = lookup.open().map(|id| id.public);
            let publics: Vec<_> = open.filter(|public| !revoked.contains(public)).collect();
            for batch in publics.chunks(self.settings.batch_max_in.max(1)) {
                let found = fallback.find(tenant, *kind, batch).await?;
                let found: HashMap<PublicId, Ulid> = found.into_iter().collect();
                lookup.answer(|_, id| {
                    let internal = *found.get(&id.public)?;
                    let fits = id.candidates.contains(internal);
                    fits.then_some(Ok((Some(internal), ResolveReason::HitFallback)))
                });
            }
        }
        Ok(())
    }

    /// Writes results to L2 in the background. The age of the load is subtracted from the TTL of
    /// the entries.
    async fn fill_l2(&self, load: &Load, cached: &[usize]) {
        let Some(l2) = &self.l2 else { return };
        let (cache, age) = (&self.settings.cache, load.began.elapsed());
        let mut fills = Vec::with_capacity(cached.len());
        for index in cached {
            let Ok((internal, _)) = load.result(*index).await else { continue };
            let ttl = if internal.is_some() { cache.l2_ttl } else { cache.negative_ttl };
            let ttl = ttl.saturating_sub(age);
            if !ttl.is_zero() {
                fills.push(CacheFill { key: load.l2_key(*index).to_owned(), internal, ttl });
            }
        }
        l2.fill(fills);
    }
}

/// Ends a load when the guard is dropped, with or without results, so that no caller waits for
/// ever.
#[derive(Debug)]
pub(super) struct LoadGuard {
    pub(super) load: Arc<Load>,
    l1: Arc<L1>,
    /// The indexes of the ids that this load is responsible for.
    pub(super) own: Vec<usize>,
}

impl LoadGuard {
    pub(super) const fn new(load: Arc<Load>, l1: Arc<L1>, own: Vec<usize>) -> Self {
        Self { load, l1, own }
    }

    /// Caches the results in L1 and gives them to the callers. Returns the indexes of the results
    /// that were cached, with which L2 may be filled.
    pub(super) fn finish(mut self, results: Vec<Option<LoadResult>>) -> Vec<usize> {
        let mut cached = std::mem::take(&mut self.own);
        cached.retain(|index| self.l1.finish_load(&self.load, *index, results[*index].as_ref()));
        self.load.end(results);
        cached
    }
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        for index in &self.own {
            self.l1.finish_load(&self.load, *index, None);
        }
        self.load.end(Vec::new());
    }
}

/// The results of a load so far.
struct Lookup<'l> {
    load: &'l Load,
    results: Vec<Option<LoadResult>>,
    /// The indexes of the ids without a result, in order.
    open: Vec<usize>,
}

impl<'l> Lookup<'l> {
    fn new(load: &'l Load, own: &[usize]) -> Self {
        Self { load, results: load.ids.iter().map(|_| None).collect(), open: own.to_vec() }
    }

    fn open(&self) -> impl Iterator<Item = &'l MissingId> {
        self.open.iter().map(|index| &self.load.ids[*index])
    }

    /// Calls `result` for every open id, and stores the results that it returns.
    fn answer(&mut self, mut result: impl FnMut(usize, &MissingId) -> Option<LoadResult>) {
        let (load, results) = (self.load, &mut self.results);
        self.open.retain(|index| {
            results[*index] = result(*index, &load.ids[*index]);
            results[*index].is_none()
        });
    }

    fn fail(&mut self, error: store::Error) {
        let error = Arc::new(error);
        self.answer(|_, _| Some(Err(ResolveError::Store(Arc::clone(&error)))));
    }

    /// Returns the results; ids that are still open do not exist.
    fn finish(mut self) -> Vec<Option<LoadResult>> {
        self.answer(|_, _| Some(Ok((None, ResolveReason::NotFound))));
        self.results
    }
}

/// The methods of [`IdMap`] that need no connection of the caller, in a trait that can be an
/// object.
pub(super) trait DynMap: Send + Sync {
    fn find<'a>(
        &'a self,
        tenant: &'a str,
        kind: ResourceType,
        publics: &'a [PublicId],
    ) -> BoxFuture<'a, store::Result<Vec<MapRow>>>;

    fn revoke<'a>(&'a self, key: &'a CacheKey) -> BoxFuture<'a, store::Result<bool>>;
}

impl<M: IdMap> DynMap for M {
    fn find<'a>(
        &'a self,
        tenant: &'a str,
        kind: ResourceType,
        publics: &'a [PublicId],
    ) -> BoxFuture<'a, store::Result<Vec<MapRow>>> {
        Box::pin(IdMap::find(self, tenant, kind, publics))
    }

    fn revoke<'a>(&'a self, key: &'a CacheKey) -> BoxFuture<'a, store::Result<bool>> {
        let KeyGroup { tenant, kind } = &*key.group;
        Box::pin(IdMap::revoke(self, tenant, *kind, &key.public))
    }
}

impl Loader {
    /// Returns whether the map has a revoked row for the id.
    pub(super) async fn is_revoked(&self, key: &CacheKey) -> store::Result<bool> {
        let KeyGroup { tenant, kind } = &*key.group;
        let rows = self.map.find(tenant, *kind, std::slice::from_ref(&key.public)).await?;
        Ok(rows.first().is_some_and(|row| !row.live))
    }
}
