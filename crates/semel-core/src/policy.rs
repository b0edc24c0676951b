//! Policies, which set how an operation behaves when it repeats, fails, crashes or takes long.

use std::time::Duration;

/// Sets how long a duplicate waits for the outcome of the running attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The duplicate does not wait: it is answered at once that the operation is in progress. The
    /// default.
    No,
    /// The duplicate waits at most this long; then it is answered that the operation is in
    /// progress.
    UpTo(Duration),
    /// The duplicate waits at most this long; then the call fails with `WaitTimeout`.
    Deadline(Duration),
}

impl Wait {
    /// Returns the longest time that a duplicate waits.
    pub fn limit(self) -> Duration {
        match self {
            Wait::No => Duration::ZERO,
            Wait::UpTo(limit) | Wait::Deadline(limit) => limit,
        }
    }
}

/// Sets what a waiting duplicate does when the attempt that it waited for has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The duplicate tries to claim the key, and runs the work if the record is free, due or
    /// lapsed. The default.
    Join,
    /// The duplicate fails with the failure of that attempt, and does not run the work.
    Report,
}

/// Sets what is recorded after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// The failure is recorded; the next caller runs the work at once, under the same operation id.
    /// The default.
    Retry,
    /// The record is removed: the key is as if it had never been used.
    Release,
    /// The failure is recorded; the next attempt is due after `min(cap, base * 2^(attempt - 1))`.
    Backoff {
        /// The delay after the first failure.
        base: Duration,
        /// The longest delay.
        cap: Duration,
    },
    /// The failure is recorded, and is the answer to every repeat until the record expires.
    Keep,
}

impl OnFailure {
    /// Returns a backoff of 1 s doubling to 5 min, the default for events.
    pub const fn backoff() -> Self {
        OnFailure::Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(300) }
    }

    /// Returns the delay between the failure of attempt number `attempt` and the next attempt;
    /// `None` if there is no next attempt.
    ///
    /// The delay has no jitter, so that operators see the exact time of the next attempt.
    pub fn delay(&self, attempt: u32) -> Option<Duration> {
        match *self {
            OnFailure::Retry | OnFailure::Release => Some(Duration::ZERO),
            OnFailure::Keep => None,
            OnFailure::Backoff { base, cap } => {
                let doublings = attempt.saturating_sub(1).min(63);
                let factor = 1u64.checked_shl(doublings).unwrap_or(u64::MAX);
                let nanos = base.as_nanos().saturating_mul(u128::from(factor));
                Some(if nanos >= cap.as_nanos() {
                    cap
                } else {
                    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
                })
            }
        }
    }
}

/// Sets what happens after an attempt whose effects are unknown: its lease lapsed (the process
/// crashed, hung or lost the store), it panicked, took longer than its limit, or its transaction
/// could not be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnCrash {
    /// The next caller runs the work again, with a new fence and the same operation id. The
    /// default.
    Rerun,
    /// The work does not run again; the record becomes Uncertain until an operator resolves it.
    Hold,
    /// The verifier of the next caller determines whether the attempt took effect before the work
    /// runs again.
    Verify,
}

impl OnCrash {
    /// Returns the code that stores persist for this policy.
    pub const fn code(self) -> u8 {
        match self {
            OnCrash::Rerun => 0,
            OnCrash::Hold => 1,
            OnCrash::Verify => 2,
        }
    }

    /// Returns the policy with this stored code; `None` if there is none.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => OnCrash::Rerun,
            1 => OnCrash::Hold,
            2 => OnCrash::Verify,
            _ => return None,
        })
    }
}

/// The settings of an operation.
///
/// ```
/// use std::time::Duration;
/// use semel_core::store::memory::MemoryStore;
/// use semel_core::{Command, Executor, Key, OnCrash, OnFailure, Policy, Wait};
///
/// // The default of every command of this executor …
/// let payments = Policy {
///     keep: Duration::from_secs(7 * 24 * 60 * 60),
///     on_crash: OnCrash::Hold,
///     ..Policy::default()
/// };
/// let executor = Executor::builder(MemoryStore::new()).policy(payments).build()?;
///
/// // … and settings of one command, by the setters of the same names.
/// let command = Command::new(Key::command("acme", "CHARGE", "k-1")?)
///     .lease(Duration::from_secs(10))
///     .work_timeout(Duration::from_secs(60))
///     .wait(Wait::UpTo(Duration::from_secs(2)))
///     .on_failure(OnFailure::backoff())
///     .max_attempts(5)
///     .max_outcome(64 << 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The time for which an outcome is kept after it was recorded. Default 24 h.
    pub keep: Duration,
    /// The time after which a claim lapses if it is not renewed. Default 30 s; between
    /// [`Policy::MIN_LEASE`] and [`Policy::MAX_LEASE`].
    pub lease: Duration,
    /// The time after which running work is cancelled. It then counts as failed, or as crashed if
    /// `on_crash` is not Rerun. Default unlimited.
    pub work_timeout: Option<Duration>,
    /// Whether, and how long, a repeat waits for the running attempt. Default [`Wait::No`].
    pub wait: Wait,
    /// What a waiting duplicate does when the running attempt has failed. Default [`Woken::Join`].
    pub woken: Woken,
    /// What is recorded after a failed attempt. Default [`OnFailure::Retry`].
    pub on_failure: OnFailure,
    /// What happens after an attempt whose effects are unknown. Default [`OnCrash::Rerun`].
    pub on_crash: OnCrash,
    /// The number of attempts, crashed ones included, after which the record becomes Dead. Default
    /// unlimited.
    pub max_attempts: Option<u32>,
    /// The largest outcome that is kept, in bytes. Default 1 MiB.
    pub max_outcome: usize,
}

