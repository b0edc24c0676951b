//! The relay: publishes events of the outbox to a broker, and decides what happens to each row.
//!
//! Several relays share the rows by leases. A row that the broker refuses becomes dead, with the
//! reason, and by default delays no other row. An unreachable broker is not counted as an attempt.
//! Within a partition an event is published after its predecessor was confirmed.

mod outage;
mod pass;
mod size;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use outage::Outage;
pub use pass::Pass;
use size::BatchSize;

use super::{Backlog, ClaimRequest, Outbox, Publisher};
use crate::clock::monotonic;
use crate::measure;
use crate::policy::{InvalidPolicy, OnFailure, Policy};
use crate::store::Result;
use crate::sweeper;

/// The first and the longest pause between tries while the broker or the outbox is unreachable.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The largest number of batches in one round of cleaning.
const CLEANING_BATCHES: u32 = 100;

/// Publishes the events of an outbox. Cheap to clone: clones share the outbox, the publisher and
/// the settings.
///
/// ```
/// use semel_core::outbox::memory::MemoryOutbox;
/// use semel_core::outbox::{Outbox, PublishError, Publisher, Relay};
/// use semel_core::Event;
///
/// # struct Broker;
/// # impl Publisher for Broker {
/// #     async fn publish(&self, events: &[Event]) -> Vec<Result<(), PublishError>> {
/// #         events.iter().map(|_| Ok(())).collect()
/// #     }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = MemoryOutbox::new();
/// let placed = Event::builder("acme", "order.placed", "/orders").json(&"ord_1").build()?;
/// let mut transaction = outbox.clone(); // in a database: the transaction that writes the order
/// outbox.append(&mut transaction, &[placed]).await?;
///
/// let relay = Relay::new(outbox, Broker);
/// let relaying = relay.start(); // in the background …
/// relaying.stop().await;
/// relay.drain().await?; // … or until nothing is due
/// assert_eq!(relay.outbox().backlog().await?.waiting, 0);
/// # Ok(())
/// # }
/// ```
pub struct Relay<O: Outbox, P: Publisher>(Arc<Inner<O, P>>);

impl<O: Outbox, P: Publisher> Clone for Relay<O, P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<O: Outbox, P: Publisher> std::fmt::Debug for Relay<O, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").field("settings", &self.0.settings).finish_non_exhaustive()
    }
}

struct Inner<O, P> {
    outbox: Arc<O>,
    publisher: P,
    settings: Settings,
    /// The size of the next batch.
    size: Mutex<BatchSize>,
    /// Batches that are in progress.
    in_progress: AtomicUsize,
    /// The rows that the broker did not accept while it accepted others, each with the number of
    /// times in a row.
    suspects: Mutex<HashMap<u64, u8>>,
    /// The reason why the broker was last unreachable.
    unreachable_reason: Mutex<String>,
    outage: Outage,
    /// The time of the last warning about events without a route.
    last_warning: Mutex<Option<Instant>>,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    batch: u32,
    batch_bytes: u64,
    lease: Duration,
    concurrency: usize,
    max_attempts: u32,
    backoff: OnFailure,
    dead_hold_partition: bool,
    idle: (Duration, Duration),
    keep: Duration,
    clean_every: Duration,
}

/// Configures a [`Relay`].
#[derive(Debug)]
#[must_use]
pub struct RelayBuilder<O, P> {
    outbox: Arc<O>,
    publisher: P,
    settings: Settings,
}

impl<O: Outbox, P: Publisher> RelayBuilder<O, P> {
    /// Sets the largest number of rows in one claim. Default 1,000. The first claims are smaller; while
    /// they come back full, the next ones grow.
    pub fn batch(mut self, rows: u32) -> Self {
        self.settings.batch = rows.clamp(1, 10_000);
        self
    }

    /// Sets the largest total size of the payloads in one claim, in bytes, so that a batch of large
    /// events fits into memory and can be published within the lease. A larger event is claimed
    /// alone. Default 8 MiB.
    pub fn batch_bytes(mut self, bytes: u64) -> Self {
        self.settings.batch_bytes = bytes;
        self
    }

    /// Sets the length of the leases on rows. A batch must be published within it, so it should be
    /// many times as long as the broker needs for a batch. Default 30 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// Sets the number of batches that are in progress at once. Default 2: one is claimed or marked
    /// while the other is published.
    pub fn at_once(mut self, batches: usize) -> Self {
        self.settings.concurrency = batches.clamp(1, 64);
        self
    }

    /// Sets the number of attempts after which a row is dead. Default 20. Tries while the broker is
    /// unreachable are not counted.
    pub fn max_attempts(mut self, tries: u32) -> Self {
        self.settings.max_attempts = tries;
        self
    }

    /// Sets the delay after the failure of attempt `n`: `min(cap, base * 2^(n - 1))`. Default 1 s
    /// to 5 min.
    pub fn backoff(mut self, base: Duration, cap: Duration) -> Self {
        self.settings.backoff = OnFailure::Backoff { base, cap };
        self
    }

