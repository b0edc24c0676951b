//! Renews leases on a separate thread.
//!
//! On the application's runtime, handlers that block the worker threads would stop a heartbeat. So
//! renewal has its own thread, runtime and store connection. It retries within the lease, and
//! cancels the work shortly before a lease ends that could not be renewed.
//!
//! The time limit of a renewal step depends on the shortest lease in it, so leases of very
//! different lengths are not renewed together: each class of lengths that is in use has its own
//! thread and connection.

use std::collections::{BTreeSet, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::sync::Notify;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::cancellation::Cancellation;
use crate::claim::Lease;
use crate::clock::monotonic;
use crate::key::Mixing;
use crate::measure;
use crate::store::{self, Renewed, Renewer, Store};

/// The largest number of leases that are renewed in one step.
const BATCH: usize = 256;
/// The longest time limit of a renewal step, so that a step that hangs does not delay other leases
/// for long.
const MAX_STEP: Duration = Duration::from_secs(3);
/// The shortest time limit of a renewal step: a healthy store may take this long.
const MIN_STEP: Duration = Duration::from_millis(100);
/// The shortest time limit of connecting, which takes several round trips.
const MIN_CONNECT: Duration = Duration::from_secs(1);
/// The bounds between the classes of lease lengths.
const CLASSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

/// Renews all leases of one executor.
pub(super) struct Heartbeat<S: Store> {
    store: Arc<S>,
    classes: [Class; CLASSES.len() + 1],
}

/// The leases of one class of lengths, and whether their thread was started.
#[derive(Default)]
struct Class {
    table: Arc<Table>,
    started: OnceLock<()>,
}

impl<S: Store> Heartbeat<S> {
    pub(super) fn new(store: Arc<S>) -> Self {
        Self { store, classes: Default::default() }
    }

    /// Renews `lease` until the returned beat is dropped, and cancels `lost` if the lease is lost.
    /// `since` is the time at which the grant was requested: the lease cannot have begun earlier.
    pub(super) fn start(
        &self,
        lease: Lease,
        length: Duration,
        since: Instant,
        lost: Cancellation,
    ) -> Beat {
        let class = &self.classes[CLASSES.iter().filter(|end| length >= **end).count()];
        class.started.get_or_init(|| launch(&self.store, &class.table));
        let (renew_at, ends) = (since + length / 3, since + length);
        class.table.insert(Entry { lease, length, since, renew_at, ends, lost })
    }

    /// Returns the number of leases that are renewed, and the age of the oldest.
    pub(super) fn held(&self) -> (usize, Option<Duration>) {
        let (mut count, mut oldest) = (0, None::<Instant>);
        for class in &self.classes {
            let leases = class.table.lock();
            count += leases.entries.len();
            oldest = oldest.into_iter().chain(leases.entries.values().map(|e| e.since)).min();
        }
        (count, oldest.map(|since| monotonic().saturating_duration_since(since)))
    }
}

impl<S: Store> Drop for Heartbeat<S> {
    fn drop(&mut self) {
        for class in &self.classes {
            class.table.closed.store(true, Ordering::SeqCst);
            class.table.wake.notify_one();
        }
    }
}

/// Keeps a lease renewed until this value is dropped.
pub(super) struct Beat {
    table: Arc<Table>,
    id: u64,
}

impl Beat {
    /// Returns whether the lease is still held for longer than its safety margin, so that work may
    /// start.
    pub(super) fn holds(&self) -> bool {
        let now = monotonic();
        self.table.lock().entries.get(&self.id).is_some_and(|entry| !entry.is_over(now))
    }
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
    since: Instant,
    renew_at: Instant,
    ends: Instant,
    lost: Cancellation,
}

impl Entry {
    /// Returns whether the lease ends within its safety margin, a tenth of its length. The margin
    /// gives the work time to stop before another attempt may start.
    fn is_over(&self, now: Instant) -> bool {
        now >= self.last_moment()
    }

    fn last_moment(&self) -> Instant {
        self.ends.checked_sub(self.length / 10).unwrap_or(self.ends)
    }
}

#[derive(Default)]
struct Table {
    leases: Mutex<Leases>,
    wake: Notify,
    closed: AtomicBool,
}

#[derive(Default)]
struct Leases {
    entries: HashMap<u64, Entry, Mixing>,
    queue: BTreeSet<(Instant, u64)>,
    last_id: u64,
    /// The time at which the thread wakes without a notification. The thread is notified only about
    /// an earlier renewal.
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

    /// Returns the leases whose renewal is due, and the time of the earliest renewal.
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

    /// Removes every lease that is about to end, and cancels its work.
    fn fence(&self, now: Instant) {
        let over: Vec<u64> = {
            let leases = self.lock();
            leases.entries.iter().filter(|(_, e)| e.is_over(now)).map(|(id, _)| *id).collect()
        };
        for id in over {
            self.lose(id);
        }
    }

    /// Returns the time at which the work of the next lease must be cancelled.
    fn next_end(&self) -> Option<Instant> {
        self.lock().entries.values().map(Entry::last_moment).min()
    }

    /// Reschedules leases that could not be renewed, and cancels the work of leases that are about
    /// to end.
    fn retry(&self, due: &[(u64, Lease, Duration)], now: Instant) {
        for (id, _, length) in due {
            let last_moment = self.lock().entries.get(id).map(Entry::last_moment);
            match last_moment {
                Some(last) if last <= now => self.lose(*id),
                Some(last) => {
                    let pause =
                        (*length / 20).clamp(Duration::from_millis(5), Duration::from_secs(1));
                    self.reschedule(*id, (now + pause).min(last), None);
                }
                None => {}
            }
        }
    }
}

fn launch<S: Store>(store: &Arc<S>, table: &Arc<Table>) {
    let beat = keep_running(Arc::clone(store), Arc::clone(table));
    if !guard!(HeartbeatThread) {
        tokio::spawn(beat);
        return;
    }
    let thread = std::thread::Builder::new().name("semel-heartbeat".into()).spawn(move || {
        match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(beat),
            Err(error) => {
                tracing::error!(%error, "could not start the heartbeat's runtime: leases are not renewed and will lapse")
            }
        }
    });
    if let Err(error) = thread {
        tracing::error!(%error, "could not start the heartbeat's thread: leases are not renewed and will lapse");
    }
}

