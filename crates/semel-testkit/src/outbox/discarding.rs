//! Discarded rows: settled for good, counted apart from dead rows, and changed only by actions that
//! select them by id or status.

use semel_core::ErrorText;
use semel_core::event::{Event, EventId};
use semel_core::outbox::{Disposition, Outbox, RowAction, Selection, Status};

use super::OutboxFixture;
use super::shorthand::*;

fn discard(reason: &str) -> RowAction {
    RowAction::Discard { reason: reason.to_owned() }
}

/// Returns an outbox with three events: the first is discarded, the second dead, the third failed.
async fn three<F: OutboxFixture>(fixture: &F) -> (F::Outbox, [EventId; 3]) {
    let made = [event(), event(), event()];
    let outbox = outbox_with(fixture, &made[..2]).await;
    settle(&outbox, &dead()).await;
    put(fixture, &outbox, &made[2..]).await;
    settle(&outbox, &retry(LEASE)).await;
    let ids = made.map(|event| event.id());
    assert_eq!(apply(&outbox, &only(&ids[..1]), &discard("refunded by hand"), 1).await, 1);
    (outbox, ids)
}

async fn status_and_error<O: Outbox>(outbox: &O, id: EventId) -> (Status, Option<ErrorText>) {
    let row = row(outbox, id).await;
    (row.status, row.error)
}

/// Returns the status and error of a row discarded for this reason.
fn discarded_because(reason: &str) -> (Status, Option<ErrorText>) {
    (Status::Discarded, Some(ErrorText::new(reason)))
}

/// A discarded row has its reason and the time of the discard, and is not claimable.
pub async fn a_discarded_row_keeps_the_reason<F: OutboxFixture>(fixture: F) {
    let event = event();
    let outbox = outbox_with(&fixture, std::slice::from_ref(&event)).await;
    let words = "a test order, says Zo\u{eb} \u{1f44b}";
    assert_eq!(apply(&outbox, &only(&[event.id()]), &discard(words), 1).await, 1);
    let shown = row(&outbox, event.id()).await;
    assert_eq!((shown.status, shown.error), discarded_because(words));
    assert_eq!(shown.due_at, None);
    assert!(shown.settled_at.is_some_and(|at| at >= shown.created_at));
    assert!(claim_all(&outbox).await.is_empty());
}

/// Discarded rows are counted neither as waiting nor as dead.
pub async fn a_discarded_row_is_not_dead<F: OutboxFixture>(fixture: F) {
    let (outbox, ids) = three(&fixture).await;
    let backlog = outbox.backlog().await.expect("a backlog");
    assert_eq!((backlog.waiting, backlog.dead), (1, 1));
    for (status, id) in [(Status::Discarded, ids[0]), (Status::Dead, ids[1])] {
        let listed = outbox.list(&in_status(status), None, ALL).await.expect("a listing");
        let listed: Vec<Event> = listed.into_iter().flat_map(|row| row.envelope).collect();
        assert_eq!(super::shorthand::ids(&listed), [id], "{status:?}");
    }
    assert_eq!(apply(&outbox, &only(&ids), &discard("all of it"), ALL).await, 3);
    assert_eq!(outbox.backlog().await.expect("a backlog"), semel_core::outbox::Backlog::default());
}

/// An action on many rows leaves discarded rows and their reasons alone.
pub async fn a_verb_on_many_leaves_what_was_discarded<F: OutboxFixture>(fixture: F) {
    let (outbox, ids) = three(&fixture).await;
    let all = Selection::default();
    let typed = Selection { kind: Some("order.placed".to_owned()), ..Selection::default() };
    let ours = Selection { tenant: Some("acme".to_owned()), ..Selection::default() };
    for selection in [all.clone(), typed, ours, in_status(Status::Dead)] {
        let least = if selection.status.is_some() { 1 } else { 2 };
        for verb in [RowAction::Redrive, discard("another reason")] {
            let count = outbox.count(&selection, &verb).await.expect("a count");
            assert_eq!(count, least, "{verb:?} of {selection:?}");
        }
    }
    assert_eq!(apply(&outbox, &in_status(Status::Dead), &RowAction::Redrive, ALL).await, 1);
    assert_eq!(apply(&outbox, &all, &RowAction::Redrive, ALL).await, 1);
    assert_eq!(leased_ids(&claim_all(&outbox).await), ids[1..]);
    assert_eq!(apply(&outbox, &all, &discard("another reason"), ALL).await, 0);
    assert_eq!(status_and_error(&outbox, ids[0]).await, discarded_because("refunded by hand"));
}

/// An action that selects discarded rows by id or by status redrives them or changes their reason.
pub async fn a_discarded_row_can_be_selected_by_id_or_status<F: OutboxFixture>(fixture: F) {
    let (outbox, ids) = three(&fixture).await;
    assert_eq!(apply(&outbox, &only(&ids[..1]), &discard("a duplicate"), ALL).await, 1);
    assert_eq!(status_and_error(&outbox, ids[0]).await, discarded_because("a duplicate"));
    for named in [only(&ids[..1]), in_status(Status::Discarded)] {
        assert_eq!(outbox.count(&named, &RowAction::Redrive).await.expect("a count"), 1);
        assert_eq!(apply(&outbox, &named, &RowAction::Redrive, ALL).await, 1);
        let again = row(&outbox, ids[0]).await;
        assert_eq!((again.status, again.attempts, again.settled_at), (Status::Pending, 0, None));
        assert_eq!(apply(&outbox, &only(&ids[..1]), &discard("after all"), ALL).await, 1);
    }
    assert_eq!(apply(&outbox, &only(&ids[..1]), &RowAction::Redrive, ALL).await, 1);
    let leased = claim_one(&outbox).await;
    assert_eq!(id_of(&leased), ids[0]);
    mark_all(&outbox, &[leased], &Disposition::Published).await;
}
