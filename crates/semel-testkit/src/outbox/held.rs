//! Many events that wait behind the first of their partition: they do not hide other events, and
//! continue when the first is done.
//!
//! An outbox may postpone such rows so that claims need not look at them. It must not forget them:
//! no time passes in these behaviours unless they advance the clock.

use std::time::Duration;

use semel_core::event::{Event, EventId};
use semel_core::outbox::{Disposition, Outbox, RowAction, Status};

use super::OutboxFixture;
use super::shorthand::*;

/// More rows than an outbox looks through for one small claim.
const MANY: usize = 1_500;

fn partition(order: &str, count: usize) -> Vec<Event> {
    (0..count).map(|_| about(order)).collect()
}

/// Returns an outbox with this partition, in which a claim has already skipped all rows but the
/// first.
async fn behind_one<F: OutboxFixture>(fixture: &F, partition: &[Event]) -> F::Outbox {
    let outbox = outbox_with(fixture, &partition[..1]).await;
    let head = claim_one(&outbox).await;
    put(fixture, &outbox, &partition[1..]).await;
    assert!(claim(&outbox, 1).await.is_empty(), "all other rows wait for the first");
    mark_all(&outbox, &[head], &Disposition::Untried).await;
    outbox
}

/// Publishes all claimable rows until none is left, without advancing the clock.
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

/// 20,000 waiting events of one partition do not hide an event of another: a few claims find it,
/// and later ones at once.
pub async fn very_many_held_events_hide_no_others<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &partition("held", 1)).await;
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
            assert!(claims < found_after, "no row after {claims} claims");
        };
        assert_eq!(leased_ids(&leased), [other.id()]);
        claims = 0;
    }
}

/// Waiting rows continue in order as soon as the first row is published.
pub async fn what_is_held_goes_on_behind_a_published_head<F: OutboxFixture>(fixture: F) {
    let partition = partition("a", MANY);
    let outbox = behind_one(&fixture, &partition).await;
    assert_eq!(publish_all(&outbox).await, ids(&partition));
}

/// Each published row makes the next one claimable.
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

/// Waiting rows continue when the first row becomes dead or discarded, or is redriven and
/// published.
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

/// Waiting rows are claimed in one batch with the first row after its backoff.
pub async fn what_is_held_goes_along_with_its_head<F: OutboxFixture>(fixture: F) {
    let partition = partition("a", MANY);
    let outbox = behind_one(&fixture, &partition).await;
    let head = claim(&outbox, 1).await;
    mark_all(&outbox, &head, &retry(Duration::from_secs(100))).await;
    assert!(claim(&outbox, 1).await.is_empty());
    fixture.advance(Duration::from_secs(101)).await;
    assert_eq!(leased_ids(&claim(&outbox, 50).await), ids(&partition[..50]));
}

/// Rows behind lapsed ones wait until those are published.
pub async fn what_is_held_waits_for_what_lapsed<F: OutboxFixture>(fixture: F) {
    let partition = partition("a", MANY);
    let outbox = behind_one(&fixture, &partition).await;
    assert_eq!(claim(&outbox, 3).await.len(), 3);
    assert!(claim(&outbox, 1).await.is_empty());
    fixture.advance(PAST_LEASE).await;
    for event in &partition[..3] {
        let leased = claim(&outbox, 100).await;
        assert_eq!(leased_ids(&leased), [event.id()], "a lapsed row is claimed alone");
        mark_all(&outbox, &leased, &Disposition::Published).await;
    }
    assert_eq!(publish_all(&outbox).await, ids(&partition[3..]));
}

/// Waiting rows are pending, and an operator can discard them.
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
