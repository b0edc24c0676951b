//! A relay in the background: how it is woken, paused, stopped and shared.
//!
//! No behaviour here depends on the speed of the machine: it waits for what must happen, and checks
//! what must not happen once everything that could cause it is over.

use std::collections::HashSet;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use semel_core::event::Event;
use semel_core::outbox::{Outbox, RelayBuilder, RowAction, Status};

use super::OutboxFixture;
use super::broker::{Broker, Reply};
use super::relaying::relay;
use super::shorthand::*;

const MINUTE: Duration = Duration::from_secs(60);

/// Returns a relay that polls every 1 to 20 ms.
fn eager<O: Outbox>(outbox: &Arc<O>, broker: &Broker) -> RelayBuilder<O, Broker> {
    let (first, most) = (Duration::from_millis(1), Duration::from_millis(20));
    relay(outbox, broker).idle(first, most).backoff(Duration::ZERO, Duration::ZERO)
}

/// Returns a relay that polls once an hour unless it is woken, which is longer than any test waits.
fn hourly<O: Outbox>(outbox: &Arc<O>, broker: &Broker) -> RelayBuilder<O, Broker> {
    relay(outbox, broker).idle(MINUTE * 60, MINUTE * 60)
}

/// A commit in the same process wakes the relay before its next poll.
pub async fn a_commit_wakes_the_relay<F: OutboxFixture>(fixture: F) {
    let (outbox, broker) = (Arc::new(fixture.outbox().await), Broker::new());
    let relaying = hourly(&outbox, &broker).build().expect("sound settings").start();
    for count in 1..=5 {
        // Gives the relay time to poll, find nothing and go to sleep, at least in some rounds.
        tokio::time::sleep(Duration::from_millis(20)).await;
        put(&fixture, &outbox, &[event()]).await;
        broker.wait_for(count).await;
    }
    relaying.stop().await;
}

/// An operator's redrive wakes the relay.
pub async fn a_redrive_wakes_the_relay<F: OutboxFixture>(fixture: F) {
    let event = event();
    let outbox = Arc::new(outbox_with(&fixture, std::slice::from_ref(&event)).await);
    let broker = Broker::new();
    settle(&*outbox, &dead()).await;
    let relaying = hourly(&outbox, &broker).build().expect("sound settings").start();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(apply(&*outbox, &in_status(Status::Dead), &RowAction::Redrive, ALL).await, 1);
    broker.wait_for(1).await;
    relaying.stop().await;
}

/// A relay that is not woken polls, and so finds what another process committed.
pub async fn a_relay_finds_commits_of_other_processes<F: OutboxFixture>(fixture: F) {
    let (outbox, broker) = (Arc::new(fixture.outbox().await), Broker::new());
    let relaying = eager(&outbox, &broker).build().expect("sound settings").start();
    let elsewhere = fixture.outbox().await;
    put(&fixture, &elsewhere, &events(3)).await;
    broker.wait_for(3).await;
    relaying.stop().await;
}

/// A relay publishes more than one batch without waiting in between.
pub async fn a_relay_publishes_batch_after_batch<F: OutboxFixture>(fixture: F) {
    let events = events(57);
    let (outbox, broker) = (Arc::new(outbox_with(&fixture, &events).await), Broker::new());
    let relay = hourly(&outbox, &broker).batch(5).build().expect("sound settings");
    let relaying = relay.start();
    broker.wait_for(57).await;
    let status = relaying.stop().await;
    assert_eq!((status.published, status.failed, status.dead), (57, 0, 0));
    assert_eq!(sorted(broker.confirmed_ids()), sorted(ids(&events)));
}

/// A paused relay finishes its current batch and claims nothing more, until it is resumed.
pub async fn a_paused_relay_claims_nothing<F: OutboxFixture>(fixture: F) {
    let first = event();
    let (outbox, broker) =
        (Arc::new(outbox_with(&fixture, std::slice::from_ref(&first)).await), Broker::new());
    let mut held = broker.hold(first.id());
    let relaying = eager(&outbox, &broker).at_once(1).build().expect("sound settings").start();
    held.reached().await;
    relaying.pause();
    assert!(relaying.status().paused);
    let later = events(3);
    put(&fixture, &outbox, &later).await;
    held.release();
    broker.wait_for(1).await;
    // Long enough for many polls.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(broker.confirmed_ids(), [first.id()]);
    for event in &later {
        assert_eq!(row(&*outbox, event.id()).await.status, Status::Pending);
    }
    relaying.resume();
    broker.wait_for(4).await;
    assert!(!relaying.stop().await.paused);
}

