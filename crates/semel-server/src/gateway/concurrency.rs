//! The limit of concurrent calls to the upstream.
//!
//! Calls outlive their callers, so the limit of connections does not bound them. Calls without a key cannot
//! take all permits, and uploads cannot take all permits of those: slow uploads must not block other calls.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// One in this many permits is reserved for calls with a key.
const KEYED: u32 = 4;
/// Of the others, one in this many is reserved for calls without an upload.
const AT_HAND: u32 = 3;

/// The permits of calls under way.
#[derive(Debug)]
pub(super) struct ConcurrencyLimit {
    calls: Arc<Semaphore>,
    /// Permits of calls without a key.
    keyless: Arc<Semaphore>,
    /// Permits of uploads: calls without a key whose body is still arriving.
    uploads: Arc<Semaphore>,
}

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// With a key; its body is complete.
    Claimed,
    /// Without a key; its body is complete.
    AtHand,
    /// Without a key; its body is still arriving.
    Upload,
}

/// The permit of a call.
#[derive(Debug)]
pub(super) struct CallPermit {
    _call: OwnedSemaphorePermit,
    _keyless: Option<OwnedSemaphorePermit>,
}

/// The permit of an upload beside that of its call. Released when the body ends.
#[derive(Debug)]
pub(super) struct UploadPermit {
    _upload: OwnedSemaphorePermit,
}

impl ConcurrencyLimit {
    /// Creates a limit of `all` calls.
    pub(super) fn new(all: u32) -> Self {
        let permits = |count: u32| Arc::new(Semaphore::new(count as usize));
        let keyless = all - all / KEYED;
        let uploads = keyless - keyless / AT_HAND;
        Self { calls: permits(all), keyless: permits(keyless), uploads: permits(uploads) }
    }

    /// Returns the permits of one more call; `None` if there are none left.
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
        let permit = CallPermit { _call: take(&self.calls)?, _keyless: keyless };
        Some((permit, upload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_uploads_do_not_block_other_calls() {
        let permits = ConcurrencyLimit::new(12);
        let mut uploads: Vec<_> = std::iter::from_fn(|| permits.take(Call::Upload)).collect();
        assert_eq!(uploads.len(), 6);
        let others: Vec<_> = std::iter::from_fn(|| permits.take(Call::AtHand)).collect();
        assert_eq!(others.len(), 3);
        let claimed: Vec<_> = std::iter::from_fn(|| permits.take(Call::Claimed)).collect();
        assert_eq!(claimed.len(), 3);
        drop(others);
        assert!(permits.take(Call::Upload).is_none());
        // Its body has ended, and its response has not arrived yet.
        uploads[0].1 = None;
        assert!(permits.take(Call::Upload).is_some());
    }

    #[test]
    fn a_single_permit_is_for_any_kind_of_call() {
        for call in [Call::Claimed, Call::AtHand, Call::Upload] {
            let permits = ConcurrencyLimit::new(1);
            assert!(permits.take(call).is_some());
        }
    }
}
