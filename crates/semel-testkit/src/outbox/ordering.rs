//! The order within a partition, which does not delay other partitions.
//!
//! The order under concurrent claims is in [`racing`](super::racing).

use std::time::Duration;

use semel_core::event::{Event, EventId};
use semel_core::outbox::{Disposition, RowAction, Status};

use super::OutboxFixture;
use super::shorthand::*;

/// Returns events of one partition, in order.
fn partition(order: &str, count: usize) -> Vec<Event> {
    (0..count).map(|_| about(order)).collect()
}

/// Several events of a partition are claimed together, in order.
pub async fn events_of_a_partition_are_claimed_together_in_order<F: OutboxFixture>(fixture: F) {
    let (one, two) = (partition("a", 5), partition("b", 5));
    let mixed: Vec<Event> =
        one.iter().zip(&two).flat_map(|(a, b)| [a.clone(), b.clone()]).collect();
    let outbox = outbox_with(&fixture, &mixed).await;
    let leased = leased_ids(&claim_all(&outbox).await);
    assert_eq!(leased.len(), 10);
    for partition in [&one, &two] {
        let order: Vec<EventId> =
            leased.iter().copied().filter(|id| ids(partition).contains(id)).collect();
        assert_eq!(order, ids(partition));
    }
}

/// A limit ends a claim within a partition; the other rows wait for those that were taken.
pub async fn a_limit_cuts_a_partition_without_a_gap<F: OutboxFixture>(fixture: F) {
    let partition = partition("a", 5);
    let outbox = outbox_with(&fixture, &partition).await;
    let first = claim(&outbox, 2).await;
    assert_eq!(leased_ids(&first), ids(&partition[..2]));
    assert!(claim_all(&outbox).await.is_empty(), "the other rows wait");
    mark_all(&outbox, &first[..1], &Disposition::Published).await;
    assert!(claim_all(&outbox).await.is_empty(), "the second is still leased");
    mark_all(&outbox, &first[1..], &Disposition::Published).await;
    assert_eq!(leased_ids(&claim_all(&outbox).await), ids(&partition[2..]));
}

/// A row that is appended later waits for the leased row before it.
pub async fn a_follower_waits_for_its_predecessor<F: OutboxFixture>(fixture: F) {
    let (first, second) = (about("a"), about("a"));
    let outbox = outbox_with(&fixture, &[first]).await;
    let head = claim_one(&outbox).await;
    put(&fixture, &outbox, std::slice::from_ref(&second)).await;
    assert!(claim_all(&outbox).await.is_empty());
    mark_all(&outbox, &[head], &Disposition::Published).await;
    assert_eq!(id_of(&claim_one(&outbox).await), second.id());
}

/// A failed row holds up its partition, but neither other partitions nor events without an
/// aggregate.
pub async fn a_failed_head_holds_its_partition_and_no_other<F: OutboxFixture>(fixture: F) {
    let (partition, other, free) = (partition("a", 3), about("b"), event());
    let outbox = outbox_with(&fixture, &partition[..1]).await;
    settle(&outbox, &retry(LEASE)).await;
    put(
        &fixture,
        &outbox,
        &[partition[1].clone(), other.clone(), partition[2].clone(), free.clone()],
    )
    .await;
    let leased = claim_all(&outbox).await;
    assert_eq!(sorted(leased_ids(&leased)), sorted(vec![other.id(), free.id()]));
    fixture.advance(PAST_LEASE).await;
    // Marked published after their lease lapsed, so that only the partition is left.
    mark_all(&outbox, &leased, &Disposition::Published).await;
    assert_eq!(leased_ids(&claim_all(&outbox).await), ids(&partition), "the head first");
}

/// A row that failed in the middle of a batch is claimed again before the rows after it.
pub async fn a_head_that_was_given_back_comes_first<F: OutboxFixture>(fixture: F) {
    let partition = partition("a", 4);
    let outbox = outbox_with(&fixture, &partition).await;
    let leased = claim_all(&outbox).await;
    mark_all(&outbox, &leased[..1], &Disposition::Published).await;
    mark_all(&outbox, &leased[2..], &Disposition::Untried).await;
    assert!(claim_all(&outbox).await.is_empty(), "the second is still leased");
    mark_all(&outbox, &leased[1..2], &retry(Duration::from_secs(100))).await;
    assert!(claim_all(&outbox).await.is_empty(), "the second is in backoff");
    fixture.advance(Duration::from_secs(101)).await;
    let again = claim_all(&outbox).await;
    assert_eq!(leased_ids(&again), ids(&partition[1..]));
    assert_eq!(again.iter().map(|row| row.attempt).collect::<Vec<_>>(), [2, 1, 1]);
}

