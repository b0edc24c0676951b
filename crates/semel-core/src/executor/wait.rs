//! Waits for the outcome of another call.
//!
//! One task polls the store for all waiters of a key: by default after 50 ms, doubling to 500 ms,
//! with jitter. The end of a claim in this process wakes the waiters directly. The end of a claim
//! in another process makes the task poll at once, if the store transports wake-ups.

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

/// The pauses between polls of the store while calls wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Polling {
    /// The pause before the first poll. Default 50 ms.
    pub first: Duration,
    /// The longest pause between polls; each pause is twice the one before. Default 500 ms.
    pub max: Duration,
}

impl Default for Polling {
    fn default() -> Self {
        Self { first: Duration::from_millis(50), max: Duration::from_millis(500) }
    }
}

/// The calls of an executor that wait for the outcomes of other calls.
#[derive(Default)]
pub(super) struct Waiters {
    watches: Mutex<Watches>,
    /// The number of waiters. While it is 0, the lock is not taken.
    registrations: AtomicUsize,
    listening: AtomicBool,
}

/// The watch of each key that has waiters, with the number of those waiters.
type Watches = HashMap<Hint, (Arc<Watch>, usize), Mixing>;

#[derive(Default)]
struct Watch {
    /// Changes whenever the claim may have ended.
    moved: watch::Sender<u64>,
    /// Makes the polling task read the store at once.
    nudge: Notify,
    polled: AtomicBool,
    abandoned: AtomicBool,
}

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, Watches> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the waiters of a key whose claim has ended.
    pub(super) fn wake(&self, hint: Hint) {
        // A waiter that registers later reads the record later too, and sees the end of the claim.
        if self.registrations.load(Ordering::SeqCst) == 0 {
            return;
        }
        if let Some((watch, _)) = self.lock().get(&hint) {
            watch.moved.send_modify(|count| *count += 1);
        }
    }

    /// Makes the polling task of this key read the store at once, because another process has
    /// announced a change.
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

/// The registration of a waiter. It is made before the record is read, so that the waiter misses no
/// end of the claim.
struct Registration<S: Store> {
    inner: Arc<Inner<S>>,
    key: Key,
    watch: Arc<Watch>,
    moved: watch::Receiver<u64>,
}

impl<S: Store> Registration<S> {
    fn take(inner: &Arc<Inner<S>>, key: &Key) -> Self {
        inner.waiters.registrations.fetch_add(1, Ordering::SeqCst);
        let mut watches = inner.waiters.lock();
        let (watch, registrations) = watches.entry(key.digest().hint()).or_default();
        *registrations += 1;
        let (watch, moved) = (Arc::clone(watch), watch.moved.subscribe());
        drop(watches);
        Self { inner: Arc::clone(inner), key: key.clone(), watch, moved }
    }

    /// Waits until the claim may have ended, but at most `limit`. Returns `false` if the limit has
    /// passed.
    async fn wait(&mut self, limit: Duration) -> bool {
        if !self.watch.polled.swap(true, Ordering::SeqCst) {
            let (inner, watch) = (Arc::downgrade(&self.inner), Arc::downgrade(&self.watch));
            self.inner.tasks.spawn(poll(inner, watch, self.key.clone(), self.inner.polling));
        }
        self.inner.listen_once();
        matches!(tokio::time::timeout(limit, self.moved.changed()).await, Ok(Ok(())))
    }
}

impl<S: Store> Drop for Registration<S> {
    fn drop(&mut self) {
        self.inner.waiters.registrations.fetch_sub(1, Ordering::SeqCst);
        let mut watches = self.inner.waiters.lock();
        let hint = self.key.digest().hint();
        let Some((_, registrations)) = watches.get_mut(&hint) else {
            return;
        };
        *registrations -= 1;
        if *registrations == 0 {
            watches.remove(&hint);
            self.watch.abandoned.store(true, Ordering::SeqCst);
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
        if held.abandoned.load(Ordering::SeqCst) {
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
            // The lease has not ended. A lease that was written by a clock that ran ahead counts as
            // ended: the next claim corrects its times.
            if found.record.held(found.now) && !found.record.is_ahead(found.now) {
                continue;
            }
            // One read is enough for all waiters: they find the outcome in the replay cache.
            inner.remember(&key, found, as_of);
        }
        // If there is no record, an open transaction may still hold the key: the waiters try to
        // claim it.
        held.moved.send_modify(|count| *count += 1);
    }
}

impl<S: Store> Inner<S> {
    /// Starts the task that receives wake-ups from other processes, unless it was started before.
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
                tracing::debug!(%error, "cannot receive wake-ups from other processes; polling continues");
                pause(Duration::from_secs(1)).await;
                continue;
            }
        };
        drop(store);
        // Wake-ups from before the subscription were missed.
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

/// The wait of one call for the outcome of another.
pub(super) struct Waiting<S: Store> {
    registration: Option<Registration<S>>,
    pub(super) since: Instant,
    /// Whether the claim is held by a transaction of this process.
    local: bool,
}

impl<S: Store> Waiting<S> {
    pub(super) fn new(inner: &Arc<Inner<S>>, command: &ResolvedCommand) -> Self {
        let registration =
            (command.policy.wait != Wait::No).then(|| Registration::take(inner, &command.key));
        Self { registration, since: monotonic(), local: false }
    }

    /// Waits until the claim may have ended. Returns `false` if the call must not wait any longer.
    pub(super) async fn again(&mut self, inner: &Inner<S>, command: &ResolvedCommand) -> bool {
        let Some(registration) = &mut self.registration else {
            return false;
        };
        self.local = inner.in_flight.judge(command).is_some();
        let left = command.policy.wait.limit().saturating_sub(self.since.elapsed());
        let woken = tokio::select! {
            woken = registration.wait(left) => woken,
            () = inner.waiting_ended.cancelled() => false,
        };
        measure::waited(self.since.elapsed());
        woken
    }

    /// Returns the failure of the call that was waited for, if the policy is [`Woken::Report`].
    pub(super) async fn reported(
        &self,
        inner: &Inner<S>,
        command: &ResolvedCommand,
        waited_on: &Verdict,
    ) -> Option<Error> {
        // A claim in an open transaction is never visible in the store while it is held, and a
        // rolled back transaction of another process leaves no record: the stored record may belong
        // to an earlier attempt.
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
