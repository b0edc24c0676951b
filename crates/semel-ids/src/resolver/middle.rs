//! The shared cache as a resolver uses it: never in the way, whatever state it is in.
//!
//! Its failures are counted and cost a lookup in the map, no more. After one it is left alone for a
//! moment, so that a slow cache does not make every lookup slow.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::store;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use super::name::Name;
use super::near::{Near, jittered};
use crate::shared::{CacheFill, CacheSlot, CorruptEntry, Invalidation, SharedCache};

/// How long it is left alone after a failure.
const REST: Duration = Duration::from_secs(1);
/// Writes in the background at most; what is beyond that is not written.
const WRITES: usize = 64;
/// Words on their way at most; others are left to the bounds.
const WORDS: usize = 4_096;
/// Longest silence of a line that works.
pub(super) const SILENCE: Duration = Duration::from_secs(3);
/// How often a writer tries to tell the others.
const TELLINGS: u32 = 5;

/// What a writer has to say of an id.
#[derive(Clone, Debug)]
pub(super) enum Word {
    /// It is there. Absences, and revocations that were only likely, live so long at most; what lives
    /// longer is a revocation, and stays.
    Registered(String, Duration),
    /// These count no more, and this may be believed for a while.
    Revoked(Vec<String>, Duration),
    /// These were changed, and only the map knows to what.
    Repaired(Vec<String>),
}

pub(super) struct Middle {
    shared: Arc<dyn SharedCache>,
    runtime: Handle,
    writes: Arc<Semaphore>,
    words: Arc<Semaphore>,
    rests_until: Mutex<Option<Instant>>,
    /// Whether other nodes are heard.
    hears: AtomicBool,
}

impl Middle {
    pub(super) fn new(shared: Arc<dyn SharedCache>, runtime: Handle) -> Self {
        let (writes, words) = (Arc::new(Semaphore::new(WRITES)), Arc::new(Semaphore::new(WORDS)));
        let (rests_until, hears) = (Mutex::new(None), AtomicBool::new(false));
        Self { shared, runtime, writes, words, rests_until, hears }
    }

    /// One answer per key; `None` if it cannot be had.
    pub(super) async fn get(&self, keys: &[&str]) -> Option<Vec<CacheSlot>> {
        if keys.is_empty() || self.rests() {
            return None;
        }
        let slots = self.see("get", self.shared.get(keys).await)?;
        (slots.len() == keys.len()).then_some(slots)
    }

    /// Fills gaps, in the background.
    pub(super) fn fill(self: &Arc<Self>, mut notes: Vec<CacheFill>) {
        for note in &mut notes {
            note.ttl = jittered(note.ttl);
        }
        if !notes.is_empty() {
            self.write(move |middle| async move {
                let filled = middle.shared.fill(&notes).await;
                middle.see("fill", filled);
            });
        }
    }

    /// Clears wrong entries away, in the background.
    pub(super) fn clear(self: &Arc<Self>, wrong: Vec<CorruptEntry>) {
        if wrong.is_empty() {
            return;
        }
        metrics::counter!("semel_idresolve_l2_damaged_total").increment(wrong.len() as u64);
        self.write(move |middle| async move {
            let cleared = middle.shared.clear(&wrong).await;
            middle.see("clear", cleared);
        });
    }

