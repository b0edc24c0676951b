//! A relay whose broker fails, refuses, is unreachable, hangs or panics.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use semel_core::ErrorText;
use semel_core::event::Event;
use semel_core::outbox::{Outbox, Pass, Relay, Row, RowAction, Status};

use super::OutboxFixture;
use super::broker::{Broker, Reply};
use super::relaying::{drain, relay};
use super::shorthand::*;

fn error_text(row: &Row) -> &str {
    row.error.as_ref().map(ErrorText::as_str).unwrap_or_default()
}

async fn outbox_and_broker<F: OutboxFixture>(
    fixture: &F,
    events: &[Event],
) -> (Arc<F::Outbox>, Broker) {
    (Arc::new(outbox_with(fixture, events).await), Broker::new())
}

/// Returns a relay with three attempts and backoffs of 100, 200, 400 … seconds.
fn impatient<O: Outbox>(outbox: &Arc<O>, broker: &Broker) -> Relay<O, Broker> {
    let (base, cap) = (Duration::from_secs(100), Duration::from_secs(1_000));
    relay(outbox, broker).max_attempts(3).backoff(base, cap).build().expect("sound settings")
}

/// An event that fails is retried until it is published, with a longer backoff each time.
pub async fn a_failing_event_is_retried_until_it_is_published<F: OutboxFixture>(fixture: F) {
    let event = event();
    let (outbox, broker) = outbox_and_broker(&fixture, std::slice::from_ref(&event)).await;
    broker.next(event.id(), [Reply::Fail, Reply::Fail, Reply::Fail]);
    let (base, cap) = (Duration::from_secs(1_000), Duration::from_secs(3_000));
    let relay = relay(&outbox, &broker).backoff(base, cap).build().expect("sound settings");
    for (attempt, rest) in [(1, 1_000), (2, 2_000), (3, 3_000)] {
        let pass = relay.drain().await.expect("the outbox answers");
        assert_eq!((pass.claimed, pass.retried), (1, 1));
        let row = row(&*outbox, event.id()).await;
        assert_eq!((row.status, row.attempts), (Status::Failed, attempt));
        assert!(error_text(&row).contains("not now"), "{row:?}");
        fixture.advance(Duration::from_secs(rest - 500)).await;
        let early = relay.drain().await.expect("the outbox answers");
        assert_eq!(early, Pass::default(), "backoff after attempt {attempt}");
        fixture.advance(Duration::from_secs(501)).await;
    }
    assert_eq!(relay.drain().await.expect("the outbox answers").published, 1);
    let row = row(&*outbox, event.id()).await;
    assert_eq!((row.status, row.attempts), (Status::Published, 4));
    assert_eq!(broker.tries(event.id()), 4);
}

/// An event that always fails is dead after its last attempt, and its error states so.
pub async fn an_event_that_always_fails_is_given_up<F: OutboxFixture>(fixture: F) {
    let (event, other) = (event(), event());
    let (outbox, broker) = outbox_and_broker(&fixture, &[event.clone(), other.clone()]).await;
    broker.always(event.id(), Reply::Fail);
    let relay = impatient(&outbox, &broker);
    let mut all = Pass::default();
    for _ in 0..5 {
        all += relay.drain().await.expect("the outbox answers");
        fixture.advance(Duration::from_secs(1_001)).await;
    }
    assert_eq!((all.published, all.retried, all.buried), (1, 2, 1));
    assert_eq!(broker.tries(event.id()), 3);
    let row = row(&*outbox, event.id()).await;
    assert_eq!((row.status, row.attempts), (Status::Dead, 3));
    assert!(error_text(&row).starts_with("exceeded maxRetry (3): "), "{row:?}");
    assert!(error_text(&row).contains("not now"), "{row:?}");
}

/// A dead event is published after a redrive.
pub async fn a_redriven_event_is_published<F: OutboxFixture>(fixture: F) {
    let event = event();
    let (outbox, broker) = outbox_and_broker(&fixture, std::slice::from_ref(&event)).await;
    broker.next(event.id(), [Reply::Refuse]);
    assert_eq!(drain(&outbox, &broker).await.buried, 1);
    assert_eq!(apply(&*outbox, &in_status(Status::Dead), &RowAction::Redrive, ALL).await, 1);
    assert_eq!(drain(&outbox, &broker).await.published, 1);
    assert_eq!(broker.confirmed_ids(), [event.id()]);
}

