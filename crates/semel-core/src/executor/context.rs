//! The context of an attempt: gives the work access to the claim that it runs under.

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

/// The argument of work: the properties of its claim, and the methods by which work of
/// [`Executor::serve`](super::Executor::serve) ends. Cheap to clone.
///
/// ```
/// use semel_core::store::memory::MemoryStore;
/// use semel_core::{Command, Executor, Key, Reference};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let executor = Executor::new(MemoryStore::new());
/// let charge = Command::new(Key::command("acme", "CHARGE", "k-1")?);
/// let charged = executor
///     .run(charge, |claim| async move {
///         // The provider recognises a retry by this key, and a store an old holder by the fence.
///         let key = claim.downstream_key("charge").map_err(|error| error.to_string())?;
///         let id = format!("ch_{}", &key[..8]);
///         claim.refer_to(Reference::new(&id).map_err(|error| error.to_string())?);
///         Ok::<_, String>(id)
///     })
///     .await?;
/// assert!(charged.value().unwrap().starts_with("ch_"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Context(Arc<Attempt>);

/// The state of one attempt, shared by its work and the executor.
struct Attempt {
    command: Arc<ResolvedCommand>,
    grant: Grant,
    cancellation: Cancellation,
    /// Whether the claim was committed before the work began.
    committed: bool,
    /// Whether the work runs in a transaction of the store.
    transacted: bool,
    reference: Mutex<Option<Reference>>,
    /// Whether a downstream key was returned, by which another system may know this operation.
    known_outside: AtomicBool,
    /// Whether an append of events failed or was dropped before it ended.
    failed_append: AtomicBool,
    /// The functions to call when the work's transaction has committed.
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

/// The kind of an attempt: whether its work runs in a transaction, and whether its claim is
/// committed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The work runs outside transactions, under a committed claim.
    Fenced,
    /// The work runs in the transaction that contains its claim.
    OneCommit,
    /// The work runs in a transaction, under a claim that was committed before.
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

    /// Returns whether the claim was committed before the work began.
    pub(super) fn is_committed(&self) -> bool {
        self.0.committed
    }

    /// Returns whether the work runs in a transaction of the store.
    pub(super) fn is_transacted(&self) -> bool {
        self.0.transacted
    }

    /// Returns whether a crashed attempt must be verified before the work runs.
    pub(super) fn wants_verification(&self) -> bool {
        self.0.grant.verify
    }

    /// Returns the key of the operation.
    pub fn key(&self) -> &Key {
        &self.0.command.key
    }

    /// Returns the fence, which is larger than the fence of every earlier grant of this key. Pass
    /// it to systems that refuse writes with a smaller fence.
    pub fn fence(&self) -> Fence {
        self.0.grant.lease.fence
    }

    /// Returns the id of the operation: the same in every retry and takeover.
    pub fn operation_id(&self) -> OperationId {
        self.0.grant.operation_id
    }

    /// Returns the number of this attempt, counted from 1.
    pub fn attempt(&self) -> u32 {
        self.0.grant.attempt
    }

    /// Returns why this claim was granted: a new key, a retry after a failure, or a takeover.
    pub fn origin(&self) -> Origin {
        self.0.grant.origin
    }

    /// Returns an idempotency key for a call to another system: 32 hex digits, the same in every
    /// retry and takeover of this operation, and different for each `step`.
    ///
    /// # Errors
    /// [`NoDurableClaim`] if the operation id may be lost, so that the next attempt would send
    /// another key: in a transaction that contains the claim (add `.claim_first()`), and under
    /// [`OnFailure::Release`](crate::OnFailure::Release), which `consume` uses.
    pub fn downstream_key(&self, step: &str) -> Result<String, NoDurableClaim> {
        // The record must keep the operation id after a crash or a failure.
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

    /// Returns whether the work should stop: the claim was lost, the work timeout has passed, or
    /// the executor shuts down.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancellation.is_cancelled()
    }

    /// Completes when the work should stop; see [`is_cancelled`](Self::is_cancelled).
    pub async fn cancelled(&self) {
        self.0.cancellation.cancelled().await;
    }

    /// Sets the reference to what the work created, such as an order id. The store keeps it with
    /// the outcome and indexes it for operators to search.
    pub fn refer_to(&self, reference: Reference) {
        *self.0.reference.lock().unwrap_or_else(PoisonError::into_inner) = Some(reference);
    }

    /// Returns `outcome` with the reference that the work has set, if any.
    pub(super) fn with_reference(&self, outcome: Recorded) -> Recorded {
        let reference = self.0.reference.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (outcome, reference) {
            (Recorded::Whole(outcome), Some(reference)) => {
                Recorded::Whole(outcome.with_reference(reference))
            }
            (outcome, _) => outcome,
        }
    }

    /// Marks that an append has begun. Returns whether an earlier append failed, which stays true
    /// when this one succeeds.
    pub(super) fn begin_append(&self) -> bool {
        self.0.failed_append.swap(true, Ordering::AcqRel)
    }

    /// Marks that an append has succeeded. `had_failed` is what
    /// [`begin_append`](Self::begin_append) returned: an earlier failure stays.
    pub(super) fn end_append(&self, had_failed: bool) {
        self.0.failed_append.store(had_failed, Ordering::Release);
    }

    /// Returns whether an append failed or was dropped before it ended.
    pub(super) fn has_failed_append(&self) -> bool {
        self.0.failed_append.load(Ordering::Acquire)
    }

    /// Calls `then` when the work's transaction is known to have committed, even if the caller has
    /// left; if the transaction does not commit, `then` is dropped. `then` must not block. Outside
    /// transactions it is never called.
    pub fn after_commit(&self, then: impl FnOnce() + Send + 'static) {
        let mut waiting = self.0.after_commit.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(Box::new(then));
    }

    /// Calls the functions that were passed to [`after_commit`](Self::after_commit).
    pub(super) fn committed(&self) {
        let mut waiting = self.0.after_commit.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = std::mem::take(&mut *waiting);
        drop(waiting);
        for then in ready {
            then();
        }
    }

    /// Returns whether a downstream key was returned. Such an operation must keep its id, or a
    /// repeat would send another key.
    pub(super) fn is_known_outside(&self) -> bool {
        self.0.known_outside.load(Ordering::Acquire)
    }
}

/// The error of [`Context::downstream_key`] if the operation id may be lost with a failure or a
/// crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a downstream key must be the same in every retry, but this claim leaves nothing behind: add \
     `.claim_first()` to the transaction, or a failure policy other than Release"
)]
pub struct NoDurableClaim;
