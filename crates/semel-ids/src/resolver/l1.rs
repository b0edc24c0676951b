//! L1: caches answers in this process, and decides which answers may be cached.
//!
//! There is one moka cache for ids that exist and one for ids that do not, so that a scan over
//! unknown ids cannot evict known ids. Hits are lock-free. Every write goes through the shard of
//! its key, which compares times: an answer is as old as the start of its load, and is dropped if
//! the key has changed since.
//!
//! moka's own coalescing (`try_get_with`) and `and_compute_with` are not used: they work on one
//! key. A load in this module reads a batch of keys with one query, must outlive the caller that
//! started it, and must not be joined by callers that arrive after a change.

mod recent;
mod shard;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use moka::sync::Cache;
use tokio::time::Instant;
use ulid::Ulid;

use super::jittered;
use super::key::{ByHash, CacheKey, KeyRef, Keys};
use super::load::{Joined, Load, LoadResult};
use crate::settings::CacheSettings;
use recent::Retention;
use shard::Shard;

/// The number of shards. While a registration is open, no absences are cached in its shard.
const SHARDS: usize = 1 << 10;

/// A cached answer with the start of its load and its expiry.
#[derive(Clone, Copy, Debug)]
struct Entry<T> {
    value: T,
    since: Instant,
    until: Instant,
}

impl<T> Entry<T> {
    fn new(value: T, since: Instant, ttl: Duration) -> Self {
        Self { value, since, until: since + jittered(ttl) }
    }

    /// Returns whether the entry has not expired and is not older than `max_age`.
    fn is_valid(&self, now: Instant, max_age: Option<Duration>) -> bool {
        now < self.until && max_age.is_none_or(|age| now < self.since + age)
    }
}

type EntryCache<T> = Cache<CacheKey, Entry<T>, ByHash>;

#[derive(Debug)]
pub(super) struct L1 {
    present: EntryCache<Ulid>,
    absent: EntryCache<()>,
    /// Whether `present` has any capacity.
    caches_present: bool,
    shards: Box<[Mutex<Shard>]>,
    pub(super) keys: Keys,
    ttl: Duration,
    negative_ttl: Duration,
    /// The time for which no answer is cached for an id that was revoked, since a lookup may still
    /// have seen the live row.
    revoking: Duration,
    /// The longest time that an L2 entry from before a change can live.
    l2_stale: Duration,
    registered: Retention,
    changed: Retention,
}

impl L1 {
    pub(super) fn new(settings: &CacheSettings) -> Self {
        let size = settings.l1_max_size;
        let max = per_shard(usize::try_from(size).unwrap_or(usize::MAX).max(10_000));
        // An answer from before a change expires with the record of that change at the latest.
        let changed = settings.revoked().max(settings.l1_ttl);
        Self {
            present: cache(size, settings.l1_ttl),
            absent: cache((size / 10).max(1_000), settings.negative_ttl),
            caches_present: size > 0,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            keys: Keys::default(),
            ttl: settings.l1_ttl,
            negative_ttl: settings.negative_ttl,
            revoking: settings.revoking(),
            l2_stale: settings.revoked(),
            registered: Retention { max, ttl: settings.absence_bound() },
            changed: Retention { max, ttl: changed },
        }
    }

    /// Returns the cached answer: the internal id, or `Some(None)` if it is cached that the id does
    /// not exist.
    #[inline]
    pub(super) fn get(
        &self,
        key: &KeyRef<'_>,
        now: Instant,
        max_age: Option<Duration>,
    ) -> Option<Option<Ulid>> {
        if self.caches_present
            && let Some(entry) = self.present.get(key)
            && entry.is_valid(now, max_age)
        {
            return Some(Some(entry.value));
        }
        let absent = self.absent.get(key)?;
        absent.is_valid(now, max_age).then_some(None)
    }

    /// Joins the load that is in flight for this id, or registers the given load for it. If a load
    /// has finished since the caller's lookup, looks the id up again under the shard lock.
    ///
    /// # Errors
    /// The way in which the caller gets its answer, if no new load is needed.
    pub(super) fn start_load(
        &self,
        load: &Arc<Load>,
        index: usize,
        max_age: Option<Duration>,
    ) -> Result<(), Joined> {
        let key = load.key_ref(index);
        let mut shard = self.shard(&key);
        if let Some((load, index)) = shard.load_of(&key) {
            return Err(Joined::InFlight(load, index));
        }
        if shard.load_finished_at.is_some_and(|at| at >= load.began)
            && let Some(cached) = self.get(&key, load.began, max_age)
        {
            return Err(Joined::Cached(cached));
        }
        shard.start_load(load, index);
        Ok(())
    }

    /// Caches the result of a load for one of its ids, unless the id has changed since the load
    /// began, and lets no more callers join. Returns whether the result was cached, so that L2 may
    /// be filled with it too.
    pub(super) fn finish_load(
        &self,
        load: &Arc<Load>,
        index: usize,
        result: Option<&LoadResult>,
    ) -> bool {
        let mut shard = self.shard(&load.key_ref(index));
        let cached = match result {
            Some(Ok((found, _))) => self.cache_found(&shard, load, index, *found),
            Some(Err(_)) | None => false,
        };
        // After the answer is cached: a caller that did not find it began its lookup before this
        // time.
        shard.finish_load(load, index);
        cached
    }

