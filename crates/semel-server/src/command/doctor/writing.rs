//! Whether a store can be written to: by this user, on this disk, in this memory.
//!
//! A record of a key that nobody else has is claimed, settled and removed, as a call would do it. If the
//! removal does not come through, the record lapses and is swept.

use std::time::Duration;

use semel::outbox::{Outbox, Selection, Verb};
use semel::store::{
    Change, Draft, Ending, Error, ErrorKind, Opened, Result, Store as _, Swapped,
    TransactionalStore,
};
use semel::{
    AnyStore, AttemptId, Envelope, ErrorText, EventId, Fingerprint, Key, Lease, OnCrash,
    OperationId, Policy,
};

use super::Check;
use crate::failure::Failure;

/// How long the record lives if it cannot be removed.
const KEEP: Duration = Duration::from_secs(1);

/// Writes a record, changes it and removes it.
pub(super) async fn ledger(ledger: &AnyStore) -> Check {
    match written(ledger).await {
        Ok(()) => {
            let found = "a record was written, changed and removed";
            Check::good("store", "store-writable", found)
        }
        Err(error) => refused("store", error),
    }
}

async fn written(ledger: &AnyStore) -> Result<()> {
    let operation_id = OperationId::generate();
    let key = Key::command("semel", "DOCTOR", &operation_id.to_string()).expect("a short key");
    let draft = Draft {
        key: key.clone(),
        fingerprint: Fingerprint::none(),
        operation_id,
        attempt_id: AttemptId::generate(),
        attempt: 1,
        owner: "semel doctor".into(),
        lease: Policy::MIN_LEASE,
        on_crash: OnCrash::Rerun,
        keep: KEEP,
        parcel: None,
    };
    let Opened::Inserted { fence } = ledger.open(&draft).await? else {
        return Err(Error::new(ErrorKind::Ambiguous, "open", "a key of its own was taken"));
    };
    let lease = Lease { digest: key.digest(), fence, attempt_id: draft.attempt_id };
    let error = ErrorText::new("written by semel doctor");
    let _ = ledger.settle(&lease, &Ending::Failed { error, retry_after: None, keep: KEEP }).await?;
    let Some(found) = ledger.peek(&key).await? else { return Ok(()) };
    let removed = Change::End(Ending::Removed);
    match ledger.swap(&key, found.record.version(), &removed).await? {
        Swapped::Done { .. } | Swapped::Lost => Ok(()),
    }
}

/// Appends an event in a transaction that is rolled back, and changes rows that are not there: a
/// server asks for the right to do it all the same.
pub(super) async fn outbox<S>(store: &S) -> Check
where
    S: TransactionalStore + Outbox<Connection = <S as TransactionalStore>::Connection>,
{
    let id = EventId::generate();
    let tried = async {
        let event = Envelope::builder("semel", "semel.doctor", "/semel/doctor").id(id).build();
        let event = event.expect("an event that can be sent");
        let mut transaction = store.begin().await?;
        let appended = store.append(S::connection(&mut transaction), &[event]).await;
        store.rollback(transaction).await;
        appended?;
        let nowhere = Selection { ids: vec![id], ..Selection::default() };
        let discard = Verb::Discard { reason: "tried by semel doctor".to_owned() };
        store.apply(&nowhere, &discard, None, 1).await.map(drop)
    };
    match tried.await {
        Ok(()) => Check::good("outbox", "outbox-writable", "events can be appended and changed"),
        Err(error) => refused("outbox", error),
    }
}

/// Why it was not written, and what to do.
fn refused(about: &'static str, error: Error) -> Check {
    let (code, fix) = if error.kind() == ErrorKind::Capacity {
        ("store-full", "make room: free the disk or memory, or let expired records be swept")
    } else {
        (
            "store-unwritable",
            "let this user SELECT, INSERT, UPDATE and DELETE in the tables semel_*, and see that the \
             server is no read-only replica and that its disk is not full",
        )
    };
    Check::error(about, code, Failure::from(error).to_string(), fix)
}
