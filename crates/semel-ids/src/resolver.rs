//! From public ids to what they stand for, quickly and without being fooled.
//!
//! Texts are judged first: what is no public id of its type touches neither cache nor database. Then
//! come this process's memory (L1), the shared cache (L2), the map, and business tables if they are
//! allowed to stand in for it. What is written to the map is not here; whoever writes it tells the
//! resolver, through a [`Registration`].

mod answer;
mod flight;
mod load;
mod middle;
mod name;
mod near;
mod part;
mod registration;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use semel::key::check_tenant;
use semel::store;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

pub use answer::{Reason, Resolution, ResolveError};
pub use registration::Registration;

use crate::codec::{Codec, PublicId};
use crate::fallback::Fallback;
use crate::map::{self, Binding, IdMap, RegisterError};
use crate::resource::{Resource, ResourceType};
use crate::settings::Settings;
use crate::shared::Shared;
use crate::typed::TypedId;
use flight::{Crew, Flight, Missed, Own};
use load::Loader;
use middle::{Middle, Word, take_note};
use name::Name;
use near::{Near, Seat};

/// Ids in one batch at most.
pub const MAX_BATCH: usize = 1_000;

/// How long answers are remembered while other nodes are not heard.
const UNHEARD: Duration = Duration::from_secs(5);

/// Resolves public ids. Clones share everything.
///
/// ```
/// use semel_ids::map::memory::MemoryMap;
/// use semel_ids::resource::Order;
/// use semel_ids::{Binding, Generator, Reason, Resolver, TypedId};
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
/// assert_eq!((answer.internal_id, answer.reason), (Some(id.ulid()), Reason::HitL1));
/// assert!(!resolver.resolve::<Order>("another", &text).await?.exists());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Resolver(Arc<Inner>);

struct Inner {
    loader: Arc<Loader>,
    near: Arc<Near>,
    middle: Option<Arc<Middle>>,
    runtime: Handle,
    counts: OnceLock<Counts>,
    _listening: Option<AbortOnDropHandle<()>>,
}

/// Sets a resolver up.
#[must_use]
pub struct Builder {
    map: Box<dyn load::Rows>,
    shared: Option<Arc<dyn Shared>>,
    fallbacks: Vec<Box<dyn Fallback>>,
    settings: Settings,
}

impl Builder {
    /// What nodes share besides the map. Default nothing: every node learns of revocations by the
    /// end of [`l1_ttl`](crate::CacheSettings::l1_ttl).
    pub fn shared(mut self, shared: impl Shared) -> Self {
        self.shared = Some(Arc::new(shared));
        self
    }

    /// A business table that may stand in for the map; see
    /// [`fallback_to_biz_table`](Settings::fallback_to_biz_table).
    pub fn fallback(mut self, fallback: impl Fallback) -> Self {
        self.fallbacks.push(Box::new(fallback));
        self
    }

    /// Settings. Default [`Settings::default`].
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// The resolver. With a shared cache it begins to listen to other nodes.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn build(self) -> Resolver {
        let Self { map, shared, fallbacks, settings } = self;
        let runtime = Handle::current();
        let near = Arc::new(Near::new(&settings.cache));
        let shared = shared.filter(|_| settings.enabled && settings.cache.l2_enabled);
        let middle = shared.map(|shared| Arc::new(Middle::new(shared, runtime.clone())));
        let listening = middle.clone().map(|middle| {
            let near = Arc::clone(&near);
            let listening = async move { middle.listen(&near).await };
            AbortOnDropHandle::new(runtime.spawn(listening))
        });
        let loader =
            Loader { map, middle: middle.clone(), fallbacks, near: Arc::clone(&near), settings };
        Resolver(Arc::new(Inner {
            loader: Arc::new(loader),
            near,
            middle,
            runtime,
            counts: OnceLock::new(),
            _listening: listening,
        }))
    }
}

impl Resolver {
    /// A resolver over a map.
    pub fn builder(map: impl IdMap) -> Builder {
        let map = Box::new(Arc::new(map));
        Builder { map, shared: None, fallbacks: Vec::new(), settings: Settings::default() }
    }