    fn write<F>(self: &Arc<Self>, write: impl FnOnce(Arc<Self>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Ok(permit) = Arc::clone(&self.writes).try_acquire_owned() else {
            metrics::counter!("semel_idresolve_l2_skipped_total").increment(1);
            return;
        };
        if self.rests() {
            return;
        }
        let writing = write(Arc::clone(self));
        self.runtime.spawn(async move {
            writing.await;
            drop(permit);
        });
    }

    /// Tells all nodes what a writer did. Says whether it reached them.
    pub(super) async fn tell(&self, word: &Word) -> bool {
        let told = match word {
            Word::Registered(key, absences) => {
                self.shared.registered(std::slice::from_ref(key), *absences).await
            }
            Word::Revoked(keys, ttl) => self.shared.revoked(keys, *ttl).await,
            Word::Repaired(keys) => self.shared.repaired(keys).await,
        };
        self.see("tell", told).is_some()
    }

    /// The same in the background, tried a few times.
    pub(super) fn tell_later(self: &Arc<Self>, word: Word) {
        let Ok(permit) = Arc::clone(&self.words).try_acquire_owned() else {
            return untold();
        };
        let middle = Arc::clone(self);
        self.runtime.spawn(async move {
            let _permit = permit;
            for tried in 0..TELLINGS {
                if tried > 0 {
                    sleep(jittered(REST * 2_u32.pow(tried - 1))).await;
                }
                if middle.tell(&word).await {
                    return;
                }
            }
            untold();
        });
    }

    /// Whether other nodes are heard.
    pub(super) fn hears(&self) -> bool {
        self.hears.load(Ordering::Acquire)
    }

    /// Listens to the other nodes, for ever.
    pub(super) async fn listen(&self, near: &Near) {
        let mut failures = 0_u32;
        loop {
            let line = timeout(SILENCE, self.shared.listen()).await;
            if let Ok(Some(mut line)) = line.map(|line| counted("listen", line)) {
                // What was told while nobody listened is not known: begin anew.
                near.clear();
                let hearing = Hearing::begin(&self.hears);
                failures = 0;
                while let Ok(Ok(heard)) = timeout(SILENCE, line.next()).await {
                    take_in(&heard, near);
                }
                drop(hearing);
                tracing::warn!(
                    "other nodes are not heard; until they are, answers are remembered only briefly"
                );
            }
            failures = (failures + 1).min(5);
            sleep(jittered(Duration::from_millis(100) * 2_u32.pow(failures))).await;
        }
    }

    /// Whether it is to be left alone. When its rest is over one caller finds out for all: the others
    /// leave it alone until that one knows.
    fn rests(&self) -> bool {
        let mut until = self.rests_until.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        match *until {
            None => false,
            Some(end) if now < end => true,
            Some(_) => {
                *until = Some(now + REST);
                false
            }
        }
    }

    /// Counts a failure and gives the cache a rest.
    fn see<T>(&self, operation: &'static str, result: store::Result<T>) -> Option<T> {
        let result = counted(operation, result);
        let until = result.is_none().then(|| Instant::now() + REST);
        *self.rests_until.lock().unwrap_or_else(PoisonError::into_inner) = until;
        result
    }
}

/// Other nodes are heard while this is held, and not any more if the listener comes to grief.
struct Hearing<'m>(&'m AtomicBool);

impl<'m> Hearing<'m> {
    fn begin(hears: &'m AtomicBool) -> Self {
        hears.store(true, Ordering::Release);
        Self(hears)
    }
}

impl Drop for Hearing<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A word that is given up: the others know at the end of the bounds.
fn untold() {
    metrics::counter!("semel_idresolve_lost_invalidations_total").increment(1);
    tracing::warn!("other nodes could not be told of an id; they know of it within the bounds");
}

fn counted<T>(operation: &'static str, result: store::Result<T>) -> Option<T> {
    if let Err(error) = &result {
        metrics::counter!("semel_idresolve_l2_errors_total", "operation" => operation).increment(1);
        tracing::debug!(operation, %error, "the shared cache of ids did not answer");
    }
    result.ok()
}

fn take_in(heard: &Invalidation, near: &Near) {
    let (keys, take): (_, fn(&Near, &Name)) = match heard {
        Invalidation::Registered(keys) => (keys, Near::appeared),
        Invalidation::Revoked(keys) => (keys, Near::revoked_elsewhere),
        Invalidation::Repaired(keys) => (keys, Near::corrected_elsewhere),
        Invalidation::Heartbeat => return,
    };
    // What was said of an id by another node holds for whatever is asked from now on.
    for name in keys.iter().filter_map(|key| near.names.parse(key)) {
        take(near, &name);
    }
}
