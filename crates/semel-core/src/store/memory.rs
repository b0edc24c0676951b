//! A bounded store in the memory of this process, for tests, caches and single-process tools.
//!
//! Its guarantee is Best effort: a restart loses all records. The other stores are tested against
//! it, so it is simple: one map and one lock per shard, no background work. Inserting a key removes
//! a few expired records, so that memory follows the number of live keys; lapsed claims stay until
//! a sweep, or until the store is full.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{
    Change, Cursor, Draft, Error, ErrorKind, Filter, Finding, Guarantee, Inspect, Opened, Page,
    Peeked, Renewed, Renewer, Result, Settled, Settlement, Severity, Store, Swapped, Swept, Tally,
};
use crate::claim::{Fence, Lease};
use crate::clock::{Clock, SteadyClock, Timestamp};
use crate::key::{Digest, Key, Mixing};
use crate::outcome::ErrorText;
use crate::policy::OnCrash;
use crate::record::{Entry, Record, State, Version};

/// The number of shards; a power of two.
const SHARDS: usize = 64;

/// A full store that found hardly any record to remove refuses new keys for this many times as long
/// as the search took, before it searches again.
const PAUSE_FACTOR: u32 = 10;
/// The shortest and the longest time for which a full store refuses new keys without searching.
const PAUSE_LIMITS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// A search must remove at least one key in this many; otherwise the next search is delayed.
const MIN_YIELD: usize = 64;

/// A store that keeps records in memory. Cheap to clone: clones share the records.
///
/// ```
/// use semel_core::store::memory::MemoryStore;
/// use semel_core::{Command, Executor, Key};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// let executor = Executor::new(store.clone());
/// let greet = Command::new(Key::command("acme", "GREET", "k-1")?);
/// let _ = executor.run(greet, |_| async { Ok::<_, String>("hello".to_owned()) }).await?;
/// assert_eq!(store.len(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MemoryStore(Arc<Inner>);

/// The largest number of expired keys that inserting a key removes: more than one, or a backlog
/// would never shrink.
const EVICTIONS: usize = 2;
/// The number of queue entries, beyond two for each key, at which outdated entries are dropped.
const SPARE: usize = 64;

#[derive(Debug, Default)]
struct Shard {
    /// The entries are boxed, because a map that grows moves its values.
    keys: HashMap<Digest, Box<Entry>, Mixing>,
    /// The keys in the order of their earliest possible expiry. An entry may be outdated: the
    /// record itself has the actual time.
    due: BinaryHeap<Reverse<(Timestamp, Digest)>>,
}

impl Shard {
    /// Writes the next record of a key, or removes the key. Returns the number of keys that were
    /// removed.
    fn put(&mut self, digest: Digest, next: Option<Record>) -> usize {
        let Some(record) = next else { return usize::from(self.keys.remove(&digest).is_some()) };
        let expires_at = record.expires_at;
        if let Some(entry) = self.keys.get_mut(&digest) {
            entry.record = record;
        }
        if let Some(at) = expires_at {
            self.queue_expiry(at, digest);
        }
        0
    }

    fn queue_expiry(&mut self, at: Timestamp, digest: Digest) {
        self.due.push(Reverse((at, digest)));
        // A key that fails repeatedly gets an entry for every failure.
        if self.due.len() > 2 * self.keys.len() + SPARE {
            let held = self.keys.iter();
            let ends = held.filter_map(|(digest, entry)| Some((entry.record.expires_at?, *digest)));
            self.due = ends.map(Reverse).collect();
        }
    }

    /// Removes a few expired keys, and returns their number.
    fn take_expired(&mut self, now: Timestamp) -> usize {
        let mut taken = 0;
        while let Some(first) = self.due.peek_mut()
            && first.0.0 <= now
            && taken < EVICTIONS
        {
            let Reverse((_, digest)) = PeekMut::pop(first);
            if self.keys.get(&digest).is_some_and(|entry| entry.record.expired(now)) {
                self.keys.remove(&digest);
                taken += 1;
            }
        }
        taken
    }
}

