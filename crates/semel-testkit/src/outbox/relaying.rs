//! A relay whose broker confirms everything, pass by pass.
//!
//! Failures of the broker are in [`failing`](super::failing), a relay in the background is in
//! [`background`](super::background).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use semel_core::event::{Event, EventId};
use semel_core::outbox::{Partition, Pass, Relay, RelayBuilder, RowAction, Status};

use super::OutboxFixture;
use super::broker::Broker;
use super::shorthand::*;
use semel_core::outbox::Outbox;

/// Returns a relay with leases so long that none lapses on a loaded machine.
pub(super) fn relay<O: Outbox>(outbox: &Arc<O>, broker: &Broker) -> RelayBuilder<O, Broker> {
    Relay::builder(Arc::clone(outbox), broker.clone()).lease(LEASE)
}

pub(super) async fn drain<O: Outbox>(outbox: &Arc<O>, broker: &Broker) -> Pass {
    let relay = relay(outbox, broker).build().expect("sound settings");
    relay.drain().await.expect("the outbox answers")
}

/// Every appended event is published once, unchanged, with its sequence number.
pub async fn everything_is_published_once<F: OutboxFixture>(fixture: F) {
    let make = |at: usize| {
        let builder = Event::builder("acme", "order.placed", "/orders");
        built(builder.about("order", &format!("{}", at % 7)).payload("text/plain", at.to_string()))
    };
    let mut events: Vec<Event> = (0..40).map(make).collect();
    events.extend(super::shorthand::events(20));
    let (outbox, broker) = (Arc::new(outbox_with(&fixture, &events).await), Broker::new());
    let pass = drain(&outbox, &broker).await;
    assert_eq!(pass, Pass { claimed: 60, published: 60, ..Pass::default() });
    assert_eq!(sorted(broker.confirmed_ids()), sorted(ids(&events)));
    for published in broker.confirmed() {
        let sent =
            events.iter().find(|sent| sent.id() == published.id()).expect("the event was appended");
        let sequence = published.sequence().expect("the event has a number");
        assert!(published == sent.clone().with_sequence(sequence));
    }
    assert_eq!(tally(&*outbox).await, [0, 0, 60, 0, 0, 0]);
    assert_eq!(drain(&outbox, &broker).await, Pass::default(), "no row is left");
}

/// A relay on an empty outbox publishes nothing.
pub async fn nothing_is_published_from_an_empty_outbox<F: OutboxFixture>(fixture: F) {
    let (outbox, broker) = (Arc::new(fixture.outbox().await), Broker::new());
    assert_eq!(drain(&outbox, &broker).await, Pass::default());
    assert!(broker.calls().is_empty());
}

/// A pass publishes at most one batch; the next pass continues.
pub async fn a_pass_publishes_one_batch<F: OutboxFixture>(fixture: F) {
    let (outbox, broker) = (Arc::new(outbox_with(&fixture, &events(25)).await), Broker::new());
    let relay = relay(&outbox, &broker).batch(10).build().expect("sound settings");
    let mut carried = Vec::new();
    for _ in 0..4 {
        carried.push(relay.pass().await.expect("the outbox answers").published);
    }
    assert_eq!(carried, [10, 10, 5, 0]);
}

/// No call to the publisher has two events of one partition: the second is published after the
/// first is confirmed.
pub async fn a_partition_is_published_one_by_one<F: OutboxFixture>(fixture: F) {
    let events: Vec<Event> = (0..30).map(|at| about(&format!("{}", at % 3))).collect();
    let (outbox, broker) = (Arc::new(outbox_with(&fixture, &events).await), Broker::new());
    drain(&outbox, &broker).await;
    let partition_of =
        |id: &EventId| events.iter().find(|event| event.id() == *id).and_then(Partition::of);
    for call in broker.calls() {
        let partitions: HashSet<Partition> = call.iter().filter_map(partition_of).collect();
        assert_eq!(partitions.len(), call.len(), "{call:?}");
    }
    assert_eq!(broker.confirmed().len(), 30);
    broker.assert_partitions_in_order(&events);
}

/// Events are published under their own tenants, although ids and aggregates are equal.
pub async fn tenants_are_kept_apart<F: OutboxFixture>(fixture: F) {
    let id = EventId::generate();
    let make = |tenant: &str| {
        built(Event::builder(tenant, "order.placed", "/orders").id(id).about("order", "1"))
    };
    let events = ["acme", "globex", "ACME"].map(make);
    let (outbox, broker) = (Arc::new(outbox_with(&fixture, &events).await), Broker::new());
    drain(&outbox, &broker).await;
    let mut tenants: Vec<String> =
        broker.confirmed().iter().map(|event| event.tenant().to_owned()).collect();
    tenants.sort();
    assert_eq!(tenants, ["ACME", "acme", "globex"]);
}

