//! Policies: how an operation behaves when it repeats, fails, crashes or takes long.

use std::time::Duration;

/// How long a duplicate waits for the holder's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: it is answered that the operation is in progress. The default.
    No,
    /// At most this long, then it is answered that the operation is in progress.
    UpTo(Duration),
    /// At most this long, then the call fails with `WaitTimeout`.
    Deadline(Duration),
}

impl Wait {
    /// Returns the longest time to wait.
    pub fn limit(self) -> Duration {
        match self {
            Wait::No => Duration::ZERO,
            Wait::UpTo(limit) | Wait::Deadline(limit) => limit,
        }
    }
}

/// What a waiter does when the holder has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Tries to claim again, and becomes the holder where the record is free, due or lapsed. The default.
    Join,
    /// Fails with the holder's failure and runs nothing.
    Report,
}

/// What is recorded of a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// The failure; the next caller runs at once, under the same operation id. The default.
    Retry,
    /// Nothing: the key is as if never used.
    Release,
    /// The failure; the next attempt is due after `min(cap, base * 2^(attempt - 1))`.
    Backoff {
        /// The delay after the first failure.
        base: Duration,
        /// The longest delay.
        cap: Duration,
    },
    /// The failure is the answer until the record expires.
    Keep,
}

impl OnFailure {
    /// Returns the backoff of events: 1 s doubling to 5 min.
    pub const fn backoff() -> Self {
        OnFailure::Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(300) }
    }

    /// Returns how long after the failure of attempt number `attempt` the next one is due; `None` means
    /// never.
    ///
    /// Exact and without jitter, so that the time that an operator reads is the time that counts.
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

/// What happens to an attempt that broke off: its lease lapsed (it crashed, hung, or lost its store), it
/// panicked, took longer than its limit, or its transaction could not be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnCrash {
    /// The next caller runs it again under a new fence and the same operation id. The default.
    Rerun,
    /// It is not run again; the record turns Uncertain until an operator resolves it.
    Hold,
    /// The next caller's verifier tells whether it took effect before anything runs again.
    Verify,
}

impl OnCrash {
    /// Returns the stored code.
    pub const fn code(self) -> u8 {
        match self {
            OnCrash::Rerun => 0,
            OnCrash::Hold => 1,
            OnCrash::Verify => 2,
        }
    }

    /// Returns the policy with this stored code.
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
    /// How long an outcome is kept after it was recorded. Default 24 h.
    pub keep: Duration,
    /// How long a claim lives without renewal. Default 30 s; between [`Policy::MIN_LEASE`] and
    /// [`Policy::MAX_LEASE`].
    pub lease: Duration,
    /// How long the work may run. Then it is cancelled and counts as failed, or as crashed where `on_crash`
    /// is not Rerun. Default unlimited.
    pub work_timeout: Option<Duration>,
    /// Whether, and how long, a repeat waits for the running attempt. Default [`Wait::No`].
    pub wait: Wait,
    /// What a waiter does when the holder has failed. Default [`Woken::Join`].
    pub woken: Woken,
    /// What is recorded of a failed attempt. Default [`OnFailure::Retry`].
    pub on_failure: OnFailure,
    /// What happens after a crash. Default [`OnCrash::Rerun`].
    pub on_crash: OnCrash,
    /// Executions before the record turns Dead, crashed ones included. Default unlimited.
    pub max_attempts: Option<u32>,
    /// The largest outcome that is kept, in bytes. Default 1 MiB.
    pub max_outcome: usize,
}

impl Policy {
    /// The shortest lease: a renewal of a shorter one may not arrive in time.
    pub const MIN_LEASE: Duration = Duration::from_millis(100);
    /// The longest lease: a crash blocks its key for that long.
    pub const MAX_LEASE: Duration = Duration::from_secs(24 * 60 * 60);

    /// Validates the settings.
    ///
    /// # Errors
    /// [`InvalidPolicy`] names the setting and its limit.
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

/// Why a policy is not valid.
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
    /// `max_attempts` is zero, so nothing could run.
    #[error("max_attempts is 0, so nothing could run; leave it out for unlimited attempts")]
    NoAttempts,
    /// `on_crash` is Verify, and the command has no verifier.
    #[error("on_crash is Verify, but the command has no verifier; add one with `.verify(…)`")]
    NoVerifier,
    /// The crash policy needs a claim that survives a crash, which one-commit transactions do not have.
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
    fn a_policy_that_cannot_work_is_refused_with_its_reason() {
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