#[derive(Debug)]
struct Inner {
    shards: Vec<Mutex<Shard>>,
    clock: SteadyClock,
    capacity: usize,
    len: AtomicUsize,
    last_fence: AtomicU64,
    /// The time before which a full store does not search for expired records.
    full_until: Mutex<Option<Timestamp>>,
}

impl MemoryStore {
    /// The default capacity, in keys.
    pub const CAPACITY: usize = 10_000;

    /// Creates a store for [`MemoryStore::CAPACITY`] keys that uses the machine's clock.
    pub fn new() -> Self {
        Self::with(Self::CAPACITY, Clock::system())
    }

    /// Creates a store for `capacity` keys. Its time starts at the present time of `clock` and
    /// advances with it; setting the clock later has no effect. Expired keys are removed to insert
    /// new keys; if there are hardly any, a new key is refused with a `Capacity` error. Calls on
    /// existing keys are always accepted.
    pub fn with(capacity: usize, clock: Clock) -> Self {
        Self(Arc::new(Inner {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            clock: SteadyClock::new(&clock),
            capacity,
            len: AtomicUsize::new(0),
            last_fence: AtomicU64::new(0),
            full_until: Mutex::default(),
        }))
    }

    /// Returns the number of keys, expired ones included.
    pub fn len(&self) -> usize {
        self.0.len.load(Ordering::SeqCst)
    }

