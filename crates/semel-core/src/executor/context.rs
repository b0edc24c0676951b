//! What the work knows about the claim that it runs under.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest as _, Sha256};

use super::cancellation::Cancellation;
use super::command::ResolvedCommand;
use super::grant::Grant;
use crate::claim::{Fence, OperationId, Origin};
use crate::key::{Key, hex};
use crate::outcome::{Recorded, Reference};
use crate::policy::OnFailure;

/// Handed to the work: what it may know of its claim, and how it says how it ended. Cheap to clone.
#[derive(Clone)]
pub struct Context(Arc<Attempt>);

/// One attempt, shared by its work and the executor.
struct Attempt {
    command: Arc<ResolvedCommand>,
    grant: Grant,
    cancellation: Cancellation,
    /// Whether the claim was committed before the work began.
    committed: bool,
    /// Whether the work runs in a transaction of the store.
    transacted: bool,
    reference: Mutex<Option<Reference>>,
    /// Whether another system may know this operation by a downstream key.
    known_outside: AtomicBool,
    /// Whether an append failed or was cut off.
    failed_append: AtomicBool,
    /// Runs when the work's transaction has committed.
    after_commit: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("key", self.key())
            .field("operation_id", &self.operation_id())
            .field("attempt", &self.attempt())
            .field("fence", &self.fence())
            .finish_non_exhaustive()
    }
}

/// Where the work of an attempt runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Outside transactions, under a committed claim.
    Fenced,
    /// In a transaction that also holds the claim.
    OneCommit,
    /// In a transaction, under a claim that was committed before.
    ClaimFirst,
}

impl Context {
    pub(super) fn new(
        command: &Arc<ResolvedCommand>,
        grant: Grant,
        cancellation: Cancellation,
        place: Place,
    ) -> Self {
        Self(Arc::new(Attempt {
            command: Arc::clone(command),
            grant,
            cancellation,
            committed: place != Place::OneCommit,
            transacted: place != Place::Fenced,
            reference: Mutex::default(),
            known_outside: AtomicBool::new(false),
            failed_append: AtomicBool::new(false),
            after_commit: Mutex::default(),
        }))
    }

    pub(super) fn command(&self) -> &Arc<ResolvedCommand> {
        &self.0.command
    }

    pub(super) fn grant(&self) -> &Grant {
        &self.0.grant
    }

    pub(super) fn cancellation(&self) -> &Cancellation {
        &self.0.cancellation
    }

    /// Whether the claim was committed before the work began.
    pub(super) fn is_committed(&self) -> bool {
        self.0.committed
    }

    /// Whether the work runs in a transaction of the store.
    pub(super) fn is_transacted(&self) -> bool {
        self.0.transacted
    }

    /// Whether a crashed attempt must be verified before the work runs.
    pub(super) fn wants_verification(&self) -> bool {
        self.0.grant.verify
    }

    /// The key of the operation.
    pub fn key(&self) -> &Key {
        &self.0.command.key
    }

    /// Larger than that of every earlier grant on this key. Hand it to a downstream that can refuse
    /// writes with an older one.
    pub fn fence(&self) -> Fence {
        self.0.grant.lease.fence
    }

    /// Names the operation; the same in every retry and takeover.
    pub fn operation_id(&self) -> OperationId {
        self.0.grant.operation_id
    }

    /// Which execution this is, counted from 1.
    pub fn attempt(&self) -> u32 {
        self.0.grant.attempt
    }

    /// Why this claim was granted.
    pub fn origin(&self) -> Origin {
        self.0.grant.origin
    }

    /// An idempotency key for a call to another system: 32 hex digits, the same in every retry and
    /// takeover of this operation, different for each `step`.
    ///
    /// # Errors
    /// [`NoDurableClaim`] where nothing would remember the operation, so that the next attempt would
    /// send another key: in a one-commit transaction (add `.claim_first()`), and under
    /// [`OnFailure::Release`](crate::OnFailure::Release), which `consume` uses.
    pub fn downstream_key(&self, step: &str) -> Result<String, NoDurableClaim> {
        // A crash or a failure must leave the operation id behind.
        if !self.0.committed || self.0.command.policy.on_failure == OnFailure::Release {
            return Err(NoDurableClaim);
        }
        self.0.known_outside.store(true, Ordering::Release);
        let mut hash = Sha256::new();
        hash.update(b"semel/downstream/1\0");
        hash.update(self.operation_id().to_bytes());
        hash.update(step.as_bytes());
        Ok(hex(&hash.finalize()[..16]))
    }

    /// Whether the work should stop: its claim was lost, its time is up, or the executor shuts down.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancellation.is_cancelled()
    }

    /// Ends when the work should stop.
    pub async fn cancelled(&self) {
        self.0.cancellation.cancelled().await;
    }

    /// Names what the work made; stored with the outcome, indexed and searchable.
    pub fn refer_to(&self, reference: Reference) {
        *self.0.reference.lock().unwrap_or_else(PoisonError::into_inner) = Some(reference);
    }

    /// The outcome with the reference that the work named, if it named one.
    pub(super) fn with_reference(&self, outcome: Recorded) -> Recorded {
        let named = self.0.reference.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (outcome, named) {
            (Recorded::Whole(outcome), Some(named)) => {
                Recorded::Whole(outcome.with_reference(named))
            }
            (outcome, _) => outcome,
        }
    }

    /// Marks that events are about to be written. Returns whether an earlier append failed: a later one
    /// that succeeds does not make up for it.
    pub(super) fn begin_append(&self) -> bool {
        self.0.failed_append.swap(true, Ordering::AcqRel)
    }

    /// Marks that the events are written; an earlier failure stays.
    pub(super) fn end_append(&self, had_failed: bool) {
        self.0.failed_append.store(had_failed, Ordering::Release);
    }

    /// Whether an append failed or was cut off.
    pub(super) fn has_failed_append(&self) -> bool {
        self.0.failed_append.load(Ordering::Acquire)
    }

    /// Runs `then` when the work's transaction is known to have committed, whether or not its caller
    /// is still there; if it does not commit, `then` is dropped. It must be quick. Outside
    /// transactions it never runs.
    pub fn after_commit(&self, then: impl FnOnce() + Send + 'static) {
        let mut waiting = self.0.after_commit.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(Box::new(then));
    }

    /// Runs what waits for the commit.
    pub(super) fn committed(&self) {
        let mut waiting = self.0.after_commit.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = std::mem::take(&mut *waiting);
        drop(waiting);
        for then in ready {
            then();
        }
    }

    /// Whether a downstream key was handed out: an operation that another system may know by it must
    /// not be forgotten, or its repeat would come under another key.
    pub(super) fn is_known_outside(&self) -> bool {
        self.0.known_outside.load(Ordering::Acquire)
    }
}

/// A downstream key was asked for where it could not be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a downstream key must be the same in every retry, but this claim leaves nothing behind: add \
     `.claim_first()` to the transaction, or a failure policy other than Release"
)]
pub struct NoDurableClaim;
