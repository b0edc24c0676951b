//! The ways in which work ends: the answer for its caller, and the settlement that the store
//! writes.
//!
//! A [`Settlement`] is created once, in this module, when the work has ended: by a handler through
//! its [`Context`], or by the executor after a panic, a timeout or a shutdown. The store writes it
//! unchanged.

use std::time::Duration;

use super::context::Context;
use super::execution::Error;
use crate::claim::Origin;
use crate::judge::exceeded;
use crate::outcome::{ErrorText, Recorded};
use crate::policy::{OnCrash, OnFailure};
use crate::store::{ErrorKind, Settlement};

/// The end of work: the answer for its caller, and the settlement that is recorded. The methods of
/// [`Context`] return it: [`complete`](Context::complete), [`refuse`](Context::refuse),
/// [`fail`](Context::fail), [`doubt`](Context::doubt), [`bury`](Context::bury) and
/// [`release`](Context::release).
#[derive(Debug)]
#[must_use]
pub struct Finished<A> {
    /// The answer or the error that the caller gets.
    pub(super) answer: Result<A, Error>,
    /// The settlement that the store writes; `None` leaves the record unchanged.
    pub(super) settlement: Option<Settlement>,
    /// Whether the work's own writes are committed, if the work runs in a transaction.
    pub(super) commits: bool,
}

impl<A> Finished<A> {
    /// Creates the end of work that did not finish normally.
    pub(super) fn broken(error: Error, settlement: Option<Settlement>) -> Self {
        Self { answer: Err(error), settlement, commits: false }
    }

    /// Returns whether the work's own writes are committed, if the work runs in a transaction.
    pub fn commits(&self) -> bool {
        self.commits
    }

    /// Applies `f` to the answer, and keeps the settlement.
    pub fn map<B>(self, f: impl FnOnce(A) -> B) -> Finished<B> {
        let Self { answer, settlement, commits } = self;
        Finished { answer: answer.map(f), settlement, commits }
    }
}

impl Context {
    /// Ends the work as succeeded: every repeat gets `outcome`. An outcome that is larger than
    /// [`Policy::max_outcome`](crate::Policy::max_outcome) is not kept: this caller gets its
    /// answer, repeats get an error. In a transaction such an outcome is rolled back, and the call
    /// fails with [`Error::ResultTooLarge`].
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

    /// Ends the work with a refusal that every repeat gets too. The refusal is kept as an outcome,
    /// but the work's own writes in its transaction are rolled back first. In a second or later
    /// attempt the refusal is recorded as a failure instead: an earlier attempt may have caused it
    /// ("exists already"), and a recorded refusal would make the caller retry under a new key.
    pub fn refuse<A>(&self, answer: A, outcome: Recorded) -> Finished<A> {
        let settlement = if self.attempt() > 1 {
            self.failed("refused, after an earlier attempt that may have had effects")
        } else {
            self.succeeded(self.with_reference(outcome).within(self.command().policy.max_outcome))
        };
        Finished { answer: Ok(answer), settlement: Some(settlement), commits: false }
    }

    /// Ends the work with a failure, which is recorded according to the command's failure policy.
    /// `error` is shown to operators.
    pub fn fail<A>(&self, answer: A, error: &str) -> Finished<A> {
        Finished { answer: Ok(answer), settlement: Some(self.failed(error)), commits: false }
    }

    /// Ends work whose effects are unknown, according to the command's crash policy. Under
    /// [`OnCrash::Rerun`] it counts as a failure; under [`OnCrash::Hold`] the record is Uncertain
    /// until an operator resolves it; under [`OnCrash::Verify`] the lease lapses and the next
    /// caller verifies.
    pub fn doubt<A>(&self, answer: A, error: &str) -> Finished<A> {
        Finished { answer: Ok(answer), settlement: self.doubted(error), commits: false }
    }

    /// Ends the work with a failure that a retry cannot fix: the record is Dead at once, until an
    /// operator acts.
    pub fn bury<A>(&self, answer: A, error: &str) -> Finished<A> {
        let settlement = Settlement::Dead { error: ErrorText::new(error) };
        Finished { answer: Ok(answer), settlement: Some(settlement), commits: false }
    }

    /// Ends work that had no effect: the key is free again, even for another request. If an earlier
    /// attempt failed or crashed, or this attempt has used a downstream key, there may be an effect
    /// after all: then the operation keeps its id, and the next caller runs it again.
    pub fn release<A>(&self, answer: A) -> Finished<A> {
        let settlement = match self.origin() {
            Origin::Fresh if !self.is_known_outside() => Settlement::Removed,
            Origin::Fresh | Origin::AfterFailure | Origin::Takeover => {
                self.due_now("refused, and the claim was released")
            }
        };
        Finished { answer: Ok(answer), settlement: Some(settlement), commits: false }
    }

