//! Claims in the caller's own hands, where no closure fits: claim, do the work, settle.
//!
//! The claim is renewed while its value lives. Dropping it unsettled stops the renewal and nothing
//! else: work that may still run is never given back, so the lease lapses and the crash policy
//! decides.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::answer::receipt;
use super::claim::Acquired;
use super::command::{Command, ResolvedCommand};
use super::context::{Context, Place};
use super::execution::{Error, Receipt, Served};
use super::grant::Grant;
use super::heartbeat::Beat;
use super::settle::Written;
use super::{Executor, Inner};
use crate::clock::monotonic;
use crate::key::Key;
use crate::measure;
use crate::outcome::{Outcome, Recorded};
use crate::store::{self, Peeked, Settlement, Store};

/// What asking for a claim came to.
#[must_use]
pub enum Claimed<S: Store> {
    /// It is the caller's: do the work, then settle it.
    Granted(Claim<S>),
    /// It is done; this is the answer.
    Completed {
        /// The answer.
        outcome: Outcome,
        /// How it came about.
        receipt: Receipt,
    },
    /// Somebody is at it.
    InProgress {
        /// How long the holder's lease still runs, where it is known.
        lease_remaining: Option<Duration>,
    },
}

impl<S: Store> Claimed<S> {
    /// An answer in place of a claim.
    pub(super) fn answered(served: Served<Outcome>) -> Self {
        match served {
            Served::Replayed { outcome, receipt } => Claimed::Completed { outcome, receipt },
            Served::InProgress { lease_remaining, .. } => Claimed::InProgress { lease_remaining },
            Served::Executed { .. } => unreachable!("asking for a claim runs nothing"),
        }
    }
}

impl<S: Store> fmt::Debug for Claimed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Claimed::Granted(claim) => f.debug_tuple("Granted").field(claim).finish(),
            Claimed::Completed { receipt, .. } => {
                f.debug_tuple("Completed").field(receipt).finish()
            }
            Claimed::InProgress { lease_remaining } => {
                f.debug_tuple("InProgress").field(lease_remaining).finish()
            }
        }
    }
}

/// The right to run, and the duty to settle. Not `Clone`: settling twice does not compile.
#[must_use = "a claim that is not settled blocks its key until its lease lapses"]
pub struct Claim<S: Store> {
    inner: Arc<Inner<S>>,
    context: Context,
    /// Renews the lease; absent where an open transaction is the lease.
    beat: Option<Beat>,
}

impl<S: Store> fmt::Debug for Claim<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("key", self.context.key())
            .field("attempt", &self.context.attempt())
            .field("fence", &self.context.fence())
            .finish_non_exhaustive()
    }
}

/// A settling that the store did not take. The claim comes back: try again, or let it lapse.
pub struct Unsettled<S: Store> {
    /// The claim, still renewed.
    pub claim: Claim<S>,
    /// Why.
    pub error: store::Error,
}

impl<S: Store> fmt::Debug for Unsettled<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unsettled").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<S: Store> fmt::Display for Unsettled<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the claim could not be settled: {}", self.error)
    }
}

impl<S: Store> std::error::Error for Unsettled<S> {}

impl<S: Store> Claim<S> {
    pub(super) fn new(
        inner: &Arc<Inner<S>>,
        command: &Arc<ResolvedCommand>,
        grant: Grant,
        place: Place,
    ) -> Self {
        let context = inner.context(command, grant, place);
        let beat = context.is_committed().then(|| inner.keep_alive(&context));
        Self { inner: Arc::clone(inner), context, beat }
    }

    /// What the work may know: fence, operation id, downstream keys, cancellation.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Whether the attempt before this one crashed and its command wants it verified first.
    pub fn wants_verification(&self) -> bool {
        self.context.wants_verification()
    }

    /// Stops renewing the claim: an open transaction keeps it from now on.
    pub(super) fn stop_renewing(&mut self) {
        self.beat = None;
    }

