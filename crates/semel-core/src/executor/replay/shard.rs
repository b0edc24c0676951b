//! A bounded, sharded cache of outcomes with second-chance eviction (CLOCK).
//!
//! Entries live a minute and most are never read again, so the order of insertion is nearly the order
//! of expiry. A cache that tracks popularity costs every first call more than it could save.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::Replay;
use crate::key::{Digest, Mixing};

/// Boards at most; a power of two.
const SHARDS: u64 = 16;
/// A cache is not divided into shards of fewer answers.
const PER_SHARD: u64 = 512;
/// Revoked keys that a shard can tell apart.
const REVOKED: usize = 512;

/// The shards of the cache.
#[derive(Debug)]
pub(super) struct Shards {
    shards: Vec<Mutex<Shard>>,
    /// What one shard holds.
    capacity: u64,
    /// What an answer weighs at least, so that one limit bounds both bytes and answers.
    least: u64,
}

#[derive(Debug, Default)]
struct Shard {
    slots: HashMap<Digest, Slot, Mixing>,
    /// In the order in which they came.
    order: VecDeque<Digest>,
    weight: u64,
    /// Until when what was read of a key is not to be believed.
    revoked: HashMap<Digest, Instant, Mixing>,
    /// The same for every key.
    all_revoked: Option<Instant>,
}

#[derive(Debug)]
struct Slot {
    replay: Replay,
    weight: u64,
    used: bool,
}

impl Shards {
    /// A cache for so many answers of so many bytes in all, both at least 1.
    pub(super) fn new(answers: u64, bytes: u64) -> Self {
        let shards = (answers / PER_SHARD).clamp(1, SHARDS);
        // The largest power of two in it.
        let shards = 1 << shards.ilog2();
        let capacity = (bytes / shards).max(1);
        let least = (bytes / answers).max(1);
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

    /// Puts an answer there, and makes room for it. One that was read before its key was revoked, or
    /// that would need more than a shard, is not kept.
    pub(super) fn put(&self, digest: Digest, replay: Replay, now: Instant) {
        let weight = (replay.size() as u64).max(self.least);
        if weight > self.capacity {
            return;
        }
        let slot = Slot { replay, weight, used: false };
        let gone = self.shard(&digest).put(digest, slot, self.capacity, now);
        // Not under the lock: an answer may be large.
        drop(gone);
    }

    /// Removes an answer, and refuses what was read of it until `now` and is still on its way.
    pub(super) fn revoke(&self, digest: Digest, now: Instant) {
        let gone = self.shard(&digest).revoke(digest, now);
        drop(gone);
    }
}

impl Shard {
    /// Gives back what had to go.
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
            let slot = self.slots.get_mut(oldest).expect("the order names what is there");
            let ended = slot.replay.until <= now;
            if !ended && self.weight <= capacity {
                break;
            }
            if slot.used && !ended {
                // Asked for since it was last looked at: it may stay for another round.
                slot.used = false;
                self.order.rotate_left(1);
            } else {
                let oldest = self.order.pop_front().expect("just looked");
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
            // Which they were is forgotten, so nothing is believed that is on its way.
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

    fn answer(bytes: usize, as_of: Instant, lives: u64) -> Replay {
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

    fn is_sound(cache: &Shards) {
        for shard in &cache.shards {
            let shard = shard.lock().expect("no panic");
            assert_eq!(shard.weight, shard.slots.values().map(|slot| slot.weight).sum::<u64>());
            assert!(shard.weight <= cache.capacity);
            assert_eq!(shard.slots.len(), shard.order.len());
            assert!(shard.slots.keys().all(|digest| shard.order.contains(digest)));
        }
    }

    #[test]
    fn the_oldest_goes_first_unless_it_was_asked_for() {
        let (cache, now) = (Shards::new(3, 30_000), crate::clock::monotonic());
        for n in 0..3 {
            cache.put(digest(n), answer(10, now, 60), now);
        }
        assert!(cache.get(&digest(0)).is_some());
        for n in 3..5 {
            cache.put(digest(n), answer(10, now, 60), now);
            is_sound(&cache);
        }
        assert_eq!(kept(&cache, 0..5), [0, 3, 4]);
    }

    #[test]
    fn what_has_ended_goes_before_anything_else() {
        let (cache, now) = (Shards::new(8, 80_000), crate::clock::monotonic());
        cache.put(digest(0), answer(10, now, 1), now);
        cache.put(digest(1), answer(10, now, 60), now);
        assert!(cache.get(&digest(0)).is_some());
        cache.put(digest(2), answer(10, now, 60), now + Duration::from_secs(2));
        assert_eq!(kept(&cache, 0..3), [1, 2]);
    }

    #[test]
    fn bytes_are_a_limit_too() {
        let (cache, now) = (Shards::new(100, 10_000), crate::clock::monotonic());
        for n in 0..9 {
            cache.put(digest(n), answer(3_000, now, 60), now);
            is_sound(&cache);
        }
        assert_eq!(kept(&cache, 0..9), [6, 7, 8]);
        cache.put(digest(9), answer(20_000, now, 60), now);
        assert_eq!(kept(&cache, 0..10), [6, 7, 8]);
    }

    #[test]
    fn what_was_read_before_its_key_was_revoked_does_not_come_back() {
        let (cache, now) = (Shards::new(8, 80_000), crate::clock::monotonic());
        let later = now + Duration::from_secs(1);
        for n in 0..3 {
            cache.put(digest(n), answer(10, now, 60), now);
        }
        cache.revoke(digest(1), later);
        is_sound(&cache);
        assert_eq!(kept(&cache, 0..3), [0, 2]);
        cache.put(digest(1), answer(10, later, 60), later);
        assert_eq!(kept(&cache, 0..3), [0, 2]);
        let afterwards = later + Duration::from_nanos(1);
        cache.put(digest(1), answer(10, afterwards, 60), afterwards);
        is_sound(&cache);
        assert_eq!(kept(&cache, 0..3), [0, 1, 2]);
    }

    #[test]
    fn however_many_are_revoked_none_comes_back_and_the_room_is_bounded() {
        let (cache, now) = (Shards::new(8, 80_000), crate::clock::monotonic());
        cache.put(digest(0), answer(10, now, 60), now);
        let later = now + Duration::from_secs(1);
        for n in 1..2_000 {
            cache.revoke(digest(n), later);
            assert!(cache.shards[0].lock().expect("no panic").revoked.len() <= REVOKED);
        }
        for n in 1..2_000 {
            cache.put(digest(n), answer(10, now, 60), later);
        }
        is_sound(&cache);
        assert_eq!(kept(&cache, 0..2_000), [0]);
    }

    #[test]
    fn a_place_that_is_taken_again_and_again_does_not_fill_the_shelf() {
        let (cache, start) = (Shards::new(10_000, 64 << 20), crate::clock::monotonic());
        for round in 0..50 {
            let now = start + Duration::from_millis(round);
            for n in 0..100 {
                cache.put(digest(n), answer(10, now, 60), now);
                if round % 2 == 0 {
                    cache.revoke(digest(n), now);
                }
            }
            is_sound(&cache);
        }
        assert_eq!(kept(&cache, 0..100).len(), 100);
    }
}
