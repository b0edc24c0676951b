//! The way of an id that this process does not know: shared cache, map, business tables.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use semel_core::store::{self, BoxFuture};
use ulid::Ulid;

use super::answer::{ResolveError, ResolveReason};
use super::flight::{Crew, Flight, Found, Own, Wanted};
use super::middle::Middle;
use super::name::{Name, Realm};
use super::near::Near;
use crate::codec::PublicId;
use crate::fallback::Fallback;
use crate::map::{IdMap, MapRow};
use crate::resource::ResourceType;
use crate::settings::ResolverSettings;
use crate::shared::{CacheFill, CacheSlot, CorruptEntry};

pub(super) struct Loader {
    pub(super) map: Box<dyn Rows>,
    pub(super) middle: Option<Arc<Middle>>,
    pub(super) fallbacks: Vec<Box<dyn Fallback>>,
    pub(super) near: Arc<Near>,
    pub(super) settings: ResolverSettings,
}

impl Loader {
    /// Looks up a flight's own ids, each of them once.
    pub(super) async fn load(self: Arc<Self>, crew: Crew) {
        let flight = Arc::clone(&crew.flight);
        let mut search = Search::new(&flight, &crew.own);
        self.ask_middle(&mut search).await;
        // What the shared cache said is not told to it again, as if it were new.
        let news = search.open.clone();
        if let Err(error) = self.ask_map(&mut search).await {
            search.fail(error);
        }
        let found = search.end();
        let mut told = crew.land(found);
        told.retain(|at| news.binary_search(at).is_ok());
        self.tell(&flight, &told);
    }

    async fn ask_middle(&self, search: &mut Search<'_>) {
        let Some(middle) = &self.middle else { return };
        let flight = search.flight;
        let keys: Vec<&str> = search.open.iter().map(|at| flight.key(*at)).collect();
        let Some(slots) = middle.get(&keys).await else { return };
        let mut wrong = Vec::new();
        let mut slots = keys.iter().zip(slots);
        search.rest(|at, one| match slots.next()? {
            (_, CacheSlot::Empty) => None,
            // Changed here since, which the cache has not been told yet: the map is asked.
            (_, CacheSlot::Known(_) | CacheSlot::Absent)
                if self.near.distrusts(&flight.asked(at)) =>
            {
                None
            }
            (_, CacheSlot::Known(id)) if one.candidates.contains(id) => {
                Some(Ok((Some(id), ResolveReason::HitL2)))
            }
            // Learned before a registration that this node knows of: the map is asked.
            (_, CacheSlot::Absent) if self.near.doubts(&flight.asked(at)) => None,
            (_, CacheSlot::Absent) => Some(Ok((None, ResolveReason::NotFound))),
            (key, CacheSlot::Known(other)) => {
                wrong.push(CorruptEntry { key: (*key).to_owned(), says: Some(other) });
                None
            }
            (key, CacheSlot::Damaged) => {
                wrong.push(CorruptEntry { key: (*key).to_owned(), says: None });
                None
            }
        });
        middle.clear(wrong);
    }

    async fn ask_map(&self, search: &mut Search<'_>) -> store::Result<()> {
        let Realm { tenant, kind } = &*search.flight.realm;
        let mut found = Vec::new();
        let publics: Vec<PublicId> = search.open().map(|one| one.public).collect();
        for part in publics.chunks(self.settings.batch_max_in.max(1)) {
            found.extend(self.map.find(tenant, *kind, part).await?);
        }
        let rows = found.iter().map(|row| (row.public.as_str(), row));
        let rows: HashMap<&str, &MapRow, RandomState> = rows.collect();
        let mut revoked = Vec::new();
        search.rest(|_, one| match rows.get(one.public.as_str()) {
            Some(row) if row.live && one.candidates.contains(row.internal) => {
                Some(Ok((Some(row.internal), ResolveReason::HitDb)))
            }
            Some(row) => {
                if row.live {
                    // The text says which id it is; a row that says another is wrong.
                    metrics::counter!("semel_idresolve_mismatch_total").increment(1);
                    tracing::error!(
                        kind = kind.name(),
                        "a row of the id map holds another id than its public id; verify the map"
                    );
                }
                revoked.push(one.public);
                None
            }
            None => None,
        });
        self.ask_business(search, &revoked).await
    }