    /// Records the answer. Every repeat is answered with it.
    ///
    /// # Errors
    /// [`Unsettled`] if the store did not take it. `Ok(None)` means that the claim was lost.
    pub async fn complete(self, outcome: Outcome) -> Result<Option<Receipt>, Unsettled<S>> {
        let max = self.context.command().policy.max_outcome;
        let outcome = self.context.with_reference(Recorded::Whole(outcome)).within(max);
        let settlement = self.context.succeeded(outcome);
        self.settle(settlement).await
    }

    /// Records a failure, by the command's policy.
    ///
    /// # Errors
    /// As [`complete`](Self::complete).
    pub async fn fail(self, error: &str) -> Result<Option<Receipt>, Unsettled<S>> {
        let settlement = self.context.failed(error);
        self.settle(settlement).await
    }

    /// Gives the key back as it was found: free, or with its earlier attempt due again. A claim that
    /// [wants verification](Self::wants_verification) is left to lapse: somebody must still ask.
    ///
    /// # Errors
    /// As [`complete`](Self::complete).
    pub async fn release(self) -> Result<Option<Receipt>, Unsettled<S>> {
        match self.context.untouched() {
            Some(settlement) => self.settle(settlement).await,
            None => Ok(Some(receipt(self.context.grant(), true))),
        }
    }

    /// In a task of its own: a caller who leaves now must not lose what the work came to.
    async fn settle(self, settlement: Settlement) -> Result<Option<Receipt>, Unsettled<S>> {
        let attempts = self.inner.attempts.clone();
        let settling = attempts.spawn(self.write(settlement));
        match settling.await {
            Ok(settled) => settled,
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is going down, and everybody on it: there is nobody to answer.
                Err(_) => std::future::pending().await,
            },
        }
    }

    async fn write(self, settlement: Settlement) -> Result<Option<Receipt>, Unsettled<S>> {
        let as_of = monotonic();
        let (command, grant) = (self.context.command(), self.context.grant());
        let patience = command.policy.lease;
        match self.inner.settle(command, &grant.lease, &settlement, patience).await {
            Written::Recorded => {
                let receipt = self.inner.share(command, grant, settlement, as_of);
                drop(self.beat);
                Ok(Some(receipt))
            }
            Written::Lost => {
                measure::lease_lost();
                Ok(None)
            }
            Written::Unrecorded(error) => Err(Unsettled { claim: self, error }),
        }
    }
}

impl<S: Store> Executor<S> {
    /// Asks for the claim of `command` without running anything.
    ///
    /// # Errors
    /// See [`Error`]: everything that [`run`](Self::run) would answer before running.
    pub async fn claim(&self, command: Command) -> Result<Claimed<S>, Error> {
        let command = self.0.accept(command)?;
        if self.0.closing.is_cancelled() {
            return Err(Error::Closed);
        }
        // In a task of its own: a caller who leaves now must not strand a claim that the store has
        // already granted. Nothing ran under it, so it is given back.
        let (reply, asked) = tokio::sync::oneshot::channel();
        let (inner, wanted) = (Arc::clone(&self.0), Arc::clone(&command));
        self.0.attempts.spawn(async move {
            let claimed = match inner.claim(&wanted).await {
                Ok(Acquired::Granted(grant)) => {
                    Ok(Ok(Claim::new(&inner, &wanted, grant, Place::Fenced)))
                }
                Ok(Acquired::Decided(decision)) => Ok(Err(decision)),
                Err(error) => Err(error),
            };
            if let Err(Ok(Ok(unwanted))) = reply.send(claimed) {
                let _ = unwanted.release().await;
            }
        });
        match asked.await {
            Ok(Ok(Ok(claim))) => Ok(Claimed::Granted(claim)),
            Ok(Ok(Err(decision))) => self.0.answer(&command, decision, None).map(Claimed::answered),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(Error::Closed),
        }
    }

    /// The record of `key` as it stands, expired or not; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Store`] if the store fails.
    pub async fn peek(&self, key: &Key) -> Result<Option<Peeked>, Error> {
        Ok(self.0.store.peek(key).await?)
    }
}
