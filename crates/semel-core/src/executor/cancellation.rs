//! Cancels one attempt: when its claim ends, or when the executor shuts down.
//!
//! A token of its own is made when it is first needed: it costs a place in the executor's tree of
//! tokens, under a lock that all attempts share, and most work ends before anything asks for it.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

/// Cancels one attempt. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Cancellation(Arc<Tokens>);

#[derive(Debug)]
struct Tokens {
    /// Cancels every attempt of the executor.
    all: CancellationToken,
    /// Cancels this one; a child of `all`.
    one: OnceLock<CancellationToken>,
}

impl Cancellation {
    /// Creates one that `all` cancels too.
    pub(super) fn within(all: &CancellationToken) -> Self {
        Self(Arc::new(Tokens { all: all.clone(), one: OnceLock::new() }))
    }

    fn one(&self) -> &CancellationToken {
        self.0.one.get_or_init(|| self.0.all.child_token())
    }

    /// Cancels the attempt.
    pub(super) fn cancel(&self) {
        self.one().cancel();
    }

    /// Returns whether it was cancelled.
    pub(super) fn is_cancelled(&self) -> bool {
        self.0.one.get().unwrap_or(&self.0.all).is_cancelled()
    }

    /// Completes when it is cancelled.
    pub(super) async fn cancelled(&self) {
        self.one().cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_attempt_is_cancelled_alone_and_all_by_the_executor() {
        let all = CancellationToken::new();
        let (one, other) = (Cancellation::within(&all), Cancellation::within(&all));
        let (same, waits) = (one.clone(), other.clone());
        let waiting = tokio::spawn(async move { waits.cancelled().await });
        one.cancel();
        same.cancelled().await;
        assert!(same.is_cancelled() && !other.is_cancelled() && !all.is_cancelled());
        all.cancel();
        waiting.await.expect("cancelled");
        assert!(other.is_cancelled());
    }
}
