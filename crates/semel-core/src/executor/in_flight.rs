//! The keys that open transactions of this process hold.
//!
//! The claim of an open transaction is not visible in the store until the transaction commits. A
//! lookup in this table is cheap, never waits for a row lock, and compares fingerprints, so that
//! another request with the same key is refused.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::command::ResolvedCommand;
use crate::fingerprint::Fingerprint;
use crate::judge::Verdict;
use crate::key::{Digest, Mixing};

/// The fingerprint of each holder's claim; `None` until the claim is granted.
type Held = HashMap<Digest, Option<Fingerprint>, Mixing>;

/// The keys that are held in this process. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct InFlight(Arc<HeldKeys>);

#[derive(Default)]
struct HeldKeys {
    held: Mutex<Held>,
    /// The number of held keys. While it is 0, the lock is not taken.
    count: AtomicUsize,
}

impl InFlight {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the verdict on `command` if a transaction of this process holds its key.
    pub(super) fn judge(&self, command: &ResolvedCommand) -> Option<Verdict> {
        if self.0.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let held = self.lock();
        let holder = held.get(&command.key.digest())?;
        Some(match holder {
            Some(granted) if !granted.accepts(&command.fingerprint) => Verdict::Mismatch,
            // Until the store has granted the holder's claim, its fingerprint may turn out to be
            // the one that is refused.
            Some(_) | None => Verdict::Running { lease_remaining: None },
        })
    }

    /// Reserves the key of `command` until the returned hold is dropped.
    ///
    /// # Errors
    /// The verdict on `command`, if the key is already held.
    pub(super) fn hold(&self, command: &ResolvedCommand) -> Result<Hold, Verdict> {
        if let Some(verdict) = self.judge(command) {
            return Err(verdict);
        }
        let digest = command.key.digest();
        // Another caller may have reserved the key since `judge` looked.
        match self.lock().entry(digest) {
            std::collections::hash_map::Entry::Occupied(_) => {
                Err(Verdict::Running { lease_remaining: None })
            }
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert(None);
                self.0.count.fetch_add(1, Ordering::Release);
                Ok(Hold { keys: self.clone(), digest })
            }
        }
    }
}

/// The reservation of a key by an open transaction of this process. Dropping it frees the key.
pub(super) struct Hold {
    keys: InFlight,
    digest: Digest,
}

impl Hold {
    /// Records that the store has granted the claim, with this fingerprint.
    pub(super) fn granted(&self, fingerprint: Fingerprint) {
        self.keys.lock().insert(self.digest, Some(fingerprint));
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.keys.lock().remove(&self.digest);
        self.keys.0.count.fetch_sub(1, Ordering::Release);
    }
}
