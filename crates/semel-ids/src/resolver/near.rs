//! What this process remembers (L1), and when it must not.
//!
//! Known ids and absences have a space each, so that a scan for ids that are not there cannot push
//! out those that are. Every write goes through a watch over its part of the names: what was looked
//! up before a change was told is not remembered after it.

use std::hash::{BuildHasher as _, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use moka::Equivalent;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use tokio::time::Instant;
use ulid::Ulid;

use crate::codec::PublicId;
use crate::resource::ResourceType;
use crate::settings::CacheSettings;

/// Parts of the names that are watched together. A change costs those that share its part a look into
/// the map; a revocation, as many as come in the time of an absence.
const PARTS: usize = 1 << 10;

/// How long nothing is remembered of what was revoked, at least: longer than any lookup takes.
const NOTHING: Duration = Duration::from_secs(30);

/// What an answer is remembered under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) tenant: Arc<str>,
    pub(super) kind: ResourceType,
    pub(super) public: PublicId,
}

/// A name that borrows everything: hits allocate nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) tenant: &'a str,
    pub(super) kind: &'a ResourceType,
    pub(super) public: &'a [u8],
}

impl Name {
    pub(super) fn asked(&self) -> Asked<'_> {
        Asked { tenant: &self.tenant, kind: &self.kind, public: self.public.as_bytes() }
    }

    /// `tenant:TYPE:publicId`. A type and a public id hold no colon, so it can be taken apart.
    pub(super) fn to_text(&self) -> String {
        format!("{}:{}:{}", self.tenant, self.kind.name(), self.public)
    }

    pub(super) fn from_text(text: &str) -> Option<Self> {
        let (rest, public) = text.rsplit_once(':')?;
        let (tenant, kind) = rest.rsplit_once(':')?;
        let (prefix, _) = public.split_once('_')?;
        let kind = ResourceType::parse(kind, prefix).ok()?;
        Some(Self { tenant: tenant.into(), kind, public: PublicId::stored(public)? })
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.asked().hash(state);
    }
}

impl Hash for Asked<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The type has its own prefix in front of the id.
        state.write(self.public);
        state.write(self.tenant.as_bytes());
    }
}

impl Equivalent<Name> for Asked<'_> {
    fn equivalent(&self, name: &Name) -> bool {
        // The prefix is in front of the id.
        self.public == name.public.as_bytes()
            && *self.tenant == *name.tenant
            && self.kind.name_bytes() == name.kind.name_bytes()
    }
}

/// An answer with its time.
#[derive(Clone, Copy, Debug)]
struct Kept<T> {
    value: T,
    since: Instant,
    until: Instant,
}

impl<T> Kept<T> {
    /// Whether it may be used: not after its time, and while nothing is heard from other nodes only
    /// if it is younger than `limit`.
    fn counts(&self, now: Instant, limit: Option<Duration>) -> bool {
        now < self.until && limit.is_none_or(|limit| now < self.since + limit)
    }
}

/// Guards a part of the names.
#[derive(Debug, Default)]
struct Watch {
    /// Moves with every change that was told.
    turn: u64,
    /// Registrations that have begun and not ended: their ids may be there at any moment.
    open: u32,
    /// Revocations so far.
    revocations: u64,
    /// Nothing at all is remembered before this.
    nothing: Option<Instant>,
}

/// How many revocations there had been when a registration began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opened(u64);

/// When a lookup began, as its part of the names saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn(u64);

#[derive(Debug)]
pub(super) struct Near {
    known: Cache<Name, Kept<Ulid>, RandomState>,
    absent: Cache<Name, Kept<()>, RandomState>,
    /// Ids of which it was said that they are there: no absence of theirs is believed for a while,
    /// whoever tells of it.
    fresh: Cache<Name, Instant, RandomState>,
    /// Whether known ids have any room at all.
    roomy: bool,
    watches: Box<[Mutex<Watch>]>,
    hasher: RandomState,
    l1_ttl: Duration,
    negative_ttl: Duration,
    /// How long an absence may be told that was learned before a registration.
    doubt: Duration,
}

impl Near {
    pub(super) fn new(settings: &CacheSettings) -> Self {
        let hasher = RandomState::default();
        let absences = (settings.l1_max_size / 10).max(1_000);
        let doubt = settings.absence_bound();
        Self {
            known: Cache::builder()
                .max_capacity(settings.l1_max_size)
                .time_to_live(settings.l1_ttl)
                .build_with_hasher(hasher.clone()),
            absent: Cache::builder()
                .max_capacity(absences)
                .time_to_live(settings.negative_ttl)
                .build_with_hasher(hasher.clone()),
            // What comes is always taken in: the newest are those that matter.
            fresh: Cache::builder()
                .max_capacity(settings.l1_max_size.max(10_000))
                .time_to_live(doubt)
                .eviction_policy(EvictionPolicy::lru())
                .build_with_hasher(hasher.clone()),
            roomy: settings.l1_max_size > 0,
            watches: (0..PARTS).map(|_| Mutex::default()).collect(),
            hasher,
            l1_ttl: settings.l1_ttl,
            negative_ttl: settings.negative_ttl,
            doubt,
        }
    }

