//! Resolves public ids to internal ids through two caches.
//!
//! A text that is not a public id of its type is refused without any lookup. Other ids are looked
//! up in this order, until an answer is found:
//!
//! 1. `l1`: the cache of this process.
//! 2. `load`: single flight. One caller looks an id up, and the others wait for the result.
//! 3. `l2`: the cache that nodes share, if there is one.
//! 4. `loader`: the map, and business tables where they are enabled.
//!
//! Changes are reported by a [`Registration`] or a [`Revocation`]; `invalidate` publishes them to
//! the other nodes and applies the changes of other nodes.

mod counters;
mod invalidate;
mod key;
mod l1;
mod l2;
mod load;
mod loader;
mod registration;
mod resolved;
mod revocation;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use semel_core::key::check_tenant;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

pub use registration::Registration;
pub use resolved::{ResolveError, ResolveReason, ResolvedId};
pub use revocation::{Revocation, RevokeError, Revoked};

use crate::codec::{Codec, PublicId};
use crate::fallback::Fallback;
use crate::map::{self, Binding, IdMap, RegisterError};
use crate::resource::{Resource, ResourceType};
use crate::settings::ResolverSettings;
use crate::shared::SharedCache;
use counters::Counters;
use invalidate::Invalidator;
use l1::L1;
use l2::L2;
use load::{Joined, Load, LoadResult, MissingId};
use loader::{DynMap, LoadGuard, Loader};

/// The largest number of ids in one batch.
pub const MAX_BATCH: usize = 1_000;

/// The longest age of L1 answers while this node receives no invalidations from other nodes.
const MAX_AGE_UNSUBSCRIBED: Duration = Duration::from_secs(5);

/// Resolves public ids. Clones share the caches.
///
/// ```
/// use semel_ids::map::memory::MemoryMap;
/// use semel_ids::resource::Order;
/// use semel_ids::{Binding, Generator, ResolveReason, Resolver, TypedId};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let map = MemoryMap::new();
/// let resolver = Resolver::builder(map.clone()).build();
///
/// let id = TypedId::<Order>::new(Generator::new().generate()?);
/// let binding = Binding::of("acme", id)?;
/// let mut transaction = map.clone();
/// let registration = resolver.register(&map, &mut transaction, &binding).await?;
/// // … the caller's own writes, and the commit …
/// registration.committed();
///
/// let text = id.to_string();
/// let answer = resolver.resolve::<Order>("acme", &text).await?;
/// assert_eq!((answer.internal_id, answer.reason), (Some(id.ulid()), ResolveReason::HitL1));
/// assert!(!resolver.resolve::<Order>("another", &text).await?.exists());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Resolver(Arc<Inner>);

struct Inner {
    loader: Arc<Loader>,
    /// Sends changes of ids to the other nodes; `None` without a shared cache.
    invalidator: Option<Arc<Invalidator>>,
    runtime: Handle,
    counters: OnceLock<Counters>,
    _listener: Option<AbortOnDropHandle<()>>,
}

/// Configures a [`Resolver`].
#[must_use]
pub struct Builder {
    map: Box<dyn DynMap>,
    shared: Option<Arc<dyn SharedCache>>,
    fallbacks: Vec<Box<dyn Fallback>>,
    settings: ResolverSettings,
}

impl Builder {
    /// Sets the cache that nodes share (L2). Default none: other nodes see a revocation after
    /// [`l1_ttl`](crate::CacheSettings::l1_ttl).
    pub fn shared(mut self, shared: impl SharedCache) -> Self {
        self.shared = Some(Arc::new(shared));
        self
    }

    /// Adds a business table in which ids are looked up that are not in the map; see
    /// [`fallback_to_biz_table`](ResolverSettings::fallback_to_biz_table).
    pub fn fallback(mut self, fallback: impl Fallback) -> Self {
        self.fallbacks.push(Box::new(fallback));
        self
    }

    /// Sets the settings. Default [`ResolverSettings::default`].
    pub fn settings(mut self, settings: ResolverSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Builds the resolver. With a shared cache, subscribes to the invalidations of other nodes.
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub fn build(self) -> Resolver {
        let Self { map, shared, fallbacks, mut settings } = self;
        settings.cache = settings.cache.clamped();
        let runtime = Handle::current();
        let l1 = Arc::new(L1::new(&settings.cache));
        let shared = shared.filter(|_| settings.enabled && settings.cache.l2_enabled);
        let l2 = shared.map(|shared| Arc::new(L2::new(shared, runtime.clone())));
        let listener = l2.clone().map(|l2| {
            let l1 = Arc::clone(&l1);
            let listening = async move { invalidate::listen(&l2, &l1).await };
            AbortOnDropHandle::new(runtime.spawn(listening))
        });
        let loader = Arc::new(Loader { map, l1, l2: l2.clone(), fallbacks, settings });
        let invalidator =
            l2.map(|l2| Arc::new(Invalidator::new(Arc::clone(&loader), l2, runtime.clone())));
        let counters = OnceLock::new();
        Resolver(Arc::new(Inner { loader, invalidator, runtime, counters, _listener: listener }))
    }
}

impl Resolver {
    /// Returns a builder for a resolver that reads `map`.
    pub fn builder(map: impl IdMap) -> Builder {
        let (shared, fallbacks) = (None, Vec::new());
        Builder { map: Box::new(map), shared, fallbacks, settings: ResolverSettings::default() }
    }

