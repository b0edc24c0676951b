//! How an operation behaves when it repeats, fails, crashes or takes long. Every line a setting,
//! every default stated beside it.

use std::time::Duration;

/// How long a duplicate waits for the holder's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: it is told that the operation is in progress. The default.
    No,
    /// At most so long, then it is told that the operation is in progress.
    UpTo(Duration),
    /// At most so long, then the call fails with `WaitTimeout`.
    Deadline(Duration),
}

impl Wait {
    /// The longest this waits.
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
    /// Asks again, and becomes the holder where the record is free, due or lapsed. The default.
    Join,
    /// Reports the holder's failure to its own caller and runs nothing.
    Report,
}

/// What a failed attempt leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// A visible failure; the next caller runs at once, under the same operation id. The default.
    Retry,
    /// Nothing: the key is as if never used.
    Release,
    /// A visible failure that is not retried before `min(cap, base * 2^(attempt - 1))` has passed.
    Backoff {
        /// After the first failure.
        base: Duration,
        /// Never longer than this.
        cap: Duration,
    },
    /// The failure is the answer until the record expires.
    Keep,
}

impl OnFailure {
    /// 003's schedule: 1 s doubling to 5 min.
    pub const fn backoff() -> Self {
        OnFailure::Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(300) }
    }

    /// How long after failure number `attempt` the next one may start; `None` means never.
    ///
    /// Exact and without jitter, so that what an operator reads is what will happen.
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
    /// Nobody runs it again; the record turns Uncertain until somebody resolves it.
    Hold,
    /// The next caller asks the command's verifier whether it happened before running it again.
    Verify,
}

impl OnCrash {
    /// The stored code.
    pub const fn code(self) -> u8 {
        match self {
            OnCrash::Rerun => 0,
            OnCrash::Hold => 1,
            OnCrash::Verify => 2,
        }
    }

    /// The policy with this stored code.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => OnCrash::Rerun,
            1 => OnCrash::Hold,
            2 => OnCrash::Verify,
            _ => return None,
        })
    }
}

/// The settings of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How long an answer is kept after it was given. Default 24 h.
    pub keep: Duration,
    /// How long a claim lives without renewal. Default 30 s, at least [`Policy::MIN_LEASE`].
    pub lease: Duration,
    /// Longest run of the work; then it is cancelled and counts as a failure, or by `on_crash` if that is
    /// not Rerun. Default none.
    pub work_timeout: Option<Duration>,
    /// Whether duplicates wait. Default [`Wait::No`].
    pub wait: Wait,
    /// What a waiter does after a failure. Default [`Woken::Join`].
    pub woken: Woken,
    /// What a failure leaves. Default [`OnFailure::Retry`].
    pub on_failure: OnFailure,
    /// What a crash leads to. Default [`OnCrash::Rerun`].
    pub on_crash: OnCrash,
    /// Executions before the record turns Dead, crashed ones included. Default unlimited.
    pub max_attempts: Option<u32>,
    /// Largest outcome that is kept, in bytes. Default 1 MiB.
    pub max_outcome: usize,
}

impl Policy {
    /// The shortest lease: below it a renewal cannot be relied on to arrive in time.
    pub const MIN_LEASE: Duration = Duration::from_millis(100);
    /// The longest lease: a crash blocks its key for that long, and a day is already too long.
    pub const MAX_LEASE: Duration = Duration::from_secs(24 * 60 * 60);

    /// Checks what the types cannot.
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

/// A setting that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPolicy {
    /// The lease is below the minimum.
    #[error("a lease of {lease:?} is too short, at least {:?} is needed", Policy::MIN_LEASE)]
    LeaseTooShort {
        /// What was asked for.
        lease: Duration,
    },
    /// The lease is above the maximum.
    #[error(
        "a lease of {lease:?} is too long, at most {:?} are taken; it is renewed anyway",
        Policy::MAX_LEASE
    )]
    LeaseTooLong {
        /// What was asked for.
        lease: Duration,
    },
    /// Nothing would be kept, so nothing could be recognised.
    #[error(
        "keep is zero, so no repeat could be recognised; use at least the longest retry window"
    )]
    KeepZero,
    /// Nothing could ever run.
    #[error("max_attempts is 0, so nothing could run; leave it out for unlimited attempts")]
    NoAttempts,
    /// Verification was asked for without a verifier.
    #[error("on_crash is Verify, but the command has no verifier; add one with `.verify(…)`")]
    NoVerifier,
    /// A crash policy that a one-commit transaction cannot keep.
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
