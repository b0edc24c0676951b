//! Tests of `semel records show`: from the command to the consumers of its events.

use std::time::Duration;

use semel_core::outbox::Disposition;
use semel_core::{ErrorText, Key, Kind, Principal};

use crate::fixture::{Fixture, damage, on};
use crate::seeds::{handled, orders, relayed};

/// Shows one of several operations with its event, the delivery and the consumers.
async fn an_operation_is_shown_to_its_end(fixture: Fixture) {
    let store = fixture.open_store().await;
    let events = orders(&store, 3).await;
    relayed(&store, Disposition::Published).await;
    handled(&store, "INVENTORY", events[1], true).await;
    handled(&store, "NOTIFY", events[1], false).await;

    let reported = fixture.json(&["records", "show", "order-2"]);
    assert_eq!(reported["command"]["state"], "succeeded", "{reported}");
    assert_eq!(reported["complete"], true);
    let [event] = reported["events"].as_array().unwrap().as_slice() else { panic!("{reported}") };
    assert_eq!(event["id"], events[1].to_string());
    assert_eq!(event["delivery"]["status"], "published");
    assert_eq!(event["delivery"]["attempts"], 1);
    assert_eq!(event["delivery"]["causation_id"], reported["command"]["operation_id"]);
    let consumers = event["consumers"].as_array().unwrap();
    let states: Vec<_> = consumers.iter().map(|c| (&c["scope"], &c["state"])).collect();
    assert_eq!(states.len(), 2);
    assert_eq!((states[0].0, states[0].1), (&"INVENTORY".into(), &"succeeded".into()));
    assert_eq!((states[1].0, states[1].1), (&"NOTIFY".into(), &"failed".into()));

    let text = fixture.run(&["records", "show", "order-2"]).well();
    for output in [
        "command      command ORDER_CREATE `order-2` of acme",
        "succeeded after 1 attempt",
        "order.placed about order order-2",
        "published after 1 try",
        "consumer   INVENTORY succeeded",
        "NOTIFY failed after 1 attempt",
        "the shelf is empty",
        "owner        ",
        // Times within one second are still distinguished.
        "Z (+",
    ] {
        assert!(text.contains(output), "{output}: {text}");
    }
    let alone = fixture.json(&["records", "show", "order-2", "--group", "NOTIFY"]);
    assert_eq!(alone["events"][0]["consumers"].as_array().unwrap().len(), 1);

    // The same timeline is found by the event's id, with or without consumers.
    for (event, consumers) in [(events[1], 2), (events[0], 0)] {
        let reported = fixture.json(&["records", "show", &event.to_string()]);
        assert_eq!(reported["events"][0]["delivery"]["status"], "published", "{reported}");
        assert_eq!(reported["events"][0]["consumers"].as_array().unwrap().len(), consumers);
    }
    store.close().await;
}

on!(an_operation_is_shown_to_its_end: sqlite, postgres, mysql);

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_is_not_published_shows_the_reason() {
    let fixture = Fixture::sqlite().await;
    let store = fixture.open_store().await;
    orders(&store, 1).await;
    let waits = fixture.run(&["records", "show", "order-1"]).well();
    assert!(waits.contains("waits for its first attempt"), "{waits}");
    let error = ErrorText::new("broker away");
    relayed(&store, Disposition::Retry { after: Duration::from_secs(3_600), error }).await;
    let failed = fixture.run(&["records", "show", "order-1"]).well();
    assert!(failed.contains("failed after 1 try, next in "), "{failed}");
    assert!(failed.contains("minutes: broker away"), "{failed}");
    store.close().await;
}

/// With an event's id, `--group` shows only that group, and a consumer's record that cannot be read
/// is not reported as missing.
async fn an_unreadable_consumer_of_an_event_is_reported(fixture: Fixture) {
    let store = fixture.open_store().await;
    let events = orders(&store, 1).await;
    for group in ["INVENTORY", "NOTIFY"] {
        handled(&store, group, events[0], true).await;
    }
    store.close().await;
    let event = events[0].to_string();
    let alone = fixture.json(&["records", "show", &event, "--group", "NOTIFY"]);
    let consumers = alone["events"][0]["consumers"].as_array().unwrap();
    assert_eq!(consumers.len(), 1, "{alone}");
    assert_eq!(consumers[0]["scope"], "NOTIFY");

    let key = Key::new(Kind::Event, "acme", "INVENTORY", Principal::global(), &event).unwrap();
    damage(&fixture, &key).await;
    let shown = fixture.run(&["records", "show", &event, "--json"]);
    let reported: serde_json::Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!(
        (&reported["complete"], &reported["unreadable"]),
        (&false.into(), &1.into()),
        "{reported}"
    );
    assert_eq!(reported["events"][0]["consumers"].as_array().unwrap().len(), 1, "{reported}");
    assert!(shown.badly(3).contains("cannot be read"));
}

on!(an_unreadable_consumer_of_an_event_is_reported: sqlite, postgres);
