//! The relay: publishes rows of the outbox to a broker, and decides what becomes of each.
//!
//! Several relays share the rows by leases. A row that the broker refuses is dead, with the reason, and holds
//! up no others; an unreachable broker costs no row an attempt. Within a partition an event is published
//! after its predecessor was confirmed.

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

pub use pass::Pass;
use size::BatchSize;

use super::{Ask, Backlog, Outbox, Publisher};
use crate::clock::monotonic;
use crate::measure;
use crate::policy::{InvalidPolicy, OnFailure, Policy};
use crate::store::Result;
use crate::sweeper;

/// The first and the longest pause while the broker is unreachable.
const REST: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Most batches in one round of cleaning.
const CLEANING: u32 = 100;

/// Publishes the events of an outbox. Cheap to clone; clones share everything.
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
    /// Rows that the broker did not accept while it accepted others, and how often in a row.
    suspects: Mutex<HashMap<u64, u8>>,
    /// The last reason why the broker was unreachable.
    away: Mutex<String>,
    /// When it was last logged that events have no route.
    complained: Mutex<Option<Instant>>,
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
    /// Sets the most rows in one claim. Default 1,000. The first claims are of at most 100; as long as they come
    /// back full, the next ones are larger.
    pub fn batch(mut self, rows: u32) -> Self {
        self.settings.batch = rows.clamp(1, 10_000);
        self
    }

    /// Sets the bytes of payload in one claim, so that a batch of large events fits into memory and into the
    /// lease. A larger event is claimed alone. Default 8 MiB.
    pub fn batch_bytes(mut self, bytes: u64) -> Self {
        self.settings.batch_bytes = bytes;
        self
    }

    /// Sets the length of the leases. A batch must be published within it, so it should be many times what
    /// the broker needs for one. Default 30 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// Sets how many batches are in progress at once. Default 2: one is claimed or marked while the other
    /// is published.
    pub fn at_once(mut self, batches: usize) -> Self {
        self.settings.concurrency = batches.clamp(1, 64);
        self
    }

    /// Sets the attempts before a row is dead. Default 20. An unreachable broker does not count.
    pub fn max_attempts(mut self, tries: u32) -> Self {
        self.settings.max_attempts = tries;
        self
    }

    /// Sets when a failed row is due again: after `min(cap, base * 2^(n - 1))`. Default 1 s to 5 min.
    pub fn backoff(mut self, base: Duration, cap: Duration) -> Self {
        self.settings.backoff = OnFailure::Backoff { base, cap };
        self
    }

    /// Sets whether the later events of a partition wait behind a dead one until an operator has decided.
    /// Default `false`: they continue.
    pub fn dead_hold_their_partition(mut self, hold: bool) -> Self {
        self.settings.dead_hold_partition = hold;
        self
    }

    /// Sets the first and the longest pause between claims that find nothing. A commit in this process wakes
    /// the relay at once. Default 10 ms doubling to 500 ms.
    pub fn idle(mut self, first: Duration, most: Duration) -> Self {
        let first = first.max(Duration::from_millis(1));
        self.settings.idle = (first, most.max(first));
        self
    }

    /// Sets how long published rows stay. Default 7 days, in which events can be published again that a
    /// broker lost after confirming them. `Duration::MAX` keeps them for ever.
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

    /// Builds the relay. It does nothing until [`start`](Relay::start) or [`pass`](Relay::pass).
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
            away: Mutex::default(),
            complained: Mutex::default(),
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
            batch_bytes: Ask::BYTES,
            lease: Ask::LEASE,
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

    /// Returns how long published rows stay.
    pub fn keep(&self) -> Duration {
        self.0.settings.keep
    }

    /// Claims one batch, publishes it and marks what became of it.
    ///
    /// # Errors
    /// The outbox failed. Leased rows are claimable again when their lease has lapsed.
    pub async fn pass(&self) -> Result<Pass> {
        self.0.pass(&CancellationToken::new()).await
    }

    /// Publishes until nothing is due or the broker is unreachable. For tests, and for a last run by hand.
    ///
    /// # Errors
    /// As [`pass`](Self::pass).
    pub async fn drain(&self) -> Result<Pass> {
        let mut all = Pass::default();
        loop {
            let pass = self.pass().await?;
            all += pass;
            // A claim that has read many rows and found nothing has rung, and is to be called again.
            let more = pass.claimed > 0 || self.0.outbox.bell().rung().now_or_never().is_some();
            if !more || pass.away {
                return Ok(all);
            }
        }
    }

    /// Publishes in the background until it is [stopped](Relaying::stop).
    pub fn start(&self) -> Relaying {
        let relaying = Relaying {
            stopping: CancellationToken::new(),
            paused: watch::channel(false).0,
            tasks: TaskTracker::new(),
            standing: Arc::default(),
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
    /// Publishes batch after batch, with pauses while there is nothing to do.
    async fn relay(self: Arc<Self>, relaying: Relaying) {
        let (mut idle, mut rest) = (self.settings.idle.0, REST.0);
        let mut paused = relaying.paused.subscribe();
        while !relaying.stopping.is_cancelled() {
            tokio::select! {
                running = paused.wait_for(|paused| !paused) => if running.is_err() { return },
                () = relaying.stopping.cancelled() => return,
            }
            let mut starved = false;
            let away = match self.pass(&relaying.stopping).await {
                Ok(pass) => {
                    relaying.standing.add(&pass);
                    if pass.claimed > 0 && !pass.away {
                        (idle, rest) = (self.settings.idle.0, REST.0);
                        // There may be more rows than fit into the batch.
                        self.outbox.bell().ring();
                        continue;
                    }
                    // What is due may wait for a batch in progress. More of the same wakes this one in vain.
                    starved = self.in_progress.load(Ordering::Relaxed) > 0;
                    pass.away
                }
                Err(error) => {
                    measure::store_failed(&error);
                    tracing::warn!(%error, "could not read the outbox; retrying");
                    true
                }
            };
            if away && rest == REST.0 {
                let reason = std::mem::take(&mut *self.away());
                tracing::warn!(
                    reason,
                    "the broker or the outbox is unreachable; events stay in the outbox, retrying"
                );
            }
            // While the broker is unreachable, appended events are no reason to try earlier.
            let span = if away { &mut rest } else { &mut idle };
            let pause = span.mul_f64(0.75 + 0.5 * fastrand::f64());
            *span = (*span * 2).min(if away { REST.1 } else { self.settings.idle.1 });
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.outbox.bell().rung(), if !away && !starved => idle = self.settings.idle.0,
                () = relaying.stopping.cancelled() => return,
            }
        }
    }

    fn away(&self) -> MutexGuard<'_, String> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes published rows when their time is over, and measures the backlog.
    async fn clean(self: Arc<Self>, stopping: CancellationToken) {
        let mut suspected = false;
        loop {
            let every = self.settings.clean_every.mul_f64(0.9 + 0.2 * fastrand::f64());
            tokio::select! {
                () = tokio::time::sleep(every) => {}
                () = stopping.cancelled() => return,
            }
            for _ in 0..CLEANING {
                let since = monotonic();
                let cleaned = self.outbox.clean(self.settings.keep, 1_000).await;
                let more = cleaned.as_ref().is_ok_and(|cleaned| cleaned.removed == 1_000);
                match cleaned {
                    Ok(cleaned) => {
                        sweeper::doubt(cleaned.clock_suspect, &mut suspected, "published events");
                    }
                    Err(error) => measure::store_failed(&error),
                }
                // At most a fifth of the time.
                let rest = (since.elapsed() * 4).min(Duration::from_secs(1));
                tokio::select! {
                    () = tokio::time::sleep(rest) => {}
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

/// A running relay. Cheap to clone. Dropping it does not stop it.
#[derive(Clone, Debug)]
pub struct Relaying {
    stopping: CancellationToken,
    paused: watch::Sender<bool>,
    tasks: TaskTracker,
    standing: Arc<Counts>,
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
pub struct Standing {
    /// Number of rows that the broker confirmed.
    pub published: u64,
    /// Number of attempts that failed and are retried.
    pub failed: u64,
    /// Number of rows that are dead.
    pub dead: u64,
    /// Whether it is paused.
    pub paused: bool,
}

impl Relaying {
    /// Claims nothing until [`resume`](Self::resume); batches in progress are finished.
    pub fn pause(&self) {
        self.paused.send_replace(true);
    }

    /// Continues after a [`pause`](Self::pause).
    pub fn resume(&self) {
        self.paused.send_replace(false);
    }

    /// Returns the counts so far.
    pub fn standing(&self) -> Standing {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { published, failed, dead } = &*self.standing;
        let paused = *self.paused.borrow();
        Standing { published: read(published), failed: read(failed), dead: read(dead), paused }
    }

    /// Stops: finishes what is being published, and releases the other leased rows.
    pub async fn stop(&self) -> Standing {
        self.stopping.cancel();
        self.tasks.wait().await;
        self.standing()
    }
}
