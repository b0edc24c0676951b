//! Verifies a crashed attempt before anything runs again.

use std::time::Duration;

use super::Inner;
use super::answer::receipt;
use super::claim::{pause, transient};
use super::command::Verification;
use super::context::Context;
use super::execution::{Error, Served};
use super::settle::Written;
use super::supervise::WorkEnd;
use crate::clock::monotonic;
use crate::judge::exceeded;
use crate::measure;
use crate::outcome::{ErrorText, Recorded};
use crate::policy::{OnCrash, Policy};
use crate::record::{Draft, State};
use crate::store::{self, Change, Settlement, Store, Swapped};

impl<S: Store> Inner<S> {
    /// Calls the verifier of a crashed attempt, and records its result. Returns `None` if the work
    /// should run.
    pub(super) async fn verify<A>(&self, context: &Context) -> Option<Result<Served<A>, Error>> {
        let (command, grant) = (context.command(), context.grant());
        let verifier = command.verifier.as_ref().filter(|_| grant.verify)?;
        let verifying = async { verifier(context.clone()).await };
        let found = match self.supervise(context, command.policy.work_timeout, verifying).await {
            WorkEnd::Finished(found) => found,
            WorkEnd::Panicked(_) | WorkEnd::TimedOut(_) => Verification::Unknown,
            // The verifier did not finish: the lease lapses, and the next caller verifies.
            WorkEnd::Aborted => return Some(Err(Error::Closed)),
        };
        let (settlement, answer) = match found {
            Verification::NotDone => {
                // The crashed attempt may have been the last one that the policy allows.
                let max = command.policy.max_attempts.filter(|max| grant.attempt > *max)?;
                let error = exceeded(max, &ErrorText::new("the attempt crashed"));
                (Settlement::Dead { error: error.clone() }, Err(Error::Dead { error }))
            }
            Verification::Unknown => {
                let error =
                    ErrorText::new("the verifier could not tell whether the attempt took effect");
                (Settlement::Uncertain { error: error.clone() }, Err(Error::Uncertain { error }))
            }
            Verification::Later(after) => return Some(self.verify_later(context, after).await),
            Verification::Done(outcome) => {
                let answer =
                    Served::Replayed { outcome: outcome.clone(), receipt: receipt(grant, true) };
                let recorded = Recorded::Whole(outcome).within(command.policy.max_outcome);
                (context.succeeded(recorded), Ok(answer))
            }
        };
        let patience = command.policy.lease;
        Some(match self.settle(command, &grant.lease, &settlement, patience).await {
            Written::Recorded => {
                self.announce(&command.key);
                answer
            }
            Written::Lost => self.after_loss(command, Err(Error::ClaimLost)).await,
            // The result of the verifier is the answer even if it could not be recorded.
            Written::Unrecorded(error) => {
                tracing::error!(key = ?command.key, %error, "the result of the verifier could not be recorded; the next caller verifies again");
                measure::unrecorded();
                answer
            }
        })
    }

    /// Defers the verification of a crashed attempt for `after`: its record stays Running, under a
    /// lease of this length that no process renews. The first call after the lease has lapsed
    /// verifies again.
    async fn verify_later<A>(
        &self,
        context: &Context,
        after: Duration,
    ) -> Result<Served<A>, Error> {
        let (command, grant) = (context.command(), context.grant());
        let after = after.clamp(Policy::MIN_LEASE, Policy::MAX_LEASE);
        let unresolved = Draft {
            fingerprint: grant.fingerprint,
            operation_id: grant.operation_id,
            // A verification does not count as an attempt.
            attempt: grant.attempt.saturating_sub(1),
            lease: after,
            on_crash: OnCrash::Verify,
            ..self.request(command).draft
        };
        let since = monotonic();
        loop {
            match self.replace_claim(context, &unresolved).await {
                Ok(Some(true)) => break,
                Ok(Some(false)) => return self.after_loss(command, Err(Error::ClaimLost)).await,
                // The record is locked or changed repeatedly: the present claim lapses with its own
                // lease.
                Ok(None) if since.elapsed() >= command.policy.lease => break,
                // The heartbeat has renewed the lease since the record was read.
                Ok(None) => {}
                // The present claim lapses with its own lease, and the next caller verifies again.
                Err(error) if !transient(&error) || since.elapsed() >= command.policy.lease => {
                    measure::store_failed(&error);
                    return Err(error.into());
                }
                Err(_) => {}
            }
            pause(Duration::from_millis(5)).await;
        }
        let operation_id = Some(grant.operation_id);
        Ok(Served::InProgress { operation_id, lease_remaining: Some(after) })
    }

    /// Replaces the claim of this attempt by `claim`. Returns `Some(true)` if it is replaced,
    /// `Some(false)` if this attempt has lost the claim, and `None` if the record was changed
    /// between reading and writing.
    async fn replace_claim(&self, context: &Context, claim: &Draft) -> store::Result<Option<bool>> {
        let key = context.key();
        let Some(found) = self.store.peek(key).await? else { return Ok(Some(false)) };
        let holder = (found.record.attempt_id, found.record.state);
        // An earlier try whose reply was lost has written the claim.
        if holder == (claim.attempt_id, State::Running) {
            return Ok(Some(true));
        }
        if holder != (context.grant().lease.attempt_id, State::Running) {
            return Ok(Some(false));
        }
        let change = Change::Regrant(claim.clone());
        match self.store.swap(key, found.record.version(), &change).await? {
            Swapped::Done { .. } => Ok(Some(true)),
            Swapped::Lost => Ok(None),
        }
    }
}
