//! Claims that the caller settles itself, for work that cannot be passed as a closure.
//!
//! The lease is renewed while the [`Claim`] exists. Dropping a claim without settling it only stops
//! the renewal: its work may still run, so the lease lapses and the crash policy decides.

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

/// The result of [`Executor::claim`].
#[must_use]
pub enum Claimed<S: Store> {
    /// The claim is granted: the caller does the work, then settles the claim.
    Granted(Claim<S>),
    /// An earlier call has run the operation successfully.
    Completed {
        /// The recorded outcome of the operation.
        outcome: Outcome,
        /// The attempt that the outcome comes from.
        receipt: Receipt,
    },
    /// The operation is in progress: another caller holds the claim.
    InProgress {
        /// The time until the holder's lease ends, if it is known.
        lease_remaining: Option<Duration>,
    },
}

impl<S: Store> Claimed<S> {
    /// Creates the result for a claim that was not granted.
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

/// A granted claim: the right to run the operation, to be settled once. It is not `Clone`, so that
/// settling it twice does not compile.
#[must_use = "a claim that is not settled blocks its key until its lease lapses"]
pub struct Claim<S: Store> {
    inner: Arc<Inner<S>>,
    context: Context,
    /// Renews the lease; `None` if an open transaction holds the claim.
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

/// The error of settling a claim if the store failed. It contains the claim, which can be settled
/// again or dropped.
pub struct Unsettled<S: Store> {
    /// The claim, whose lease is still renewed.
    pub claim: Claim<S>,
    /// The store's error.
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

    /// Returns the context of the attempt: fence, operation id, downstream keys, cancellation.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns whether the previous attempt crashed and must be verified before the work runs.
    pub fn wants_verification(&self) -> bool {
        self.context.wants_verification()
    }

    /// Stops renewing the lease: from now on an open transaction locks the record.
    pub(super) fn stop_renewing(&mut self) {
        self.beat = None;
    }

    /// Records the outcome, which is returned to every repeat. Returns `None` if the claim was
    /// lost.
    ///
    /// # Errors
    /// [`Unsettled`] if the store failed.
    pub async fn complete(self, outcome: Outcome) -> Result<Option<Receipt>, Unsettled<S>> {
        let max = self.context.command().policy.max_outcome;
        let outcome = self.context.with_reference(Recorded::Whole(outcome)).within(max);
        let settlement = self.context.succeeded(outcome);
        self.settle(settlement).await
    }

    /// Records a failure according to the command's failure policy. Returns `None` if the claim was
    /// lost.
    ///
    /// ```
    /// use semel_core::executor::Claimed;
    /// use semel_core::store::memory::MemoryStore;
    /// use semel_core::{Command, Executor, Key, State};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let executor = Executor::new(MemoryStore::new());
    /// let key = Key::command("acme", "IMPORT", "file-1")?;
    /// let Claimed::Granted(claim) = executor.claim(Command::new(key.clone())).await? else {
    ///     unreachable!("the key is new");
    /// };
    /// claim.fail("no such file").await?;
    /// let record = executor.peek(&key).await?.expect("a failure").record;
    /// assert_eq!((record.state, record.attempt), (State::Failed, 1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The same errors as [`complete`](Self::complete).
    pub async fn fail(self, error: &str) -> Result<Option<Receipt>, Unsettled<S>> {
        let settlement = self.context.failed(error);
        self.settle(settlement).await
    }

    /// Releases the claim of work that did not run: a new key is free again, and an earlier failure
    /// can be retried at once. A claim that [wants verification](Self::wants_verification) lapses
    /// instead, and the next caller verifies.
    ///
    /// ```
    /// use semel_core::executor::Claimed;
    /// use semel_core::store::memory::MemoryStore;
    /// use semel_core::{Command, Executor, Key};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let executor = Executor::new(MemoryStore::new());
    /// let key = Key::command("acme", "IMPORT", "file-1")?;
    /// let Claimed::Granted(claim) = executor.claim(Command::new(key.clone())).await? else {
    ///     unreachable!("the key is new");
    /// };
    /// claim.release().await?;
    /// assert!(executor.peek(&key).await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The same errors as [`complete`](Self::complete).
    pub async fn release(self) -> Result<Option<Receipt>, Unsettled<S>> {
        match self.context.untouched() {
            Some(settlement) => self.settle(settlement).await,
            None => Ok(Some(receipt(self.context.grant(), true))),
        }
    }

    /// Settles the claim in a separate task, so that the settlement is recorded even if the caller
    /// leaves.
    async fn settle(self, settlement: Settlement) -> Result<Option<Receipt>, Unsettled<S>> {
        let attempts = self.inner.attempts.clone();
        let settling = attempts.spawn(self.write(settlement));
        match settling.await {
            Ok(settled) => settled,
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down and drops the caller too.
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
    /// Claims the key of `command` without running work: the caller does the work and settles the
    /// claim.
    ///
    /// ```
    /// use semel_core::executor::Claimed;
    /// use semel_core::store::memory::MemoryStore;
    /// use semel_core::{Command, Executor, Key, Outcome};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let executor = Executor::new(MemoryStore::new());
    /// let import = Command::new(Key::command("acme", "IMPORT", "file-1")?);
    /// match executor.claim(import).await? {
    ///     Claimed::Granted(claim) => {
    ///         let rows = 3; // the work
    ///         claim.complete(Outcome::json(&rows)?).await?.expect("the claim was not lost");
    ///     }
    ///     Claimed::Completed { outcome, .. } => println!("imported: {:?}", outcome.body()),
    ///     Claimed::InProgress { .. } => println!("another process imports it"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`Error`]: the errors that [`run`](Self::run) returns before the work runs.
    pub async fn claim(&self, command: Command) -> Result<Claimed<S>, Error> {
        let command = self.0.accept(command)?;
        if self.0.closing.is_cancelled() {
            return Err(Error::Closed);
        }
        // Runs in a separate task: if the caller leaves, a claim that the store has granted is
        // released, since no work ran under it.
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

    /// Reads the record of `key`, expired or not; `None` if the key has no record.
    ///
    /// ```
    /// use semel_core::store::memory::MemoryStore;
    /// use semel_core::{Executor, Key};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let executor = Executor::new(MemoryStore::new());
    /// let key = Key::command("acme", "IMPORT", "file-1")?;
    /// assert!(executor.peek(&key).await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`] if the store fails.
    pub async fn peek(&self, key: &Key) -> Result<Option<Peeked>, Error> {
        Ok(self.0.store.peek(key).await?)
    }
}
