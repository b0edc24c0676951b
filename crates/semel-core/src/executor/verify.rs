//! Verifies a crashed attempt before anything runs again.

use super::Inner;
use super::answer::receipt;
use super::command::Verification;
use super::context::Context;
use super::execution::{Error, Served};
use super::settle::Written;
use super::supervise::WorkEnd;
use crate::judge::exceeded;
use crate::measure;
use crate::outcome::{ErrorText, Recorded};
use crate::store::{Settlement, Store};

impl<S: Store> Inner<S> {
    /// Asks the verifier about the crashed attempt. `None` means that the work runs.
    pub(super) async fn verify<A>(&self, context: &Context) -> Option<Result<Served<A>, Error>> {
        let (command, grant) = (context.command(), context.grant());
        let verifier = command.verifier.as_ref().filter(|_| grant.verify)?;
        let asking = async { verifier(context.clone()).await };
        let found = match self.supervise(context, command.policy.work_timeout, asking).await {
            WorkEnd::Finished(found) => found,
            WorkEnd::Panicked(_) | WorkEnd::TimedOut(_) => Verification::Unknown,
            // Nothing was learnt: the lease lapses, and the next caller asks again.
            WorkEnd::Aborted => return Some(Err(Error::Closed)),
        };
        let (settlement, answer) = match found {
            Verification::NotDone => {
                // The crashed attempt may have been the last that was allowed.
                let max = command.policy.max_attempts.filter(|max| grant.attempt > *max)?;
                let error = exceeded(max, &ErrorText::new("the attempt crashed"));
                (Settlement::Dead { error: error.clone() }, Err(Error::Dead { error }))
            }
            Verification::Unknown => {
                let error = ErrorText::new("the verifier could not tell whether it happened");
                (Settlement::Uncertain { error: error.clone() }, Err(Error::Uncertain { error }))
            }
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
            // What was found out is true, whether or not it could be recorded.
            Written::Unrecorded(error) => {
                tracing::error!(key = ?command.key, %error, "what the verifier found is not recorded");
                measure::unrecorded();
                answer
            }
        })
    }
}
