//! Claims: a claim takes rows that are due, each row once, for the length of the lease.
//!
//! The order within a partition is in [`ordering`](super::ordering), concurrent claims are in
//! [`racing`](super::racing).

use std::collections::HashMap;
use std::time::Duration;

use semel_core::event::{Event, EventId};
use semel_core::outbox::{ClaimRequest, Disposition, Outbox, Status};

use super::OutboxFixture;
use super::shorthand::*;

/// A claim on an empty outbox returns nothing.
pub async fn an_empty_outbox_gives_nothing<F: OutboxFixture>(fixture: F) {
    let outbox = fixture.outbox().await;
    assert!(claim_all(&outbox).await.is_empty());
}

/// A claim returns at most as many rows as its limit.
pub async fn a_claim_keeps_to_its_limit<F: OutboxFixture>(fixture: F) {
    let events = events(10);
    let outbox = outbox_with(&fixture, &events).await;
    let mut claimed = Vec::new();
    for limit in [1, 3, 5, 100] {
        let leased = leased_ids(&claim(&outbox, limit).await);
        claimed.push(leased.len());
        assert!(leased.iter().all(|id| ids(&events).contains(id)));
    }
    assert_eq!(claimed, [1, 3, 5, 1]);
}

/// Successive claims return every row once, in the order of append.
pub async fn claims_one_after_another_give_every_row_once<F: OutboxFixture>(fixture: F) {
    let events = events(100);
    let outbox = outbox_with(&fixture, &events).await;
    let mut seen: Vec<EventId> = Vec::new();
    for _ in 0..20 {
        seen.extend(leased_ids(&claim(&outbox, 7).await));
    }
    assert_eq!(seen, ids(&events));
}

/// A leased row is not claimable.
pub async fn a_leased_row_is_not_claimable<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &[event()]).await;
    assert_eq!(claim_one(&outbox).await.attempt, 1);
    fixture.advance(LEASE / 2).await;
    assert!(claim_all(&outbox).await.is_empty());
    assert!(claim_all(&fixture.outbox().await).await.is_empty(), "nor through another handle");
}

/// A lease lasts as long as the claim asked for.
pub async fn a_lease_is_as_long_as_it_was_asked_for<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &[event()]).await;
    let ask = ClaimRequest::new(1, LEASE * 3);
    assert_eq!(outbox.claim(ask).await.expect("a claim").len(), 1);
    fixture.advance(LEASE * 2).await;
    assert!(claim_all(&outbox).await.is_empty());
    fixture.advance(PAST_LEASE).await;
    assert_eq!(claim_one(&outbox).await.attempt, 2);
}

/// A row whose lease lapsed is claimed again, as the next attempt and with a new token.
pub async fn a_lapsed_row_is_claimed_again<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &[event()]).await;
    let mut last = claim_one(&outbox).await;
    for attempt in 2..5 {
        fixture.advance(PAST_LEASE).await;
        let next = claim_one(&outbox).await;
        assert_eq!((id_of(&next), next.attempt), (id_of(&last), attempt));
        assert_eq!(next.ticket.sequence, last.ticket.sequence);
        assert_ne!(next.ticket.token, last.ticket.token);
        last = next;
    }
}

/// A row whose lease lapsed may have killed its relay, so it is claimed alone: otherwise its
/// neighbours would lose attempts with it.
pub async fn lapsed_rows_are_claimed_alone<F: OutboxFixture>(fixture: F) {
    let events = events(4);
    let outbox = outbox_with(&fixture, &events).await;
    assert_eq!(claim_all(&outbox).await.len(), 4);
    fixture.advance(PAST_LEASE).await;
    let mut again = Vec::new();
    for _ in 0..4 {
        let leased = claim_one(&outbox).await;
        assert_eq!(leased.attempt, 2);
        again.push(id_of(&leased));
    }
    assert_eq!(sorted(again), sorted(ids(&events)));
    assert!(claim_all(&outbox).await.is_empty());
}

/// A lapsed row and fresh rows are claimed in separate claims, and both are claimed.
pub async fn a_lapsed_row_and_fresh_ones_are_claimed_apart<F: OutboxFixture>(fixture: F) {
    let old = event();
    let outbox = outbox_with(&fixture, std::slice::from_ref(&old)).await;
    claim_one(&outbox).await;
    fixture.advance(PAST_LEASE).await;
    let fresh = events(3);
    put(&fixture, &outbox, &fresh).await;
    let mut found: HashMap<EventId, (u32, usize)> = HashMap::new();
    for _ in 0..2 {
        let leased = claim_all(&outbox).await;
        let together = leased.len();
        found.extend(leased.iter().map(|row| (id_of(row), (row.attempt, together))));
    }
    assert_eq!(found.remove(&old.id()), Some((2, 1)));
    assert_eq!(found.len(), 3);
    assert!(found.values().all(|found| *found == (1, 3)), "{found:?}");
}

