//! Checks that a store accepts writes.
//!
//! The [probe](crate::store::probe) writes and removes a record; an event is appended in a
//! transaction that is rolled back.

use semel_core::outbox::{Outbox, RowAction, Selection};
use semel_core::store::{Error, ErrorKind, TransactionalStore};
use semel_core::{AnyStore, Event, EventId};

use crate::command::check::Check;
use crate::exit::ExitError;
use crate::store::probe;

/// Writes a record, settles it and removes it.
pub(super) async fn ledger(ledger: &AnyStore) -> Check {
    match probe::write(ledger, "DOCTOR", "semel doctor").await {
        Ok(()) => {
            let found = "a record was written, changed and removed";
            Check::good("store", "store-writable", found)
        }
        Err(error) => refused("store", error),
    }
}

/// Appends an event in a transaction that is rolled back, and changes rows that do not exist:
/// servers check the permission for that, too.
pub(super) async fn outbox<S>(store: &S) -> Check
where
    S: TransactionalStore + Outbox<Connection = <S as TransactionalStore>::Connection>,
{
    let id = EventId::generate();
    let tried = async {
        let event = Event::builder("semel", "semel.doctor", "/semel/doctor").id(id).build();
        let event = event.expect("an event that can be sent");
        let mut transaction = store.begin().await?;
        let appended = store.append(S::connection(&mut transaction), &[event]).await;
        store.rollback(transaction).await;
        appended?;
        let nowhere = Selection { ids: vec![id], ..Selection::default() };
        let discard = RowAction::Discard { reason: "tried by semel doctor".to_owned() };
        store.apply(&nowhere, &discard, None, 1).await.map(drop)
    };
    match tried.await {
        Ok(()) => Check::good("outbox", "outbox-writable", "events can be appended and changed"),
        Err(error) => refused("outbox", error),
    }
}

/// Returns the failed check for a refused write, with a fix.
fn refused(about: &'static str, error: Error) -> Check {
    let (code, fix) = if error.kind() == ErrorKind::Capacity {
        ("store-full", "make room: free the disk or memory, or let expired records be swept")
    } else {
        (
            "store-unwritable",
            "let this user SELECT, INSERT, UPDATE and DELETE in the tables semel_*, and check that the \
             server is not a read-only replica and that its disk is not full",
        )
    };
    Check::error(about, code, ExitError::from(error).to_string(), fix)
}
