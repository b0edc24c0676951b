//! Waits for the outcome of another call.
//!
//! One task polls the store for all waiters of a key. It is woken when a claim of this executor ends, and
//! across processes where the store carries wake-ups; otherwise it polls after 50 ms, doubling to 500 ms,
//! with jitter.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use super::Inner;
use super::claim::pause;
use super::command::ResolvedCommand;
use super::execution::Error;
use crate::clock::monotonic;
use crate::judge::Verdict;
use crate::key::{Hint, Key, Mixing};
use crate::measure;
use crate::outcome::ErrorText;
use crate::policy::{Wait, Woken};
use crate::record::State;
use crate::store::{Peeked, Store};

/// How often the store is polled for waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Polling {
    /// The first pause. Default 50 ms.
    pub first: Duration,
    /// The longest pause; each is twice the one before. Default 500 ms.
    pub max: Duration,
}

impl Default for Polling {
    fn default() -> Self {
        Self { first: Duration::from_millis(50), max: Duration::from_millis(500) }
    }
}

/// The waiters of an executor.
#[derive(Default)]
pub(super) struct Waiters {
    watches: Mutex<Watches>,
    /// Number of waiters: while there are none, the lock is not taken.
    places: AtomicUsize,
    listening: AtomicBool,
}

/// The watch of each key, with the number of its waiters.
type Watches = HashMap<Hint, (Arc<Watch>, usize), Mixing>;

#[derive(Default)]
struct Watch {
    /// Counts possible ends of the claim.
    moved: watch::Sender<u64>,
    /// Makes the poller read the store now.
    nudge: Notify,
    polled: AtomicBool,
    deserted: AtomicBool,
}

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, Watches> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the waiters of a key whose claim has ended.
    pub(super) fn wake(&self, hint: Hint) {
        // A waiter that registers after this reads the record after it too, and finds the end.
        if self.places.load(Ordering::SeqCst) == 0 {
            return;
        }
        if let Some((watch, _)) = self.lock().get(&hint) {
            watch.moved.send_modify(|count| *count += 1);
        }
    }

    /// Makes the poller of this key read the store now: another process has announced a change.
    fn nudge(&self, hint: Hint) {
        if let Some((watch, _)) = self.lock().get(&hint) {
            watch.nudge.notify_one();
        }
    }

    fn nudge_all(&self) {
        for (watch, _) in self.lock().values() {
            watch.nudge.notify_one();
        }
    }
}

/// The registration of a waiter. Made before the record is read, so that no end is missed in between.
struct Place<S: Store> {
    inner: Arc<Inner<S>>,
    key: Key,
    watch: Arc<Watch>,
    moved: watch::Receiver<u64>,
}

impl<S: Store> Place<S> {
    fn take(inner: &Arc<Inner<S>>, key: &Key) -> Self {
        inner.waiters.places.fetch_add(1, Ordering::SeqCst);
        let mut watches = inner.waiters.lock();
        let (watch, places) = watches.entry(key.digest().hint()).or_default();
        *places += 1;
        let (watch, moved) = (Arc::clone(watch), watch.moved.subscribe());
        drop(watches);
        Self { inner: Arc::clone(inner), key: key.clone(), watch, moved }
    }

    /// Waits until the claim may have ended, at most `limit`. Returns `false` if the time is up.
    async fn wait(&mut self, limit: Duration) -> bool {
        if !self.watch.polled.swap(true, Ordering::SeqCst) {
            let (inner, watch) = (Arc::downgrade(&self.inner), Arc::downgrade(&self.watch));
            self.inner.tasks.spawn(poll(inner, watch, self.key.clone(), self.inner.polling));
        }
        self.inner.listen_once();
        matches!(tokio::time::timeout(limit, self.moved.changed()).await, Ok(Ok(())))
    }
}

impl<S: Store> Drop for Place<S> {
    fn drop(&mut self) {
        self.inner.waiters.places.fetch_sub(1, Ordering::SeqCst);
        let mut watches = self.inner.waiters.lock();
        let hint = self.key.digest().hint();
        let Some((_, places)) = watches.get_mut(&hint) else {
            return;
        };
        *places -= 1;
        if *places == 0 {
            watches.remove(&hint);
            self.watch.deserted.store(true, Ordering::SeqCst);
            self.watch.nudge.notify_one();
        }
    }
}