/// A failed row is not claimable before its backoff is over.
pub async fn a_resting_row_is_not_claimable<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &[event()]).await;
    settle(&outbox, &retry(Duration::from_secs(3_000))).await;
    fixture.advance(Duration::from_secs(2_000)).await;
    assert!(claim_all(&outbox).await.is_empty());
    fixture.advance(Duration::from_secs(1_001)).await;
    assert_eq!(claim_one(&outbox).await.attempt, 2);
}

/// The row that has been due longest is claimed first, so a row that fails repeatedly does not
/// starve others.
pub async fn the_longest_due_is_claimed_first<F: OutboxFixture>(fixture: F) {
    let (early, late) = (event(), event());
    let outbox = outbox_with(&fixture, std::slice::from_ref(&early)).await;
    settle(&outbox, &retry(Duration::from_secs(100))).await;
    fixture.advance(Duration::from_secs(50)).await;
    put(&fixture, &outbox, std::slice::from_ref(&late)).await;
    fixture.advance(Duration::from_secs(1_000)).await;
    assert_eq!(leased_ids(&claim(&outbox, 1).await), [late.id()]);
    assert_eq!(leased_ids(&claim(&outbox, 1).await), [early.id()]);
}

/// A row with a small number that becomes due late is still claimed: claims do not go by a cursor.
pub async fn a_row_that_comes_due_late_is_not_passed_over<F: OutboxFixture>(fixture: F) {
    let (early, late) = (event(), events(5));
    let outbox = outbox_with(&fixture, std::slice::from_ref(&early)).await;
    settle(&outbox, &retry(Duration::from_secs(100))).await;
    put(&fixture, &outbox, &late).await;
    assert_eq!(settle(&outbox, &Disposition::Published).await, ids(&late));
    fixture.advance(Duration::from_secs(101)).await;
    assert_eq!(id_of(&claim_one(&outbox).await), early.id());
}

/// A handle claims and marks rows that another handle appended or claimed.
pub async fn another_handle_claims_the_same_rows<F: OutboxFixture>(fixture: F) {
    let (here, there) = (fixture.outbox().await, fixture.outbox().await);
    let event = event();
    put(&fixture, &here, std::slice::from_ref(&event)).await;
    let leased = claim_one(&there).await;
    assert_eq!(id_of(&leased), event.id());
    mark_all(&here, &[leased], &Disposition::Published).await;
    assert_eq!(statuses(&there).await, [Status::Published]);
}

/// A claim takes no more payload bytes than it asked for, but always at least one row.
pub async fn a_claim_keeps_to_its_bytes<F: OutboxFixture>(fixture: F) {
    let heavy = |size: usize| {
        let builder = Event::builder("acme", "order.placed", "/orders");
        built(builder.payload("application/octet-stream", vec![7; size]))
    };
    let events: Vec<Event> = [1_000, 1_000, 1_000, 5_000, 10, 0].map(heavy).into();
    let outbox = outbox_with(&fixture, &events).await;
    let mut claimed = Vec::new();
    for bytes in [2_999, 2_000, 1, 5_010] {
        let ask = ClaimRequest { bytes, ..ClaimRequest::new(ALL, LEASE) };
        let leased = outbox.claim(ask).await.expect("a claim");
        claimed.push(leased.len());
    }
    assert_eq!(claimed, [2, 1, 1, 2]);
}

/// A claim that reaches its byte limit takes the first rows of a partition, without a gap.
pub async fn bytes_cut_a_partition_without_a_gap<F: OutboxFixture>(fixture: F) {
    let heavy = |order: &str, size: usize| {
        let builder = Event::builder("acme", "order.placed", "/orders").about("order", order);
        built(builder.payload("application/octet-stream", vec![7; size]))
    };
    let (a, b) = ([heavy("a", 10), heavy("a", 5_000), heavy("a", 10)], heavy("b", 10));
    let outbox =
        outbox_with(&fixture, &[a[0].clone(), a[1].clone(), a[2].clone(), b.clone()]).await;
    let ask = ClaimRequest { bytes: 1_000, ..ClaimRequest::new(ALL, LEASE) };
    let mut seen = Vec::new();
    while seen.len() < 4 {
        let leased = outbox.claim(ask).await.expect("a claim");
        let sizes = leased.iter().flat_map(|row| &row.envelope).map(|one| one.payload().len());
        let bytes: usize = sizes.sum();
        assert!(leased.len() == 1 || !leased.is_empty() && bytes <= 1_000, "{bytes} bytes");
        mark_all(&outbox, &leased, &Disposition::Published).await;
        seen.extend(leased_ids(&leased));
    }
    seen.retain(|id| *id != b.id());
    assert_eq!(seen, ids(&a));
}

/// A leased row is listed as leased, with its attempt and the end of its lease.
pub async fn a_leased_row_is_listed_as_leased<F: OutboxFixture>(fixture: F) {
    let event = event();
    let outbox = outbox_with(&fixture, std::slice::from_ref(&event)).await;
    claim_one(&outbox).await;
    let row = row(&outbox, event.id()).await;
    assert_eq!((row.status, row.attempts, row.settled_at), (Status::Leased, 1, None));
    let left = row.due_at.and_then(|end| end.remaining(row.created_at)).expect("a lease's end");
    assert!((LEASE..LEASE * 2).contains(&left), "{left:?}");
}
