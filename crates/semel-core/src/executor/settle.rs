//! Writes a settlement once, under the fence of its claim, with retries after lost replies.

use std::time::Duration;

use super::Inner;
use super::claim::pause;
use super::command::ResolvedCommand;
use crate::claim::Lease;
use crate::clock::monotonic;
use crate::key::Key;
use crate::measure;
use crate::record::State;
use crate::store::{Error, ErrorKind, Peeked, Settled, Settlement, Store};

/// The result of writing a settlement.
pub(super) enum Written {
    /// The settlement is written.
    Recorded,
    /// The claim was taken over before the settlement was written.
    Lost,
    /// The settlement could not be written within the time limit.
    Unrecorded(Error),
}

impl<S: Store> Inner<S> {
    /// Writes the settlement of a claim, and retries for `patience` if the store fails. The
    /// heartbeat renews the lease meanwhile; if the settlement is not recorded, the crash policy
    /// decides when the lease ends.
    pub(super) async fn settle(
        &self,
        command: &ResolvedCommand,
        lease: &Lease,
        settlement: &Settlement,
        patience: Duration,
    ) -> Written {
        let since = monotonic();
        let (mut doubt, mut counted) = (false, false);
        let mut wait = Duration::from_millis(10);
        loop {
            match self.store.settle(lease, settlement).await {
                Ok(Settled::Done) => return Written::Recorded,
                Ok(Settled::Lost) if !doubt => return Written::Lost,
                // An earlier try whose reply was lost may have written the settlement.
                Ok(Settled::Lost) => match self.store.peek(&command.key).await {
                    Ok(found) if is_ours(found.as_ref(), lease, settlement) => {
                        return Written::Recorded;
                    }
                    Ok(_) => return Written::Lost,
                    Err(error) if error.kind() == ErrorKind::Corrupt => {
                        return Written::Unrecorded(error);
                    }
                    Err(_) => {}
                },
                Err(error) => {
                    // Counted once per settlement.
                    if !std::mem::replace(&mut counted, true) {
                        measure::store_failed(&error);
                    }
                    // The work ran, so every error is retried, except a record that cannot be
                    // decoded.
                    if error.kind() == ErrorKind::Corrupt || since.elapsed() >= patience {
                        return Written::Unrecorded(error);
                    }
                    doubt |= guard!(Ambiguity) && error.kind() == ErrorKind::Ambiguous;
                }
            }
            if since.elapsed() >= patience {
                let unclear = "the reply was lost and the record could not be read again";
                return Written::Unrecorded(Error::new(ErrorKind::Ambiguous, "settle", unclear));
            }
            command.detach();
            pause(wait).await;
            wait = (wait * 2).min(Duration::from_millis(500));
        }
    }

    /// Wakes the calls that wait for this key, in this process and in others.
    pub(super) fn announce(&self, key: &Key) {
        self.waiters.wake(key.digest().hint());
        self.store.announce(key.digest().hint());
    }
}

/// Returns whether the record contains this settlement. The attempt id alone does not prove it:
/// other callers and operators that settle a lapsed claim keep the attempt id.
fn is_ours(found: Option<&Peeked>, lease: &Lease, settlement: &Settlement) -> bool {
    let Some(Peeked { record, .. }) = found else { return *settlement == Settlement::Removed };
    if record.attempt_id != lease.attempt_id {
        return false;
    }
    match settlement {
        Settlement::Succeeded { outcome, .. } => {
            record.state == State::Succeeded && record.outcome.as_ref() == Some(outcome)
        }
        Settlement::Failed { error, .. } => {
            record.state == State::Failed && record.error.as_ref() == Some(error)
        }
        Settlement::Dead { error } => {
            record.state == State::Dead && record.error.as_ref() == Some(error)
        }
        Settlement::Uncertain { error } => {
            record.state == State::Uncertain && record.error.as_ref() == Some(error)
        }
        Settlement::Discarded { error } => {
            record.state == State::Discarded && record.error.as_ref() == Some(error)
        }
        Settlement::Removed => false,
    }
}
