//! A relay at work in the background: how it is woken, paused, stopped and shared.
//!
//! Nothing here depends on how fast the machine is: what must happen is waited for, and what must
//! not is asked for when everything that could lead to it has happened.

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

/// A relay that looks all the time.
fn eager<O: Outbox>(outbox: &Arc<O>, broker: &Broker) -> RelayBuilder<O, Broker> {
    let (first, most) = (Duration::from_millis(1), Duration::from_millis(20));
    relay(outbox, broker).idle(first, most).backoff(Duration::ZERO, Duration::ZERO)
}

/// A relay that looks once an hour unless it is woken. Two hours are longer than any test waits.
fn drowsy<O: Outbox>(outbox: &Arc<O>, broker: &Broker) -> RelayBuilder<O, Broker> {
    relay(outbox, broker).idle(MINUTE * 60, MINUTE * 60)
}

/// Commits wake a relay of this process: it need not look first.
pub async fn a_commit_wakes_the_relay<F: OutboxFixture>(fixture: F) {
    let (outbox, broker) = (Arc::new(fixture.outbox().await), Broker::new());
    let relaying = drowsy(&outbox, &broker).build().expect("sound settings").start();
    for count in 1..=5 {
        // So that it has looked, found nothing and gone to sleep, at least now and then.
        tokio::time::sleep(Duration::from_millis(20)).await;
        put(&fixture, &outbox, &[event()]).await;
        broker.wait_for(count).await;
    }
    relaying.stop().await;
}

/// So does an operator's redrive.
pub async fn a_redrive_wakes_the_relay<F: OutboxFixture>(fixture: F) {
    let event = event();
    let outbox = Arc::new(holding(&fixture, std::slice::from_ref(&event)).await);
    let broker = Broker::new();
    settle(&*outbox, &dead()).await;
    let relaying = drowsy(&outbox, &broker).build().expect("sound settings").start();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(apply(&*outbox, &in_status(Status::Dead), &RowAction::Redrive, ALL).await, 1);
    broker.wait_for(1).await;
    relaying.stop().await;
}

/// Without being woken it looks from time to time, and so finds what another process committed.
pub async fn a_relay_finds_what_nobody_told_it_of<F: OutboxFixture>(fixture: F) {
    let (outbox, broker) = (Arc::new(fixture.outbox().await), Broker::new());
    let relaying = eager(&outbox, &broker).build().expect("sound settings").start();
    let elsewhere = fixture.outbox().await;
    put(&fixture, &elsewhere, &events(3)).await;
    broker.wait_for(3).await;
    relaying.stop().await;
}

/// More than fits a batch is carried without waiting in between.
pub async fn a_relay_carries_batch_after_batch<F: OutboxFixture>(fixture: F) {
    let events = events(57);
    let (outbox, broker) = (Arc::new(holding(&fixture, &events).await), Broker::new());
    let relay = drowsy(&outbox, &broker).batch(5).build().expect("sound settings");
    let relaying = relay.start();
    broker.wait_for(57).await;
    let standing = relaying.stop().await;
    assert_eq!((standing.published, standing.failed, standing.dead), (57, 0, 0));
    assert_eq!(sorted(broker.confirmed_ids()), sorted(ids(&events)));
}

/// A paused relay finishes what it has and claims nothing more; it goes on where it stopped.
pub async fn a_paused_relay_claims_nothing<F: OutboxFixture>(fixture: F) {
    let first = event();
    let (outbox, broker) =
        (Arc::new(holding(&fixture, std::slice::from_ref(&first)).await), Broker::new());
    let mut held = broker.hold(first.id());
    let relaying = eager(&outbox, &broker).at_once(1).build().expect("sound settings").start();
    held.reached().await;
    relaying.pause();
    assert!(relaying.standing().paused);
    let later = events(3);
    put(&fixture, &outbox, &later).await;
    held.release();
    broker.wait_for(1).await;
    // Many looks' worth of time.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(broker.confirmed_ids(), [first.id()]);
    for event in &later {
        assert_eq!(row(&*outbox, event.id()).await.status, Status::Pending);
    }
    relaying.resume();
    broker.wait_for(4).await;
    assert!(!relaying.stop().await.paused);
}