/// An event that the broker refuses is dead at once, with the broker's reason, and the others are
/// published.
pub async fn a_refused_event_is_given_up_at_once<F: OutboxFixture>(fixture: F) {
    let events = events(5);
    let (outbox, broker) = outbox_and_broker(&fixture, &events).await;
    broker.always(events[2].id(), Reply::Refuse);
    let pass = drain(&outbox, &broker).await;
    assert_eq!((pass.published, pass.buried, pass.retried), (4, 1, 0));
    let row = row(&*outbox, events[2].id()).await;
    assert_eq!((row.status, row.attempts), (Status::Dead, 1));
    assert!(error_text(&row).contains("not like this"), "{row:?}");
}

/// `Later` counts no attempt, however often: only the event's partition waits, and the event is
/// never given up.
pub async fn an_event_that_is_put_off_costs_no_try<F: OutboxFixture>(fixture: F) {
    let events = [about("a"), about("a"), about("b"), event()];
    let (outbox, broker) = outbox_and_broker(&fixture, &events).await;
    broker.next(events[0].id(), vec![Reply::Later; 6]);
    let relay = impatient(&outbox, &broker);
    for turn in 0..6 {
        let pass = relay.drain().await.expect("the outbox answers");
        let published = if turn == 0 { 2 } else { 0 };
        assert_eq!(
            (pass.published, pass.retried, pass.buried, pass.away),
            (published, 0, 0, false)
        );
        let row = row(&*outbox, events[0].id()).await;
        assert_eq!((row.status, row.attempts), (Status::Failed, 0));
        assert!(error_text(&row).contains("at work"), "{row:?}");
        fixture.advance(Duration::from_secs(101)).await;
    }
    assert_eq!(drain(&outbox, &broker).await.published, 2);
    assert_eq!(broker.tries(events[0].id()), 7);
    broker.assert_partitions_in_order(&events);
}

/// An event that the broker has no route for waits, however long: it counts no attempt and is never
/// given up, and only its partition waits. The relay retries at least once a minute.
pub async fn an_event_without_a_route_waits_for_one<F: OutboxFixture>(fixture: F) {
    let events = [about("a"), about("a"), about("b"), event()];
    let (outbox, broker) = outbox_and_broker(&fixture, &events).await;
    broker.always(events[0].id(), Reply::Unrouted);
    let relay = impatient(&outbox, &broker);
    let mut published = 0;
    for _ in 0..8 {
        let pass = relay.drain().await.expect("the outbox answers");
        published += pass.published;
        assert_eq!((pass.retried, pass.buried, pass.away), (0, 0, false));
        let row = row(&*outbox, events[0].id()).await;
        assert_eq!(row.attempts, 0, "{row:?}");
        assert!(error_text(&row).contains("no route"), "{row:?}");
        fixture.advance(Duration::from_secs(61)).await;
    }
    assert_eq!(published, 2, "the other partition, and the event without one");
    assert!(broker.tries(events[0].id()) >= 8, "retried at least every minute");
    assert_eq!(broker.tries(events[1].id()), 0, "the partition waits");
    broker.next(events[0].id(), [Reply::Confirm]);
    assert_eq!(drain(&outbox, &broker).await.published, 2);
    broker.assert_partitions_in_order(&events);
}

/// An unreachable broker costs no event an attempt: all are published once it is reachable.
pub async fn an_absent_broker_costs_no_try<F: OutboxFixture>(fixture: F) {
    let events: Vec<Event> = (0..20).map(|at| about(&format!("{}", at % 4))).collect();
    let (outbox, broker) = outbox_and_broker(&fixture, &events).await;
    broker.set_away(true);
    let relay = impatient(&outbox, &broker);
    for _ in 0..10 {
        let pass = relay.drain().await.expect("the outbox answers");
        assert!(pass.away);
        assert_eq!((pass.published, pass.retried, pass.buried), (0, 0, 0));
    }
    for row in rows(&*outbox).await {
        assert_eq!((row.status, row.attempts), (Status::Pending, 0));
    }
    broker.set_away(false);
    assert_eq!(relay.drain().await.expect("the outbox answers").published, 20);
    assert_eq!(sorted(broker.confirmed_ids()), sorted(ids(&events)));
    broker.assert_partitions_in_order(&events);
}

