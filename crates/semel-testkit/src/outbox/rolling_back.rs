//! Events commit or roll back with the transaction that appended them.

use semel_core::outbox::Outbox;

use super::OutboxFixture;
use super::shorthand::*;

/// A rollback removes the events.
pub async fn a_rollback_leaves_nothing<F: OutboxFixture>(fixture: F) {
    let outbox = fixture.outbox().await;
    let mut transaction = fixture.begin(&outbox).await;
    let written = outbox.append(F::connection(&mut transaction), &events(3)).await;
    written.expect("the events are written");
    fixture.rollback(&outbox, transaction).await;
    assert!(rows(&outbox).await.is_empty());
    assert!(claim_all(&outbox).await.is_empty());
    assert_eq!(outbox.backlog().await.expect("a backlog").waiting, 0);
}

/// Dropping a transaction removes its events.
pub async fn a_dropped_transaction_leaves_nothing<F: OutboxFixture>(fixture: F) {
    let outbox = fixture.outbox().await;
    let mut transaction = fixture.begin(&outbox).await;
    let written = outbox.append(F::connection(&mut transaction), &events(3)).await;
    written.expect("the events are written");
    drop(transaction);
    let after = event();
    put(&fixture, &outbox, std::slice::from_ref(&after)).await;
    assert_eq!(id_of(&claim_one(&outbox).await), after.id());
}

/// An event whose first append was rolled back can be appended again.
pub async fn a_rolled_back_event_may_be_appended_again<F: OutboxFixture>(fixture: F) {
    let (event, outbox) = (about("a"), fixture.outbox().await);
    let mut transaction = fixture.begin(&outbox).await;
    let one = std::slice::from_ref(&event);
    outbox.append(F::connection(&mut transaction), one).await.expect("written");
    fixture.rollback(&outbox, transaction).await;
    put(&fixture, &outbox, one).await;
    let leased = claim_one(&outbox).await;
    assert_eq!((id_of(&leased), leased.attempt), (event.id(), 1));
}

/// Neither a rolled back event nor the gap in the numbers holds up a partition.
pub async fn a_rollback_holds_no_partition_up<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &[about("a")]).await;
    let mut transaction = fixture.begin(&outbox).await;
    let written = outbox.append(F::connection(&mut transaction), &[about("a"), event()]).await;
    written.expect("the events are written");
    fixture.rollback(&outbox, transaction).await;
    put(&fixture, &outbox, &[about("a"), event()]).await;
    assert_eq!(claim_all(&outbox).await.len(), 3);
}

/// Appending an event that exists does not abort the transaction.
pub async fn a_repeated_event_does_not_abort_its_transaction<F: OutboxFixture>(fixture: F) {
    let (first, second) = (event(), event());
    let outbox = outbox_with(&fixture, std::slice::from_ref(&first)).await;
    let mut transaction = fixture.begin(&outbox).await;
    for event in [&first, &second, &first] {
        let one = std::slice::from_ref(event);
        outbox.append(F::connection(&mut transaction), one).await.expect("written");
    }
    fixture.commit(&outbox, transaction).await;
    assert_eq!(leased_ids(&claim_all(&outbox).await), [first.id(), second.id()]);
}
