//! Generates unique, increasing ULIDs: a time, followed by random bits.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use semel_core::Clock;
use ulid::Ulid;

/// The number of random bits of a ULID.
const RANDOM_BITS: u32 = 80;
const RANDOM: u128 = (1 << RANDOM_BITS) - 1;
/// The last millisecond that a ULID can represent, in the year 10889.
const MAX_MILLIS: u64 = (1 << 48) - 1;
/// The largest number of stripes: more would leave too few random bits in an id.
const MAX_STRIPES: usize = 1 << 10;

/// Sets what the generator does if the clock was set back since the last id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnRollback {
    /// Continues from the last id as if no time had passed (the default). Ids stay in order without
    /// waiting; their time is slightly ahead until the clock has caught up.
    UseLast,
    /// Blocks the thread until the clock has caught up, for at most this time; then fails.
    Wait(Duration),
    /// Fails at once.
    Fail,
}

/// The error if the clock was set back and the policy does not allow that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the clock is {behind:?} behind the last id; fix the clock, or allow `OnRollback::UseLast`"
)]
pub struct ClockRolledBack {
    /// The time by which the clock is behind the last id.
    pub behind: Duration,
}

/// Generates ULIDs. Each id is larger than all earlier ids of the same stripe. With one stripe, the
/// default, each id is larger than all earlier ids.
///
/// ```
/// use semel_ids::Generator;
///
/// let generator = Generator::new();
/// let (one, two) = (generator.generate()?, generator.generate()?);
/// assert!(one < two);
/// # Ok::<(), semel_ids::ClockRolledBack>(())
/// ```
pub struct Generator {
    stripes: Box<[Stripe]>,
    /// The number of low bits that contain the stripe's number, so that no two stripes generate the
    /// same id.
    bits: u32,
    on_rollback: OnRollback,
    clock: Clock,
}

/// The last id of one stripe. It is aligned to avoid false sharing of cache lines between stripes.
#[repr(align(128))]
#[derive(Default)]
struct Stripe(Mutex<u128>);

impl Default for Generator {
    fn default() -> Self {
        Self::new()
    }
}

impl Generator {
    /// Creates a generator with one stripe: every id is larger than the previous one.
    pub fn new() -> Self {
        Self::striped(1)
    }

    /// Creates a generator with several stripes, at most 1,024, so that as many threads generate
    /// ids without contention. The ids of one thread are in order; ids of different threads are in
    /// order by the millisecond.
    pub fn striped(stripes: usize) -> Self {
        let count = stripes.clamp(1, MAX_STRIPES).next_power_of_two();
        let stripes = (0..count).map(|_| Stripe::default()).collect();
        let (on_rollback, clock) = (OnRollback::UseLast, Clock::system());
        Self { stripes, bits: count.trailing_zeros(), on_rollback, clock }
    }

    /// Sets what the generator does if the clock is set back. Default [`OnRollback::UseLast`].
    #[must_use]
    pub fn on_rollback(mut self, policy: OnRollback) -> Self {
        self.on_rollback = policy;
        self
    }

    /// Sets the clock. Default the system clock.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Generates an id.
    ///
    /// # Errors
    /// [`ClockRolledBack`] if the clock was set back: under [`OnRollback::Fail`] at once, under
    /// [`OnRollback::Wait`] if it has not caught up in time, under [`OnRollback::UseLast`] never.
    pub fn generate(&self) -> Result<Ulid, ClockRolledBack> {
        let number = if self.bits == 0 { 0 } else { thread_number() & (self.stripes.len() - 1) };
        let mut waited = Duration::ZERO;
        loop {
            let mut last = self.stripes[number].0.lock().unwrap_or_else(PoisonError::into_inner);
            let behind = match self.millis(*last) {
                Ok(millis) => {
                    *last = self.next(*last, millis, number);
                    return Ok(Ulid(*last));
                }
                Err(behind) => behind,
            };
            drop(last);
            let left = match self.on_rollback {
                OnRollback::Wait(limit) => limit.saturating_sub(waited),
                OnRollback::UseLast | OnRollback::Fail => Duration::ZERO,
            };
            if left.is_zero() {
                return Err(ClockRolledBack { behind });
            }
            // Sleeps without the lock, so that other threads are not delayed.
            let pause = behind.min(left).min(Duration::from_millis(5));
            std::thread::sleep(pause);
            waited += pause;
        }
    }

    fn next(&self, last: u128, millis: u64, number: usize) -> u128 {
        if u128::from(millis) > last >> RANDOM_BITS {
            let bits = random() >> self.bits << self.bits | number as u128;
            return u128::from(millis) << RANDOM_BITS | bits;
        }
        // The next id of the same millisecond. If the random bits overflow, the time grows by one
        // millisecond.
        last + (1 << self.bits)
    }

    /// Returns the time for the next id; if the clock is behind the last id and the policy forbids
    /// that, the time by which it is behind.
    fn millis(&self, last: u128) -> Result<u64, Duration> {
        let last = u64::try_from(last >> RANDOM_BITS).unwrap_or(MAX_MILLIS);
        let micros = self.clock.now().as_micros().max(0).unsigned_abs();
        let now = (micros / 1_000).min(MAX_MILLIS);
        if now >= last {
            return Ok(now);
        }
        metrics::counter!("semel_ids_clock_rollbacks_total").increment(1);
        match self.on_rollback {
            OnRollback::UseLast => Ok(last),
            OnRollback::Wait(_) | OnRollback::Fail => Err(Duration::from_millis(last - now)),
        }
    }
}

/// Returns the number of the current thread.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

fn random() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system provides random bytes");
    u128::from_be_bytes(bytes) & RANDOM
}

impl fmt::Debug for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generator")
            .field("stripes", &self.stripes.len())
            .field("on_rollback", &self.on_rollback)
            .finish_non_exhaustive()
    }
}
