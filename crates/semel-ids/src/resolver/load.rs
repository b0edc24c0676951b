//! The way of an id that this process does not know: shared cache, map, business tables.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use semel::store::{self, BoxFuture};
use ulid::Ulid;

use super::answer::{Reason, ResolveError};
use super::middle::Middle;
use super::near::{Name, Near, Turn};
use crate::codec::{Candidates, Codec, PublicId};
use crate::fallback::Fallback;
use crate::map::{IdMap, Row};
use crate::resource::ResourceType;
use crate::settings::Settings;
use crate::shared::{Note, Slot, Wrong};

/// An id to be looked up.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) name: Name,
    pub(super) candidates: Candidates,
}

impl Wanted {
    /// `None` if `text` is no id of this type.
    pub(super) fn new(
        tenant: &Arc<str>,
        kind: ResourceType,
        codec: &Codec,
        text: &str,
    ) -> Option<Self> {
        let candidates = codec.read(kind.prefix(), text).ok()?;
        let name = Name { tenant: Arc::clone(tenant), kind, public: PublicId::stored(text)? };
        Some(Self { name, candidates })
    }
}

/// What was found of an id.
pub(super) type Found = Result<(Option<Ulid>, Reason), ResolveError>;

/// What a load brings: an answer for each id that was wanted, in order.
pub(super) type Landed = Vec<Found>;

pub(super) struct Loader {
    pub(super) map: Box<dyn Rows>,
    pub(super) middle: Option<Arc<Middle>>,
    pub(super) fallbacks: Vec<Box<dyn Fallback>>,
    pub(super) near: Arc<Near>,
    pub(super) settings: Settings,
}

impl Loader {
    /// Looks up ids of one tenant and type, each of them once.
    pub(super) async fn load(self: Arc<Self>, wanted: Vec<Wanted>) -> Landed {
        let turns: Vec<Turn> = wanted.iter().map(|one| self.near.turn(&one.name.asked())).collect();
        let mut search = Search::new(&wanted);
        self.ask_middle(&mut search).await;
        if let Err(error) = self.ask_map(&mut search).await {
            search.fail(error);
        }
        let landed = search.end();
        self.remember(&wanted, &turns, &landed);
        landed
    }

    async fn ask_middle(&self, search: &mut Search<'_>) {
        let Some(middle) = &self.middle else { return };
        let keys: Vec<String> = search.open().map(|one| one.name.to_text()).collect();
        let Some(slots) = middle.get(&keys).await else { return };
        let mut wrong = Vec::new();
        let mut slots = keys.into_iter().zip(slots);
        search.rest(|one| match slots.next()? {
            (_, Slot::Known(id)) if one.candidates.contains(id) => {
                Some(Ok((Some(id), Reason::HitL2)))
            }
            // Learned before a registration that this node knows of: the map is asked.
            (_, Slot::Absent) if self.near.doubts(&one.name) => None,
            (_, Slot::Absent) => Some(Ok((None, Reason::NotFound))),
            (_, Slot::Empty) => None,
            (key, Slot::Known(other)) => {
                wrong.push(Wrong { key, says: Some(other) });
                None
            }
            (key, Slot::Damaged) => {
                wrong.push(Wrong { key, says: None });
                None
            }
        });
        middle.clear(wrong);
    }

    async fn ask_map(&self, search: &mut Search<'_>) -> store::Result<()> {
        let Some(first) = search.open().next() else { return Ok(()) };
        let (tenant, kind) = (Arc::clone(&first.name.tenant), first.name.kind);
        let mut found = Vec::new();
        let publics: Vec<PublicId> = search.open().map(|one| one.name.public).collect();
        for part in publics.chunks(self.settings.batch_max_in.max(1)) {
            found.extend(self.map.find(&tenant, kind, part).await?);
        }
        let rows = found.iter().map(|row| (row.public.as_str(), row));
        let rows: HashMap<&str, &Row, RandomState> = rows.collect();
        let mut revoked = Vec::new();
        search.rest(|one| match rows.get(one.name.public.as_str()) {
            Some(row) if row.live && one.candidates.contains(row.internal) => {
                Some(Ok((Some(row.internal), Reason::HitDb)))
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
                revoked.push(one.name.public);
                None
            }
            None => None,
        });
        self.ask_business(search, &tenant, kind, &revoked).await
    }