    /// What the map has as revoked is not looked for elsewhere.
    async fn ask_business(
        &self,
        search: &mut Search<'_>,
        revoked: &[PublicId],
    ) -> store::Result<()> {
        if !self.settings.fallback_to_biz_table {
            return Ok(());
        }
        let Realm { tenant, kind } = &*search.flight.realm;
        for fallback in self.fallbacks.iter().filter(|one| one.supports(*kind)) {
            let open = search.open().map(|one| one.public);
            let publics: Vec<_> = open.filter(|public| !revoked.contains(public)).collect();
            for part in publics.chunks(self.settings.batch_max_in.max(1)) {
                let found = fallback.find(tenant, *kind, part).await?;
                let found: HashMap<PublicId, Ulid> = found.into_iter().collect();
                search.rest(|_, one| {
                    let id = *found.get(&one.public)?;
                    let fits = one.candidates.contains(id);
                    fits.then_some(Ok((Some(id), ResolveReason::HitFallback)))
                });
            }
        }
        Ok(())
    }

    /// Fills gaps of the shared cache.
    fn tell(&self, flight: &Flight, told: &[usize]) {
        let Some(middle) = &self.middle else { return };
        let (cache, age) = (&self.settings.cache, flight.began.elapsed());
        let note = |at: &usize| {
            let (internal, _) = flight.found(*at).ok()?;
            let ttl = if internal.is_some() { cache.l2_ttl } else { cache.negative_ttl };
            let ttl = ttl.checked_sub(age).filter(|left| !left.is_zero())?;
            Some(CacheFill { key: flight.key(*at).to_owned(), internal, ttl })
        };
        middle.fill(told.iter().filter_map(note).collect());
    }
}

/// What is found, and what is not yet.
struct Search<'w> {
    flight: &'w Flight,
    found: Vec<Option<Found>>,
    /// The places of those without an answer, in order.
    open: Vec<usize>,
}

impl<'w> Search<'w> {
    fn new(flight: &'w Flight, own: &[Own]) -> Self {
        let found = flight.wanted.iter().map(|_| None).collect();
        Self { flight, found, open: own.iter().map(|own| own.at).collect() }
    }

    /// What has no answer yet.
    fn open(&self) -> impl Iterator<Item = &'w Wanted> {
        self.open.iter().map(|at| &self.flight.wanted[*at])
    }

    /// Asks about everything that is open; what gets an answer is closed.
    fn rest(&mut self, mut answer: impl FnMut(usize, &Wanted) -> Option<Found>) {
        let (flight, found) = (self.flight, &mut self.found);
        self.open.retain(|at| {
            found[*at] = answer(*at, &flight.wanted[*at]);
            found[*at].is_none()
        });
    }

    fn fail(&mut self, error: store::Error) {
        let error = Arc::new(error);
        self.rest(|_, _| Some(Err(ResolveError::Store(Arc::clone(&error)))));
    }

    /// What nobody knows is not there.
    fn end(mut self) -> Vec<Option<Found>> {
        self.rest(|_, _| Some(Ok((None, ResolveReason::NotFound))));
        self.found
    }
}

/// A map whose connection does not matter: lookups bring their own.
pub(super) trait Rows: Send + Sync {
    fn find<'a>(
        &'a self,
        tenant: &'a str,
        kind: ResourceType,
        publics: &'a [PublicId],
    ) -> BoxFuture<'a, store::Result<Vec<MapRow>>>;

    fn revoke<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, store::Result<bool>>;

    /// The row of a name.
    fn row<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, store::Result<Option<MapRow>>>;
}

impl<M: IdMap> Rows for Arc<M> {
    fn find<'a>(
        &'a self,
        tenant: &'a str,
        kind: ResourceType,
        publics: &'a [PublicId],
    ) -> BoxFuture<'a, store::Result<Vec<MapRow>>> {
        Box::pin(IdMap::find(&**self, tenant, kind, publics))
    }

    fn revoke<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, store::Result<bool>> {
        let Realm { tenant, kind } = &*name.realm;
        Box::pin(IdMap::revoke(&**self, tenant, *kind, &name.public))
    }

    fn row<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, store::Result<Option<MapRow>>> {
        let Realm { tenant, kind } = &*name.realm;
        Box::pin(async move {
            let rows = Rows::find(self, tenant, *kind, std::slice::from_ref(&name.public)).await?;
            Ok(rows.into_iter().next())
        })
    }
}