    /// Ends work whose result cannot be stored, so that its transaction is rolled back.
    pub(super) fn uncommittable<A>(&self, answer: A, error: &str) -> Finished<A> {
        Finished { answer: Ok(answer), settlement: self.uncommitted(error), commits: false }
    }

    /// Returns the settlement of a success.
    pub(super) fn succeeded(&self, outcome: Recorded) -> Settlement {
        Settlement::Succeeded { outcome, keep: self.command().policy.keep }
    }

    /// Returns the settlement of a failure according to the command's failure policy.
    pub(super) fn failed(&self, error: &str) -> Settlement {
        let error = ErrorText::new(error);
        let policy = &self.command().policy;
        if let Some(max) = policy.max_attempts.filter(|max| self.attempt() >= *max) {
            return Settlement::Dead { error: exceeded(max, &error) };
        }
        match policy.on_failure {
            OnFailure::Release => Settlement::Removed,
            // The failure is the answer to every repeat, and expires like an outcome.
            OnFailure::Keep => Settlement::Failed { error, retry_after: None, keep: policy.keep },
            OnFailure::Retry | OnFailure::Backoff { .. } => Settlement::Failed {
                error,
                retry_after: policy.on_failure.delay(self.attempt()),
                keep: self.command().keep_unfinished(),
            },
        }
    }

    /// Returns the settlement of work with unknown effects, according to the command's crash
    /// policy. `None` if the lease must lapse, so that the next caller verifies.
    pub(super) fn doubted(&self, error: &str) -> Option<Settlement> {
        match self.command().policy.on_crash {
            OnCrash::Rerun => Some(self.failed(error)),
            OnCrash::Hold => Some(Settlement::Uncertain { error: ErrorText::new(error) }),
            OnCrash::Verify => None,
        }
    }

    /// Returns the settlement of an attempt that the executor or the store stopped. It is the
    /// settlement of [`doubted`](Self::doubted), except that under [`OnCrash::Rerun`] the next
    /// attempt is due at once, since the work itself did not fail.
    pub(super) fn interrupted(&self, error: &str) -> Option<Settlement> {
        match self.command().policy.on_crash {
            OnCrash::Rerun => Some(self.due_now(error)),
            OnCrash::Hold | OnCrash::Verify => self.doubted(error),
        }
    }

    /// Returns the settlement of work whose transaction was rolled back. A claim that was committed
    /// before the work is settled as [`doubted`](Self::doubted); a claim inside the transaction was
    /// rolled back too, and needs no settlement.
    pub(super) fn uncommitted(&self, error: &str) -> Option<Settlement> {
        if self.is_committed() { self.doubted(error) } else { None }
    }

    /// Returns the settlement of a transaction that the store refused.
    pub(super) fn refused_by(&self, error: &crate::store::Error) -> Option<Settlement> {
        let text = error.to_string();
        let is_temporary = match error.kind() {
            ErrorKind::Unavailable
            | ErrorKind::Ambiguous
            | ErrorKind::Capacity
            | ErrorKind::RetryTransaction => true,
            ErrorKind::Misconfigured | ErrorKind::Corrupt | ErrorKind::Refused => false,
        };
        if self.is_committed() && error.kind() == ErrorKind::RetryTransaction {
            // A transaction that must be run again has not failed: the next attempt is due at once.
            self.interrupted(&text)
        } else if !self.is_committed() && self.command().retry_payload.is_some() && !is_temporary {
            // The work reported success but left its transaction in a state that cannot be
            // committed. For an event this must count as an attempt, or the event would be
            // redelivered for ever.
            Some(self.failed(&text))
        } else {
            self.uncommitted(&text)
        }
    }

    /// Returns the settlement of a claim under which no work ran: a new record is removed, and an
    /// earlier failure is due at once. `None` if a crashed attempt must still be verified: the
    /// lease lapses, and the next caller verifies.
    pub(super) fn untouched(&self) -> Option<Settlement> {
        untouched(self.origin(), self.wants_verification(), self.command().keep_unfinished())
    }

    fn due_now(&self, error: &str) -> Settlement {
        let (error, keep) = (ErrorText::new(error), self.command().keep_unfinished());
        Settlement::Failed { error, retry_after: Some(Duration::ZERO), keep }
    }
}

/// Returns the settlement of a claim under which no work ran; see [`Context::untouched`].
pub(super) fn untouched(origin: Origin, verify: bool, keep: Duration) -> Option<Settlement> {
    match origin {
        _ if verify => None,
        Origin::Fresh => Some(Settlement::Removed),
        // The record must keep the operation id and the count of the earlier attempts.
        Origin::AfterFailure | Origin::Takeover => {
            let error = ErrorText::new("the claim was released; nothing ran under it");
            Some(Settlement::Failed { error, retry_after: Some(Duration::ZERO), keep })
        }
    }
}