    /// Sets whether later events of a partition wait behind a dead event until an operator has
    /// decided about it. Default `false`: they are published.
    pub fn dead_hold_their_partition(mut self, hold: bool) -> Self {
        self.settings.dead_hold_partition = hold;
        self
    }

    /// Sets the first and the longest pause between claims that find no row. A commit in this
    /// process wakes the relay at once. Default 10 ms doubling to 500 ms.
    pub fn idle(mut self, first: Duration, most: Duration) -> Self {
        let first = first.max(Duration::from_millis(1));
        self.settings.idle = (first, most.max(first));
        self
    }

    /// Sets how long published rows are kept. Default 7 days: within this time, events that a
    /// broker lost after confirming them can be published again. `Duration::MAX` keeps rows for
    /// ever.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.settings.keep = keep;
        self
    }

    /// Sets how often published rows are removed. Default 60 s.
    pub fn clean_every(mut self, span: Duration) -> Self {
        let longest = Duration::from_secs(24 * 60 * 60);
        self.settings.clean_every = span.clamp(Duration::from_millis(10), longest);
        self
    }

    /// Builds the relay. It publishes nothing until [`start`](Relay::start), [`pass`](Relay::pass)
    /// or [`drain`](Relay::drain) is called.
    ///
    /// # Errors
    /// [`InvalidPolicy`] if a setting is not valid.
    pub fn build(self) -> std::result::Result<Relay<O, P>, InvalidPolicy> {
        let lease = self.settings.lease;
        let max_attempts = Some(self.settings.max_attempts);
        Policy { lease, max_attempts, ..Policy::default() }.check()?;
        let Self { outbox, publisher, settings } = self;
        Ok(Relay(Arc::new(Inner {
            outbox,
            publisher,
            size: Mutex::new(BatchSize::new(settings.batch)),
            settings,
            in_progress: AtomicUsize::new(0),
            suspects: Mutex::default(),
            unreachable_reason: Mutex::default(),
            outage: Outage::default(),
            last_warning: Mutex::default(),
        })))
    }
}

impl<O: Outbox, P: Publisher> Relay<O, P> {
    /// Creates a relay with default settings.
    pub fn new(outbox: impl Into<Arc<O>>, publisher: P) -> Self {
        Self::builder(outbox, publisher).build().expect("the defaults are valid")
    }

    /// Returns a builder with default settings.
    pub fn builder(outbox: impl Into<Arc<O>>, publisher: P) -> RelayBuilder<O, P> {
        let settings = Settings {
            batch: 1_000,
            batch_bytes: ClaimRequest::BYTES,
            lease: ClaimRequest::LEASE,
            concurrency: 2,
            max_attempts: 20,
            backoff: OnFailure::backoff(),
            dead_hold_partition: false,
            idle: (Duration::from_millis(10), Duration::from_millis(500)),
            keep: Duration::from_secs(7 * 24 * 60 * 60),
            clean_every: Duration::from_secs(60),
        };
        RelayBuilder { outbox: outbox.into(), publisher, settings }
    }

    /// Returns the outbox.
    pub fn outbox(&self) -> &Arc<O> {
        &self.0.outbox
    }

    /// Returns how long published rows are kept.
    pub fn keep(&self) -> Duration {
        self.0.settings.keep
    }

    /// Claims one batch, publishes it and marks its rows with the results.
    ///
    /// # Errors
    /// The error of the outbox. Rows that were leased can be claimed again when their lease has
    /// lapsed.
    pub async fn pass(&self) -> Result<Pass> {
        self.0.pass(&CancellationToken::new()).await
    }

    /// Publishes events until no row is due or the broker is unreachable. Meant for tests and for
    /// manual runs.
    ///
    /// # Errors
    /// The same errors as [`pass`](Self::pass).
    pub async fn drain(&self) -> Result<Pass> {
        let mut all = Pass::default();
        loop {
            let pass = self.pass().await?;
            all += pass;
            // A claim that has read many rows without finding one to lease has rung the bell: claim
            // again.
            let more = pass.claimed > 0 || self.0.outbox.bell().rung().now_or_never().is_some();
            if !more || pass.away {
                return Ok(all);
            }
        }
    }

    /// Starts publishing in the background, until the returned handle is [stopped](Relaying::stop).
    pub fn start(&self) -> Relaying {
        let relaying = Relaying {
            stopping: CancellationToken::new(),
            paused: watch::channel(false).0,
            tasks: TaskTracker::new(),
            counts: Arc::default(),
        };
        for _ in 0..self.0.settings.concurrency {
            let (inner, relaying) = (Arc::clone(&self.0), relaying.clone());
            relaying.tasks.clone().spawn(async move { inner.relay(relaying).await });
        }
        let (inner, stopping) = (Arc::clone(&self.0), relaying.stopping.clone());
        relaying.tasks.spawn(async move { inner.clean(stopping).await });
        relaying.tasks.close();
        relaying
    }
}

