//! `semel records show`: from the command to its events' consumers.

use std::time::Duration;

use semel_core::outbox::Disposition;
use semel_core::{ErrorText, Key, Kind, Principal};

use crate::ground::{Ground, damage, on};
use crate::seeds::{handled, orders, relayed};

/// One operation among others: its event, its delivery and its consumers.
async fn an_operation_is_shown_to_its_end(ground: Ground) {
    let place = ground.place().await;
    let events = orders(&place, 3).await;
    relayed(&place, Disposition::Published).await;
    handled(&place, "INVENTORY", events[1], true).await;
    handled(&place, "NOTIFY", events[1], false).await;

    let told = ground.json(&["records", "show", "order-2"]);
    assert_eq!(told["command"]["state"], "succeeded", "{told}");
    assert_eq!(told["complete"], true);
    let [event] = told["events"].as_array().unwrap().as_slice() else { panic!("{told}") };
    assert_eq!(event["id"], events[1].to_string());
    assert_eq!(event["delivery"]["status"], "published");
    assert_eq!(event["delivery"]["attempts"], 1);
    assert_eq!(event["delivery"]["causation_id"], told["command"]["operation_id"]);
    let consumers = event["consumers"].as_array().unwrap();
    let states: Vec<_> = consumers.iter().map(|c| (&c["scope"], &c["state"])).collect();
    assert_eq!(states.len(), 2);
    assert_eq!((states[0].0, states[0].1), (&"INVENTORY".into(), &"succeeded".into()));
    assert_eq!((states[1].0, states[1].1), (&"NOTIFY".into(), &"failed".into()));

    let text = ground.run(&["records", "show", "order-2"]).well();
    for said in [
        "command      command ORDER_CREATE `order-2` of acme",
        "succeeded after 1 attempt",
        "order.placed about order order-2",
        "published after 1 try",
        "consumer   INVENTORY succeeded",
        "NOTIFY failed after 1 attempt",
        "the shelf is empty",
        "owner        ",
        // Everything within one second is still told apart.
        "Z (+",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let alone = ground.json(&["records", "show", "order-2", "--group", "NOTIFY"]);
    assert_eq!(alone["events"][0]["consumers"].as_array().unwrap().len(), 1);

    // The same by the event's id, with or without consumers.
    for (event, consumers) in [(events[1], 2), (events[0], 0)] {
        let told = ground.json(&["records", "show", &event.to_string()]);
        assert_eq!(told["events"][0]["delivery"]["status"], "published", "{told}");
        assert_eq!(told["events"][0]["consumers"].as_array().unwrap().len(), consumers);
    }
    place.close().await;
}

on!(an_operation_is_shown_to_its_end: sqlite, postgres, mysql);

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_does_not_get_away_says_why() {
    let ground = Ground::sqlite().await;
    let place = ground.place().await;
    orders(&place, 1).await;
    let waits = ground.run(&["records", "show", "order-1"]).well();
    assert!(waits.contains("waits for its first attempt"), "{waits}");
    let error = ErrorText::new("broker away");
    relayed(&place, Disposition::Retry { after: Duration::from_secs(3_600), error }).await;
    let failed = ground.run(&["records", "show", "order-1"]).well();
    assert!(failed.contains("failed after 1 try, next in "), "{failed}");
    assert!(failed.contains("minutes: broker away"), "{failed}");
    place.close().await;
}

/// From the event's end, too: a group that was named is looked at alone, and a consumer's record that
/// cannot be read is not taken for one that is not there.
async fn a_consumer_that_cannot_be_read_is_told_from_the_events_end(ground: Ground) {
    let place = ground.place().await;
    let events = orders(&place, 1).await;
    for group in ["INVENTORY", "NOTIFY"] {
        handled(&place, group, events[0], true).await;
    }
    place.close().await;
    let event = events[0].to_string();
    let alone = ground.json(&["records", "show", &event, "--group", "NOTIFY"]);
    let consumers = alone["events"][0]["consumers"].as_array().unwrap();
    assert_eq!(consumers.len(), 1, "{alone}");
    assert_eq!(consumers[0]["scope"], "NOTIFY");

    let key = Key::new(Kind::Event, "acme", "INVENTORY", Principal::global(), &event).unwrap();
    damage(&ground, &key).await;
    let shown = ground.run(&["records", "show", &event, "--json"]);
    let told: serde_json::Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!((&told["complete"], &told["unreadable"]), (&false.into(), &1.into()), "{told}");
    assert_eq!(told["events"][0]["consumers"].as_array().unwrap().len(), 1, "{told}");
    assert!(shown.badly(3).contains("cannot be read"));
}

on!(a_consumer_that_cannot_be_read_is_told_from_the_events_end: sqlite, postgres);
