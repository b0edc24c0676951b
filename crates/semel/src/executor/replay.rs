//! Answers that this process has seen, so that a repeat needs no trip to the store.
//!
//! Safe because a recorded outcome never changes: the only things that can happen to it are its
//! expiry, which the entry knows, and an operator's hand, for which entries live a minute at most.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use moka::Expiry;
use moka::sync::Cache;

use super::execution::Receipt;
use crate::clock;
use crate::fingerprint::Fingerprint;
use crate::key::{Digest, Key};
use crate::outcome::Outcome;

/// How much is remembered, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalReplay {
    /// Entries at most. Default 10,000; 0 turns it off.
    pub entries: u64,
    /// Bytes at most, bodies and bookkeeping. Default 64 MiB.
    pub bytes: u64,
    /// How long an entry is trusted at most: the bound on how late an operator's change in another
    /// process is seen here. Default 60 s.
    pub max_age: Duration,
}

impl LocalReplay {
    /// Every repeat asks the store.
    pub const OFF: Self = Self { entries: 0, bytes: 0, max_age: Duration::ZERO };
}

impl Default for LocalReplay {
    fn default() -> Self {
        Self { entries: 10_000, bytes: 64 << 20, max_age: Duration::from_secs(60) }
    }
}

/// Nobody needs a local answer that is older; and instants do not overflow.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// A settled answer.
#[derive(Clone, Debug)]
pub(super) struct Replay {
    pub(super) fingerprint: Fingerprint,
    pub(super) outcome: Outcome,
    pub(super) receipt: Receipt,
    as_of: Instant,
    until: Instant,
}

/// The cache, or nothing.
#[derive(Debug)]
pub(super) struct ReplayCache {
    cache: Option<Cache<Digest, Arc<Replay>>>,
    max_age: Duration,
    /// When an operator last changed a key: what was read before that is not to be trusted, even if
    /// it arrives here later.
    revoked: Cache<Digest, Instant>,
    any_revoked: AtomicBool,
}

impl ReplayCache {
    pub(super) fn new(settings: LocalReplay) -> Self {
        let max_age = settings.max_age.min(MAX_AGE);
        let revoked = Cache::builder().max_capacity(100_000).time_to_live(max_age * 2).build();
        let any_revoked = AtomicBool::new(false);
        if settings.entries == 0 || settings.bytes == 0 || max_age.is_zero() {
            return Self { cache: None, max_age, revoked, any_revoked };
        }
        // Both limits in one: an entry weighs at least its share of the bytes.
        let share = u32::try_from(settings.bytes / settings.entries).unwrap_or(u32::MAX);
        let cache = Cache::builder()
            .max_capacity(settings.bytes)
            .weigher(move |_: &Digest, replay: &Arc<Replay>| {
                u32::try_from(replay.outcome.size() + 256).unwrap_or(u32::MAX).max(share)
            })
            .expire_after(Lifetime)
            .build();
        Self { cache: Some(cache), max_age, revoked, any_revoked }
    }

    pub(super) fn get(&self, key: &Key) -> Option<Arc<Replay>> {
        let replay = self.cache.as_ref()?.get(&key.digest())?;
        let trusted = replay.until > clock::monotonic() && !self.is_revoked(key, replay.as_of);
        trusted.then_some(replay)
    }

    fn is_revoked(&self, key: &Key, as_of: Instant) -> bool {
        self.any_revoked.load(Ordering::Acquire)
            && self.revoked.get(&key.digest()).is_some_and(|since| as_of <= since)
    }

    /// Remembers an answer that the store had at `as_of` and keeps for `fresh_for` from then.
    pub(super) fn insert(
        &self,
        key: &Key,
        fingerprint: Fingerprint,
        outcome: &Outcome,
        receipt: Receipt,
        (as_of, fresh_for): (Instant, Duration),
    ) {
        let Some(cache) = &self.cache else { return };
        if self.is_revoked(key, as_of) {
            return;
        }
        let until = as_of + fresh_for.min(self.max_age);
        let outcome = outcome.clone();
        cache
            .insert(key.digest(), Arc::new(Replay { fingerprint, outcome, receipt, as_of, until }));
    }

    pub(super) fn remove(&self, key: &Key) {
        let Some(cache) = &self.cache else { return };
        self.revoked.insert(key.digest(), clock::monotonic());
        self.any_revoked.store(true, Ordering::Release);
        cache.invalidate(&key.digest());
    }
}

struct Lifetime;

impl Expiry<Digest, Arc<Replay>> for Lifetime {
    fn expire_after_create(
        &self,
        _: &Digest,
        replay: &Arc<Replay>,
        now: Instant,
    ) -> Option<Duration> {
        Some(replay.until.saturating_duration_since(now))
    }

    fn expire_after_update(
        &self,
        _: &Digest,
        replay: &Arc<Replay>,
        now: Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        Some(replay.until.saturating_duration_since(now))
    }
}
