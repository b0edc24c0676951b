//! How work ends: the answer for its caller, and the settlement that the store writes.
//!
//! A [`Settlement`] is made once, here, where the work has ended: by a handler through its
//! [`Context`], or by the executor for a panic, a timeout or a shutdown. The store writes it as it is.

use std::time::Duration;

use super::context::Context;
use super::execution::Error;
use crate::claim::Origin;
use crate::judge::exceeded;
use crate::outcome::{ErrorText, Recorded};
use crate::policy::{OnCrash, OnFailure};
use crate::store::{ErrorKind, Settlement};

/// How work ended: the answer for its caller, and what is recorded. Returned by the methods of
/// [`Context`]: [`complete`](Context::complete), [`refuse`](Context::refuse), [`fail`](Context::fail),
/// [`doubt`](Context::doubt), [`bury`](Context::bury) and [`release`](Context::release).
#[derive(Debug)]
#[must_use]
pub struct Finished<A> {
    /// The caller's answer, or the error.
    pub(super) answer: Result<A, Error>,
    /// What the store writes; `None` leaves the record as it is.
    pub(super) settlement: Option<Settlement>,
    /// Whether the work's own writes are committed with it, where it runs in a transaction.
    pub(super) commits: bool,
}

impl<A> Finished<A> {
    /// Creates the end of work that broke off.
    pub(super) fn broken(error: Error, settlement: Option<Settlement>) -> Self {
        Self { answer: Err(error), settlement, commits: false }
    }

    /// Returns whether the work's own writes are committed, where it runs in a transaction.
    pub fn commits(&self) -> bool {
        self.commits
    }

    /// Returns the same end with another answer.
    pub fn map<B>(self, f: impl FnOnce(A) -> B) -> Finished<B> {
        let Self { answer, settlement, commits } = self;
        Finished { answer: answer.map(f), settlement, commits }
    }
}

impl Context {
    /// Ends the work as succeeded: `outcome` answers every repeat. An outcome above
    /// [`Policy::max_outcome`](crate::Policy::max_outcome) is delivered once and not kept; in a
    /// transaction nothing is committed then, and the call fails with [`Error::ResultTooLarge`].
    pub fn complete<A>(&self, answer: A, outcome: Recorded) -> Finished<A> {
        let max = self.command().policy.max_outcome;
        let outcome = self.with_reference(outcome).within(max);
        if let (true, Recorded::Omitted { bytes }) = (self.is_transacted(), &outcome) {
            let bytes = usize::try_from(*bytes).unwrap_or(usize::MAX);
            let error = Error::ResultTooLarge { bytes, max };
            let settlement = self.uncommitted(&error.to_string());
            return Finished::broken(error, settlement);
        }
        Finished { answer: Ok(answer), settlement: Some(self.succeeded(outcome)), commits: true }
    }

    /// Ends the work with a refusal that answers every repeat. It is kept as an outcome, but what the work
    /// wrote in its transaction is rolled back first. After an earlier attempt it counts as a failure
    /// instead: that attempt may be the cause of it ("exists already"), and a kept refusal would send the
    /// caller to a new key.
    pub fn refuse<A>(&self, answer: A, outcome: Recorded) -> Finished<A> {
        let settlement = if self.attempt() > 1 {
            self.failed("refused, after an earlier attempt that may have had effects")
        } else {
            self.succeeded(self.with_reference(outcome).within(self.command().policy.max_outcome))
        };
        Finished { answer: Ok(answer), settlement: Some(settlement), commits: false }
    }

    /// Ends the work with a failure, by the command's failure policy: counted, and run again when it is
    /// due. `error` is for operators.
    pub fn fail<A>(&self, answer: A, error: &str) -> Finished<A> {
        Finished { answer: Ok(answer), settlement: Some(self.failed(error)), commits: false }
    }

    /// Ends work that broke off with unknown effects, by the command's crash policy. Under
    /// [`OnCrash::Rerun`] it counts as a failure; under [`OnCrash::Hold`] it is uncertain until an
    /// operator resolves it; under [`OnCrash::Verify`] its lease lapses and the next caller verifies.
    pub fn doubt<A>(&self, answer: A, error: &str) -> Finished<A> {
        Finished { answer: Ok(answer), settlement: self.doubted(error), commits: false }
    }

    /// Ends the work with a failure that a retry would not fix: dead at once, until an operator decides.
    pub fn bury<A>(&self, answer: A, error: &str) -> Finished<A> {
        let settlement = Settlement::Dead { error: ErrorText::new(error) };
        Finished { answer: Ok(answer), settlement: Some(settlement), commits: false }
    }