/// A published payload parses as the value that was appended.
pub async fn a_payload_parses_on_the_other_side<F: OutboxFixture>(fixture: F) {
    let sent = ("ord_1".to_owned(), 1_999_u64, vec![Some(0.1), None], "\u{1f680}".to_owned());
    let event = built(Event::builder("acme", "order.placed", "/orders").json(&sent));
    let (outbox, broker) = (Arc::new(outbox_with(&fixture, &[event]).await), Broker::new());
    drain(&outbox, &broker).await;
    let received = broker.confirmed()[0].parse::<(String, u64, Vec<Option<f64>>, String)>();
    assert_eq!(received.expect("the payload parses"), sent);
}

/// An event that the broker lost after confirming it can be published again by an operator.
pub async fn a_republished_event_is_published_again<F: OutboxFixture>(fixture: F) {
    let events = events(3);
    let (outbox, broker) = (Arc::new(outbox_with(&fixture, &events).await), Broker::new());
    drain(&outbox, &broker).await;
    assert_eq!(apply(&*outbox, &only(&[events[1].id()]), &RowAction::Republish, ALL).await, 1);
    assert_eq!(drain(&outbox, &broker).await.published, 1);
    assert_eq!(broker.tries(events[1].id()), 2);
    assert_eq!(tally(&*outbox).await, [0, 0, 3, 0, 0, 0]);
}

/// If a publish outlives its lease, another relay publishes the row too, and the late result
/// changes nothing.
pub async fn a_relay_that_outlives_its_lease_changes_nothing<F: OutboxFixture>(fixture: F) {
    let event = event();
    let (outbox, broker) =
        (Arc::new(outbox_with(&fixture, std::slice::from_ref(&event)).await), Broker::new());
    let mut held = broker.hold(event.id());
    let slow = relay(&outbox, &broker).build().expect("sound settings");
    let slow = tokio::spawn(async move { slow.pass().await });
    held.reached().await;
    fixture.advance(PAST_LEASE).await;
    assert_eq!(drain(&outbox, &broker).await.published, 1);
    let before = row(&*outbox, event.id()).await;
    held.release();
    let late = slow.await.expect("no panic").expect("the outbox answers");
    assert_eq!((late.published, late.lost), (0, 1));
    assert_eq!(row(&*outbox, event.id()).await, before);
    assert_eq!((before.status, before.attempts), (Status::Published, 2));
    assert_eq!(broker.confirmed_ids(), [event.id(), event.id()], "at least once");
}

/// A relay that dies during a publish loses nothing but an attempt: another relay publishes its
/// rows.
pub async fn a_relay_that_dies_loses_nothing<F: OutboxFixture>(fixture: F) {
    let events: Vec<Event> = (0..6).map(|at| about(&format!("{}", at % 2))).collect();
    let (outbox, broker) = (Arc::new(outbox_with(&fixture, &events).await), Broker::new());
    let mut held = broker.hold(events[3].id());
    let doomed = relay(&outbox, &broker).build().expect("sound settings");
    let doomed = tokio::spawn(async move { doomed.pass().await });
    held.reached().await;
    doomed.abort();
    assert!(doomed.await.expect_err("aborted").is_cancelled());
    assert_eq!(drain(&outbox, &broker).await, Pass::default(), "the dead relay's leases still run");
    fixture.advance(PAST_LEASE).await;
    assert_eq!(drain(&outbox, &broker).await.published, 6);
    assert_eq!(tally(&*outbox).await, [0, 0, 6, 0, 0, 0]);
    broker.assert_partitions_in_order(&events);
}

/// Two relays that take turns publish every event once.
pub async fn relays_that_take_turns_publish_once<F: OutboxFixture>(fixture: F) {
    let events: Vec<Event> = (0..40).map(|at| about(&format!("{}", at % 5))).collect();
    let (here, broker) = (Arc::new(outbox_with(&fixture, &events).await), Broker::new());
    let there = Arc::new(fixture.outbox().await);
    let relays = [&here, &there].map(|outbox| relay(outbox, &broker).batch(3).build());
    let relays = relays.map(|relay| relay.expect("sound settings"));
    let mut idle = 0;
    for turn in 0.. {
        let pass = relays[turn % 2].pass().await.expect("the outbox answers");
        idle = if pass.claimed == 0 { idle + 1 } else { 0 };
        if idle == 2 {
            break;
        }
    }
    assert_eq!(sorted(broker.confirmed_ids()), sorted(ids(&events)));
    broker.assert_partitions_in_order(&events);
}

/// The relay's own cleaning removes published rows, and keeps dead ones.
pub async fn a_relay_cleans_up_behind_itself<F: OutboxFixture>(fixture: F) {
    let events = events(4);
    let (outbox, broker) = (Arc::new(outbox_with(&fixture, &events).await), Broker::new());
    broker.always(events[2].id(), super::broker::Reply::Refuse);
    let relay = relay(&outbox, &broker).keep(Duration::from_secs(100));
    let relay = relay.clean_every(Duration::from_millis(10)).build().expect("sound settings");
    let relaying = relay.start();
    broker.wait_for(3).await;
    let cleaned = async {
        while rows(&*outbox).await.len() > 1 {
            fixture.advance(Duration::from_secs(101)).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), cleaned).await.expect("cleaned in time");
    relaying.stop().await;
    let left = row(&*outbox, events[2].id()).await;
    assert_eq!(left.status, Status::Dead);
}
