//! Outcomes that this process has seen, so that a repeat needs no trip to the store.
//!
//! Safe because a recorded outcome never changes: the only things that can happen to it are its
//! expiry, which the entry knows, and an operator's hand, for which entries live a minute at most.

mod shard;

use std::time::{Duration, Instant};

use shard::Shards;

use super::execution::Receipt;
use crate::clock;
use crate::fingerprint::Fingerprint;
use crate::key::Key;
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

/// Bytes up to which an answer is copied rather than shared.
const COPIED: usize = 4 << 10;

/// What an entry takes beside its body.
const BOOKKEEPING: usize = 256;

/// A settled answer.
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

/// The cache, or nothing.
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

    /// Remembers an answer that the store had at `as_of` and keeps for `fresh_for` from then.
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
        // Small answers in memory of their own: what they are a part of may be larger than they are,
        // and to share them costs more than to copy them.
        let outcome = match outcome.size() {
            0..=COPIED => outcome.copied(),
            _ => outcome.clone(),
        };
        let replay = Replay { fingerprint, outcome, receipt, as_of, until };
        shards.put(key.digest(), replay, clock::monotonic());
    }

    /// An operator changed the key: what was read of it until now is not to be trusted, even if it
    /// arrives here later.
    pub(super) fn revoke(&self, key: &Key) {
        if let Some(shards) = &self.shards {
            shards.revoke(key.digest(), clock::monotonic());
        }
    }
}
