//! Generates ULIDs: time first, then random bits; unique, and increasing.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use semel_core::Clock;
use ulid::Ulid;

/// Random bits of a ULID.
const RANDOM_BITS: u32 = 80;
const RANDOM: u128 = (1 << RANDOM_BITS) - 1;
/// The last millisecond that fits a ULID, in the year 10889.
const MAX_MILLIS: u64 = (1 << 48) - 1;
/// Most stripes: more would leave too few random bits in an id.
const MAX_STRIPES: usize = 1 << 10;

/// What to do when the clock has gone back since the last id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnRollback {
    /// Continue from the last id as if no time had passed (the default). Ids stay in order without
    /// waiting; their time is slightly ahead until the clock has caught up.
    UseLast,
    /// Block the thread until the clock has caught up, at most this long in all; then fail.
    Wait(Duration),
    /// Fail.
    Fail,
}

/// The error for a clock that went back under a policy that does not allow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the clock is {behind:?} behind the last id; fix the clock, or allow `OnRollback::UseLast`"
)]
pub struct ClockRolledBack {
    /// How far the clock went back.
    pub behind: Duration,
}

/// Generates ULIDs. Each is larger than all earlier ones of the same stripe; with one stripe (the
/// default) larger than all earlier ones.
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
    /// Number of low bits that hold the stripe's number, so that no two stripes generate the same id.
    bits: u32,
    on_rollback: OnRollback,
    clock: Clock,
}

/// Aligned to a cache line, to avoid false sharing between stripes.
#[repr(align(128))]
#[derive(Default)]
struct Stripe(Mutex<u128>);

impl Default for Generator {
    fn default() -> Self {
        Self::new()
    }
}

impl Generator {
    /// Creates a generator with one stripe: every id is larger than the one before.
    pub fn new() -> Self {
        Self::striped(1)
    }

    /// Uses several stripes, at most 1,024, so that as many threads generate ids without contention.
    /// Ids of one thread are in order; those of different threads are in order by the millisecond.
    pub fn striped(stripes: usize) -> Self {
        let count = stripes.clamp(1, MAX_STRIPES).next_power_of_two();
        let stripes = (0..count).map(|_| Stripe::default()).collect();
        let (on_rollback, clock) = (OnRollback::UseLast, Clock::system());
        Self { stripes, bits: count.trailing_zeros(), on_rollback, clock }
    }

    /// Sets what to do when the clock goes back. Default [`OnRollback::UseLast`].
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
    /// [`ClockRolledBack`], and never under [`OnRollback::UseLast`].
    pub fn generate(&self) -> Result<Ulid, ClockRolledBack> {
        let number = if self.bits == 0 { 0 } else { seat() & (self.stripes.len() - 1) };
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
            // Without the lock, so that other threads are not held up.
            let pause = behind.min(left).min(Duration::from_millis(5));
            std::thread::sleep(pause);
            waited += pause;
        }
    }

    fn next(&self, last: u128, millis: u64, number: usize) -> u128 {
        if u128::from(millis) > last >> RANDOM_BITS {
            let chance = random() >> self.bits << self.bits | number as u128;
            return u128::from(millis) << RANDOM_BITS | chance;
        }
        // The next of the same millisecond. Running out of chance carries into the time.
        last + (1 << self.bits)
    }

    /// Returns the time for the next id, or how far the clock is behind if the policy forbids that.
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

/// Returns a number of the current thread.
fn seat() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SEAT: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    SEAT.with(|seat| *seat)
}

fn random() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
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