impl Policy {
    /// The shortest lease. The renewal of a shorter lease might not arrive in time.
    pub const MIN_LEASE: Duration = Duration::from_millis(100);
    /// The longest lease. A crash blocks its key for the length of the lease.
    pub const MAX_LEASE: Duration = Duration::from_secs(24 * 60 * 60);

    /// Validates the settings.
    ///
    /// # Errors
    /// [`InvalidPolicy`] with the first setting that is not valid.
    pub fn check(&self) -> Result<(), InvalidPolicy> {
        if self.lease < Self::MIN_LEASE {
            return Err(InvalidPolicy::LeaseTooShort { lease: self.lease });
        }
        if self.lease > Self::MAX_LEASE {
            return Err(InvalidPolicy::LeaseTooLong { lease: self.lease });
        }
        if self.keep.is_zero() {
            return Err(InvalidPolicy::KeepZero);
        }
        if self.max_attempts == Some(0) {
            return Err(InvalidPolicy::NoAttempts);
        }
        Ok(())
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            keep: Duration::from_secs(24 * 60 * 60),
            lease: Duration::from_secs(30),
            work_timeout: None,
            wait: Wait::No,
            woken: Woken::Join,
            on_failure: OnFailure::Retry,
            on_crash: OnCrash::Rerun,
            max_attempts: None,
            max_outcome: 1 << 20,
        }
    }
}

/// The reason why a policy is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPolicy {
    /// The lease is below the minimum.
    #[error("a lease of {lease:?} is too short, at least {:?} is needed", Policy::MIN_LEASE)]
    LeaseTooShort {
        /// The lease that was set.
        lease: Duration,
    },
    /// The lease is above the maximum.
    #[error(
        "a lease of {lease:?} is too long, at most {:?} is allowed; a lease is renewed while its work runs",
        Policy::MAX_LEASE
    )]
    LeaseTooLong {
        /// The lease that was set.
        lease: Duration,
    },
    /// `keep` is zero, so no repeat could be recognised.
    #[error(
        "keep is zero, so no repeat could be recognised; use at least the longest retry window"
    )]
    KeepZero,
    /// `max_attempts` is zero, so the work could never run.
    #[error("max_attempts is 0, so nothing could run; leave it out for unlimited attempts")]
    NoAttempts,
    /// `on_crash` is Verify, and the command has no verifier.
    #[error("on_crash is Verify, but the command has no verifier; add one with `.verify(…)`")]
    NoVerifier,
    /// The crash policy needs a claim that survives a crash, but the claim is part of the work's
    /// transaction.
    #[error(
        "on_crash {0:?} needs a claim that survives a crash; add `.claim_first()` to the transaction"
    )]
    NeedsClaimFirst(OnCrash),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_to_its_cap_and_never_overflows() {
        let policy = OnFailure::backoff();
        let seconds = |n| policy.delay(n).map(|d| d.as_secs());
        assert_eq!([1, 2, 3, 9].map(seconds), [Some(1), Some(2), Some(4), Some(256)]);
        for attempt in [10, 64, 65, 1_000, u32::MAX] {
            assert_eq!(seconds(attempt), Some(300), "attempt {attempt}");
        }
        assert_eq!(OnFailure::Keep.delay(1), None);
    }

    #[test]
    fn an_invalid_policy_is_refused_with_the_reason() {
        let short = Policy { lease: Duration::from_millis(99), ..Policy::default() };
        assert!(short.check().is_err_and(|e| e.to_string().contains("100ms")));
        let long = Policy { lease: Duration::MAX, ..Policy::default() };
        assert!(matches!(long.check(), Err(InvalidPolicy::LeaseTooLong { .. })));
        assert!(Policy { keep: Duration::ZERO, ..Policy::default() }.check().is_err());
        assert!(Policy { max_attempts: Some(0), ..Policy::default() }.check().is_err());
        assert_eq!(Policy::default().check(), Ok(()));
    }

    #[test]
    fn the_defaults_are_the_documented_ones() {
        let Policy { keep, lease, work_timeout, wait, woken, .. } = Policy::default();
        assert_eq!((keep.as_secs(), lease.as_secs()), (86_400, 30));
        assert_eq!((work_timeout, wait, woken), (None, Wait::No, Woken::Join));
        let Policy { on_failure, on_crash, max_attempts, max_outcome, .. } = Policy::default();
        assert_eq!((on_failure, on_crash), (OnFailure::Retry, OnCrash::Rerun));
        assert_eq!((max_attempts, max_outcome), (None, 1_048_576));
    }
}