/// A relay that is stopped finishes what the broker has, and gives the rest back untried.
pub async fn a_stopped_relay_gives_the_rest_back<F: OutboxFixture>(fixture: F) {
    let partition: Vec<Event> = (0..5).map(|_| about("a")).collect();
    let (outbox, broker) = (Arc::new(holding(&fixture, &partition).await), Broker::new());
    let mut held = broker.hold(partition[1].id());
    let relaying = eager(&outbox, &broker).build().expect("sound settings").start();
    held.reached().await;
    let mut stopping = pin!(relaying.stop());
    let asked = poll_fn(|task| Poll::Ready(stopping.as_mut().poll(task).is_pending())).await;
    assert!(asked, "the broker has an event");
    held.release();
    let standing = stopping.await;
    assert_eq!(standing.published, 2);
    assert_eq!(broker.confirmed_ids(), ids(&partition[..2]));
    let after = rows(&*outbox).await;
    assert!(after[..2].iter().all(|row| row.status == Status::Published));
    assert!(after[2..].iter().all(|row| (row.status, row.attempts) == (Status::Pending, 0)));
    assert_eq!(claim_all(&*outbox).await.len(), 3, "they are anybody's");
}

/// A relay that is stopped twice, or while it rests, ends.
pub async fn a_stop_ends_whatever_the_relay_waits_for<F: OutboxFixture>(fixture: F) {
    let (outbox, broker) = (Arc::new(fixture.outbox().await), Broker::new());
    let idle = drowsy(&outbox, &broker).build().expect("sound settings").start();
    let paused = drowsy(&outbox, &broker).build().expect("sound settings").start();
    paused.pause();
    let both = async {
        idle.stop().await;
        idle.stop().await;
        paused.stop().await;
    };
    tokio::time::timeout(MINUTE, both).await.expect("they end");
}

/// When the broker is back after a while, all is published, and nothing was given up.
pub async fn a_broker_that_comes_back_is_given_everything<F: OutboxFixture>(fixture: F) {
    let events: Vec<Event> = (0..30).map(|at| about(&format!("{}", at % 4))).collect();
    let (outbox, broker) = (Arc::new(holding(&fixture, &events).await), Broker::new());
    broker.set_away(true);
    let relay = eager(&outbox, &broker).max_attempts(1).build().expect("sound settings");
    let relaying = relay.start();
    while broker.calls().len() < 4 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    broker.set_away(false);
    broker.wait_for(30).await;
    let standing = relaying.stop().await;
    assert_eq!((standing.published, standing.failed, standing.dead), (30, 0, 0));
    broker.assert_partitions_in_order(&events);
}

/// A publisher that panics does not end the relay.
pub async fn a_relay_survives_its_publisher<F: OutboxFixture>(fixture: F) {
    let events = events(4);
    let (outbox, broker) = (Arc::new(holding(&fixture, &events).await), Broker::new());
    broker.always(events[0].id(), Reply::Panic);
    let relay = eager(&outbox, &broker).max_attempts(5).build().expect("sound settings");
    let relaying = relay.start();
    broker.wait_for(3).await;
    put(&fixture, &outbox, &[event()]).await;
    broker.wait_for(4).await;
    let buried = async {
        while relaying.standing().dead == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(MINUTE, buried).await.expect("the one is given up");
    relaying.stop().await;
    assert_eq!(row(&*outbox, events[0].id()).await.status, Status::Dead);
}

/// Two relays of two processes, several batches each, and a broker that fails by chance: every
/// event is confirmed, and within each partition in order.
pub async fn two_relays_share_the_work<F: OutboxFixture>(fixture: F) {
    let tell = |at: usize| match at % 10 {
        0 => event(),
        _ => about(&format!("{}", at % 7)),
    };
    let events: Vec<Event> = (0..150).map(tell).collect();
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
        let standing = relaying.stop().await;
        assert_eq!(standing.dead, 0);
        published += standing.published;
    }
    assert_eq!(published, 150, "each once");
    let different: HashSet<_> = broker.confirmed_ids().into_iter().collect();
    assert_eq!(different, ids(&events).into_iter().collect());
    broker.assert_partitions_in_order(&events);
    assert_eq!(tally(&outbox).await, [0, 0, 150, 0, 0, 0]);
}
