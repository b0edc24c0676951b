//! How work is told to stop: by the end of its own claim, or by the executor's.
//!
//! Most work ends before anybody asks. A token of its own would cost it a place in the executor's
//! tree of tokens, under a lock that all attempts share; so it is made when it is first needed.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

/// Tells one attempt to stop. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Stop(Arc<Told>);

#[derive(Debug)]
struct Told {
    /// Of all attempts.
    all: CancellationToken,
    /// Of this one, and of all.
    one: OnceLock<CancellationToken>,
}

impl Stop {
    /// For an attempt that ends with `all` at the latest.
    pub(super) fn within(all: &CancellationToken) -> Self {
        Self(Arc::new(Told { all: all.clone(), one: OnceLock::new() }))
    }

    fn one(&self) -> &CancellationToken {
        self.0.one.get_or_init(|| self.0.all.child_token())
    }

    /// Tells the attempt.
    pub(super) fn cancel(&self) {
        self.one().cancel();
    }

    /// Whether it was told.
    pub(super) fn is_cancelled(&self) -> bool {
        self.0.one.get().unwrap_or(&self.0.all).is_cancelled()
    }

    /// Ends when it is told.
    pub(super) async fn cancelled(&self) {
        self.one().cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_is_told_by_itself_and_all_by_the_executor() {
        let all = CancellationToken::new();
        let (one, other) = (Stop::within(&all), Stop::within(&all));
        let (same, waits) = (one.clone(), other.clone());
        let waiting = tokio::spawn(async move { waits.cancelled().await });
        one.cancel();
        same.cancelled().await;
        assert!(same.is_cancelled() && !other.is_cancelled() && !all.is_cancelled());
        all.cancel();
        waiting.await.expect("told");
        assert!(other.is_cancelled());
    }
}
