//! Keeps leases alive, from a thread of its own.
//!
//! On the application's runtime a heartbeat stops whenever handlers block its workers, which is
//! just when leases are in danger. So renewal has its own thread, its own runtime and its own store
//! connection. It retries inside the lease, and fires the work's cancellation shortly before a
//! lease that it could not renew ends.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::claim::Lease;
use crate::clock::monotonic;
use crate::measure;
use crate::store::{Renewed, Renewer, Store};

/// Leases renewed in one step.
const BATCH: usize = 256;

/// The leases of one executor.
pub(super) struct Heartbeat<S: Store> {
    store: Arc<S>,
    table: Arc<Table>,
    started: OnceLock<()>,
}

impl<S: Store> Heartbeat<S> {
    pub(super) fn new(store: Arc<S>) -> Self {
        Self { store, table: Arc::default(), started: OnceLock::new() }
    }

    /// Keeps `lease` alive until the beat is dropped. `since` is when the grant was asked for: the
    /// store cannot have started counting earlier.
    pub(super) fn start(
        &self,
        lease: Lease,
        length: Duration,
        since: Instant,
        lost: CancellationToken,
    ) -> Beat {
        self.started.get_or_init(|| launch(&self.store, &self.table));
        let beat =
            Entry { lease, length, renew_at: since + length / 3, ends: since + length, lost };
        self.table.insert(beat)
    }
}

impl<S: Store> Drop for Heartbeat<S> {
    fn drop(&mut self) {
        self.table.closed.store(true, Ordering::SeqCst);
        self.table.wake.notify_one();
    }
}

/// A lease that is kept alive while this lives.
pub(super) struct Beat {
    table: Arc<Table>,
    id: u64,
}

impl Drop for Beat {
    fn drop(&mut self) {
        let mut leases = self.table.lock();
        if let Some(entry) = leases.entries.remove(&self.id) {
            leases.queue.remove(&(entry.renew_at, self.id));
        }
    }
}

struct Entry {
    lease: Lease,
    length: Duration,
    renew_at: Instant,
    ends: Instant,
    lost: CancellationToken,
}

#[derive(Default)]
struct Table {
    leases: Mutex<Leases>,
    wake: Notify,
    closed: AtomicBool,
}

#[derive(Default)]
struct Leases {
    entries: HashMap<u64, Entry>,
    queue: BTreeSet<(Instant, u64)>,
    last_id: u64,
    /// When the thread will look again by itself; it is woken only for something earlier.
    sleeps_until: Option<Instant>,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(self: &Arc<Self>, entry: Entry) -> Beat {
        let mut leases = self.lock();
        leases.last_id += 1;
        let (id, due) = (leases.last_id, entry.renew_at);
        leases.queue.insert((due, id));
        leases.entries.insert(id, entry);
        if leases.sleeps_until.is_none_or(|until| due < until) {
            leases.sleeps_until = Some(due);
            self.wake.notify_one();
        }
        Beat { table: Arc::clone(self), id }
    }

    /// The leases that are due, and when to look again.
    fn due(&self, now: Instant) -> (Vec<(u64, Lease, Duration)>, Option<Instant>) {
        let mut leases = self.lock();
        let ids: Vec<u64> =
            leases.queue.iter().take_while(|(at, _)| *at <= now).take(BATCH).map(|e| e.1).collect();
        let due = ids
            .iter()
            .filter_map(|id| leases.entries.get(id).map(|e| (*id, e.lease, e.length)))
            .collect();
        leases.sleeps_until = leases.queue.first().map(|(at, _)| *at);
        let next = leases.sleeps_until;
        (due, next)
    }

    fn reschedule(&self, id: u64, renew_at: Instant, ends: Option<Instant>) {
        let mut leases = self.lock();
        let Some(entry) = leases.entries.get_mut(&id) else {
            return;
        };
        let before = std::mem::replace(&mut entry.renew_at, renew_at);
        entry.ends = ends.unwrap_or(entry.ends);
        leases.queue.remove(&(before, id));
        leases.queue.insert((renew_at, id));
    }

    fn lose(&self, id: u64) {
        let mut leases = self.lock();
        if let Some(entry) = leases.entries.remove(&id) {
            leases.queue.remove(&(entry.renew_at, id));
            entry.lost.cancel();
        }
    }

    /// After a failed round: try again soon, or give up a lease that is about to end.
    fn retry(&self, due: &[(u64, Lease, Duration)], now: Instant) {
        for (id, _, length) in due {
            // The margin leaves the work a moment to hear of it before a rival may start.
            let over = self.lock().entries.get(id).is_some_and(|e| now + *length / 10 >= e.ends);
            if over {
                self.lose(*id);
            } else {
                let pause = (*length / 20).clamp(Duration::from_millis(5), Duration::from_secs(1));
                self.reschedule(*id, now + pause, None);
            }
        }
    }
}

fn launch<S: Store>(store: &Arc<S>, table: &Arc<Table>) {
    let beat = run(Arc::clone(store), Arc::clone(table));
    #[cfg(feature = "testing")]
    if crate::testing::sabotaged(crate::testing::Guard::HeartbeatThread) {
        tokio::spawn(beat);
        return;
    }
    let thread = std::thread::Builder::new().name("semel-heartbeat".into()).spawn(move || {
        match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(beat),
            Err(error) => {
                tracing::error!(%error, "heartbeat has no runtime: leases will lapse")
            }
        }
    });
    if let Err(error) = thread {
        tracing::error!(%error, "heartbeat has no thread: leases will lapse");
    }
}

async fn run<S: Store>(store: Arc<S>, table: Arc<Table>) {
    let mut renewer = None;
    while !table.closed.load(Ordering::SeqCst) {
        let (due, next) = table.due(monotonic());
        if due.is_empty() {
            let woken = table.wake.notified();
            match next {
                Some(at) => {
                    let pause = at.saturating_duration_since(monotonic());
                    let _ = tokio::time::timeout(pause, woken).await;
                }
                None => woken.await,
            }
            continue;
        }
        renew(&*store, &table, &mut renewer, &due).await;
    }
}

async fn renew<S: Store>(
    store: &S,
    table: &Table,
    renewer: &mut Option<S::Renewer>,
    due: &[(u64, Lease, Duration)],
) {
    let sent = monotonic();
    // One hung step may cost a part of the shortest lease, never all of it.
    let limit = due.iter().map(|(_, _, length)| *length / 4).min().unwrap_or_default();
    let step = async {
        let renewer = match renewer {
            Some(renewer) => renewer,
            None => renewer.insert(store.renewer().await?),
        };
        let leases: Vec<(Lease, Duration)> = due.iter().map(|(_, l, d)| (*l, *d)).collect();
        renewer.renew(&leases).await
    };
    match tokio::time::timeout(limit, step).await {
        Ok(Ok(answers)) => {
            for ((id, _, length), answer) in due.iter().zip(answers) {
                match answer {
                    Renewed::Extended => {
                        table.reschedule(*id, sent + *length / 3, Some(sent + *length));
                    }
                    Renewed::Lost => table.lose(*id),
                }
            }
        }
        Ok(Err(error)) => {
            tracing::warn!(%error, leases = due.len(), "renewal failed; trying again");
            measure::renew_failed();
            table.retry(due, monotonic());
        }
        Err(_) => {
            tracing::warn!(leases = due.len(), "renewal hung; trying again on a new connection");
            measure::renew_failed();
            *renewer = None;
            table.retry(due, monotonic());
        }
    }
}
