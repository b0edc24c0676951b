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
mod revocation;
mod teller;
mod untold;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use semel_core::key::check_tenant;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

pub use answer::{Reason, Resolution, ResolveError};
pub use registration::Registration;
pub use revocation::{Revocation, RevokeError, Revoked};

use crate::codec::{Codec, PublicId};
use crate::fallback::Fallback;
use crate::map::{self, Binding, IdMap, RegisterError};
use crate::resource::{Resource, ResourceType};
use crate::settings::Settings;
use crate::shared::Shared;
use flight::{Crew, Flight, Missed, Own};
use load::Loader;
use middle::{Middle, Word};
use name::Name;
use near::{Near, Seat};
use teller::Teller;

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
    teller: Option<Arc<Teller>>,
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
        let Self { map, shared, fallbacks, mut settings } = self;
        settings.cache = settings.cache.within_reason();
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
        let loader = Arc::new(loader);
        let teller = middle
            .clone()
            .map(|middle| Arc::new(Teller::new(Arc::clone(&loader), middle, runtime.clone())));
        Resolver(Arc::new(Inner {
            loader,
            near,
            middle,
            teller,
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

    /// Takes note of what happened to an id behind its back, in a repair of the map, say, and tells the
    /// other nodes: whether it is there now. What the map says of it is looked up by whoever asks next,
    /// and nothing that was known of it before is believed.
    pub fn changed(&self, kind: ResourceType, tenant: &str, public: &str, there: bool) {
        let (Some(public), Ok(())) = (PublicId::stored(public), check_tenant(tenant)) else {
            return;
        };
        let name = self.0.near.names.name(tenant, kind, public);
        match there {
            true => self.0.near.corrected(&name),
            false => self.0.near.revoked(&name),
        }
        if let Some(teller) = &self.0.teller {
            teller.tell_later(&name);
        }
    }
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

    fn registered(&self, name: &Name) -> Word {
        Word::Registered(name.to_text(), self.loader.settings.cache.revoking())
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
        let of = |result: &'static str| metrics::counter!("semel_idresolve_lookups_total", "result" => result);
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
