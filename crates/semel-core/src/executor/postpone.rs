//! Stores an operation without running it, for a scheduler that runs what is [due](crate::store::Filter::due).
//!
//! Two writes: the claim, which brings the retry payload, and its redrive, which makes it due with no attempt
//! counted. A process that ends in between leaves a claim that lapses, which is due as well.

use std::time::Duration;

use super::Executor;
use super::claim::pause;
use super::command::Command;
use super::execution::Error;
use crate::measure;
use crate::record::Version;
use crate::store::{self, Change, ErrorKind, Opened, Store};

/// The length of the claim between the two writes. It is not renewed: if the process ends, the operation is due
/// after this time.
const LEASE: Duration = Duration::from_secs(5);
/// The number of tries while a rival writes the same key.
const ROUNDS: u32 = 6;

/// The result of [`Executor::postpone`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Postponed {
    /// The operation is stored, by this call or before.
    Stored,
    /// The key was used before for a request with another fingerprint.
    Mismatch,
}

impl<S: Store> Executor<S> {
    /// Stores the operation with its retry payload, due at once, unless its key has a record. Nothing runs.
    pub(crate) async fn postpone(&self, command: Command) -> Result<Postponed, Error> {
        let command = self.0.accept(command)?;
        let mut draft = self.0.request(&command).draft;
        draft.lease = LEASE.min(draft.lease);
        for round in 0..ROUNDS {
            let opened = self.0.store.open(&draft).await.inspect_err(measure::store_failed)?;
            let version = match opened {
                Opened::Inserted { .. } => Version { attempt_id: draft.attempt_id, number: 1 },
                Opened::Contended => {
                    pause(Duration::from_micros(200 << round)).await;
                    continue;
                }
                // What was handled long ago is stored anew, as the judge would run it anew.
                Opened::Existing { record, now } if record.expired(now) => {
                    let change = Change::Replace(draft.clone());
                    let _ = self.0.store.swap(&command.key, record.version(), &change).await?;
                    continue;
                }
                // The reply of this call's own insert was lost.
                Opened::Existing { record, .. } if record.attempt_id == draft.attempt_id => {
                    record.version()
                }
                Opened::Existing { record, .. } => {
                    let same = record.fingerprint.accepts(&command.fingerprint);
                    return Ok(if same { Postponed::Stored } else { Postponed::Mismatch });
                }
            };
            failpoint!("inbox.stored");
            // Lost: another process has changed the record, which is stored all the same.
            let _ = self.0.store.swap(&command.key, version, &Change::Redrive).await?;
            return Ok(Postponed::Stored);
        }
        let busy = "another process is writing the same key";
        Err(store::Error::new(ErrorKind::Unavailable, "open", busy).into())
    }
}
