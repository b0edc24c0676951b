//! Whether a relay can publish: its store accepts writes and its broker accepts events.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::store::Store as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::opening::Opened;
use crate::admin::readiness::{ANSWER_LIMIT, Readiness};
use crate::exit::ExitError;

/// How far the start of a relay has come. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Stage(Arc<Mutex<Start>>);

#[derive(Clone, Debug)]
enum Start {
    /// The reason why it has not started yet.
    Waiting(String),
    Started(Opened),
}

impl Default for Start {
    fn default() -> Self {
        Start::Waiting("starting".to_owned())
    }
}

impl Stage {
    pub(super) fn waits_for(&self, error: &ExitError) {
        *self.lock() = Start::Waiting(error.to_string());
    }

    pub(super) fn started(&self, opened: &Opened) {
        *self.lock() = Start::Started(opened.clone());
    }

    fn lock(&self) -> MutexGuard<'_, Start> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers `/readyz`.
pub(super) struct RelayReadiness {
    pub(super) stage: Stage,
    pub(super) stop: CancellationToken,
    pub(super) paused: watch::Receiver<bool>,
}

impl Readiness for RelayReadiness {
    async fn check(&self) -> Result<String, String> {
        if self.stop.is_cancelled() {
            return Err("stopping".to_owned());
        }
        let start = self.stage.lock().clone();
        let opened = match start {
            Start::Waiting(reason) => return Err(reason),
            Start::Started(opened) => opened,
        };
        let (store, broker) = tokio::join!(
            within(ANSWER_LIMIT, async {
                opened.database.writable().await.map_err(|error| error.to_string())
            }),
            within(ANSWER_LIMIT, opened.publisher.check()),
        );
        store.map_err(|why| format!("the store does not accept writes: {why}"))?;
        broker.map_err(|why| format!("the broker does not accept events: {why}"))?;
        Ok(if *self.paused.borrow() { "ready, paused" } else { "ready" }.to_owned())
    }
}

async fn within(
    limit: Duration,
    check: impl Future<Output = Result<(), String>>,
) -> Result<(), String> {
    let checked = tokio::time::timeout(limit, check).await;
    checked.unwrap_or_else(|_| Err(format!("no answer within {limit:?}")))
}
