//! Whether a subscription is disabled: its endpoint has answered 410, and an operator has not enabled it since.
//!
//! That is a record of the ledger, so that every process that delivers knows it, also after a restart.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use metrics::gauge;
use semel_core::executor::LocalReplay;
use semel_core::{Command, Executor, Key, State};
use tokio_util::sync::CancellationToken;

use crate::exit::ExitError;
use crate::store::database::Database;

/// The scope of the records.
const SCOPE: &str = "DELIVER_DISABLED";
/// How long a subscription stays disabled at most.
const KEEP: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
/// The interval at which the record is read: an operator may have enabled the subscription at another process.
const LOOK: Duration = Duration::from_secs(1);

/// The state of one subscription.
pub(super) struct Disabled {
    group: String,
    key: Key,
    executor: Executor<Database>,
    is_disabled: AtomicBool,
    /// How often this process has disabled the subscription: what was read before is out of date then.
    changes: AtomicU64,
}

impl std::fmt::Debug for Disabled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disabled").field("group", &self.group).finish_non_exhaustive()
    }
}

impl Disabled {
    /// Reads the state from the ledger.
    pub(super) async fn read(group: &str, database: &Database) -> Result<Self, ExitError> {
        let key = Key::command("semel", SCOPE, group).map_err(ExitError::usage)?;
        // Other processes and operators change the record.
        let executor = Executor::builder(database.clone()).local_replay(LocalReplay::OFF);
        let executor = executor.build().map_err(ExitError::failed)?;
        let (group, changes) = (group.to_owned(), AtomicU64::new(0));
        let disabled = Self { group, key, executor, is_disabled: AtomicBool::new(false), changes };
        disabled.look().await?;
        Ok(disabled)
    }

    pub(super) fn is_disabled(&self) -> bool {
        self.is_disabled.load(Ordering::Relaxed)
    }

    fn set(&self, disabled: bool) {
        self.is_disabled.store(disabled, Ordering::Relaxed);
        gauge!("semel_deliver_disabled", "group" => self.group.clone())
            .set(f64::from(u8::from(disabled)));
    }

    async fn look(&self) -> Result<(), ExitError> {
        let before = self.changes.load(Ordering::SeqCst);
        let found = self.executor.peek(&self.key).await.map_err(ExitError::failed)?;
        let disabled = found.is_some_and(|found| found.record.state == State::Succeeded);
        if self.changes.load(Ordering::SeqCst) == before {
            if !disabled && self.is_disabled() {
                tracing::info!(group = self.group, "the subscription is enabled");
            }
            self.set(disabled);
        }
        Ok(())
    }

    /// Keeps reading the state, until `stopping` is cancelled.
    pub(super) async fn watch(&self, stopping: CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = stopping.cancelled() => return,
            }
            if let Err(error) = self.look().await {
                tracing::debug!(group = self.group, %error, "could not read whether the subscription is disabled");
            }
        }
    }

    /// Disables the subscription, because its endpoint is gone.
    pub(super) async fn disable(&self, reason: &str) {
        // Nothing more is sent from here on. What is shown follows the record.
        if !self.is_disabled.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                group = self.group,
                reason,
                "the endpoint is gone; the subscription is disabled and its events are kept. Enable it again with \
                 `semel records purge GROUP --scope DELIVER_DISABLED`"
            );
        }
        self.changes.fetch_add(1, Ordering::SeqCst);
        let command = Command::new(self.key.clone()).keep(KEEP);
        let reason = reason.to_owned();
        let recorded =
            self.executor.run(command, move |_| async move { Ok::<_, String>(reason) }).await;
        if let Err(error) = recorded {
            tracing::warn!(group = self.group, %error, "could not record that the subscription is disabled; other processes go on");
        }
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.set(true);
    }
}
