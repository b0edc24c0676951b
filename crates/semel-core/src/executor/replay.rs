//! The local replay cache: outcomes that this process has seen, so that repeats need no call to the store.
//!
//! Safe because a recorded outcome never changes: it can only expire, which the entry knows, or be changed by
//! an operator, for which entries live a minute at most.

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
    /// Most entries. Default 10,000; 0 turns the cache off.
    pub entries: u64,
    /// Most bytes, with overhead. Default 64 MiB.
    pub bytes: u64,
    /// The longest life of an entry: the bound on how late an operator's change in another process is
    /// seen here. Default 60 s.
    pub max_age: Duration,
}

impl LocalReplay {
    /// No cache: every repeat reads the store.
    pub const OFF: Self = Self { entries: 0, bytes: 0, max_age: Duration::ZERO };
}

impl Default for LocalReplay {
    fn default() -> Self {
        Self { entries: 10_000, bytes: 64 << 20, max_age: Duration::from_secs(60) }
    }
}

/// Bound on [`LocalReplay::max_age`], so that instants do not overflow.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// Outcomes of up to this many bytes are copied rather than shared.
const COPIED: usize = 4 << 10;

/// The overhead of an entry, in bytes.
const BOOKKEEPING: usize = 256;

/// A recorded outcome.
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

/// The cache; empty if it is off.
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

    /// Caches an outcome that the store had at `as_of` and keeps for `fresh_for` from then.
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
        // Small outcomes are copied: the buffer that they are a part of may be much larger, and sharing
        // costs more than copying.
        let outcome = match outcome.size() {
            0..=COPIED => outcome.copied(),
            _ => outcome.clone(),
        };
        let replay = Replay { fingerprint, outcome, receipt, as_of, until };
        shards.put(key.digest(), replay, clock::monotonic());
    }

    /// Removes a key that an operator has changed, and refuses what was read of it until now.
    pub(super) fn revoke(&self, key: &Key) {
        if let Some(shards) = &self.shards {
            shards.revoke(key.digest(), clock::monotonic());
        }
    }
}