impl<O: Outbox, P: Publisher> Inner<O, P> {
    /// Publishes batch after batch, and pauses while no row is due.
    async fn relay(self: Arc<Self>, relaying: Relaying) {
        let (mut idle, mut retry) = (self.settings.idle.0, RETRY_PAUSE.0);
        let mut paused = relaying.paused.subscribe();
        while !relaying.stopping.is_cancelled() {
            tokio::select! {
                running = paused.wait_for(|paused| !paused) => if running.is_err() { return },
                () = relaying.stopping.cancelled() => return,
            }
            let mut starved = false;
            let unreachable = match self.pass(&relaying.stopping).await {
                Ok(pass) => {
                    relaying.counts.add(&pass);
                    self.outage.after(&pass, || std::mem::take(&mut *self.unreachable_reason()));
                    if pass.claimed > 0 && !pass.away {
                        (idle, retry) = (self.settings.idle.0, RETRY_PAUSE.0);
                        // There may be more rows than the batch contains.
                        self.outbox.bell().ring();
                        continue;
                    }
                    // What is due may wait for a batch in progress. More of the same wakes this one in vain.
                    starved = self.in_progress.load(Ordering::Relaxed) > 0;
                    pass.away
                }
                Err(error) => {
                    measure::store_failed(&error);
                    self.outage.of_outbox(&error);
                    true
                }
            };
            // While the broker is unreachable, newly appended events do not wake the relay.
            let span = if unreachable { &mut retry } else { &mut idle };
            let pause = span.mul_f64(0.75 + 0.5 * fastrand::f64());
            *span = (*span * 2).min(if unreachable { RETRY_PAUSE.1 } else { self.settings.idle.1 });
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.outbox.bell().rung(), if !unreachable && !starved => idle = self.settings.idle.0,
                () = relaying.stopping.cancelled() => return,
            }
        }
    }

    fn unreachable_reason(&self) -> MutexGuard<'_, String> {
        self.unreachable_reason.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes rows whose retention has ended, and sets the gauges of the backlog.
    async fn clean(self: Arc<Self>, stopping: CancellationToken) {
        let mut suspected = false;
        loop {
            let every = self.settings.clean_every.mul_f64(0.9 + 0.2 * fastrand::f64());
            tokio::select! {
                () = tokio::time::sleep(every) => {}
                () = stopping.cancelled() => return,
            }
            for _ in 0..CLEANING_BATCHES {
                let since = monotonic();
                let cleaned = self.outbox.clean(self.settings.keep, 1_000).await;
                let more = cleaned.as_ref().is_ok_and(|cleaned| cleaned.removed == 1_000);
                match cleaned {
                    Ok(cleaned) => {
                        sweeper::doubt(cleaned.clock_suspect, &mut suspected, "published events");
                    }
                    Err(error) => measure::store_failed(&error),
                }
                // Cleaning takes at most a fifth of the time.
                let pause = (since.elapsed() * 4).min(Duration::from_secs(1));
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = stopping.cancelled() => return,
                }
                if !more {
                    break;
                }
            }
            if let Ok(Backlog { waiting, dead, oldest }) = self.outbox.backlog().await {
                measure::outbox(waiting, dead, oldest);
            }
        }
    }
}

/// The handle of a running relay. Cheap to clone. Dropping it does not stop the relay.
#[derive(Clone, Debug)]
pub struct Relaying {
    stopping: CancellationToken,
    paused: watch::Sender<bool>,
    tasks: TaskTracker,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    published: AtomicU64,
    failed: AtomicU64,
    dead: AtomicU64,
}

impl Counts {
    fn add(&self, pass: &Pass) {
        for (count, more) in [
            (&self.published, pass.published),
            (&self.failed, pass.retried),
            (&self.dead, pass.buried),
        ] {
            count.fetch_add(u64::from(more), Ordering::Relaxed);
        }
    }
}

/// The counts of a relay since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayStatus {
    /// The number of events that the broker has confirmed.
    pub published: u64,
    /// The number of attempts that failed and are retried.
    pub failed: u64,
    /// The number of events that became dead.
    pub dead: u64,
    /// Whether the relay is paused.
    pub paused: bool,
}

impl Relaying {
    /// Stops claiming rows until [`resume`](Self::resume) is called; batches in progress are
    /// finished.
    pub fn pause(&self) {
        self.paused.send_replace(true);
    }

    /// Continues claiming rows after a [`pause`](Self::pause).
    pub fn resume(&self) {
        self.paused.send_replace(false);
    }

    /// Returns the counts since the start.
    pub fn status(&self) -> RelayStatus {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { published, failed, dead } = &*self.counts;
        let paused = *self.paused.borrow();
        RelayStatus { published: read(published), failed: read(failed), dead: read(dead), paused }
    }

    /// Stops the relay: waits for events that are being published, and releases the other leased
    /// rows.
    pub async fn stop(&self) -> RelayStatus {
        self.stopping.cancel();
        self.tasks.wait().await;
        self.status()
    }
}