    /// Returns whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard(&self, digest: &Digest) -> MutexGuard<'_, Shard> {
        let index = usize::from(digest.as_bytes()[0]) % SHARDS;
        // A poisoned lock can be used: code that writes a record does not panic, so no record is
        // half-written, and a lost queue entry only keeps a key longer.
        self.0.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a fence that is larger than every earlier fence, and at least the time of the clock.
    fn next_fence(&self, now: Timestamp) -> Fence {
        let floor = Fence::from_i64(now.as_micros()).0;
        let last = self
            .0
            .last_fence
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |last| Some(floor.max(last + 1)));
        Fence(floor.max(last.unwrap_or_else(|last| last) + 1))
    }

    fn reserve(&self) -> bool {
        let room = |len: usize| (len < self.0.capacity).then_some(len + 1);
        self.0.len.fetch_update(Ordering::SeqCst, Ordering::SeqCst, room).is_ok()
    }

    fn count_removed(&self, count: usize) {
        // All shards share the counter, so it is not written if no key was removed.
        if count > 0 {
            self.0.len.fetch_sub(count, Ordering::SeqCst);
        }
    }

    /// Removes expired records before a new key is refused. Concurrent callers wait for this search
    /// and use its result; if it removed hardly any record, the next callers skip the search for a
    /// while.
    fn make_room(&self) {
        let mut full_until = self.0.full_until.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.0.clock.now();
        if self.len() < self.0.capacity || full_until.is_some_and(|until| now < until) {
            return;
        }
        let removed = self.sweep_now(u32::MAX).removed as usize;
        let scarce = removed.saturating_mul(MIN_YIELD) < self.0.capacity;
        // The pause begins at the end of the search, which may have taken longer than the shortest
        // pause.
        let end = self.0.clock.now();
        let took = end.remaining(now).unwrap_or_default();
        let pause = took.saturating_mul(PAUSE_FACTOR).clamp(PAUSE_LIMITS.0, PAUSE_LIMITS.1);
        *full_until = scarce.then(|| end.after(pause));
    }

    fn open_now(&self, draft: &Draft) -> Option<Opened> {
        let now = self.0.clock.now();
        let digest = draft.key.digest();
        let mut shard = self.shard(&digest);
        if let Some(held) = shard.keys.get(&digest) {
            return Some(Opened::Existing { record: Box::new(held.record.clone()), now });
        }
        self.count_removed(shard.take_expired(now));
        self.reserve().then(|| {
            let fence = self.next_fence(now);
            let record = Record::granted(draft, fence, now);
            shard.keys.insert(digest, Box::new(Entry { key: draft.key.clone(), record }));
            Opened::Inserted { fence }
        })
    }

    fn settle_now(&self, lease: &Lease, settlement: &Settlement) -> Settled {
        let now = self.0.clock.now();
        let mut shard = self.shard(&lease.digest);
        let held = shard.keys.get_mut(&lease.digest).map(|entry| &mut entry.record);
        let Some(record) = held.filter(|record| is_held_by(lease, record)) else {
            return Settled::Lost;
        };
        let (remains, expires_at) = (record.end(settlement, now), record.expires_at);
        match expires_at {
            _ if !remains => self.count_removed(shard.put(lease.digest, None)),
            Some(at) => shard.queue_expiry(at, lease.digest),
            None => {}
        }
        Settled::Done
    }

    fn swap_now(&self, key: &Key, judged: Version, change: &Change) -> Swapped {
        let now = self.0.clock.now();
        let mut shard = self.shard(&key.digest());
        let held = shard.keys.get(&key.digest()).map(|held| &held.record);
        let Some(old) = held.filter(|old| is_version(old, judged)) else {
            return Swapped::Lost;
        };
        let next = match change {
            Change::Regrant(draft) => {
                let fresh = Record::granted(draft, self.next_fence(now), now);
                let created_at = old.created_at;
                Some(Record { number: old.number + 1, created_at, ..fresh })
            }
            Change::Replace(draft) => Some(Record::granted(draft, self.next_fence(now), now)),
            Change::Settle(settlement) => old.clone().ended(settlement, now),
            Change::Redrive => Some(old.clone().redriven(now)),
            Change::Redate => Some(old.clone().redated(now)),
        };
        let fence = next.as_ref().map_or(old.fence, |record| record.fence);
        self.count_removed(shard.put(key.digest(), next));
        Swapped::Done { fence }
    }

    fn sweep_now(&self, limit: u32) -> Swept {
        let now = self.0.clock.now();
        let mut swept = Swept::default();
        for shard in &self.0.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let due: Vec<Digest> = shard
                .keys
                .iter()
                .filter(|(_, entry)| sweepable(&entry.record, now))
                .map(|(digest, _)| *digest)
                .take((limit - swept.removed - swept.suspended) as usize)
                .collect();
            for digest in due {
                let Some(record) = shard.keys.get(&digest).map(|held| &held.record) else {
                    continue;
                };
                let next = (record.state == State::Running && record.on_crash != OnCrash::Rerun)
                    .then(|| ErrorText::new("the attempt ended without an answer (swept)"))
                    .and_then(|error| record.clone().ended(&Settlement::Uncertain { error }, now));
                let removed = shard.put(digest, next);
                self.count_removed(removed);
                swept.removed += removed as u32;
                swept.suspended += 1 - removed as u32;
            }
            if swept.removed + swept.suspended >= limit {
                swept.more = true;
                break;
            }
        }
        swept
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

fn is_held_by(lease: &Lease, record: &Record) -> bool {
    if !guard!(Fence) {
        return true;
    }
    record.state == State::Running
        && record.fence == lease.fence
        && record.attempt_id == lease.attempt_id
}

fn is_version(record: &Record, judged: Version) -> bool {
    if !guard!(Version) {
        return true;
    }
    record.version() == judged
}

fn sweepable(record: &Record, now: Timestamp) -> bool {
    match record.state {
        State::Succeeded | State::Failed => record.expired(now),
        State::Running => record.lease_until.is_some_and(|until| match record.on_crash {
            OnCrash::Hold => until <= now,
            OnCrash::Rerun | OnCrash::Verify => until.after(record.keep) <= now,
        }),
        State::Dead | State::Uncertain | State::Discarded => false,
    }
}

impl Store for MemoryStore {
    type Renewer = Self;

