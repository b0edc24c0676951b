//! What `/readyz` asks of a process.

use std::future::Future;
use std::time::Duration;

use semel_core::store::Inspect;
use semel_core::{Executor, Key};
use tokio_util::sync::CancellationToken;

/// The longest time that a store or a broker may take to answer a readiness check.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Answers readiness checks.
pub(crate) trait Readiness: Send + Sync + 'static {
    /// Returns the text for a process that is ready, or the reason why it is not.
    fn check(&self) -> impl Future<Output = Result<String, String>> + Send;
}

/// Checks whether a process with a ledger can serve: its store answers and accepts writes, and the process is
/// not stopping.
pub(super) struct LedgerReadiness<S: Inspect> {
    pub(super) executor: Executor<S>,
    pub(super) stop: CancellationToken,
}

impl<S: Inspect> Readiness for LedgerReadiness<S> {
    async fn check(&self) -> Result<String, String> {
        if self.stop.is_cancelled() {
            return Err("stopping".to_owned());
        }
        // The key does not matter: the check is whether the store answers.
        let key = Key::command("semel", "READY", "readyz").expect("a short key");
        match tokio::time::timeout(ANSWER_LIMIT, self.executor.store().peek(&key)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(format!("the store does not answer: {error}")),
            Err(_) => return Err(format!("the store has not answered within {ANSWER_LIMIT:?}")),
        }
        match tokio::time::timeout(ANSWER_LIMIT, self.executor.store().writable()).await {
            Ok(Ok(())) => Ok("ready".to_owned()),
            Ok(Err(error)) => Err(format!("the store does not accept writes: {error}")),
            Err(_) => Err(format!("the store has not accepted a write within {ANSWER_LIMIT:?}")),
        }
    }
}
