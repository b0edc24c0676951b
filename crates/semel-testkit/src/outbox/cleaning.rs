//! Cleaning removes published and discarded rows whose retention is over, and nothing else.

use std::time::Duration;

use semel_core::event::Event;
use semel_core::outbox::{Disposition, Outbox, RowAction, Status};

use super::OutboxFixture;
use super::shorthand::*;

const KEEP: Duration = Duration::from_secs(10_000);

async fn clean<O: Outbox>(outbox: &O, limit: u32) -> u32 {
    outbox.clean(KEEP, limit).await.expect("a cleaning").removed
}

/// Published rows are removed after their retention, and not before.
pub async fn published_rows_go_when_their_time_is_over<F: OutboxFixture>(fixture: F) {
    let (old, young) = (events(3), events(2));
    let outbox = outbox_with(&fixture, &old).await;
    settle(&outbox, &Disposition::Published).await;
    fixture.advance(KEEP / 2).await;
    put(&fixture, &outbox, &young).await;
    settle(&outbox, &Disposition::Published).await;
    assert_eq!(clean(&outbox, ALL).await, 0);
    fixture.advance(KEEP / 2 + Duration::from_secs(1)).await;
    assert_eq!(clean(&outbox, ALL).await, 3);
    let left: Vec<_> = rows(&outbox).await.into_iter().flat_map(|row| row.envelope).collect();
    assert_eq!(ids(&left), ids(&young));
    assert_eq!(clean(&outbox, ALL).await, 0);
}

/// The retention starts when the row is published, not when it is appended.
pub async fn the_time_counts_from_the_publishing<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &[event()]).await;
    fixture.advance(KEEP * 3).await;
    settle(&outbox, &Disposition::Published).await;
    assert_eq!(clean(&outbox, ALL).await, 0);
    assert_eq!(rows(&outbox).await.len(), 1);
}

/// A row that is neither published nor discarded is never removed, however old: dead rows above
/// all.
pub async fn what_is_not_published_is_never_cleaned<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &events(5)).await;
    for disposition in [dead(), dead_in_the_way(), retry(KEEP * 9)] {
        let leased = claim(&outbox, 1).await;
        mark_all(&outbox, &leased, &disposition).await;
    }
    claim(&outbox, 1).await;
    fixture.advance(KEEP * 3).await;
    assert_eq!(clean(&outbox, ALL).await, 0);
    assert_eq!(outbox.clean(Duration::ZERO, ALL).await.expect("a cleaning").removed, 0);
    assert_eq!(tally(&outbox).await, [1, 1, 0, 1, 2, 0]);
}

/// Discarded rows are removed after their retention, which starts when they are discarded.
pub async fn discarded_rows_go_when_their_time_is_over<F: OutboxFixture>(fixture: F) {
    let (old, young, dead_one) = (event(), event(), event());
    let outbox = outbox_with(&fixture, &[old.clone(), young.clone(), dead_one.clone()]).await;
    settle(&outbox, &dead()).await;
    fixture.advance(KEEP * 3).await;
    let verb = RowAction::Discard { reason: "never mind".to_owned() };
    assert_eq!(apply(&outbox, &only(&[old.id()]), &verb, 1).await, 1);
    assert_eq!(clean(&outbox, ALL).await, 0, "the retention starts with the discard");
    fixture.advance(KEEP / 2).await;
    assert_eq!(apply(&outbox, &only(&[young.id()]), &verb, 1).await, 1);
    fixture.advance(KEEP / 2 + Duration::from_secs(1)).await;
    assert_eq!(clean(&outbox, ALL).await, 1);
    let left: Vec<_> = rows(&outbox).await.into_iter().flat_map(|row| row.envelope).collect();
    assert_eq!(ids(&left), [young.id(), dead_one.id()]);
    assert_eq!(apply(&outbox, &only(&[young.id()]), &RowAction::Redrive, 1).await, 1);
    fixture.advance(KEEP * 3).await;
    assert_eq!(clean(&outbox, ALL).await, 0, "a redriven row is kept");
}

/// One call removes at most as many rows as its limit, and returns the number.
pub async fn cleaning_keeps_to_its_limit<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &events(25)).await;
    settle(&outbox, &Disposition::Published).await;
    fixture.advance(KEEP + Duration::from_secs(1)).await;
    let mut taken = Vec::new();
    for _ in 0..4 {
        taken.push(clean(&outbox, 10).await);
    }
    assert_eq!(taken, [10, 10, 5, 0]);
    assert!(rows(&outbox).await.is_empty());
}

/// A retention of centuries keeps rows for ever.
pub async fn rows_may_be_kept_for_ever<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &[event()]).await;
    settle(&outbox, &Disposition::Published).await;
    fixture.advance(Duration::from_secs(1_000_000)).await;
    for keep in [Duration::MAX, Duration::from_secs(1 << 40)] {
        assert_eq!(outbox.clean(keep, ALL).await.expect("a cleaning").removed, 0);
    }
}