    /// What a text stands for.
    ///
    /// # Errors
    /// [`ResolveError`]. Texts that are no ids are answers, not errors.
    pub fn resolve<'t, R: Resource>(
        &self,
        tenant: &str,
        text: &'t str,
    ) -> impl Future<Output = Result<Resolution<'t>, ResolveError>> + Send {
        // Not a future of its own: what passes through two is copied twice.
        self.resolve_of(const { &R::TYPE }, R::codec(), tenant, text)
    }

    /// [`resolve`](Self::resolve) for a type that only settings know.
    ///
    /// # Errors
    /// As there.
    pub async fn resolve_as<'t>(
        &self,
        kind: ResourceType,
        codec: &Codec,
        tenant: &str,
        text: &'t str,
    ) -> Result<Resolution<'t>, ResolveError> {
        self.resolve_of(&kind, codec, tenant, text).await
    }

    async fn resolve_of<'t>(
        &self,
        kind: &ResourceType,
        codec: &Codec,
        tenant: &str,
        text: &'t str,
    ) -> Result<Resolution<'t>, ResolveError> {
        let resolution = match self.0.near(kind, codec, tenant, text) {
            Ok(resolution) => resolution,
            Err(missed) => {
                check_tenant(tenant)?;
                let mut flight = Flight::new(tenant, *kind);
                flight.add(codec, text, missed);
                Box::pin(self.0.far(flight, text)).await?
            }
        };
        self.0.count(resolution.reason, 1);
        Ok(resolution)
    }

    /// What texts stand for: one answer each, in order. One trip to the shared cache, and a query of
    /// the map for every [`batch_max_in`](Settings::batch_max_in) ids.
    ///
    /// # Errors
    /// [`ResolveError`]; more than [`MAX_BATCH`] texts are refused.
    pub async fn resolve_batch<'t, R: Resource>(
        &self,
        tenant: &str,
        texts: &[&'t str],
    ) -> Result<Vec<Resolution<'t>>, ResolveError> {
        self.resolve_batch_as(R::TYPE, R::codec(), tenant, texts).await
    }

    /// [`resolve_batch`](Self::resolve_batch) for a type that only settings know.
    ///
    /// # Errors
    /// As there.
    pub async fn resolve_batch_as<'t>(
        &self,
        kind: ResourceType,
        codec: &Codec,
        tenant: &str,
        texts: &[&'t str],
    ) -> Result<Vec<Resolution<'t>>, ResolveError> {
        if texts.len() > MAX_BATCH {
            return Err(ResolveError::TooMany { asked: texts.len(), max: MAX_BATCH });
        }
        let mut answers = Vec::with_capacity(texts.len());
        let (mut places, mut missing) = (Vec::new(), Vec::new());
        for (at, text) in texts.iter().enumerate() {
            answers.push(self.0.near(&kind, codec, tenant, text).unwrap_or_else(|missed| {
                places.push(at);
                missing.push(missed);
                Resolution::without(text, Reason::NotFound)
            }));
        }
        if !places.is_empty() {
            // Before it is copied into a key for each of them.
            check_tenant(tenant)?;
            let mut flight = Flight::new(tenant, kind);
            for (at, missed) in places.iter().zip(missing) {
                flight.add(codec, texts[*at], missed);
            }
            Box::pin(self.0.far_batch(flight, &places, &mut answers)).await?;
        }
        for alike in answers.chunk_by(|one, next| one.reason == next.reason) {
            self.0.count(alike[0].reason, alike.len() as u64);
        }
        Ok(answers)
    }

    /// Writes a binding in the caller's transaction. From here on this node believes in no absence
    /// of the id. Call [`Registration::committed`] after the commit.
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
            Ok(registered) => Ok(begun.found(registered)),
            Err(error) => {
                // What the map refused is not there; what it did not answer may be.
                if !matches!(error, RegisterError::Store(_)) {
                    begun.rolled_back();
                }
                Err(error)
            }
        }
    }

    /// Makes an id count no more: at once on this node; elsewhere as soon as it is told, and within
    /// ten seconds on nodes that do not hear. If the shared cache cannot be reached
    /// ([`Revoked::told`]), it may keep its entry for
    /// [`l2_ttl`](crate::CacheSettings::l2_ttl), and whoever reads it there for
    /// [`l1_ttl`](crate::CacheSettings::l1_ttl) more.
    ///
    /// # Errors
    /// The map did not answer: it may or may not count any more.
    pub async fn revoke<R: Resource>(
        &self,
        tenant: &str,
        id: TypedId<R>,
    ) -> Result<Revoked, RevokeError> {
        let binding = Binding::of(tenant, id).map_err(RevokeError::Tenant)?;
        self.0.revoke(&self.0.near.names.of(&binding)).await.map_err(RevokeError::Store)
    }

    /// Takes note of what happened to an id behind its back, in a repair of the map, say, and tells
    /// the other nodes: whether it is there now.
    pub fn changed(&self, kind: ResourceType, tenant: &str, public: &str, there: bool) {
        let (Some(public), Ok(())) = (PublicId::stored(public), check_tenant(tenant)) else {
            return;
        };
        let name = self.0.near.names.name(tenant, kind, public);
        let word = match there {
            // The map has the last word: what was revoked may be live again.
            true => Word::Registered(name.to_text(), Duration::MAX),
            false => self.0.revoked(&name),
        };
        take_note(&name, there, &self.0.near);
        if let Some(middle) = &self.0.middle {
            middle.tell_later(word);
        }
    }
}