    /// Resolves one public id of type `R`.
    ///
    /// # Errors
    /// [`ResolveError`]. A text that is not a valid id is no error: the answer has the reason.
    pub fn resolve<'t, R: Resource>(
        &self,
        tenant: &str,
        text: &'t str,
    ) -> impl Future<Output = Result<ResolvedId<'t>, ResolveError>> + Send {
        // Returns the inner future directly, because a future around it would copy the result once
        // more.
        self.resolve_one(const { &R::TYPE }, R::codec(), tenant, text)
    }

    /// Resolves one public id like [`resolve`](Self::resolve), for a type that is known only at run
    /// time.
    ///
    /// # Errors
    /// [`ResolveError`].
    pub async fn resolve_as<'t>(
        &self,
        kind: ResourceType,
        codec: &Codec,
        tenant: &str,
        text: &'t str,
    ) -> Result<ResolvedId<'t>, ResolveError> {
        self.resolve_one(&kind, codec, tenant, text).await
    }

    async fn resolve_one<'t>(
        &self,
        kind: &ResourceType,
        codec: &Codec,
        tenant: &str,
        text: &'t str,
    ) -> Result<ResolvedId<'t>, ResolveError> {
        let now = Instant::now();
        let resolved = match self.0.resolve_in_l1(kind, codec, tenant, text, now) {
            Ok(resolved) => resolved,
            Err(missing) => {
                check_tenant(tenant)?;
                let load = Load::new(tenant, *kind, now, vec![missing]);
                let mut resolved = [ResolvedId::without(text, ResolveReason::NotFound)];
                Box::pin(self.0.load(load, &[0], &mut resolved)).await?;
                resolved[0]
            }
        };
        self.0.count(resolved.reason, 1);
        Ok(resolved)
    }

    /// Resolves a batch of public ids and returns one answer per text, in order. It needs one call
    /// of the shared cache, and one query of the map for every
    /// [`batch_max_in`](ResolverSettings::batch_max_in) ids.
    ///
    /// # Errors
    /// [`ResolveError`]; more than [`MAX_BATCH`] texts are refused.
    pub async fn resolve_batch<'t, R: Resource>(
        &self,
        tenant: &str,
        texts: &[&'t str],
    ) -> Result<Vec<ResolvedId<'t>>, ResolveError> {
        self.resolve_batch_as(R::TYPE, R::codec(), tenant, texts).await
    }

    /// Resolves a batch like [`resolve_batch`](Self::resolve_batch), for a type that is known only
    /// at run time.
    ///
    /// # Errors
    /// [`ResolveError`].
    pub async fn resolve_batch_as<'t>(
        &self,
        kind: ResourceType,
        codec: &Codec,
        tenant: &str,
        texts: &[&'t str],
    ) -> Result<Vec<ResolvedId<'t>>, ResolveError> {
        if texts.len() > MAX_BATCH {
            return Err(ResolveError::TooMany { asked: texts.len(), max: MAX_BATCH });
        }
        let now = Instant::now();
        let mut resolved = Vec::with_capacity(texts.len());
        let (mut positions, mut missing) = (Vec::new(), Vec::new());
        for (position, text) in texts.iter().enumerate() {
            let cached = self.0.resolve_in_l1(&kind, codec, tenant, text, now);
            resolved.push(cached.unwrap_or_else(|id| {
                positions.push(position);
                missing.push(id);
                ResolvedId::without(text, ResolveReason::NotFound)
            }));
        }
        if !missing.is_empty() {
            check_tenant(tenant)?;
            let load = Load::new(tenant, kind, now, missing);
            Box::pin(self.0.load(load, &positions, &mut resolved)).await?;
        }
        for same in resolved.chunk_by(|one, next| one.reason == next.reason) {
            self.0.count(same[0].reason, same.len() as u64);
        }
        Ok(resolved)
    }

    /// Writes a binding in the caller's transaction. From now on this node caches no answer that
    /// the id does not exist. Call [`Registration::committed`] after the commit.
    ///
    /// # Errors
    /// [`RegisterError`]; the caller should roll back.
    pub async fn register<M: IdMap>(
        &self,
        map: &M,
        connection: &mut M::Connection,
        binding: &Binding,
    ) -> Result<Registration, RegisterError> {
        let begun = Registration::begin(self, binding);
        match map::register(map, connection, binding).await {
            Ok(registered) => Ok(begun.written(registered)),
            Err(error) => {
                // A binding that the map refused does not exist; after a store error it may exist.
                if !matches!(error, RegisterError::Store(_)) {
                    begun.rolled_back();
                }
                Err(error)
            }
        }
    }

    /// Invalidates an id whose row was changed without this resolver, for example by a repair of
    /// the map, on this node and on the others. `live` is whether the id is live now.
    pub fn changed(&self, kind: ResourceType, tenant: &str, public: &str, live: bool) {
        let (Some(public), Ok(())) = (PublicId::stored(public), check_tenant(tenant)) else {
            return;
        };
        let l1 = self.0.l1();
        let key = l1.keys.owned(tenant, kind, public);
        match live {
            true => l1.repaired(&key),
            false => l1.revoked(&key),
        }
        if let Some(invalidator) = &self.0.invalidator {
            invalidator.changed(&key);
        }
    }
}

