//! A bounded, sharded cache of outcomes with second-chance eviction (CLOCK).
//!
//! Entries live a minute and most are never read, so the order of insertion is nearly the order of
//! expiry. A cache that tracks how often entries are read would cost every first call more than it
//! could save.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::Replay;
use crate::key::{Digest, Mixing};

/// The largest number of shards; a power of two.
const SHARDS: u64 = 16;
/// The smallest capacity of a shard, in outcomes.
const PER_SHARD: u64 = 512;
/// The largest number of revoked keys that a shard remembers.
const REVOKED: usize = 512;

/// The shards of the cache.
#[derive(Debug)]
pub(super) struct Shards {
    shards: Vec<Mutex<Shard>>,
    /// The largest weight of a shard, in bytes.
    capacity: u64,
    /// The smallest weight of an outcome, so that the capacity limits the number of entries too.
    least: u64,
}

#[derive(Debug, Default)]
struct Shard {
    slots: HashMap<Digest, Slot, Mixing>,
    /// The keys in the order in which eviction considers them: by insertion, but a key that was read
    /// moves to the end once.
    order: VecDeque<Digest>,
    weight: u64,
    /// The time at which each revoked key was revoked: outcomes that were read until then are
    /// refused.
    revoked: HashMap<Digest, Instant, Mixing>,
    /// Outcomes of any key that were read until this time are refused.
    all_revoked: Option<Instant>,
}

#[derive(Debug)]
struct Slot {
    replay: Replay,
    weight: u64,
    used: bool,
}

impl Shards {
    /// Creates a cache for `entries` entries and `bytes` bytes, both at least 1.
    pub(super) fn new(entries: u64, bytes: u64) -> Self {
        let shards = (entries / PER_SHARD).clamp(1, SHARDS);
        // Rounded down to a power of two.
        let shards = 1 << shards.ilog2();
        let capacity = (bytes / shards).max(1);
        let least = (bytes / entries).max(1);
        Self { shards: (0..shards).map(|_| Mutex::default()).collect(), capacity, least }
    }

    fn shard(&self, digest: &Digest) -> MutexGuard<'_, Shard> {
        let at = usize::from(digest.as_bytes()[0]) % self.shards.len();
        self.shards[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, digest: &Digest) -> Option<Replay> {
        let mut shard = self.shard(digest);
        let slot = shard.slots.get_mut(digest)?;
        slot.used = true;
        Some(slot.replay.clone())
    }

    /// Inserts an outcome and evicts others if the shard is full. An outcome that was read before
    /// its key was revoked, or that is larger than a shard, is not cached.
    pub(super) fn put(&self, digest: Digest, replay: Replay, now: Instant) {
        let weight = (replay.size() as u64).max(self.least);
        if weight > self.capacity {
            return;
        }
        let slot = Slot { replay, weight, used: false };
        let gone = self.shard(&digest).put(digest, slot, self.capacity, now);
        // Dropped outside the lock: outcomes may be large.
        drop(gone);
    }

    /// Removes the outcome of a key, and refuses later inserts of outcomes of this key that were
    /// read until `now`.
    pub(super) fn revoke(&self, digest: Digest, now: Instant) {
        let gone = self.shard(&digest).revoke(digest, now);
        drop(gone);
    }
}

impl Shard {
    /// Inserts a slot, and returns the slots that were evicted.
    fn put(&mut self, digest: Digest, slot: Slot, capacity: u64, now: Instant) -> Vec<Slot> {
        let mut gone = Vec::new();
        let revoked = self.revoked.get(&digest).max(self.all_revoked.as_ref());
        if revoked.is_some_and(|until| slot.replay.as_of <= *until) {
            return vec![slot];
        }
        self.weight += slot.weight;
        match self.slots.insert(digest, slot) {
            Some(before) => {
                self.weight -= before.weight;
                gone.push(before);
            }
            None => self.order.push_back(digest),
        }
        while let Some(oldest) = self.order.front() {
            let slot = self.slots.get_mut(oldest).expect("every key in the order has a slot");
            let ended = slot.replay.until <= now;
            if !ended && self.weight <= capacity {
                break;
            }
            if slot.used && !ended {
                // A slot that was read since the last round stays for another round.
                slot.used = false;
                self.order.rotate_left(1);
            } else {
                let oldest = self.order.pop_front().expect("the order is not empty");
                gone.extend(self.take(&oldest));
            }
        }
        gone
    }

    fn take(&mut self, digest: &Digest) -> Option<Slot> {
        let slot = self.slots.remove(digest)?;
        self.weight -= slot.weight;
        Some(slot)
    }

