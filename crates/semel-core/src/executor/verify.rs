//! Asking whether a crashed attempt happened, before anything runs again.

use std::convert::Infallible;

use super::begin::Grant;
use super::codec::Codec;
use super::command::{Order, Verification};
use super::execution::{Error, Execution};
use super::finish::receipt;
use super::settle::Ended;
use super::supervise::Ran;
use super::{Context, Inner};
use crate::measure;
use crate::outcome::{ErrorText, Recorded};
use crate::store::{Settlement, Store};

impl<S: Store> Inner<S> {
    /// Asks the verifier of a crashed attempt. `None` means: run the work.
    pub(super) async fn verify<C: Codec<T>, T>(
        &self,
        order: &Order,
        grant: &Grant,
        context: &Context,
    ) -> Option<Result<Execution<T>, Error>> {
        let verifier = order.verifier.as_ref().filter(|_| grant.verify)?;
        let asking = async { Ok::<_, Infallible>(verifier(context.clone()).await) };
        let found = match self.supervise(order, context, order.policy.work_timeout, asking).await {
            Ran::Finished(Ok(found)) => found,
            Ran::Panicked(_) | Ran::TimedOut(_) => Verification::Unknown,
            // Nothing was learnt: the lease lapses, and the next caller asks again.
            Ran::Aborted => return Some(Err(Error::Closed)),
        };
        let patience = order.policy.lease;
        let (settlement, answer) = match found {
            Verification::NotDone => {
                // The crashed attempt may have been the last that was allowed.
                let max = order.policy.max_attempts.filter(|max| grant.attempt > *max)?;
                let error = crate::judge::exceeded(max, &ErrorText::new("the attempt crashed"));
                (Settlement::Dead { error: error.clone() }, Err(Error::Dead { error }))
            }
            Verification::Unknown => {
                let error = ErrorText::new("the verifier could not tell whether it happened");
                (Settlement::Uncertain { error: error.clone() }, Err(Error::Uncertain { error }))
            }
            Verification::Done(outcome) => {
                let (keep, receipt) = (order.policy.keep, receipt(grant, true));
                let answer = C::decode(&outcome)
                    .map(|value| Execution::Replayed { value, receipt })
                    .map_err(|reason| Error::Decode { reason });
                let outcome = match outcome.size() {
                    size if size > order.policy.max_outcome => {
                        Recorded::Omitted { bytes: size as u64 }
                    }
                    _ => Recorded::Whole(outcome),
                };
                (Settlement::Succeeded { outcome, keep }, answer)
            }
        };
        Some(match self.settle(order, &grant.lease, &settlement, patience).await {
            Ended::Recorded => {
                self.moved(&order.key);
                answer
            }
            Ended::Lost => self.after_loss::<C, T, Infallible>(order, Error::ClaimLost).await,
            // What was found out is true, whether or not it could be written down.
            Ended::Unrecorded(error) => {
                tracing::error!(key = ?order.key, %error, "what the verifier said is not recorded");
                measure::unrecorded();
                answer
            }
        })
    }
}
