//! A relay on this outbox when the broker does as it should, pass by pass.
//!
//! What happens when it does not is in [`failing`](super::failing), a relay in the background in
//! [`carrying`](super::carrying).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use semel_core::event::{Event, EventId};
use semel_core::outbox::{Partition, Pass, Relay, RelayBuilder, RowAction, Status};

use super::OutboxFixture;
use super::broker::Broker;
use super::shorthand::*;
use semel_core::outbox::Outbox;

/// A relay with leases that no loaded machine outlives.
pub(super) fn relay<O: Outbox>(outbox: &Arc<O>, broker: &Broker) -> RelayBuilder<O, Broker> {
    Relay::builder(Arc::clone(outbox), broker.clone()).lease(LEASE)
}

pub(super) async fn drain<O: Outbox>(outbox: &Arc<O>, broker: &Broker) -> Pass {
    let relay = relay(outbox, broker).build().expect("sound settings");
    relay.drain().await.expect("the outbox answers")
}

/// What is appended is published once, whole, under its number.
pub async fn everything_is_published_once<F: OutboxFixture>(fixture: F) {
    let tell = |at: usize| {
        let builder = Event::builder("acme", "order.placed", "/orders");
        built(builder.about("order", &format!("{}", at % 7)).payload("text/plain", at.to_string()))
    };
    let mut events: Vec<Event> = (0..40).map(tell).collect();
    events.extend(super::shorthand::events(20));
    let (outbox, broker) = (Arc::new(holding(&fixture, &events).await), Broker::new());
    let pass = drain(&outbox, &broker).await;
    assert_eq!(pass, Pass { claimed: 60, published: 60, ..Pass::default() });
    assert_eq!(sorted(broker.confirmed_ids()), sorted(ids(&events)));
    for published in broker.confirmed() {
        let sent = events.iter().find(|sent| sent.id() == published.id()).expect("it was sent");
        let sequence = published.sequence().expect("it has a number");
        assert!(published == sent.clone().with_sequence(sequence));
    }
    assert_eq!(tally(&*outbox).await, [0, 0, 60, 0, 0, 0]);
    assert_eq!(drain(&outbox, &broker).await, Pass::default(), "there is nothing more");
}

/// A relay on an empty outbox does nothing and calls no broker.
pub async fn nothing_is_published_of_nothing<F: OutboxFixture>(fixture: F) {
    let (outbox, broker) = (Arc::new(fixture.outbox().await), Broker::new());
    assert_eq!(drain(&outbox, &broker).await, Pass::default());
    assert!(broker.calls().is_empty());
}

/// A pass carries no more than its batch; the next goes on.
pub async fn a_pass_carries_one_batch<F: OutboxFixture>(fixture: F) {
    let (outbox, broker) = (Arc::new(holding(&fixture, &events(25)).await), Broker::new());
    let relay = relay(&outbox, &broker).batch(10).build().expect("sound settings");
    let mut carried = Vec::new();
    for _ in 0..4 {
        carried.push(relay.pass().await.expect("the outbox answers").published);
    }
    assert_eq!(carried, [10, 10, 5, 0]);
}

/// No call to the broker holds two events of one partition: the second leaves when the first is there.
pub async fn a_partition_is_published_one_by_one<F: OutboxFixture>(fixture: F) {
    let events: Vec<Event> = (0..30).map(|at| about(&format!("{}", at % 3))).collect();
    let (outbox, broker) = (Arc::new(holding(&fixture, &events).await), Broker::new());
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

/// Every tenant's events are published under that tenant, also where ids and orders are the same.
pub async fn tenants_are_kept_apart<F: OutboxFixture>(fixture: F) {
    let id = EventId::generate();
    let tell = |tenant: &str| {
        built(Event::builder(tenant, "order.placed", "/orders").id(id).about("order", "1"))
    };
    let events = ["acme", "globex", "ACME"].map(tell);
    let (outbox, broker) = (Arc::new(holding(&fixture, &events).await), Broker::new());
    drain(&outbox, &broker).await;
    let mut tenants: Vec<String> =
        broker.confirmed().iter().map(|event| event.tenant().to_owned()).collect();
    tenants.sort();
    assert_eq!(tenants, ["ACME", "acme", "globex"]);
}

/// Events that a publisher is given carry what the handler needs to parse them.
pub async fn a_payload_parses_on_the_other_side<F: OutboxFixture>(fixture: F) {
    let said = ("ord_1".to_owned(), 1_999_u64, vec![Some(0.1), None], "\u{1f680}".to_owned());
    let event = built(Event::builder("acme", "order.placed", "/orders").json(&said));
    let (outbox, broker) = (Arc::new(holding(&fixture, &[event]).await), Broker::new());
    drain(&outbox, &broker).await;
    let heard = broker.confirmed()[0].parse::<(String, u64, Vec<Option<f64>>, String)>();
    assert_eq!(heard.expect("it parses"), said);
}

/// What a broker lost after confirming it is published again on an operator's word.
pub async fn a_republished_event_is_published_again<F: OutboxFixture>(fixture: F) {
    let events = events(3);
    let (outbox, broker) = (Arc::new(holding(&fixture, &events).await), Broker::new());
    drain(&outbox, &broker).await;
    assert_eq!(apply(&*outbox, &only(&[events[1].id()]), &RowAction::Republish, ALL).await, 1);
    assert_eq!(drain(&outbox, &broker).await.published, 1);
    assert_eq!(broker.tries(events[1].id()), 2);
    assert_eq!(tally(&*outbox).await, [0, 0, 3, 0, 0, 0]);
}

/// A slow publisher whose lease is over loses the row: another relay publishes it too, and the late
/// answer changes nothing.
pub async fn a_relay_that_outlives_its_lease_changes_nothing<F: OutboxFixture>(fixture: F) {
    let event = event();
    let (outbox, broker) =
        (Arc::new(holding(&fixture, std::slice::from_ref(&event)).await), Broker::new());
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

/// A relay that ends in the middle costs a try; its rows are published by the next.
pub async fn a_relay_that_dies_loses_nothing<F: OutboxFixture>(fixture: F) {
    let events: Vec<Event> = (0..6).map(|at| about(&format!("{}", at % 2))).collect();
    let (outbox, broker) = (Arc::new(holding(&fixture, &events).await), Broker::new());
    let mut held = broker.hold(events[3].id());
    let doomed = relay(&outbox, &broker).build().expect("sound settings");
    let doomed = tokio::spawn(async move { doomed.pass().await });
    held.reached().await;
    doomed.abort();
    assert!(doomed.await.expect_err("aborted").is_cancelled());
    assert_eq!(drain(&outbox, &broker).await, Pass::default(), "its leases still run");
    fixture.advance(PAST_LEASE).await;
    assert_eq!(drain(&outbox, &broker).await.published, 6);
    assert_eq!(tally(&*outbox).await, [0, 0, 6, 0, 0, 0]);
    broker.assert_partitions_in_order(&events);
}

/// Two relays that take turns publish everything once.
pub async fn relays_that_take_turns_publish_once<F: OutboxFixture>(fixture: F) {
    let events: Vec<Event> = (0..40).map(|at| about(&format!("{}", at % 5))).collect();
    let (here, broker) = (Arc::new(holding(&fixture, &events).await), Broker::new());
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

/// Published rows are taken away by the relay's own cleaning, and dead ones are not.
pub async fn a_relay_cleans_up_behind_itself<F: OutboxFixture>(fixture: F) {
    let events = events(4);
    let (outbox, broker) = (Arc::new(holding(&fixture, &events).await), Broker::new());
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
