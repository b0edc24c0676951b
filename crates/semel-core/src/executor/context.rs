//! What the work knows about the claim that it runs under.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest as _, Sha256};

use super::stop::Stop;
use crate::claim::{Fence, OperationId, Origin};
use crate::key::{Key, hex};
use crate::outcome::Reference;

/// Handed to the work. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    pub(super) key: Key,
    pub(super) operation_id: OperationId,
    pub(super) attempt: u32,
    pub(super) fence: Fence,
    pub(super) origin: Origin,
    pub(super) cancelled: Stop,
    pub(super) notes: Arc<Notes>,
    /// Whether a crash or a failure leaves the operation id behind.
    pub(super) durable: bool,
}

/// What the work leaves with its claim while it runs.
#[derive(Debug, Default)]
pub(super) struct Notes {
    reference: Mutex<Option<Reference>>,
    /// Whether somebody else may know this operation by a key of ours.
    known_outside: AtomicBool,
    /// Whether events are half written.
    appending: AtomicBool,
    /// Done when the work's transaction has committed.
    afterwards: Mutex<Vec<Afterwards>>,
}

struct Afterwards(Box<dyn FnOnce() + Send>);

impl fmt::Debug for Afterwards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl Context {
    /// The key of the operation.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Larger than that of every earlier grant on this key. Hand it to a downstream that can refuse
    /// writes with an older one.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Names the operation; the same in every retry and takeover.
    pub fn operation_id(&self) -> OperationId {
        self.operation_id
    }

    /// Which execution this is, counted from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Why this claim was granted.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// An idempotency key for a call to somebody else: 32 hex digits, the same in every retry and
    /// takeover of this operation, different for each `step`.
    ///
    /// # Errors
    /// [`NoDurableClaim`] where nothing would remember the operation, so that the next attempt would
    /// send another key: in a one-commit transaction (add `.claim_first()`), and under
    /// [`OnFailure::Release`](crate::OnFailure::Release), which `consume` uses.
    pub fn downstream_key(&self, step: &str) -> Result<String, NoDurableClaim> {
        if !self.durable {
            return Err(NoDurableClaim);
        }
        self.notes.known_outside.store(true, Ordering::Release);
        let mut hash = Sha256::new();
        hash.update(b"semel/downstream/1\0");
        hash.update(self.operation_id.to_bytes());
        hash.update(step.as_bytes());
        Ok(hex(&hash.finalize()[..16]))
    }

    /// Whether the work should stop: its claim was lost, its time is up, or the executor shuts down.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.is_cancelled()
    }

    /// Ends when the work should stop.
    pub async fn cancelled(&self) {
        self.cancelled.cancelled().await;
    }

    /// Names what the work made; stored with the outcome, indexed and searchable.
    pub fn refer_to(&self, reference: Reference) {
        *self.notes.reference.lock().unwrap_or_else(PoisonError::into_inner) = Some(reference);
    }

    pub(super) fn take_reference(&self) -> Option<Reference> {
        self.notes.reference.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Events are about to be written. Gives whether an earlier append failed: a later one that goes
    /// well does not make up for it.
    pub(super) fn begin_append(&self) -> bool {
        self.notes.appending.swap(true, Ordering::AcqRel)
    }

    /// They are written; what was before is as it was.
    pub(super) fn end_append(&self, half_told: bool) {
        self.notes.appending.store(half_told, Ordering::Release);
    }

    /// Whether an append failed or was cut off.
    pub(super) fn is_half_told(&self) -> bool {
        self.notes.appending.load(Ordering::Acquire)
    }

    /// Does this when the work's transaction is known to have committed, whether or not its caller
    /// is still there; if it does not commit, `then` is dropped. It must be quick. Outside
    /// transactions it is never done.
    pub fn after_commit(&self, then: impl FnOnce() + Send + 'static) {
        let mut afterwards = self.notes.afterwards.lock().unwrap_or_else(PoisonError::into_inner);
        afterwards.push(Afterwards(Box::new(then)));
    }

    pub(super) fn committed(&self) {
        let mut held = self.notes.afterwards.lock().unwrap_or_else(PoisonError::into_inner);
        let afterwards = std::mem::take(&mut *held);
        drop(held);
        for Afterwards(then) in afterwards {
            then();
        }
    }

    /// Whether a downstream key was handed out: an operation that somebody may know by it must not
    /// be forgotten, or its repeat would come under another.
    pub(super) fn is_known_outside(&self) -> bool {
        self.notes.known_outside.load(Ordering::Acquire)
    }
}

/// A downstream key was asked for where it could not be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a downstream key must be the same in every retry, but this claim leaves nothing behind: add \
     `.claim_first()` to the transaction, or a failure policy other than Release"
)]
pub struct NoDurableClaim;