/// A row that is to be published again is not removed, and its retention starts anew.
pub async fn a_republished_row_is_not_cleaned<F: OutboxFixture>(fixture: F) {
    let event = event();
    let outbox = outbox_with(&fixture, std::slice::from_ref(&event)).await;
    settle(&outbox, &Disposition::Published).await;
    fixture.advance(KEEP * 2).await;
    assert_eq!(apply(&outbox, &only(&[event.id()]), &RowAction::Republish, 1).await, 1);
    assert_eq!(clean(&outbox, ALL).await, 0);
    settle(&outbox, &Disposition::Published).await;
    assert_eq!(clean(&outbox, ALL).await, 0, "the retention starts with the last publish");
    assert_eq!(statuses(&outbox).await, [Status::Published]);
}

/// An event whose row was removed can be appended again.
pub async fn a_cleaned_event_may_be_appended_again<F: OutboxFixture>(fixture: F) {
    let event: Event = about("a");
    let outbox = outbox_with(&fixture, std::slice::from_ref(&event)).await;
    let first = claim_one(&outbox).await;
    mark_all(&outbox, std::slice::from_ref(&first), &Disposition::Published).await;
    fixture.advance(KEEP * 2).await;
    assert_eq!(clean(&outbox, ALL).await, 1);
    put(&fixture, &outbox, std::slice::from_ref(&event)).await;
    let again = claim_one(&outbox).await;
    assert_eq!((id_of(&again), again.attempt), (event.id(), 1));
    assert!(again.ticket.sequence > first.ticket.sequence, "numbers are not reused");
}

/// A partition continues after its first rows were removed.
pub async fn a_partition_outlives_its_first_events<F: OutboxFixture>(fixture: F) {
    let partition = [about("a"), about("a"), about("a")];
    let outbox = outbox_with(&fixture, &partition[..1]).await;
    settle(&outbox, &Disposition::Published).await;
    put(&fixture, &outbox, &partition[1..2]).await;
    fixture.advance(KEEP * 2).await;
    assert_eq!(clean(&outbox, ALL).await, 1);
    put(&fixture, &outbox, &partition[2..]).await;
    assert_eq!(leased_ids(&claim_all(&outbox).await), ids(&partition[1..]));
}

/// Longer than any retention here.
const JUMP: Duration = Duration::from_secs(25 * 60 * 60);

/// Cleaning removes nothing while the clock has jumped ahead; once it is right again, old rows go.
pub async fn nothing_is_cleaned_by_a_clock_that_has_jumped<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &events(2)).await;
    settle(&outbox, &Disposition::Published).await;
    assert_eq!(clean(&outbox, ALL).await, 0);
    let jumped = fixture.jump(JUMP, true).await;
    for _ in 0..3 {
        let cleaned = outbox.clean(KEEP, ALL).await.expect("a cleaning");
        assert_eq!((cleaned.clock_suspect, cleaned.removed), (jumped, 0));
    }
    fixture.jump(JUMP, false).await;
    assert_eq!(clean(&outbox, ALL).await, 0);
    fixture.advance(KEEP + Duration::from_secs(1)).await;
    let cleaned = outbox.clean(KEEP, ALL).await.expect("a cleaning");
    assert_eq!((cleaned.clock_suspect, cleaned.removed), (false, 2));
}

/// After the clock has jumped ahead and back, rows appended meanwhile are due, rows leased
/// meanwhile lapse after their lease, and rows failed meanwhile are due after their backoff.
pub async fn rows_written_during_a_jump_do_not_wait_for_it<F: OutboxFixture>(fixture: F) {
    let pause = LEASE * 2;
    let outbox = outbox_with(&fixture, &[]).await;
    fixture.jump(JUMP, true).await;
    let (failed, leased, appended) = (event(), event(), event());
    put(&fixture, &outbox, std::slice::from_ref(&failed)).await;
    settle(&outbox, &retry(pause)).await;
    put(&fixture, &outbox, std::slice::from_ref(&leased)).await;
    assert_eq!(claim_all(&outbox).await.len(), 1);
    put(&fixture, &outbox, std::slice::from_ref(&appended)).await;
    fixture.jump(JUMP, false).await;
    assert_eq!(clean(&outbox, ALL).await, 0);
    let due = claim_all(&outbox).await;
    assert_eq!(leased_ids(&due), [appended.id()]);
    mark_all(&outbox, &due, &Disposition::Published).await;
    fixture.advance(PAST_LEASE).await;
    assert_eq!(leased_ids(&claim_all(&outbox).await), [leased.id()]);
    fixture.advance(pause - PAST_LEASE - Duration::from_secs(1)).await;
    assert_eq!(leased_ids(&claim_all(&outbox).await), []);
    fixture.advance(Duration::from_secs(3)).await;
    assert_eq!(leased_ids(&claim_all(&outbox).await), [failed.id()]);
}