/// If the broker becomes unreachable in the middle of a batch, confirmed events stay published.
pub async fn a_broker_that_goes_away_keeps_what_it_confirmed<F: OutboxFixture>(fixture: F) {
    let partition: Vec<Event> = (0..4).map(|_| about("a")).collect();
    let (outbox, broker) = outbox_and_broker(&fixture, &partition).await;
    broker.next(partition[1].id(), [Reply::Away]);
    let pass = drain(&outbox, &broker).await;
    assert_eq!((pass.published, pass.untried, pass.away), (1, 3, true));
    assert_eq!(tally(&*outbox).await, [3, 0, 1, 0, 0, 0]);
    assert_eq!(drain(&outbox, &broker).await.published, 3);
    assert_eq!(broker.confirmed_ids(), ids(&partition));
}

/// After a failure, the later rows of its partition are given back untried; other partitions
/// continue.
pub async fn followers_of_a_failure_are_given_back<F: OutboxFixture>(fixture: F) {
    let (partition, other): (Vec<_>, Vec<_>) = (0..3).map(|_| (about("a"), about("b"))).unzip();
    let mixed: Vec<_> = partition.iter().chain(&other).cloned().collect();
    let (outbox, broker) = outbox_and_broker(&fixture, &mixed).await;
    broker.next(partition[0].id(), [Reply::Fail]);
    let relay = impatient(&outbox, &broker);
    let pass = relay.pass().await.expect("the outbox answers");
    assert_eq!((pass.published, pass.retried, pass.untried), (3, 1, 2));
    for follower in &partition[1..] {
        let row = row(&*outbox, follower.id()).await;
        assert_eq!((row.status, row.attempts), (Status::Pending, 0));
        assert_eq!(broker.tries(follower.id()), 0);
    }
    fixture.advance(Duration::from_secs(101)).await;
    assert_eq!(relay.drain().await.expect("the outbox answers").published, 3);
    broker.assert_partitions_in_order(&mixed);
}

/// A dead event does not hold its partition, unless the relay is configured so.
pub async fn a_dead_event_holds_its_partition_only_if_configured<F: OutboxFixture>(fixture: F) {
    for holds in [false, true] {
        let order = format!("holds {holds}");
        let partition = [about(&order), about(&order), about(&order)];
        let (outbox, broker) = outbox_and_broker(&fixture, &partition).await;
        broker.next(partition[0].id(), [Reply::Refuse]);
        let relay = relay(&outbox, &broker).dead_hold_their_partition(holds).build();
        let relay = relay.expect("sound settings");
        relay.drain().await.expect("the outbox answers");
        let followers = if holds { Vec::new() } else { ids(&partition[1..]) };
        assert_eq!(broker.confirmed_ids(), followers);
        apply(&*outbox, &only(&[partition[0].id()]), &RowAction::Redrive, 1).await;
        relay.drain().await.expect("the outbox answers");
        assert_eq!(sorted(broker.confirmed_ids()), sorted(ids(&partition)));
    }
}

/// An event whose attempts all ended without a result is given up without another attempt.
pub async fn an_event_that_kills_relays_is_given_up<F: OutboxFixture>(fixture: F) {
    let (killer, other) = (event(), event());
    let (outbox, broker) = outbox_and_broker(&fixture, std::slice::from_ref(&killer)).await;
    let relay = impatient(&outbox, &broker);
    for attempt in 1..=3 {
        assert_eq!(claim_one(&*outbox).await.attempt, attempt, "the relay is killed");
        fixture.advance(PAST_LEASE).await;
    }
    put(&fixture, &outbox, std::slice::from_ref(&other)).await;
    let pass = relay.drain().await.expect("the outbox answers");
    assert_eq!((pass.published, pass.buried), (1, 1));
    assert_eq!(broker.tries(killer.id()), 0, "a fourth attempt would kill a fourth relay");
    let row = row(&*outbox, killer.id()).await;
    assert_eq!(row.status, Status::Dead);
    assert!(error_text(&row).starts_with("exceeded maxRetry (3): "), "{row:?}");
}

