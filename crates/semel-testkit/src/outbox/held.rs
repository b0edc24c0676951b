//! Very many events that wait behind one of their partition: they hide no others, and go on when it is done.
//!
//! What an outbox may do about them is its own business, such as to put them off so that it need not
//! look at them with every claim. What it may not do is to forget them: no time passes here unless a
//! behaviour says so.

use std::time::Duration;

use semel_core::event::{Event, EventId};
use semel_core::outbox::{Disposition, Outbox, RowAction, Status};

use super::OutboxFixture;
use super::shorthand::*;

/// More than an outbox looks through for one small claim.
const MANY: usize = 1_500;

fn partition(order: &str, count: usize) -> Vec<Event> {
    (0..count).map(|_| about(order)).collect()
}

/// A partition whose head is claimed; its followers came afterwards, and a claim has skipped them.
async fn behind_one<F: OutboxFixture>(fixture: &F, partition: &[Event]) -> F::Outbox {
    let outbox = holding(fixture, &partition[..1]).await;
    let head = claim_one(&outbox).await;
    put(fixture, &outbox, &partition[1..]).await;
    assert!(claim(&outbox, 1).await.is_empty(), "all others wait for the first");
    mark_all(&outbox, &[head], &Disposition::Untried).await;
    outbox
}

/// Publishes what can be claimed, until nothing can; no time passes.
async fn publish_all<O: Outbox>(outbox: &O) -> Vec<EventId> {
    let mut published = Vec::new();
    loop {
        let leased = claim(outbox, 500).await;
        if leased.is_empty() {
            return published;
        }
        mark_all(outbox, &leased, &Disposition::Published).await;
        published.extend(leased_ids(&leased));
    }
}

/// Twenty thousand events that wait for one do not hide another: it is found after a few claims, and
/// the next one at once.
pub async fn very_many_held_events_hide_nobody<F: OutboxFixture>(fixture: F) {
    let outbox = holding(&fixture, &partition("held", 1)).await;
    settle(&outbox, &retry(LEASE)).await;
    for _ in 0..10 {
        put(&fixture, &outbox, &partition("held", 2_000)).await;
    }
    let mut claims = 0;
    for found_after in [5, 1, 1] {
        let other = event();
        put(&fixture, &outbox, std::slice::from_ref(&other)).await;
        let leased = loop {
            claims += 1;
            let leased = claim(&outbox, 10).await;
            if !leased.is_empty() {
                break leased;
            }
            assert!(claims < found_after, "nothing after {claims} claims");
        };
        assert_eq!(leased_ids(&leased), [other.id()]);
        claims = 0;
    }
}

/// What is held goes on when its head is published, at once and in order.
pub async fn what_is_held_goes_on_behind_a_published_head<F: OutboxFixture>(fixture: F) {
    let partition = partition("a", MANY);
    let outbox = behind_one(&fixture, &partition).await;
    assert_eq!(publish_all(&outbox).await, ids(&partition));
}

/// Published one by one, each lets the next one go.
pub async fn what_is_held_goes_on_one_by_one<F: OutboxFixture>(fixture: F) {
    let partition = partition("a", MANY);
    let outbox = behind_one(&fixture, &partition).await;
    for event in &partition[..5] {
        let leased = claim(&outbox, 1).await;
        assert_eq!(leased_ids(&leased), [event.id()]);
        assert!(claim(&outbox, 1).await.is_empty());
        mark_all(&outbox, &leased, &Disposition::Published).await;
    }
    assert_eq!(publish_all(&outbox).await, ids(&partition[5..]));
}

/// What is held goes on when its head is given up, or discarded, or redriven and published.
pub async fn what_is_held_goes_on_whatever_becomes_of_its_head<F: OutboxFixture>(fixture: F) {
    let gone = RowAction::Discard { reason: "never mind".to_owned() };
    for (disposition, verb) in [
        (dead(), None),
        (retry(LEASE), Some(&gone)),
        (later(LEASE), Some(&gone)),
        (dead_in_the_way(), Some(&gone)),
        (dead_in_the_way(), Some(&RowAction::Redrive)),
    ] {
        let partition = partition(&EventId::generate().to_string(), MANY);
        let outbox = behind_one(&fixture, &partition).await;
        let head = claim(&outbox, 1).await;
        assert_eq!(leased_ids(&head), ids(&partition[..1]));
        assert!(claim(&outbox, 1).await.is_empty());
        mark_all(&outbox, &head, &disposition).await;
        if let Some(verb) = verb {
            assert!(claim(&outbox, 1).await.is_empty(), "{disposition:?} holds the partition");
            assert_eq!(apply(&outbox, &only(&[partition[0].id()]), verb, 1).await, 1);
        }
        let first = usize::from(verb != Some(&RowAction::Redrive));
        assert_eq!(
            publish_all(&outbox).await,
            ids(&partition[first..]),
            "{disposition:?}, {verb:?}"
        );
    }
}

/// What is held goes along with a head that has rested, as one batch.
pub async fn what_is_held_goes_along_with_its_head<F: OutboxFixture>(fixture: F) {
    let partition = partition("a", MANY);
    let outbox = behind_one(&fixture, &partition).await;
    let head = claim(&outbox, 1).await;
    mark_all(&outbox, &head, &retry(Duration::from_secs(100))).await;
    assert!(claim(&outbox, 1).await.is_empty());
    fixture.advance(Duration::from_secs(101)).await;
    assert_eq!(leased_ids(&claim(&outbox, 50).await), ids(&partition[..50]));
}

/// A partition whose relay is gone is still held by what it had, and goes on behind that.
pub async fn what_is_held_waits_for_what_lapsed<F: OutboxFixture>(fixture: F) {
    let partition = partition("a", MANY);
    let outbox = behind_one(&fixture, &partition).await;
    assert_eq!(claim(&outbox, 3).await.len(), 3);
    assert!(claim(&outbox, 1).await.is_empty());
    fixture.advance(PAST_LEASE).await;
    for event in &partition[..3] {
        let leased = claim(&outbox, 100).await;
        assert_eq!(leased_ids(&leased), [event.id()], "what lapsed is taken alone");
        mark_all(&outbox, &leased, &Disposition::Published).await;
    }
    assert_eq!(publish_all(&outbox).await, ids(&partition[3..]));
}

/// Held events are pending, all of them, and an operator can discard them.
pub async fn what_is_held_is_pending<F: OutboxFixture>(fixture: F) {
    let partition = partition("a", MANY);
    let outbox = behind_one(&fixture, &partition).await;
    assert!(rows(&outbox).await.iter().all(|row| row.status == Status::Pending));
    let held = u64::try_from(MANY).expect("few");
    assert_eq!(outbox.backlog().await.expect("a backlog").waiting, held);
    let verb = RowAction::Discard { reason: "never mind".to_owned() };
    let last = only(&[partition[MANY - 1].id(), partition[1].id()]);
    assert_eq!(apply(&outbox, &last, &verb, ALL).await, 2);
    assert_eq!(
        publish_all(&outbox).await,
        [&ids(&partition[..1])[..], &ids(&partition[2..MANY - 1])].concat()
    );
}
