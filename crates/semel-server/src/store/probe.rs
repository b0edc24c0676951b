//! Probes whether a ledger accepts writes by claiming, settling and removing a record of its own.
//!
//! If the removal fails, the record expires and is swept.

use std::time::Duration;

use semel_core::store::{
    Change, Draft, Error, ErrorKind, Opened, Result, Settlement, Store as _, Swapped,
};
use semel_core::{
    AnyStore, AttemptId, ErrorText, Fingerprint, Key, Lease, OnCrash, OperationId, Policy,
};

/// How long the record is kept if it cannot be removed.
const KEEP: Duration = Duration::from_secs(1);

/// Writes a record of this scope, settles it and removes it. `owner` is named in its error text.
pub(crate) async fn write(ledger: &AnyStore, scope: &str, owner: &str) -> Result<()> {
    let operation_id = OperationId::generate();
    let key = Key::command("semel", scope, &operation_id.to_string()).expect("a short key");
    let draft = Draft {
        key: key.clone(),
        fingerprint: Fingerprint::none(),
        operation_id,
        attempt_id: AttemptId::generate(),
        attempt: 1,
        owner: owner.into(),
        lease: Policy::MIN_LEASE,
        on_crash: OnCrash::Rerun,
        keep: KEEP,
        retry_payload: None,
    };
    let Opened::Inserted { fence } = ledger.open(&draft).await? else {
        return Err(Error::new(ErrorKind::Ambiguous, "open", "the key of the probe was in use"));
    };
    let lease = Lease { digest: key.digest(), fence, attempt_id: draft.attempt_id };
    let error = ErrorText::new(&format!("written by {owner}"));
    let _ =
        ledger.settle(&lease, &Settlement::Failed { error, retry_after: None, keep: KEEP }).await?;
    let Some(found) = ledger.peek(&key).await? else { return Ok(()) };
    let removed = Change::Settle(Settlement::Removed);
    match ledger.swap(&key, found.record.version(), &removed).await? {
        Swapped::Done { .. } | Swapped::Lost => Ok(()),
    }
}