    /// The id, that it is not there, or nothing known.
    #[inline]
    pub(super) fn get(&self, asked: &Asked<'_>, limit: Option<Duration>) -> Option<Option<Ulid>> {
        let now = Instant::now();
        if self.roomy
            && let Some(kept) = self.known.get(asked)
        {
            return kept.counts(now, limit).then_some(Some(kept.value));
        }
        self.absent.get(asked).filter(|kept| kept.counts(now, limit)).map(|_| None)
    }

    /// To be asked before anybody else is.
    pub(super) fn turn(&self, asked: &Asked<'_>) -> Turn {
        Turn(self.watch(asked).turn)
    }

    /// Remembers what a lookup found, unless something was told since it began. Says whether others
    /// may be told.
    pub(super) fn keep(&self, name: &Name, found: Option<Ulid>, began: Turn) -> bool {
        let watch = self.watch(&name.asked());
        let now = Instant::now();
        let barred = |until: Option<Instant>| until.is_some_and(|until| now < until);
        if watch.turn != began.0 || barred(watch.nothing) {
            return false;
        }
        match found {
            Some(id) => self.know(name, id, now),
            None if watch.open > 0 || self.is_fresh(name, now) => return false,
            None => {
                let until = now + jittered(self.negative_ttl);
                self.known.invalidate(&name.asked());
                self.absent.insert(name.clone(), Kept { value: (), since: now, until });
            }
        }
        true
    }

    /// Whether an absence of this id is not to be believed, whoever tells of it.
    pub(super) fn doubts(&self, name: &Name) -> bool {
        self.watch(&name.asked()).open > 0 || self.is_fresh(name, Instant::now())
    }

    /// A registration has begun: its id may be there at any moment.
    pub(super) fn open(&self, name: &Name) -> Opened {
        let mut watch = self.watch(&name.asked());
        watch.open += 1;
        watch.turn += 1;
        self.absent.invalidate(&name.asked());
        Opened(watch.revocations)
    }

    /// It has committed.
    pub(super) fn registered(&self, name: &Name, id: Ulid, opened: Opened) {
        let watch = self.close(name);
        let now = Instant::now();
        // What was revoked meanwhile stays revoked; so may its neighbours be, for all that is known
        // here, and the map is asked.
        if watch.revocations == opened.0 && watch.nothing.is_none_or(|until| until <= now) {
            self.know(name, id, now);
        }
    }

    /// It was rolled back.
    pub(super) fn dropped(&self, name: &Name) {
        let mut watch = self.watch(&name.asked());
        watch.open = watch.open.saturating_sub(1);
    }

    /// Nobody knows whether it has committed, or will.
    pub(super) fn unclear(&self, name: &Name) {
        drop(self.close(name));
    }

    /// Another node has registered it.
    pub(super) fn appeared(&self, name: &Name) {
        let mut watch = self.watch(&name.asked());
        watch.turn += 1;
        self.refresh(name);
    }

    fn close(&self, name: &Name) -> MutexGuard<'_, Watch> {
        let mut watch = self.watch(&name.asked());
        watch.open = watch.open.saturating_sub(1);
        watch.turn += 1;
        self.refresh(name);
        watch
    }

    fn refresh(&self, name: &Name) {
        self.absent.invalidate(&name.asked());
        self.fresh.insert(name.clone(), Instant::now() + self.doubt);
    }

    fn is_fresh(&self, name: &Name, now: Instant) -> bool {
        self.fresh.get(&name.asked()).is_some_and(|until| now < until)
    }

    /// It was revoked, or is about to be. For a while nothing is remembered of it: a lookup that
    /// begins now may still be answered by the row as it was.
    pub(super) fn revoked(&self, name: &Name) {
        let mut watch = self.watch(&name.asked());
        watch.turn += 1;
        watch.revocations += 1;
        watch.nothing = Some(Instant::now() + self.negative_ttl.max(NOTHING));
        self.known.invalidate(&name.asked());
        self.fresh.invalidate(&name.asked());
    }

    /// Forgets everything: something may have been told while nobody listened.
    pub(super) fn clear(&self) {
        for watch in &self.watches {
            watch.lock().unwrap_or_else(PoisonError::into_inner).turn += 1;
        }
        self.known.invalidate_all();
        self.absent.invalidate_all();
    }

    fn know(&self, name: &Name, id: Ulid, now: Instant) {
        if !self.roomy {
            return;
        }
        let until = now + jittered(self.l1_ttl);
        self.known.insert(name.clone(), Kept { value: id, since: now, until });
    }

    fn watch(&self, asked: &Asked<'_>) -> MutexGuard<'_, Watch> {
        // The low bits choose places inside the caches; these are from the other end.
        #[expect(clippy::cast_possible_truncation, reason = "only the low bits count")]
        let part = self.hasher.hash_one(asked).rotate_left(20) as usize % PARTS;
        self.watches[part].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Up to a tenth less, by chance.
pub(super) fn jittered(ttl: Duration) -> Duration {
    ttl.mul_f64(1.0 - fastrand::f64() / 10.0)
}
