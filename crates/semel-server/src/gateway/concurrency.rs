//! The limit on concurrent calls to the upstream.
//!
//! A call may outlive its caller, so the limit on connections does not limit calls. Calls without a
//! key cannot take all permits, and uploads cannot take all permits of calls without a key: slow
//! uploads must not block other calls.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The fraction of permits that is reserved for calls with a key: one in this many.
const KEYED_ONE_IN: u32 = 4;
/// The fraction of the other permits that is reserved for calls without an upload: one in this
/// many.
const COMPLETE_ONE_IN: u32 = 3;

/// The permits of calls under way.
#[derive(Debug)]
pub(super) struct ConcurrencyLimit {
    calls: Arc<Semaphore>,
    /// The permits of calls without a key.
    keyless: Arc<Semaphore>,
    /// The permits of uploads: calls without a key whose body is still arriving.
    uploads: Arc<Semaphore>,
}

/// The kind of a call, which determines the permits that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// A call with a key, whose body is complete.
    Claimed,
    /// A call without a key, whose body is complete.
    Complete,
    /// A call without a key, whose body is still arriving.
    Upload,
}

/// The permit of a call.
#[derive(Debug)]
pub(super) struct CallPermit {
    _call: OwnedSemaphorePermit,
    _keyless: Option<OwnedSemaphorePermit>,
}

/// The additional permit of an upload, which is released when the body ends.
#[derive(Debug)]
pub(super) struct UploadPermit {
    _upload: OwnedSemaphorePermit,
}

impl ConcurrencyLimit {
    /// Creates a limit of `all` concurrent calls.
    pub(super) fn new(all: u32) -> Self {
        let permits = |count: u32| Arc::new(Semaphore::new(count as usize));
        let keyless = all - all / KEYED_ONE_IN;
        let uploads = keyless - keyless / COMPLETE_ONE_IN;
        Self { calls: permits(all), keyless: permits(keyless), uploads: permits(uploads) }
    }

    /// Takes the permits for one more call; `None` if there are none left.
    pub(super) fn take(&self, call: Call) -> Option<(CallPermit, Option<UploadPermit>)> {
        let take = |permits: &Arc<Semaphore>| Arc::clone(permits).try_acquire_owned().ok();
        let upload = match call {
            Call::Upload => Some(UploadPermit { _upload: take(&self.uploads)? }),
            Call::Claimed | Call::Complete => None,
        };
        let keyless = match call {
            Call::Claimed => None,
            Call::Complete | Call::Upload => Some(take(&self.keyless)?),
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
        let others: Vec<_> = std::iter::from_fn(|| permits.take(Call::Complete)).collect();
        assert_eq!(others.len(), 3);
        let claimed: Vec<_> = std::iter::from_fn(|| permits.take(Call::Claimed)).collect();
        assert_eq!(claimed.len(), 3);
        drop(others);
        assert!(permits.take(Call::Upload).is_none());
        // The body of the first upload has ended, and its response has not arrived yet.
        uploads[0].1 = None;
        assert!(permits.take(Call::Upload).is_some());
    }

    #[test]
    fn a_single_permit_is_for_any_kind_of_call() {
        for call in [Call::Claimed, Call::Complete, Call::Upload] {
            let permits = ConcurrencyLimit::new(1);
            assert!(permits.take(call).is_some());
        }
    }
}