    fn cache_found(&self, shard: &Shard, load: &Load, index: usize, found: Option<Ulid>) -> bool {
        let (key, began, now) = (load.key_ref(index), load.began, Instant::now());
        if !self.may_cache(shard, &key, began, now) || !shard.unregistered_since(&key, began) {
            return false;
        }
        match found {
            Some(id) => {
                self.absent.invalidate(&key);
                self.insert(load.key(index), id, began);
            }
            None if self.may_exist(shard, &key, now) => return false,
            None => {
                self.present.invalidate(&key);
                self.absent.insert(load.key(index), Entry::new((), began, self.negative_ttl));
            }
        }
        true
    }

    /// Returns whether an L2 entry may be older than a change that this node has seen. If so, the
    /// map is read instead.
    pub(super) fn distrusts_l2(&self, key: &KeyRef<'_>, is_absent: bool) -> bool {
        let (shard, now) = (self.shard(key), Instant::now());
        let changed = shard.changed.changed_at(key);
        changed.is_some_and(|at| now < at + self.l2_stale)
            || is_absent && self.may_exist(&shard, key, now)
    }

    /// Begins a registration: from now on the id may exist. Returns the present time.
    pub(super) fn begin_registration(&self, key: &CacheKey) -> Instant {
        let mut shard = self.shard(&key.as_ref());
        shard.registering += 1;
        shard.detach_load(&key.as_ref());
        self.absent.invalidate(&key.as_ref());
        Instant::now()
    }

    /// Ends a registration that was rolled back.
    pub(super) fn roll_back_registration(&self, key: &CacheKey) {
        let mut shard = self.shard(&key.as_ref());
        shard.registering = shard.registering.saturating_sub(1);
    }

    /// Ends a registration that was committed, and caches the id unless it was revoked meanwhile.
    pub(super) fn commit_registration(&self, key: CacheKey, id: Ulid, began: Instant) {
        let mut shard = self.shard(&key.as_ref());
        self.end_registration(&mut shard, &key);
        if self.may_cache(&shard, &key.as_ref(), began, Instant::now()) {
            self.insert(key, id, began);
        }
    }

    /// Ends a registration whose outcome is unknown: the id may exist now, or later.
    pub(super) fn abandon_registration(&self, key: &CacheKey) {
        self.end_registration(&mut self.shard(&key.as_ref()), key);
    }

    fn end_registration(&self, shard: &mut Shard, key: &CacheKey) {
        shard.registering = shard.registering.saturating_sub(1);
        self.mark_registered(shard, key);
    }

    /// Records that an id was registered: absences that were read before are ignored.
    pub(super) fn registered(&self, key: &CacheKey) {
        self.mark_registered(&mut self.shard(&key.as_ref()), key);
    }

    fn mark_registered(&self, shard: &mut Shard, key: &CacheKey) {
        shard.detach_load(&key.as_ref());
        // The time is taken under the lock: a load that did not see this change began before it.
        shard.registered.insert(key.clone(), Instant::now(), self.registered);
        self.absent.invalidate(&key.as_ref());
    }

    /// Records that an id was revoked, or is about to be. Until earlier L2 entries have expired, L2
    /// is not used for this id, whether or not L2 received the revocation.
    pub(super) fn revoked(&self, key: &CacheKey) {
        let mut shard = self.shard(&key.as_ref());
        self.mark_changed(&mut shard, key);
        shard.registered.remove(&key.as_ref());
    }

    /// Records that a repair changed the row of an id in the map, so that it is read again.
    pub(super) fn repaired(&self, key: &CacheKey) {
        let mut shard = self.shard(&key.as_ref());
        self.mark_changed(&mut shard, key);
        self.mark_registered(&mut shard, key);
    }

    fn mark_changed(&self, shard: &mut Shard, key: &CacheKey) {
        shard.detach_load(&key.as_ref());
        shard.changed.insert(key.clone(), Instant::now(), self.changed);
        self.present.invalidate(&key.as_ref());
    }

    /// Drops all cached answers, because invalidations may have been missed.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            shard.clear(Instant::now());
        }
        self.present.invalidate_all();
        self.absent.invalidate_all();
    }

    /// Returns whether an answer of a load that began at `began` may be cached: the id has not
    /// changed since, and is not being revoked.
    fn may_cache(&self, shard: &Shard, key: &KeyRef<'_>, began: Instant, now: Instant) -> bool {
        let changed = shard.changed.changed_at(key);
        shard.unchanged_since(key, began) && changed.is_none_or(|at| at + self.revoking <= now)
    }

    /// Returns whether an id may exist although a cache or a lookup did not find it.
    fn may_exist(&self, shard: &Shard, key: &KeyRef<'_>, now: Instant) -> bool {
        let registered = shard.registered.changed_at(key);
        shard.registering > 0 || registered.is_some_and(|at| now < at + self.registered.ttl)
    }

    fn insert(&self, key: CacheKey, id: Ulid, since: Instant) {
        if self.caches_present {
            self.present.insert(key, Entry::new(id, since, self.ttl));
        }
    }

    fn shard(&self, key: &KeyRef<'_>) -> MutexGuard<'_, Shard> {
        // moka uses the low bits of the hash, so the shard is chosen by the high bits.
        #[expect(clippy::cast_possible_truncation, reason = "only the low bits count")]
        let shard = key.hash.rotate_left(20) as usize;
        lock(&self.shards[shard % SHARDS])
    }
}

fn cache<T: Clone + Send + Sync + 'static>(max: u64, ttl: Duration) -> EntryCache<T> {
    Cache::builder().max_capacity(max).time_to_live(ttl).build_with_hasher(ByHash::default())
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the capacity of a shard for `all` keys in total, with a reserve, since shards are not
/// filled evenly.
const fn per_shard(all: usize) -> usize {
    (all / SHARDS).saturating_mul(2) + 8
}
