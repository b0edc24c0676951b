//! Where the events of an outbox go: to one broker, or to the subscriptions of `semel deliver`.
//!
//! Each event leaves the outbox once. Processes with different destinations would share the events of one outbox
//! between them, and each event would reach only one destination. So a process declares its destination in the
//! ledger while it runs, and one with another destination refuses to start. The declaration expires soon after the
//! last process that renews it: it is a warning in time, not a lock.

use std::time::Duration;

use semel_core::executor::LocalReplay;
use semel_core::{Command, Error, Executor, Fingerprint, Key, Operate as _, Recorded};
use tokio_util::sync::CancellationToken;

use crate::exit::ExitError;
use crate::store::database::Database;

/// The operation of the declaration's key.
const OPERATION: &str = "OUTBOX_DESTINATION";
/// How long a declaration holds after it was renewed.
const KEEP: Duration = Duration::from_secs(60);
/// The interval at which it is renewed.
const RENEW: Duration = Duration::from_secs(20);

/// The declared destination of an outbox.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    name: String,
    key: Key,
    executor: Executor<Database>,
}

impl Destination {
    /// Declares where the events of the database's outbox go, in words for people such as `NATS (semel)`.
    ///
    /// # Errors
    /// A usage error if the events go somewhere else at present.
    pub(crate) async fn declare(
        database: &Database,
        name: impl Into<String>,
    ) -> Result<Self, ExitError> {
        let key = Key::command("semel", OPERATION, "outbox").map_err(ExitError::failed)?;
        // Other processes change the record.
        let executor = Executor::builder(database.clone()).local_replay(LocalReplay::OFF);
        let executor = executor.build().map_err(ExitError::failed)?;
        let declared = Self { name: name.into(), key, executor };
        declared.write().await?;
        Ok(declared)
    }

    /// Renews the declaration until `stop` is cancelled, then withdraws it.
    pub(crate) async fn keep(&self, stop: &CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(RENEW) => {}
                () = stop.cancelled() => break,
            }
            let renewed = async {
                self.withdraw().await?;
                self.write().await
            };
            if let Err(error) = renewed.await {
                tracing::error!(%error, "could not renew the declared destination of the outbox");
            }
        }
        if let Err(error) = self.withdraw().await {
            tracing::debug!(%error, "the declared destination of the outbox expires by itself");
        }
    }

    async fn write(&self) -> Result<(), ExitError> {
        let command = Command::new(self.key.clone()).keep(KEEP);
        let command = command.fingerprint(Fingerprint::opaque(&self.name));
        let name = self.name.clone();
        let written =
            self.executor.run(command, move |_| async move { Ok::<_, String>(name) }).await;
        match written {
            Ok(_) => Ok(()),
            Err(Error::Mismatch) => Err(self.conflict().await),
            Err(Error::Store(error)) => Err(error.into()),
            Err(error) => Err(ExitError::failed(error)),
        }
    }

    /// Removes the declaration, if it is that of this destination.
    pub(crate) async fn withdraw(&self) -> Result<(), ExitError> {
        let found = self.executor.peek(&self.key).await.map_err(ExitError::failed)?;
        let ours = Fingerprint::opaque(&self.name);
        if found.is_some_and(|found| found.record.fingerprint == ours) {
            let _ = self.executor.purge(&self.key).await?;
        }
        Ok(())
    }

    async fn conflict(&self) -> ExitError {
        let found = self.executor.peek(&self.key).await.ok().flatten();
        let other = found.and_then(|found| match found.record.outcome {
            Some(Recorded::Whole(outcome)) => serde_json::from_slice::<String>(outcome.body()).ok(),
            Some(Recorded::Omitted { .. }) | None => None,
        });
        let other = other.as_deref().unwrap_or("another destination");
        ExitError::usage(format_args!(
            "the events of this outbox go to {other}: with {} beside it, each event would reach only one of the two. \
             Stop the processes that publish to {other}, and start again; if they were killed, a minute later",
            self.name
        ))
    }
}