    /// Ends work that had no effect: the key is free again, also for another request. Where an earlier
    /// attempt failed or crashed, or this one has used a downstream key, there may be an effect after all:
    /// the operation keeps its id, and the next caller runs it again.
    pub fn release<A>(&self, answer: A) -> Finished<A> {
        let settlement = match self.origin() {
            Origin::Fresh if !self.is_known_outside() => Settlement::Removed,
            Origin::Fresh | Origin::AfterFailure | Origin::Takeover => {
                self.due_now("refused, and the claim was released")
            }
        };
        Finished { answer: Ok(answer), settlement: Some(settlement), commits: false }
    }

    /// Ends work whose result cannot be committed.
    pub(super) fn uncommittable<A>(&self, answer: A, error: &str) -> Finished<A> {
        Finished { answer: Ok(answer), settlement: self.uncommitted(error), commits: false }
    }

    /// Returns the settlement of a success.
    pub(super) fn succeeded(&self, outcome: Recorded) -> Settlement {
        Settlement::Succeeded { outcome, keep: self.command().policy.keep }
    }

    /// Returns the settlement of a failure, by the command's failure policy.
    pub(super) fn failed(&self, error: &str) -> Settlement {
        let error = ErrorText::new(error);
        let policy = &self.command().policy;
        if let Some(max) = policy.max_attempts.filter(|max| self.attempt() >= *max) {
            return Settlement::Dead { error: exceeded(max, &error) };
        }
        match policy.on_failure {
            OnFailure::Release => Settlement::Removed,
            // Never tried again: it is the answer, and expires as an outcome does.
            OnFailure::Keep => Settlement::Failed { error, retry_after: None, keep: policy.keep },
            OnFailure::Retry | OnFailure::Backoff { .. } => Settlement::Failed {
                error,
                retry_after: policy.on_failure.delay(self.attempt()),
                keep: self.command().keep_unfinished(),
            },
        }
    }

    /// Returns the settlement of work with unknown effects, by the command's crash policy. `None`: the
    /// lease lapses, and the next caller verifies.
    pub(super) fn doubted(&self, error: &str) -> Option<Settlement> {
        match self.command().policy.on_crash {
            OnCrash::Rerun => Some(self.failed(error)),
            OnCrash::Hold => Some(Settlement::Uncertain { error: ErrorText::new(error) }),
            OnCrash::Verify => None,
        }
    }

    /// Returns the settlement of an attempt that was stopped from outside: as [`doubted`](Self::doubted),
    /// but due at once under every failure policy, since the work itself did not fail.
    pub(super) fn interrupted(&self, error: &str) -> Option<Settlement> {
        match self.command().policy.on_crash {
            OnCrash::Rerun => Some(self.due_now(error)),
            OnCrash::Hold | OnCrash::Verify => self.doubted(error),
        }
    }

    /// Returns the settlement of work whose transaction was rolled back. A claim that was committed before
    /// it is in doubt; another was rolled back with it.
    pub(super) fn uncommitted(&self, error: &str) -> Option<Settlement> {
        if self.is_committed() { self.doubted(error) } else { None }
    }

    /// Returns the settlement of a transaction that the store refused.
    pub(super) fn refused_by(&self, error: &crate::store::Error) -> Option<Settlement> {
        let text = error.to_string();
        let is_away = match error.kind() {
            ErrorKind::Unavailable
            | ErrorKind::Ambiguous
            | ErrorKind::Capacity
            | ErrorKind::RetryTransaction => true,
            ErrorKind::Misconfigured | ErrorKind::Corrupt => false,
        };
        if self.is_committed() && error.kind() == ErrorKind::RetryTransaction {
            // A transaction that must be run again has not failed: the claim is free at once.
            self.interrupted(&text)
        } else if !self.is_committed() && self.command().retry_payload.is_some() && !is_away {
            // The work left its transaction in a state that cannot be committed, and reported success.
            // That must count as an attempt of an event, or it is redelivered for ever.
            Some(self.failed(&text))
        } else {
            self.uncommitted(&text)
        }
    }

    /// Returns the settlement of a claim under which nothing ran: the record becomes what it was before.
    /// `None` where a crashed attempt must still be verified: the lease lapses, and the next caller verifies.
    pub(super) fn untouched(&self) -> Option<Settlement> {
        untouched(self.origin(), self.wants_verification(), self.command().keep_unfinished())
    }

    fn due_now(&self, error: &str) -> Settlement {
        let (error, keep) = (ErrorText::new(error), self.command().keep_unfinished());
        Settlement::Failed { error, retry_after: Some(Duration::ZERO), keep }
    }
}

/// As [`Context::untouched`], for a claim that has no context.
pub(super) fn untouched(origin: Origin, verify: bool, keep: Duration) -> Option<Settlement> {
    match origin {
        _ if verify => None,
        Origin::Fresh => Some(Settlement::Removed),
        // An earlier attempt's operation id and count must survive.
        Origin::AfterFailure | Origin::Takeover => {
            let error = ErrorText::new("the claim was released; nothing ran under it");
            Some(Settlement::Failed { error, retry_after: Some(Duration::ZERO), keep })
        }
    }
}