    async fn open(&self, draft: &Draft) -> Result<Opened> {
        if let Some(opened) = self.open_now(draft) {
            return Ok(opened);
        }
        self.make_room();
        self.open_now(draft).ok_or_else(|| {
            let held = format!("the memory store is full: it holds {} keys", self.0.capacity);
            Error::new(ErrorKind::Capacity, "open", held)
        })
    }

    async fn swap(&self, key: &Key, judged: Version, change: &Change) -> Result<Swapped> {
        Ok(self.swap_now(key, judged, change))
    }

    async fn settle(&self, lease: &Lease, settlement: &Settlement) -> Result<Settled> {
        Ok(self.settle_now(lease, settlement))
    }

    async fn peek(&self, key: &Key) -> Result<Option<Peeked>> {
        let now = self.0.clock.now();
        let shard = self.shard(&key.digest());
        Ok(shard.keys.get(&key.digest()).map(|entry| Peeked { record: entry.record.clone(), now }))
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        Ok(self.sweep_now(limit))
    }

    async fn renewer(&self) -> Result<Self> {
        Ok(self.clone())
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        Ok(vec![Finding {
            severity: Severity::Warning,
            code: "memory-volatile",
            found: "records live in this process's memory and end with it".into(),
            fix: "use SQLite, PostgreSQL, MySQL or Redis for anything that must survive".into(),
        }])
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::BestEffort
    }

    fn is_in_process(&self) -> bool {
        true
    }
}

impl Renewer for MemoryStore {
    async fn renew(&mut self, leases: &[(Lease, Duration)]) -> Result<Vec<Renewed>> {
        let now = self.0.clock.now();
        let extend = |(lease, length): &(Lease, Duration)| {
            let mut shard = self.shard(&lease.digest);
            match shard.keys.get_mut(&lease.digest).map(|entry| &mut entry.record) {
                Some(record) if is_held_by(lease, record) => {
                    record.lease_until = Some(now.after(*length));
                    record.updated_at = now;
                    record.number += 1;
                    Renewed::Extended
                }
                _ => Renewed::Lost,
            }
        };
        Ok(leases.iter().map(extend).collect())
    }
}