    fn revoke(&mut self, digest: Digest, now: Instant) -> Option<Slot> {
        if self.revoked.len() == REVOKED {
            // The list is full: instead of the single keys, outcomes of every key that were read
            // until now are refused.
            self.revoked.clear();
            self.all_revoked = Some(now);
        }
        self.revoked.insert(digest, now);
        let slot = self.take(&digest)?;
        self.order.retain(|other| *other != digest);
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::claim::{Fence, OperationId};
    use crate::executor::Receipt;
    use crate::fingerprint::Fingerprint;
    use crate::key::Key;
    use crate::outcome::Outcome;

    fn digest(n: usize) -> Digest {
        Key::command("t", "s", &n.to_string()).expect("a key").digest()
    }

    fn replay(bytes: usize, as_of: Instant, lives: u64) -> Replay {
        let receipt = Receipt {
            operation_id: OperationId::generate(),
            attempt: 1,
            fence: Fence(1),
            recorded: true,
        };
        let (fingerprint, outcome) = (Fingerprint::none(), Outcome::new("x", vec![0; bytes]));
        let until = as_of + Duration::from_secs(lives);
        Replay { fingerprint, outcome, receipt, as_of, until }
    }

    fn kept(cache: &Shards, range: std::ops::Range<usize>) -> Vec<usize> {
        range.filter(|n| cache.shard(&digest(*n)).slots.contains_key(&digest(*n))).collect()
    }

    fn assert_sound(cache: &Shards) {
        for shard in &cache.shards {
            let shard = shard.lock().expect("no panic");
            assert_eq!(shard.weight, shard.slots.values().map(|slot| slot.weight).sum::<u64>());
            assert!(shard.weight <= cache.capacity);
            assert_eq!(shard.slots.len(), shard.order.len());
            assert!(shard.slots.keys().all(|digest| shard.order.contains(digest)));
        }
    }

    #[test]
    fn the_oldest_is_evicted_first_unless_it_was_used() {
        let (cache, now) = (Shards::new(3, 30_000), crate::clock::monotonic());
        for n in 0..3 {
            cache.put(digest(n), replay(10, now, 60), now);
        }
        assert!(cache.get(&digest(0)).is_some());
        for n in 3..5 {
            cache.put(digest(n), replay(10, now, 60), now);
            assert_sound(&cache);
        }
        assert_eq!(kept(&cache, 0..5), [0, 3, 4]);
    }

    #[test]
    fn expired_entries_are_evicted_first() {
        let (cache, now) = (Shards::new(8, 80_000), crate::clock::monotonic());
        cache.put(digest(0), replay(10, now, 1), now);
        cache.put(digest(1), replay(10, now, 60), now);
        assert!(cache.get(&digest(0)).is_some());
        cache.put(digest(2), replay(10, now, 60), now + Duration::from_secs(2));
        assert_eq!(kept(&cache, 0..3), [1, 2]);
    }

    #[test]
    fn the_size_in_bytes_is_limited() {
        let (cache, now) = (Shards::new(100, 10_000), crate::clock::monotonic());
        for n in 0..9 {
            cache.put(digest(n), replay(3_000, now, 60), now);
            assert_sound(&cache);
        }
        assert_eq!(kept(&cache, 0..9), [6, 7, 8]);
        cache.put(digest(9), replay(20_000, now, 60), now);
        assert_eq!(kept(&cache, 0..10), [6, 7, 8]);
    }

    #[test]
    fn an_outcome_that_was_read_before_its_key_was_revoked_is_not_cached() {
        let (cache, now) = (Shards::new(8, 80_000), crate::clock::monotonic());
        let later = now + Duration::from_secs(1);
        for n in 0..3 {
            cache.put(digest(n), replay(10, now, 60), now);
        }
        cache.revoke(digest(1), later);
        assert_sound(&cache);
        assert_eq!(kept(&cache, 0..3), [0, 2]);
        cache.put(digest(1), replay(10, later, 60), later);
        assert_eq!(kept(&cache, 0..3), [0, 2]);
        let afterwards = later + Duration::from_nanos(1);
        cache.put(digest(1), replay(10, afterwards, 60), afterwards);
        assert_sound(&cache);
        assert_eq!(kept(&cache, 0..3), [0, 1, 2]);
    }

    #[test]
    fn the_list_of_revoked_keys_is_bounded_and_none_of_them_is_cached_again() {
        let (cache, now) = (Shards::new(8, 80_000), crate::clock::monotonic());
        cache.put(digest(0), replay(10, now, 60), now);
        let later = now + Duration::from_secs(1);
        for n in 1..2_000 {
            cache.revoke(digest(n), later);
            assert!(cache.shards[0].lock().expect("no panic").revoked.len() <= REVOKED);
        }
        for n in 1..2_000 {
            cache.put(digest(n), replay(10, now, 60), later);
        }
        assert_sound(&cache);
        assert_eq!(kept(&cache, 0..2_000), [0]);
    }

    #[test]
    fn a_key_that_is_inserted_repeatedly_takes_one_slot() {
        let (cache, start) = (Shards::new(10_000, 64 << 20), crate::clock::monotonic());
        for round in 0..50 {
            let now = start + Duration::from_millis(round);
            for n in 0..100 {
                cache.put(digest(n), replay(10, now, 60), now);
                if round % 2 == 0 {
                    cache.revoke(digest(n), now);
                }
            }
            assert_sound(&cache);
        }
        assert_eq!(kept(&cache, 0..100).len(), 100);
    }
}