/// Polls the record until its claim has ended or no waiters are left.
async fn poll<S: Store>(inner: Weak<Inner<S>>, watch: Weak<Watch>, key: Key, polling: Polling) {
    let mut span = polling.first;
    loop {
        let Some(held) = watch.upgrade() else { return };
        let nudged = tokio::select! {
            () = held.nudge.notified() => true,
            () = pause(span) => false,
        };
        if held.deserted.load(Ordering::SeqCst) {
            return;
        }
        if !nudged {
            span = (span * 2).min(polling.max);
        }
        let Some(inner) = inner.upgrade() else { return };
        let as_of = monotonic();
        let Ok(peeked) = inner.store.peek(&key).await else {
            continue;
        };
        if let Some(found) = &peeked {
            // A lease that a clock wrote which was ahead is redated by the next claim.
            if found.record.held(found.now) && !found.record.is_ahead(found.now) {
                continue;
            }
            // One read serves every waiter: they find the outcome in the replay cache.
            inner.remember(&key, found, as_of);
        }
        // Without a record, an open transaction may hold the key: the waiters try to claim it.
        held.moved.send_modify(|count| *count += 1);
    }
}

impl<S: Store> Inner<S> {
    /// Starts receiving wake-ups from other processes, when the first waiter comes.
    fn listen_once(self: &Arc<Self>) {
        if !self.waiters.listening.swap(true, Ordering::SeqCst) {
            self.tasks.spawn(listen(Arc::downgrade(self)));
        }
    }
}

async fn listen<S: Store>(inner: Weak<Inner<S>>) {
    loop {
        let Some(strong) = inner.upgrade() else {
            return;
        };
        let (store, closing) = (Arc::clone(&strong.store), strong.closing.clone());
        drop(strong);
        let mut listener = match store.listen().await {
            Ok(Some(listener)) => listener,
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(%error, "no wake-ups from other processes; polling goes on");
                pause(Duration::from_secs(1)).await;
                continue;
            }
        };
        drop(store);
        // Ends from before the subscription were missed.
        if let Some(strong) = inner.upgrade() {
            strong.waiters.nudge_all();
        }
        loop {
            let heard = tokio::select! {
                heard = listener.next() => heard,
                () = closing.cancelled() => return,
            };
            let (Ok(hint), Some(strong)) = (heard, inner.upgrade()) else {
                break;
            };
            strong.waiters.nudge(hint);
        }
        pause(Duration::from_millis(200)).await;
    }
}

/// A caller's wait for the outcome of another call.
pub(super) struct Waiting<S: Store> {
    place: Option<Place<S>>,
    pub(super) since: Instant,
    /// Whether the holder is a transaction of this process.
    local: bool,
}

impl<S: Store> Waiting<S> {
    pub(super) fn new(inner: &Arc<Inner<S>>, command: &ResolvedCommand) -> Self {
        let place = (command.policy.wait != Wait::No).then(|| Place::take(inner, &command.key));
        Self { place, since: monotonic(), local: false }
    }

    /// Waits for the claim to end. Returns `false` if the time is up.
    pub(super) async fn again(&mut self, inner: &Inner<S>, command: &ResolvedCommand) -> bool {
        let Some(place) = &mut self.place else {
            return false;
        };
        self.local = inner.in_flight.judge(command).is_some();
        let left = command.policy.wait.limit().saturating_sub(self.since.elapsed());
        let woken = tokio::select! {
            woken = place.wait(left) => woken,
            () = inner.hurrying.cancelled() => false,
        };
        measure::waited(self.since.elapsed());
        woken
    }

    /// Returns the holder's failure, if it ended the wait and the policy is [`Woken::Report`].
    pub(super) async fn reported(
        &self,
        inner: &Inner<S>,
        command: &ResolvedCommand,
        waited_on: &Verdict,
    ) -> Option<Error> {
        // A claim in an open transaction is not visible before its end, and in another process not even
        // then. The stored record belongs to an earlier attempt.
        let invisible = matches!(waited_on, Verdict::Running { lease_remaining: None });
        let unknown = inner.in_flight.judge(command).is_some() || (invisible && !self.local);
        if command.policy.woken != Woken::Report || unknown {
            return None;
        }
        let found = inner.store.peek(&command.key).await.ok()?;
        let gone = || ErrorText::new("the holder released the key without an outcome");
        let Some(Peeked { record, now }) = found else {
            return Some(Error::HolderFailed { error: gone(), attempt: 0 });
        };
        let failed = match record.state {
            State::Succeeded => false,
            State::Running => !record.held(now),
            State::Failed | State::Dead | State::Uncertain | State::Discarded => true,
        };
        let (error, attempt) = (record.error.unwrap_or_else(gone), record.attempt);
        failed.then_some(Error::HolderFailed { error, attempt })
    }
}