impl Inner {
    fn l1(&self) -> &L1 {
        &self.loader.l1
    }

    /// Validates a text and looks the id up in L1.
    ///
    /// # Errors
    /// The id that must be loaded, if L1 has no answer for it.
    #[inline]
    fn resolve_in_l1<'t>(
        &self,
        kind: &ResourceType,
        codec: &Codec,
        tenant: &str,
        text: &'t str,
        now: Instant,
    ) -> Result<ResolvedId<'t>, MissingId> {
        if !self.loader.settings.enabled {
            return Ok(ResolvedId::without(text, ResolveReason::Disabled));
        }
        let validated = match codec.validate(kind.prefix(), text) {
            Ok(validated) => validated,
            Err(invalid) => return Ok(ResolvedId::without(text, ResolveReason::of(&invalid))),
        };
        let key = self.l1().keys.borrowed(tenant, kind, text.as_bytes());
        match self.l1().get(&key, now, self.max_age()) {
            Some(cached) => Ok(ResolvedId::cached(text, cached)),
            None => {
                let (public, candidates) = (PublicId::checked(text), codec.candidates(validated));
                Err(MissingId { public, candidates, hash: key.hash })
            }
        }
    }

    /// Returns the longest age of an L1 answer; `None` while this node receives invalidations from
    /// other nodes.
    #[inline]
    fn max_age(&self) -> Option<Duration> {
        let unsubscribed = self.loader.l2.as_ref().is_some_and(|l2| !l2.is_subscribed());
        unsubscribed.then_some(MAX_AGE_UNSUBSCRIBED)
    }

    /// Loads the ids that are not in L1, and writes their answers to their positions in `resolved`.
    async fn load(
        &self,
        load: Load,
        positions: &[usize],
        resolved: &mut [ResolvedId<'_>],
    ) -> Result<(), ResolveError> {
        let load = Arc::new(load);
        let (own, joined) = self.start(&load);
        let mut answer = |index: usize, result: LoadResult| {
            let position = &mut resolved[positions[index]];
            result.map(|(id, reason)| (position.internal_id, position.reason) = (id, reason))
        };
        for index in own {
            answer(index, load.result(index).await)?;
        }
        for (index, joined) in joined {
            let result = match joined {
                Joined::InFlight(other, at) => other.result(at).await,
                Joined::Cached(Some(id)) => Ok((Some(id), ResolveReason::HitL1)),
                Joined::Cached(None) => Ok((None, ResolveReason::NotFound)),
            };
            answer(index, result)?;
        }
        Ok(())
    }

    /// Starts a load of the ids for which no other load is in flight. Returns the indexes of these
    /// ids, and for each other id the way in which it gets its answer.
    fn start(&self, load: &Arc<Load>) -> (Vec<usize>, Vec<(usize, Joined)>) {
        let (mut own, mut joined) = (Vec::with_capacity(load.ids.len()), Vec::new());
        let max_age = self.max_age();
        for index in 0..load.ids.len() {
            match self.l1().start_load(load, index, max_age) {
                Ok(()) => own.push(index),
                Err(other) => joined.push((index, other)),
            }
        }
        if !own.is_empty() {
            let l1 = Arc::clone(&self.loader.l1);
            let guard = LoadGuard::new(Arc::clone(load), l1, own.clone());
            self.runtime.spawn(Arc::clone(&self.loader).run(guard));
        }
        (own, joined)
    }

    fn count(&self, reason: ResolveReason, answers: u64) {
        self.counters.get_or_init(Counters::new).of(reason).increment(answers);
    }
}

/// Returns `ttl` reduced at random by up to a tenth, so that entries that were cached together do
/// not expire together.
fn jittered(ttl: Duration) -> Duration {
    ttl.mul_f64(1.0 - fastrand::f64() / 10.0)
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver")
            .field("settings", &self.0.loader.settings)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("settings", &self.settings).finish_non_exhaustive()
    }
}