/// A publisher that returns too few results leaves the other events to be retried; one that returns
/// too many changes nothing.
pub async fn a_publisher_that_miscounts_loses_nothing<F: OutboxFixture>(fixture: F) {
    let events = events(5);
    let (outbox, broker) = outbox_and_broker(&fixture, &events).await;
    let relay = impatient(&outbox, &broker);
    broker.miscount(Some(2));
    let pass = relay.pass().await.expect("the outbox answers");
    assert_eq!((pass.published, pass.retried), (2, 3));
    broker.miscount(Some(9));
    fixture.advance(Duration::from_secs(101)).await;
    let pass = relay.pass().await.expect("the outbox answers");
    assert_eq!((pass.published, pass.claimed), (3, 3));
    let different: HashSet<_> = broker.confirmed_ids().into_iter().collect();
    assert_eq!(different, ids(&events).into_iter().collect());
}

/// A relay stops waiting for a publisher that hangs before the lease ends, and the events become
/// claimable again.
pub async fn a_publisher_that_hangs_is_left<F: OutboxFixture>(fixture: F) {
    let event = event();
    let (outbox, broker) = outbox_and_broker(&fixture, std::slice::from_ref(&event)).await;
    broker.always(event.id(), Reply::Hang);
    // The relay waits in real time, although the outbox's clock is moved.
    let hasty = relay(&outbox, &broker).lease(Duration::from_secs(3));
    let hasty = hasty.build().expect("sound settings");
    let pass = hasty.pass().await.expect("the outbox answers");
    assert_eq!((pass.claimed, pass.published), (1, 0));
    broker.always(event.id(), Reply::Confirm);
    fixture.advance(PAST_LEASE).await;
    assert_eq!(drain(&outbox, &broker).await.published, 1);
    assert_eq!(broker.confirmed_ids(), [event.id()]);
}

/// A publisher that panics on one event costs only that event its attempts.
pub async fn a_publisher_that_panics_stops_nobody<F: OutboxFixture>(fixture: F) {
    let events = events(5);
    let (outbox, broker) = outbox_and_broker(&fixture, &events).await;
    broker.always(events[2].id(), Reply::Panic);
    let relay = impatient(&outbox, &broker);
    let mut all = Pass::default();
    for _ in 0..5 {
        all += relay.drain().await.expect("the outbox answers");
        fixture.advance(Duration::from_secs(1_001)).await;
    }
    assert_eq!((all.published, all.retried, all.buried), (4, 2, 1));
    let row = row(&*outbox, events[2].id()).await;
    assert_eq!((row.status, row.attempts), (Status::Dead, 3));
    assert!(error_text(&row).contains("panicked"), "{row:?}");
}

/// With random replies of the broker, every event is confirmed in the end, in order within each
/// partition.
pub async fn partitions_stay_in_order_whatever_the_broker_does<F: OutboxFixture>(fixture: F) {
    for seed in 0..4 {
        let mut random = fastrand::Rng::with_seed(seed);
        let partitions = 2 + random.usize(..5);
        let make = |at: usize| match random.usize(..partitions + 1) {
            0 => event(),
            partition => about(&format!("{seed}/{partition}/{}", at / 50)),
        };
        let events: Vec<Event> = (0..60).map(make).collect();
        let (outbox, broker) = outbox_and_broker(&fixture, &events).await;
        for event in &events {
            let replies = (0..random.usize(..4)).map(|_| match random.u8(..4) {
                0 => Reply::Away,
                1 => Reply::Confirm,
                _ => Reply::Fail,
            });
            broker.next(event.id(), replies.collect::<Vec<_>>());
        }
        let (base, cap) = (Duration::from_secs(1), Duration::from_secs(100));
        let batch = 1 + random.u32(..20);
        let relay = relay(&outbox, &broker).batch(batch).backoff(base, cap).build();
        let relay = relay.expect("sound settings");
        let mut published = 0;
        for _ in 0..2_000 {
            let pass = relay.pass().await.expect("the outbox answers");
            published += pass.published;
            if published == 60 {
                break;
            }
            if pass.claimed == 0 {
                fixture.advance(Duration::from_secs(101)).await;
            }
        }
        assert_eq!(published, 60, "seed {seed}");
        broker.assert_partitions_in_order(&events);
    }
}
