//! Rows whose event can no longer be read.

use std::sync::Arc;

use semel_core::ErrorText;
use semel_core::outbox::{Disposition, Outbox, RowAction, Status};

use super::OutboxFixture;
use super::broker::Broker;
use super::relaying::{drain, relay};
use super::shorthand::*;

/// A damaged row is claimed and listed like any other, with an error in place of its event.
pub async fn a_damaged_row_is_reported_as_unreadable<F: OutboxFixture>(fixture: F) {
    let events = events(3);
    let outbox = outbox_with(&fixture, &events).await;
    let sequence = rows(&outbox).await[1].sequence;
    fixture.damage(sequence).await;
    let leased = claim_all(&outbox).await;
    assert_eq!(leased.len(), 3);
    let damaged: Vec<_> = leased.iter().filter(|row| row.envelope.is_err()).collect();
    assert_eq!(damaged.len(), 1, "{leased:?}");
    assert_eq!(damaged[0].ticket.sequence, sequence);
    assert!(!damaged[0].envelope.as_ref().expect_err("damaged").is_empty());
    let shown = rows(&outbox).await;
    assert_eq!(shown.len(), 3);
    assert!(shown.iter().all(|row| row.envelope.is_err() == (row.sequence == sequence)));
}

/// A relay marks a damaged row dead with the reason, and publishes the other rows.
pub async fn a_damaged_row_is_buried_and_stops_nobody<F: OutboxFixture>(fixture: F) {
    let partition = [about("a"), about("a"), about("a"), event()];
    let (outbox, broker) = (Arc::new(outbox_with(&fixture, &partition).await), Broker::new());
    let sequence = rows(&*outbox).await[0].sequence;
    fixture.damage(sequence).await;
    let pass = drain(&outbox, &broker).await;
    assert_eq!((pass.published, pass.buried, pass.retried), (3, 1, 0));
    assert_eq!(sorted(broker.confirmed_ids()), sorted(ids(&partition[1..])));
    let row = rows(&*outbox).await.remove(0);
    assert_eq!((row.sequence, row.status), (sequence, Status::Dead));
    let error_text = row.error.as_ref().map(ErrorText::as_str).unwrap_or_default();
    assert!(error_text.starts_with("unreadable: "), "{error_text}");
}

/// If dead events hold their partition, a damaged row does too.
pub async fn a_damaged_row_may_hold_its_partition<F: OutboxFixture>(fixture: F) {
    let events = [about("a"), about("a"), about("b"), event()];
    let (outbox, broker) = (Arc::new(outbox_with(&fixture, &events).await), Broker::new());
    fixture.damage(rows(&*outbox).await[0].sequence).await;
    let relay = relay(&outbox, &broker).dead_hold_their_partition(true).build();
    relay.expect("sound settings").drain().await.expect("the outbox answers");
    assert_eq!(sorted(broker.confirmed_ids()), sorted(ids(&events[2..])));
    assert_eq!(row(&*outbox, events[1].id()).await.status, Status::Pending);
    let verb = RowAction::Discard { reason: "lost".to_owned() };
    assert_eq!(apply(&*outbox, &in_status(Status::Dead), &verb, ALL).await, 1);
    assert_eq!(drain(&outbox, &broker).await.published, 1);
}

/// Operators can redrive and discard a damaged row.
pub async fn a_damaged_row_can_be_redriven_and_discarded<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &[event()]).await;
    fixture.damage(rows(&outbox).await[0].sequence).await;
    let leased = claim_one(&outbox).await;
    mark_all(&outbox, &[leased], &dead()).await;
    let dead = in_status(Status::Dead);
    assert_eq!(outbox.count(&dead, &RowAction::Redrive).await.expect("a count"), 1);
    assert_eq!(apply(&outbox, &dead, &RowAction::Redrive, ALL).await, 1);
    let leased = claim_one(&outbox).await;
    assert_eq!(leased.attempt, 1);
    mark_all(&outbox, &[leased], &Disposition::Untried).await;
    let verb = RowAction::Discard { reason: "lost".to_owned() };
    let all = semel_core::outbox::Selection::default();
    assert_eq!(apply(&outbox, &all, &verb, ALL).await, 1);
    assert_eq!(statuses(&outbox).await, [Status::Discarded]);
}
