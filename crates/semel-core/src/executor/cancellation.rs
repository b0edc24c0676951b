//! Cancels one attempt: when its claim ends, or when the executor shuts down.
//!
//! The attempt's own token is created when it is first needed: creating one locks the executor's
//! tree of tokens, which all attempts share, and most work ends before its token is used.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

/// Cancels one attempt. Clones share one state.
#[derive(Clone, Debug)]
pub(super) struct Cancellation(Arc<Tokens>);

#[derive(Debug)]
struct Tokens {
    /// Cancels every attempt of the executor.
    all: CancellationToken,
    /// Cancels this attempt; a child of `all`.
    one: OnceLock<CancellationToken>,
}

impl Cancellation {
    /// Creates the cancellation of one attempt, which `all` cancels too.
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

    /// Returns whether the attempt was cancelled.
    pub(super) fn is_cancelled(&self) -> bool {
        self.0.one.get().unwrap_or(&self.0.all).is_cancelled()
    }

    /// Completes when the attempt is cancelled.
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
