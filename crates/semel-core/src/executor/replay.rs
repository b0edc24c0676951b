//! The local replay cache: keeps outcomes that this process has seen, so that repeats need no call
//! to the store.
//!
//! The cache is safe because a recorded outcome changes in two ways only: it expires, and each
//! entry has the time of that; or an operator changes it, for which entries live at most
//! [`LocalReplay::max_age`].

mod shard;

use std::time::{Duration, Instant};

use shard::Shards;

use super::execution::Receipt;
use crate::clock;
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::outcome::Outcome;

/// Settings of the local replay cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalReplay {
    /// The largest number of entries. Default 10,000; 0 turns the cache off.
    pub entries: u64,
    /// The largest total size in bytes, with the overhead of entries. Default 64 MiB.
    pub bytes: u64,
    /// The longest life of an entry. An operator's change in another process takes effect in this
    /// process after this time at the latest. Default 60 s.
    pub max_age: Duration,
}

impl LocalReplay {
    /// The settings that turn the cache off: every repeat reads the store.
    pub const OFF: Self = Self { entries: 0, bytes: 0, max_age: Duration::ZERO };
}

impl Default for LocalReplay {
    fn default() -> Self {
        Self { entries: 10_000, bytes: 64 << 20, max_age: Duration::from_secs(60) }
    }
}

/// The upper limit of [`LocalReplay::max_age`], so that instants do not overflow.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// The largest outcome, in bytes, that is copied into the cache. Larger outcomes share their
/// buffer.
const COPIED: usize = 4 << 10;

/// The overhead of a cache entry, in bytes.
const BOOKKEEPING: usize = 256;

/// A cached outcome with its receipt and the time at which it expires.
#[derive(Clone, Debug)]
pub(super) struct Replay {
    pub(super) fingerprint: Fingerprint,
    pub(super) outcome: Outcome,
    pub(super) receipt: Receipt,
    as_of: Instant,
    until: Instant,
}

impl Replay {
    fn size(&self) -> usize {
        self.outcome.size() + BOOKKEEPING
    }
}

/// The cache of recorded outcomes. It stores nothing if it is turned off.
#[derive(Debug)]
pub(super) struct ReplayCache {
    shards: Option<Shards>,
    max_age: Duration,
}

impl ReplayCache {
    pub(super) fn new(settings: LocalReplay) -> Self {
        let LocalReplay { entries, bytes, max_age } = settings;
        let max_age = max_age.min(MAX_AGE);
        let on = entries > 0 && bytes > 0 && !max_age.is_zero();
        let shards = on.then(|| Shards::new(entries, bytes));
        Self { shards, max_age }
    }

    pub(super) fn get(&self, key: &Key) -> Option<Replay> {
        let replay = self.shards.as_ref()?.get(&key.digest())?;
        (replay.until > clock::monotonic()).then_some(replay)
    }

    /// Caches an outcome that was read from the store at `as_of` and expires `fresh_for` later.
    pub(super) fn insert(
        &self,
        key: &Key,
        fingerprint: Fingerprint,
        outcome: &Outcome,
        receipt: Receipt,
        (as_of, fresh_for): (Instant, Duration),
    ) {
        let Some(shards) = &self.shards else { return };
        let until = as_of + fresh_for.min(self.max_age);
        // Small outcomes are copied: they may be part of a much larger buffer, and sharing would
        // cost more than copying.
        let outcome = match outcome.size() {
            0..=COPIED => outcome.copied(),
            _ => outcome.clone(),
        };
        let replay = Replay { fingerprint, outcome, receipt, as_of, until };
        shards.put(key.digest(), replay, clock::monotonic());
    }

    /// Removes a key whose record an operator has changed, and refuses outcomes of the key that
    /// were read before now.
    pub(super) fn revoke(&self, key: &Key) {
        if let Some(shards) = &self.shards {
            shards.revoke(key.digest(), clock::monotonic());
        }
    }
}