/// Runs the renewal, and restarts it if the store panics.
async fn keep_running<S: Store>(store: Arc<S>, table: Arc<Table>) {
    while AssertUnwindSafe(run(Arc::clone(&store), Arc::clone(&table)))
        .catch_unwind()
        .await
        .is_err()
    {
        tracing::error!("the renewal of leases panicked; restarting it");
        tokio::time::sleep(Duration::from_millis(50)).await;
        table.fence(monotonic());
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
                    let _ = timeout(pause, woken).await;
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
    table.fence(monotonic());
    // The time limit keeps a step that hangs from losing the leases in it. While the step waits,
    // the work of leases that are about to end is cancelled.
    let shortest = due.iter().map(|(_, _, length)| *length).min().unwrap_or(MAX_STEP);
    let limit = (shortest / 4).clamp(MIN_STEP, MAX_STEP);
    let tick = limit / 4;
    let leases: Vec<(Lease, Duration)> = due.iter().map(|(_, l, d)| (*l, *d)).collect();
    let step = renew_once(store, renewer, &leases, limit);
    let watched = async {
        tokio::pin!(step);
        loop {
            let end = table.next_end().map(|end| end.saturating_duration_since(monotonic()));
            // At least 1 ms, so that the step is polled before the next check.
            let look = end.unwrap_or(tick).clamp(Duration::from_millis(1), tick);
            tokio::select! {
                done = &mut step => return done,
                () = tokio::time::sleep(look) => table.fence(monotonic()),
            }
        }
    };
    match watched.await {
        Ok((sent, Ok(answers))) => {
            let mut unknown = Vec::new();
            for ((id, lease, length), answer) in due.iter().zip(answers) {
                match answer {
                    Renewed::Extended => {
                        table.reschedule(*id, sent + *length / 3, Some(sent + *length));
                    }
                    Renewed::Lost => table.lose(*id),
                    Renewed::Unknown => unknown.push((*id, *lease, *length)),
                }
            }
            table.retry(&unknown, monotonic());
        }
        Ok((_, Err(error))) => {
            tracing::warn!(%error, leases = due.len(), "could not renew leases; retrying");
            measure::renew_failed();
            table.retry(due, monotonic());
        }
        Err(_) => {
            tracing::warn!(
                leases = due.len(),
                "the renewal of leases hung; retrying on a new connection"
            );
            measure::renew_failed();
            *renewer = None;
            table.retry(due, monotonic());
        }
    }
}

/// Renews `leases` once, on the existing connection or on a new one. Returns the time at which the
/// renewal was sent, and the store's reply.
async fn renew_once<S: Store>(
    store: &S,
    renewer: &mut Option<S::Renewer>,
    leases: &[(Lease, Duration)],
    limit: Duration,
) -> Result<(Instant, store::Result<Vec<Renewed>>), Elapsed> {
    let renewer = match renewer {
        Some(renewer) => renewer,
        None => match timeout(limit.max(MIN_CONNECT), store.renewer()).await? {
            Ok(made) => renewer.insert(made),
            Err(error) => return Ok((monotonic(), Err(error))),
        },
    };
    let sent = monotonic();
    failpoint!("renew.before");
    let renewed = timeout(limit, renewer.renew(leases)).await?;
    failpoint!("renew.after");
    Ok((sent, renewed))
}