/// A stopped relay waits for the event that the broker has, and gives the others back untried.
pub async fn a_stopped_relay_gives_the_rest_back<F: OutboxFixture>(fixture: F) {
    let partition: Vec<Event> = (0..5).map(|_| about("a")).collect();
    let (outbox, broker) = (Arc::new(outbox_with(&fixture, &partition).await), Broker::new());
    let mut held = broker.hold(partition[1].id());
    let relaying = eager(&outbox, &broker).build().expect("sound settings").start();
    held.reached().await;
    let mut stopping = pin!(relaying.stop());
    let asked = poll_fn(|task| Poll::Ready(stopping.as_mut().poll(task).is_pending())).await;
    assert!(asked, "the stop waits for the broker");
    held.release();
    let status = stopping.await;
    assert_eq!(status.published, 2);
    assert_eq!(broker.confirmed_ids(), ids(&partition[..2]));
    let after = rows(&*outbox).await;
    assert!(after[..2].iter().all(|row| row.status == Status::Published));
    assert!(after[2..].iter().all(|row| (row.status, row.attempts) == (Status::Pending, 0)));
    assert_eq!(claim_all(&*outbox).await.len(), 3, "another relay can claim them");
}

/// Stopping ends a relay that is idle, paused or already stopped.
pub async fn a_stop_ends_whatever_the_relay_waits_for<F: OutboxFixture>(fixture: F) {
    let (outbox, broker) = (Arc::new(fixture.outbox().await), Broker::new());
    let idle = hourly(&outbox, &broker).build().expect("sound settings").start();
    let paused = hourly(&outbox, &broker).build().expect("sound settings").start();
    paused.pause();
    let both = async {
        idle.stop().await;
        idle.stop().await;
        paused.stop().await;
    };
    tokio::time::timeout(MINUTE, both).await.expect("the relays stop");
}

/// When the broker is reachable again, every event is published, and none was given up meanwhile.
pub async fn a_broker_that_comes_back_is_given_everything<F: OutboxFixture>(fixture: F) {
    let events: Vec<Event> = (0..30).map(|at| about(&format!("{}", at % 4))).collect();
    let (outbox, broker) = (Arc::new(outbox_with(&fixture, &events).await), Broker::new());
    broker.set_away(true);
    let relay = eager(&outbox, &broker).max_attempts(1).build().expect("sound settings");
    let relaying = relay.start();
    while broker.calls().len() < 4 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    broker.set_away(false);
    broker.wait_for(30).await;
    let status = relaying.stop().await;
    assert_eq!((status.published, status.failed, status.dead), (30, 0, 0));
    broker.assert_partitions_in_order(&events);
}

/// A publisher that panics does not end the relay.
pub async fn a_relay_survives_its_publisher<F: OutboxFixture>(fixture: F) {
    let events = events(4);
    let (outbox, broker) = (Arc::new(outbox_with(&fixture, &events).await), Broker::new());
    broker.always(events[0].id(), Reply::Panic);
    let relay = eager(&outbox, &broker).max_attempts(5).build().expect("sound settings");
    let relaying = relay.start();
    broker.wait_for(3).await;
    put(&fixture, &outbox, &[event()]).await;
    broker.wait_for(4).await;
    let buried = async {
        while relaying.status().dead == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(MINUTE, buried).await.expect("the event becomes dead");
    relaying.stop().await;
    assert_eq!(row(&*outbox, events[0].id()).await.status, Status::Dead);
}

/// Two relays, several batches each, and a broker that fails at random: every event is confirmed,
/// in order within each partition.
pub async fn two_relays_share_the_work<F: OutboxFixture>(fixture: F) {
    let make = |at: usize| match at % 10 {
        0 => event(),
        _ => about(&format!("{}", at % 7)),
    };
    let events: Vec<Event> = (0..150).map(make).collect();
    let broker = Broker::new();
    broker.fail_by_chance(11, 0.2);
    let mut relays = Vec::new();
    for _ in 0..2 {
        let outbox = Arc::new(fixture.outbox().await);
        let relay = eager(&outbox, &broker).batch(6).at_once(2).max_attempts(1_000).build();
        relays.push(relay.expect("sound settings").start());
    }
    let outbox = fixture.outbox().await;
    for some in events.chunks(10) {
        put(&fixture, &outbox, some).await;
    }
    broker.wait_for(150).await;
    let mut published = 0;
    for relaying in relays {
        let status = relaying.stop().await;
        assert_eq!(status.dead, 0);
        published += status.published;
    }
    assert_eq!(published, 150, "each event once");
    let different: HashSet<_> = broker.confirmed_ids().into_iter().collect();
    assert_eq!(different, ids(&events).into_iter().collect());
    broker.assert_partitions_in_order(&events);
    assert_eq!(tally(&outbox).await, [0, 0, 150, 0, 0, 0]);
}
