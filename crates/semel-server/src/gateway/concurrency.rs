//! Who may call the upstream while others do.
//!
//! Calls outlive their callers, so that no limit of connections bounds them. Those without a key may
//! not have all places, and those that still upload may not have all of theirs: such bodies come as
//! slowly as callers like, and a few slow ones are not to keep everybody out.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::budget::Reservation;

/// The part of the places, one in so many, that only calls with a key may take.
const KEYED: u32 = 4;
/// The part of what is left, one in so many, that no upload without a key may take.
const AT_HAND: u32 = 3;

/// Places for calls that are under way.
#[derive(Debug)]
pub(super) struct ConcurrencyLimit {
    calls: Arc<Semaphore>,
    /// Of these, the ones without a key.
    keyless: Arc<Semaphore>,
    /// Of those, the ones whose body is still to come.
    uploads: Arc<Semaphore>,
}

/// Whose call it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// With a key: its body is at hand.
    Claimed,
    /// Without a key, and all that there is of it is at hand.
    AtHand,
    /// Without a key, and its body is still to come.
    Upload,
}

/// A call's place.
#[derive(Debug)]
pub(super) struct CallPermit {
    _call: OwnedSemaphorePermit,
    _keyless: Option<OwnedSemaphorePermit>,
    /// What its body takes: it may wait in some buffer until the answer is there.
    _held: Option<Arc<Reservation>>,
}

impl CallPermit {
    /// The place of a call whose body is held meanwhile.
    pub(super) fn holding(mut self, held: Option<Arc<Reservation>>) -> Self {
        self._held = held;
        self
    }
}

/// An upload's place beside that of its call. It is left when the body is over.
#[derive(Debug)]
pub(super) struct UploadPermit {
    _upload: OwnedSemaphorePermit,
}

impl ConcurrencyLimit {
    /// So many in all.
    pub(super) fn new(all: u32) -> Self {
        let permits = |count: u32| Arc::new(Semaphore::new(count as usize));
        let keyless = all - all / KEYED;
        let uploads = keyless - keyless / AT_HAND;
        Self { calls: permits(all), keyless: permits(keyless), uploads: permits(uploads) }
    }

    /// A place for one more call, if there is one.
    pub(super) fn take(&self, call: Call) -> Option<(CallPermit, Option<UploadPermit>)> {
        let take = |permits: &Arc<Semaphore>| Arc::clone(permits).try_acquire_owned().ok();
        let upload = match call {
            Call::Upload => Some(UploadPermit { _upload: take(&self.uploads)? }),
            Call::Claimed | Call::AtHand => None,
        };
        let keyless = match call {
            Call::Claimed => None,
            Call::AtHand | Call::Upload => Some(take(&self.keyless)?),
        };
        let permit = CallPermit { _call: take(&self.calls)?, _keyless: keyless, _held: None };
        Some((permit, upload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_uploads_keep_nobody_else_out() {
        let permits = ConcurrencyLimit::new(12);
        let mut uploads: Vec<_> = std::iter::from_fn(|| permits.take(Call::Upload)).collect();
        assert_eq!(uploads.len(), 6);
        let others: Vec<_> = std::iter::from_fn(|| permits.take(Call::AtHand)).collect();
        assert_eq!(others.len(), 3);
        let claimed: Vec<_> = std::iter::from_fn(|| permits.take(Call::Claimed)).collect();
        assert_eq!(claimed.len(), 3);
        drop(others);
        assert!(permits.take(Call::Upload).is_none());
        // Its body is over, and its answer is not there yet.
        uploads[0].1 = None;
        assert!(permits.take(Call::Upload).is_some());
    }

    #[test]
    fn one_place_is_for_whoever_comes_first() {
        for call in [Call::Claimed, Call::AtHand, Call::Upload] {
            let permits = ConcurrencyLimit::new(1);
            assert!(permits.take(call).is_some());
        }
    }
}