/// What revoking did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revoked {
    /// Whether it counted until now. An id that only a business table knows has no row that could be
    /// revoked: this is `false`, and a fallback goes on finding it.
    pub was_live: bool,
    /// Whether the other nodes were told. If not, and there is a row that counts no more, it is tried
    /// again for a while; they know at the latest when their caches forget.
    pub told: bool,
}

/// A revocation that failed.
#[derive(Debug, thiserror::Error)]
pub enum RevokeError {
    /// The tenant cannot be one.
    #[error(transparent)]
    Tenant(semel::InvalidKey),
    /// The map did not answer.
    #[error(transparent)]
    Store(store::Error),
}

impl Inner {
    /// Judges a text and looks it up here. Nobody else is asked.
    #[inline]
    fn near<'t>(
        &self,
        kind: &ResourceType,
        codec: &Codec,
        tenant: &str,
        text: &'t str,
    ) -> Result<Resolution<'t>, Missed> {
        if !self.loader.settings.enabled {
            return Ok(Resolution::without(text, Reason::Disabled));
        }
        if let Err(invalid) = codec.check(kind.prefix(), text) {
            return Ok(Resolution::without(text, Reason::of(&invalid)));
        }
        let asked = self.near.names.asked(tenant, kind, text.as_bytes());
        let id = self.near.get(&asked, self.limit())?;
        Ok(Resolution { public_id: text, internal_id: Some(id), reason: Reason::HitL1 })
    }

    /// How old an answer may be, if that matters now.
    #[inline]
    fn limit(&self) -> Option<Duration> {
        let deaf = self.middle.as_ref().is_some_and(|middle| !middle.hears());
        deaf.then_some(UNHEARD)
    }

    async fn far<'t>(&self, flight: Flight, text: &'t str) -> Result<Resolution<'t>, ResolveError> {
        let mut answers = [Resolution::without(text, Reason::NotFound)];
        self.far_batch(flight, &[0], &mut answers).await?;
        let [answer] = answers;
        Ok(answer)
    }

    /// Finds the answers that are missing: where they belong, in the order of the flight.
    async fn far_batch(
        &self,
        flight: Flight,
        places: &[usize],
        answers: &mut [Resolution<'_>],
    ) -> Result<(), ResolveError> {
        let mut answer = |at: usize, (internal_id, reason)| {
            let asked = &mut answers[places[at]];
            (asked.internal_id, asked.reason) = (internal_id, reason);
        };
        let flight = Arc::new(flight);
        let (own, others) = self.take_off(&flight);
        if !own.is_empty() {
            flight.ended().await;
        }
        for at in own {
            answer(at, flight.found(at)?);
        }
        for (at, seat) in others {
            let found = match seat {
                Seat::Aboard(flight, place) => {
                    flight.ended().await;
                    flight.found(place)?
                }
                Seat::Arrived(Some(id)) => (Some(id), Reason::HitL1),
                Seat::Arrived(None) => (None, Reason::NotFound),
            };
            answer(at, found);
        }
        Ok(())
    }

    /// Starts a flight for those of its ids that nobody else is looking up. Gives their places, and how
    /// the others get their answers.
    fn take_off(&self, flight: &Arc<Flight>) -> (Vec<usize>, Vec<(usize, Seat)>) {
        let (mut own, mut others) = (Vec::with_capacity(flight.wanted.len()), Vec::new());
        let limit = self.limit();
        let mut crew = Crew::new(Arc::clone(flight), Arc::clone(&self.near));
        for at in 0..flight.wanted.len() {
            match self.near.board(flight, at, limit) {
                Ok(turn) => {
                    crew.own.push(Own { at, turn });
                    own.push(at);
                }
                Err(seat) => others.push((at, seat)),
            }
        }
        if !own.is_empty() {
            self.runtime.spawn(Arc::clone(&self.loader).load(crew));
        }
        (own, others)
    }

    async fn revoke(&self, name: &Name) -> store::Result<Revoked> {
        // Said before and after: whatever is looked up in between is not remembered, and should
        // this process die in between, nobody is left with an id that counts no more. Before, it is
        // only likely, and said for no longer than a lookup takes.
        let likely = Word::Revoked(name.to_text(), self.loader.settings.cache.revoking());
        self.forget(name);
        let told = self.tell(&likely).await;
        let was_live = self.loader.map.revoke(name).await?;
        if !was_live && !self.loader.map.has_revoked(name).await? {
            // There was nothing to revoke, and there may be from now on: no more is said of it.
            return Ok(Revoked { was_live, told });
        }
        self.forget(name);
        let word = self.revoked(name);
        let told = self.tell(&word).await;
        if let (false, Some(middle)) = (told, &self.middle) {
            middle.tell_later(word);
        }
        Ok(Revoked { was_live, told })
    }

    /// Whether everybody there is was told.
    async fn tell(&self, word: &Word) -> bool {
        match &self.middle {
            None => true,
            Some(middle) => middle.tell(word).await,
        }
    }

    fn registered(&self, name: &Name) -> Word {
        Word::Registered(name.to_text(), self.loader.settings.cache.revoking())
    }

    /// A revoked id comes back by a repair only, which has its own word, so that this may be believed
    /// as long as anything. It lives longer than what a registration takes away, however late.
    fn revoked(&self, name: &Name) -> Word {
        let cache = &self.loader.settings.cache;
        Word::Revoked(name.to_text(), cache.l2_ttl.max(cache.revoking() * 3))
    }

    fn forget(&self, name: &Name) {
        take_note(name, false, &self.near);
    }

    fn count(&self, reason: Reason, answers: u64) {
        self.counts.get_or_init(Counts::new).of(reason).increment(answers);
    }
}

/// Made once: a hit should not have to look its counter up.
struct Counts {
    hit_l1: metrics::Counter,
    hit_l2: metrics::Counter,
    hit_db: metrics::Counter,
    hit_fallback: metrics::Counter,
    miss: metrics::Counter,
    invalid: metrics::Counter,
    disabled: metrics::Counter,
}

impl Counts {
    fn new() -> Self {
        let of =
            |result: &'static str| metrics::counter!("semel_idresolve_total", "result" => result);
        Self {
            hit_l1: of("hit_l1"),
            hit_l2: of("hit_l2"),
            hit_db: of("hit_db"),
            hit_fallback: of("hit_fallback"),
            miss: of("miss"),
            invalid: of("invalid"),
            disabled: of("disabled"),
        }
    }

    const fn of(&self, reason: Reason) -> &metrics::Counter {
        match reason {
            Reason::HitL1 => &self.hit_l1,
            Reason::HitL2 => &self.hit_l2,
            Reason::HitDb => &self.hit_db,
            Reason::HitFallback => &self.hit_fallback,
            Reason::NotFound => &self.miss,
            Reason::InvalidFormat | Reason::PrefixMismatch => &self.invalid,
            Reason::Disabled => &self.disabled,
        }
    }
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