/// A row in backoff ends the claim of its partition, although the row before it is due.
pub async fn a_claim_ends_where_a_partition_rests<F: OutboxFixture>(fixture: F) {
    let partition = partition("a", 3);
    let outbox = outbox_with(&fixture, &partition).await;
    let leased = claim_all(&outbox).await;
    mark_all(&outbox, &leased[1..2], &retry(LEASE)).await;
    mark_all(&outbox, &leased[..1], &Disposition::Untried).await;
    mark_all(&outbox, &leased[2..], &Disposition::Untried).await;
    assert_eq!(leased_ids(&claim_all(&outbox).await), ids(&partition[..1]));
}

/// A row whose lease lapsed still holds its partition: it is claimed again before the rows after
/// it.
pub async fn a_lapsed_head_holds_its_partition<F: OutboxFixture>(fixture: F) {
    let partition = partition("a", 3);
    let outbox = outbox_with(&fixture, &partition[..1]).await;
    claim_one(&outbox).await;
    put(&fixture, &outbox, &partition[1..]).await;
    fixture.advance(PAST_LEASE).await;
    let head = claim_one(&outbox).await;
    assert_eq!((id_of(&head), head.attempt), (partition[0].id(), 2));
    assert!(claim_all(&outbox).await.is_empty());
    mark_all(&outbox, &[head], &Disposition::Published).await;
    assert_eq!(leased_ids(&claim_all(&outbox).await), ids(&partition[1..]));
}

/// After the lease of a dead relay has lapsed, the rows of its partition are claimed again one at a time, in order.
pub async fn a_lapsed_partition_comes_back_in_order<F: OutboxFixture>(fixture: F) {
    let partition = partition("a", 3);
    let outbox = outbox_with(&fixture, &partition).await;
    assert_eq!(claim_all(&outbox).await.len(), 3);
    fixture.advance(PAST_LEASE).await;
    for event in &partition {
        let leased = claim_one(&outbox).await;
        assert_eq!((id_of(&leased), leased.attempt), (event.id(), 2));
        assert!(claim_all(&outbox).await.is_empty(), "the next row waits");
        mark_all(&outbox, &[leased], &Disposition::Published).await;
    }
}

/// A dead row lets the rows after it continue.
pub async fn a_dead_head_frees_its_partition<F: OutboxFixture>(fixture: F) {
    let partition = partition("a", 3);
    let outbox = outbox_with(&fixture, &partition[..1]).await;
    settle(&outbox, &dead()).await;
    put(&fixture, &outbox, &partition[1..]).await;
    assert_eq!(leased_ids(&claim_all(&outbox).await), ids(&partition[1..]));
}

/// A dead row that holds its partition does so until it is discarded, and holds no other partition.
pub async fn a_dead_head_may_hold_its_partition<F: OutboxFixture>(fixture: F) {
    let (partition, other) = (partition("a", 3), about("b"));
    let outbox = outbox_with(&fixture, &partition[..1]).await;
    settle(&outbox, &dead_in_the_way()).await;
    put(&fixture, &outbox, &partition[1..]).await;
    put(&fixture, &outbox, std::slice::from_ref(&other)).await;
    assert_eq!(settle(&outbox, &Disposition::Published).await, [other.id()]);
    fixture.advance(PAST_LEASE).await;
    assert!(claim_all(&outbox).await.is_empty());
    let verb = RowAction::Discard { reason: "never mind".to_owned() };
    assert_eq!(apply(&outbox, &in_status(Status::Dead), &verb, ALL).await, 1);
    assert_eq!(leased_ids(&claim_all(&outbox).await), ids(&partition[1..]));
}

/// A redriven row is claimed before the rows after it.
pub async fn a_redriven_head_goes_before_its_followers<F: OutboxFixture>(fixture: F) {
    for disposition in [dead(), dead_in_the_way()] {
        let order = EventId::generate().to_string();
        let partition = partition(&order, 3);
        let outbox = fixture.outbox().await;
        put(&fixture, &outbox, &partition[..1]).await;
        settle(&outbox, &disposition).await;
        put(&fixture, &outbox, &partition[1..]).await;
        assert_eq!(apply(&outbox, &only(&[partition[0].id()]), &RowAction::Redrive, ALL).await, 1);
        let head = claim(&outbox, 1).await;
        assert_eq!(leased_ids(&head), ids(&partition[..1]), "after {disposition:?}");
        assert!(claim_all(&outbox).await.is_empty(), "the other rows wait");
        mark_all(&outbox, &head, &Disposition::Published).await;
        assert_eq!(settle(&outbox, &Disposition::Published).await, ids(&partition[1..]));
    }
}

