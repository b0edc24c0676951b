//! Time: the one place that reads the machine's clocks.
//!
//! A store judges leases by its own clock (the database server's, Redis `TIME`). Embedded stores
//! have no server, so they take a [`Clock`]; tests hand them one that they can advance. Nothing
//! here is ever sent to a networked store: callers pass durations, never instants.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A moment by a store's clock: microseconds since the Unix epoch, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(i64);

impl Timestamp {
    /// A moment from its stored form.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// The stored form.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// How long it is from `now` until this moment; `None` once it has come.
    pub fn remaining(self, now: Timestamp) -> Option<Duration> {
        let left = self.0.saturating_sub(now.0);
        (left > 0).then(|| Duration::from_micros(left.unsigned_abs()))
    }

    /// How long it was from `earlier` until this moment; zero if it was not later.
    pub fn since(self, earlier: Timestamp) -> Duration {
        self.remaining(earlier).unwrap_or_default()
    }

    /// This moment, `span` later. Saturates instead of wrapping: a keep of centuries is "for ever".
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

/// A duration in the unit that stores persist, saturating at about 292,000 years.
pub fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// The clock of an embedded store.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    manual: Option<Arc<Manual>>,
}

#[derive(Debug)]
struct Manual {
    /// What it shows.
    moment: AtomicI64,
    /// How long it has run: setting it makes no time pass.
    passed: AtomicI64,
}

impl Clock {
    /// The machine's clock.
    pub fn system() -> Self {
        Self::default()
    }

    /// A clock that stands still until [`advance`](Self::advance) moves it, for tests.
    pub fn manual(start: Timestamp) -> Self {
        let (moment, passed) = (AtomicI64::new(start.0), AtomicI64::new(0));
        Self { manual: Some(Arc::new(Manual { moment, passed })) }
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        match &self.manual {
            Some(manual) => Timestamp(manual.moment.load(Ordering::SeqCst)),
            None => system_now(),
        }
    }

    /// Lets time pass by a manual clock; the machine's clock stays as it is.
    pub fn advance(&self, span: Duration) {
        if let Some(manual) = &self.manual {
            manual.moment.fetch_add(micros(span), Ordering::SeqCst);
            manual.passed.fetch_add(micros(span), Ordering::SeqCst);
        }
    }

    /// Sets a manual clock, forward or back, as an operator sets the machine's: no time passes.
    pub fn set(&self, to: Timestamp) {
        if let Some(manual) = &self.manual {
            manual.moment.store(to.0, Ordering::SeqCst);
        }
    }
}

/// A clock that cannot be set: it shows what a [`Clock`] showed at first, and the time that has passed
/// since. For stores that end with the process, which have no other process to agree with.
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

/// The machine's wall clock, which only embedded stores and id generation may use.
pub(crate) fn system_now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(micros(since))
}

/// The process's monotonic clock: "how long have I held this lease?" is asked of this one alone.
pub(crate) fn monotonic() -> Instant {
    Instant::now()
}
