//! Reads the machine's clocks; no other module of this crate does.
//!
//! Leases end by the clock of the store (the database server's clock, Redis `TIME`). Embedded
//! stores have no server, so they use a [`Clock`]; tests pass one that they can advance. No time of
//! this machine is sent to a networked store: callers pass durations, never instants.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A time by a store's clock: microseconds since the Unix epoch, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Creates a timestamp from its stored form: microseconds since the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Returns the stored form: microseconds since the Unix epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Returns the time from `now` until this timestamp; `None` if this timestamp is not later than
    /// `now`.
    pub fn remaining(self, now: Timestamp) -> Option<Duration> {
        let left = self.0.saturating_sub(now.0);
        (left > 0).then(|| Duration::from_micros(left.unsigned_abs()))
    }

    /// Returns the time from `earlier` until this timestamp; zero if this timestamp is not later.
    pub fn since(self, earlier: Timestamp) -> Duration {
        self.remaining(earlier).unwrap_or_default()
    }

    /// Returns the timestamp `span` later. It saturates: `Duration::MAX` means for ever.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(micros(span)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}us", self.0)
    }
}

/// Returns a duration in microseconds, the unit that stores persist. It saturates at about 292,000
/// years.
pub fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// The clock of an embedded store: the machine's clock, or one that tests control.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    manual: Option<Arc<Manual>>,
}

#[derive(Debug)]
struct Manual {
    /// The time that the clock shows.
    moment: AtomicI64,
    /// The total time by which the clock was advanced. Setting the clock does not change it.
    passed: AtomicI64,
}

impl Clock {
    /// Returns the machine's clock.
    pub fn system() -> Self {
        Self::default()
    }

    /// Creates a clock for tests, which changes only by [`advance`](Self::advance) and
    /// [`set`](Self::set).
    ///
    /// ```
    /// use std::time::Duration;
    /// use semel_core::store::memory::MemoryStore;
    /// use semel_core::{Clock, Timestamp};
    ///
    /// let clock = Clock::manual(Timestamp::from_micros(0));
    /// let store = MemoryStore::with(1_000, clock.clone());
    /// clock.advance(Duration::from_secs(31)); // a lease of 30 s has lapsed
    /// assert_eq!(clock.now(), Timestamp::from_micros(31_000_000));
    /// ```
    pub fn manual(start: Timestamp) -> Self {
        let (moment, passed) = (AtomicI64::new(start.0), AtomicI64::new(0));
        Self { manual: Some(Arc::new(Manual { moment, passed })) }
    }

    /// Returns the current time.
    pub fn now(&self) -> Timestamp {
        match &self.manual {
            Some(manual) => Timestamp(manual.moment.load(Ordering::SeqCst)),
            None => system_now(),
        }
    }

    /// Advances a manual clock by `span`, as if the time had passed; has no effect on the machine's
    /// clock.
    pub fn advance(&self, span: Duration) {
        if let Some(manual) = &self.manual {
            manual.moment.fetch_add(micros(span), Ordering::SeqCst);
            manual.passed.fetch_add(micros(span), Ordering::SeqCst);
        }
    }

    /// Sets a manual clock forward or back, as an operator sets the machine's clock. This does not
    /// count as passed time.
    pub fn set(&self, to: Timestamp) {
        if let Some(manual) = &self.manual {
            manual.moment.store(to.0, Ordering::SeqCst);
        }
    }
}

/// A clock that cannot be set: it starts with the time of a [`Clock`] and adds the time that has
/// passed since. Used by stores that end with the process.
#[derive(Clone, Debug)]
pub(crate) struct SteadyClock {
    start: Timestamp,
    since: Since,
}

#[derive(Clone, Debug)]
enum Since {
    Machine(Instant),
    Manual(Arc<Manual>, i64),
}

impl SteadyClock {
    pub(crate) fn new(clock: &Clock) -> Self {
        let since = match &clock.manual {
            None => Since::Machine(monotonic()),
            Some(manual) => Since::Manual(Arc::clone(manual), manual.passed.load(Ordering::SeqCst)),
        };
        Self { start: clock.now(), since }
    }

    pub(crate) fn now(&self) -> Timestamp {
        match &self.since {
            Since::Machine(since) => self.start.after(since.elapsed()),
            Since::Manual(manual, then) => {
                let passed = manual.passed.load(Ordering::SeqCst).saturating_sub(*then);
                Timestamp(self.start.0.saturating_add(passed))
            }
        }
    }
}

impl Default for SteadyClock {
    fn default() -> Self {
        Self::new(&Clock::system())
    }
}

/// Returns the machine's wall-clock time. Decisions about the records of networked stores must not
/// depend on it.
pub(crate) fn system_now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(micros(since))
}

/// Returns the time of the monotonic clock, by which this process measures the age of its leases.
pub(crate) fn monotonic() -> Instant {
    Instant::now()
}