/// A republished row holds up the rows after it again.
pub async fn a_republished_head_goes_before_its_followers<F: OutboxFixture>(fixture: F) {
    let partition = partition("a", 2);
    let outbox = outbox_with(&fixture, &partition[..1]).await;
    settle(&outbox, &Disposition::Published).await;
    put(&fixture, &outbox, &partition[1..]).await;
    assert_eq!(apply(&outbox, &only(&[partition[0].id()]), &RowAction::Republish, 1).await, 1);
    assert_eq!(leased_ids(&claim(&outbox, 1).await), ids(&partition[..1]));
    assert!(claim_all(&outbox).await.is_empty());
}

/// A discarded row lets the rows after it continue, whether it was pending or failed.
pub async fn a_discarded_head_frees_its_partition<F: OutboxFixture>(fixture: F) {
    let partition = partition("a", 3);
    let outbox = outbox_with(&fixture, &partition[..1]).await;
    settle(&outbox, &retry(LEASE)).await;
    put(&fixture, &outbox, &partition[1..]).await;
    let verb = RowAction::Discard { reason: "never mind".to_owned() };
    let selection = only(&[partition[0].id(), partition[1].id()]);
    assert_eq!(apply(&outbox, &selection, &verb, ALL).await, 2);
    assert_eq!(id_of(&claim_one(&outbox).await), partition[2].id());
}

/// Events belong to one partition only if tenant, type and id of their aggregate are equal, byte
/// for byte.
pub async fn only_the_same_aggregate_of_a_tenant_is_a_partition<F: OutboxFixture>(fixture: F) {
    let make = |tenant: &str, kind: &str, id: &str| {
        built(Event::builder(tenant, "order.placed", "/orders").about(kind, id))
    };
    let heads = [
        make("acme", "order", "1"),
        make("globex", "order", "1"),
        make("ACME", "order", "1"),
        make("acme", "invoice", "1"),
        make("acme", "Order", "1"),
        make("acme", "order", "1 "),
        make("acme", "orde", "r1"),
        make("acmeorder", "order", "1"),
    ];
    let outbox = outbox_with(&fixture, &heads[..1]).await;
    settle(&outbox, &retry(LEASE)).await;
    put(&fixture, &outbox, &heads[1..]).await;
    assert_eq!(sorted(leased_ids(&claim_all(&outbox).await)), sorted(ids(&heads[1..])));
}

/// Event type and source do not matter for the partition: all events of an aggregate keep their
/// order.
pub async fn a_partition_spans_types_and_sources<F: OutboxFixture>(fixture: F) {
    let make =
        |kind: &str, source: &str| built(Event::builder("acme", kind, source).about("order", "1"));
    let partition = [make("placed", "/shop"), make("paid", "/till"), make("placed", "/till")];
    let outbox = outbox_with(&fixture, &partition).await;
    let head = claim(&outbox, 1).await;
    assert_eq!(leased_ids(&head), ids(&partition[..1]));
    assert!(claim_all(&outbox).await.is_empty());
}

/// Events without an aggregate wait for no other event.
pub async fn events_without_an_aggregate_have_no_order<F: OutboxFixture>(fixture: F) {
    let events = events(3);
    let outbox = outbox_with(&fixture, &events).await;
    let leased = claim(&outbox, 1).await;
    mark_all(&outbox, &leased, &retry(LEASE)).await;
    assert_eq!(claim_all(&outbox).await.len(), 2);
}

/// A long partition in backoff does not hide later rows from a small claim.
pub async fn a_long_partition_does_not_hide_the_others<F: OutboxFixture>(fixture: F) {
    let partition = partition("a", 300);
    let outbox = outbox_with(&fixture, &partition[..1]).await;
    settle(&outbox, &retry(LEASE)).await;
    put(&fixture, &outbox, &partition[1..]).await;
    let other = about("b");
    put(&fixture, &outbox, std::slice::from_ref(&other)).await;
    assert_eq!(leased_ids(&claim(&outbox, 10).await), [other.id()]);
}