    /// What the map has as revoked is not looked for elsewhere.
    async fn ask_business(
        &self,
        search: &mut Search<'_>,
        tenant: &str,
        kind: ResourceType,
        revoked: &[PublicId],
    ) -> store::Result<()> {
        if !self.settings.fallback_to_biz_table {
            return Ok(());
        }
        for fallback in self.fallbacks.iter().filter(|one| one.supports(kind)) {
            let open = search.open().map(|one| one.name.public);
            let publics: Vec<_> = open.filter(|public| !revoked.contains(public)).collect();
            for part in publics.chunks(self.settings.batch_max_in.max(1)) {
                let found = fallback.find(tenant, kind, part).await?;
                let found: HashMap<PublicId, Ulid> = found.into_iter().collect();
                search.rest(|one| {
                    let id = *found.get(&one.name.public)?;
                    let fits = one.candidates.contains(id);
                    fits.then_some(Ok((Some(id), Reason::HitFallback)))
                });
            }
        }
        Ok(())
    }

    /// Keeps what was found here, and fills the gaps of the shared cache with it.
    fn remember(&self, wanted: &[Wanted], turns: &[Turn], landed: &Landed) {
        let mut notes = Vec::new();
        for ((one, turn), landed) in wanted.iter().zip(turns).zip(landed) {
            let Ok((found, reason)) = landed else { continue };
            if !self.near.keep(&one.name, *found, *turn) || *reason == Reason::HitL2 {
                continue;
            }
            let cache = &self.settings.cache;
            let ttl = if found.is_some() { cache.l2_ttl } else { cache.negative_ttl };
            notes.push(Note { key: one.name.to_text(), internal: *found, ttl });
        }
        if let Some(middle) = &self.middle {
            middle.fill(notes);
        }
    }
}

/// What is found, and what is not yet.
struct Search<'w> {
    wanted: &'w [Wanted],
    landed: Vec<Option<Found>>,
    /// The places of those without an answer.
    open: Vec<usize>,
}

impl<'w> Search<'w> {
    fn new(wanted: &'w [Wanted]) -> Self {
        let landed = wanted.iter().map(|_| None).collect();
        Self { wanted, landed, open: (0..wanted.len()).collect() }
    }

    /// What has no answer yet.
    fn open(&self) -> impl Iterator<Item = &'w Wanted> {
        self.open.iter().map(|at| &self.wanted[*at])
    }

    /// Asks about everything that is open; what gets an answer is closed.
    fn rest(&mut self, mut answer: impl FnMut(&Wanted) -> Option<Found>) {
        let (wanted, landed) = (self.wanted, &mut self.landed);
        self.open.retain(|at| {
            landed[*at] = answer(&wanted[*at]);
            landed[*at].is_none()
        });
    }

    fn fail(&mut self, error: store::Error) {
        let error = Arc::new(error);
        self.rest(|_| Some(Err(ResolveError::Store(Arc::clone(&error)))));
    }

    /// What nobody knows is not there.
    fn end(self) -> Landed {
        let absent = || Ok((None, Reason::NotFound));
        self.landed.into_iter().map(|found| found.unwrap_or_else(absent)).collect()
    }
}

/// A map whose connection does not matter: lookups bring their own.
pub(super) trait Rows: Send + Sync {
    fn find<'a>(
        &'a self,
        tenant: &'a str,
        kind: ResourceType,
        publics: &'a [PublicId],
    ) -> BoxFuture<'a, store::Result<Vec<Row>>>;

    fn revoke<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, store::Result<bool>>;
}

impl<M: IdMap> Rows for Arc<M> {
    fn find<'a>(
        &'a self,
        tenant: &'a str,
        kind: ResourceType,
        publics: &'a [PublicId],
    ) -> BoxFuture<'a, store::Result<Vec<Row>>> {
        Box::pin(IdMap::find(&**self, tenant, kind, publics))
    }

    fn revoke<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, store::Result<bool>> {
        Box::pin(IdMap::revoke(&**self, &name.tenant, name.kind, &name.public))
    }
}