impl Inspect for MemoryStore {
    async fn list(&self, filter: &Filter, after: Option<&Cursor>, limit: u32) -> Result<Page> {
        let now = self.0.clock.now();
        let after = after.and_then(|cursor| Digest::from_bytes(&cursor.0));
        let most = limit as usize;
        // Keeps one entry more than fits into the page, to know whether there is a next page.
        let mut found: BTreeMap<Digest, Entry> = BTreeMap::new();
        for shard in &self.0.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let later =
                shard.keys.iter().filter(|(digest, _)| after.is_none_or(|last| **digest > last));
            for (digest, entry) in later.filter(|(_, entry)| filter.matches(entry, now)) {
                let full = found.len() > most;
                if full && found.last_key_value().is_some_and(|(last, _)| last < digest) {
                    continue;
                }
                found.insert(*digest, Entry::clone(entry));
                if full {
                    found.pop_last();
                }
            }
        }
        let more = found.len() > most;
        if more {
            found.pop_last();
        }
        let last = found.last_key_value().map(|(digest, _)| Cursor(digest.as_bytes().to_vec()));
        Ok(Page {
            entries: found.into_values().collect(),
            next: last.filter(|_| more),
            ..Page::default()
        })
    }

    async fn tally(&self, filter: &Filter) -> Result<Tally> {
        let (now, mut tally) = (self.0.clock.now(), Tally::default());
        for shard in &self.0.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for entry in shard.keys.values().filter(|entry| filter.matches(entry, now)) {
                tally.add(entry.record.attempt);
            }
        }
        Ok(tally)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AttemptId, Fingerprint, OperationId};

    const KEEP: Duration = Duration::from_secs(60);

    fn draft(key: &Key) -> Draft {
        Draft {
            key: key.clone(),
            fingerprint: Fingerprint::none(),
            operation_id: OperationId::generate(),
            attempt_id: AttemptId::generate(),
            attempt: 1,
            owner: "host:1:a".into(),
            lease: Duration::from_secs(30),
            on_crash: OnCrash::Rerun,
            keep: KEEP,
            retry_payload: None,
        }
    }

    /// Returns a store, its clock, and keys that are in the same shard of the store.
    fn one_shard<const N: usize>() -> (MemoryStore, Clock, [Key; N]) {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        let key = |id: u32| Key::command("acme", "PAY", &id.to_string()).expect("a key");
        let mut same_shard =
            (0..).map(key).filter(|key| usize::from(key.digest().as_bytes()[0]) % SHARDS == 0);
        let keys = std::array::from_fn(|_| same_shard.next().expect("there are many"));
        (MemoryStore::with(10, clock.clone()), clock, keys)
    }

    fn open(store: &MemoryStore, key: &Key) {
        let opened = store.open_now(&draft(key));
        assert!(matches!(opened, Some(Opened::Inserted { .. })), "{opened:?}");
    }

    fn record(store: &MemoryStore, key: &Key) -> Option<Record> {
        let shard = store.shard(&key.digest());
        shard.keys.get(&key.digest()).map(|entry| entry.record.clone())
    }

    fn change(store: &MemoryStore, key: &Key, change: &Change) {
        let judged = record(store, key).expect("the key has a record").version();
        assert!(matches!(store.swap_now(key, judged, change), Swapped::Done { .. }));
    }

    fn fail(store: &MemoryStore, key: &Key, keep: Duration) {
        let (error, retry_after) = (ErrorText::new("no"), Some(Duration::ZERO));
        change(store, key, &Change::Settle(Settlement::Failed { error, retry_after, keep }));
    }

    #[test]
    fn inserting_a_key_removes_only_expired_keys() {
        let error = ErrorText::new("no");
        let outcome = crate::Recorded::Whole(crate::Outcome::empty());
        let later = [
            None,
            Some(Settlement::Dead { error: error.clone() }),
            Some(Settlement::Uncertain { error }),
            Some(Settlement::Succeeded { outcome, keep: KEEP }),
        ];
        for settlement in later {
            let (store, clock, [first, second]) = one_shard();
            open(&store, &first);
            fail(&store, &first, Duration::from_secs(1));
            change(&store, &first, &Change::Regrant(draft(&first)));
            if let Some(settlement) = settlement {
                change(&store, &first, &Change::Settle(settlement));
            }
            let before = record(&store, &first);
            clock.advance(Duration::from_secs(2));
            open(&store, &second);
            assert_eq!(record(&store, &first), before);
            assert_eq!(store.len(), 2);
        }
        let (store, clock, [first, second]) = one_shard();
        open(&store, &first);
        fail(&store, &first, Duration::from_secs(1));
        clock.advance(Duration::from_secs(2));
        open(&store, &second);
        assert_eq!((record(&store, &first), store.len()), (None, 1));
    }

    #[test]
    fn a_key_that_is_written_repeatedly_has_a_bounded_number_of_queue_entries() {
        let (store, clock, [quiet, busy, last]) = one_shard();
        open(&store, &quiet);
        fail(&store, &quiet, KEEP);
        open(&store, &busy);
        for _ in 0..1_000 {
            fail(&store, &busy, KEEP);
            clock.advance(Duration::from_millis(1));
        }
        let ends = [&quiet, &busy].map(|key| {
            let at = record(&store, key).and_then(|record| record.expires_at).expect("it expires");
            Reverse((at, key.digest()))
        });
        let queued = store.shard(&busy.digest()).due.clone().into_vec();
        assert!(queued.len() <= 2 * 2 + SPARE, "{}", queued.len());
        assert!(ends.iter().all(|end| queued.contains(end)), "every key is still in the queue");
        clock.advance(KEEP);
        open(&store, &last);
        assert_eq!(store.len(), 1);
    }
}
