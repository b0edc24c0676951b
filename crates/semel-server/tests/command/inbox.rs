//! `semel inbox`.

use semel::EventId;
use semel::store::Inspect as _;

use crate::ground::{Ground, on};
use crate::seeds::handled;

/// Failed events are listed by group, redriven, and discarded.
async fn failed_events_are_redriven_and_discarded(ground: Ground) {
    let place = ground.place().await;
    let events: Vec<EventId> = (0..5).map(|_| EventId::generate()).collect();
    for event in &events {
        handled(&place, "NOTIFY", *event, false).await;
        handled(&place, "INVENTORY", *event, true).await;
    }
    handled(&place, "BILLING", events[0], false).await;

    let all = ground.json(&["inbox", "failed"]);
    assert_eq!(all["events"].as_array().unwrap().len(), 6, "{all}");
    let group = ground.json(&["inbox", "failed", "--group", "NOTIFY", "--limit", "3"]);
    assert_eq!(group["events"].as_array().unwrap().len(), 3);
    let after = group["next"].as_str().unwrap();
    let rest = ground.json(&["inbox", "failed", "--group", "NOTIFY", "--after", after]);
    assert_eq!((rest["events"].as_array().unwrap().len(), rest["next"].as_str()), (2, None));
    let table = ground.run(&["inbox", "failed", "--group", "BILLING"]).well();
    assert!(table.contains("the shelf is empty") && table.contains("order.placed"), "{table}");

    let first = events[0].to_string();
    assert_eq!(ground.json(&["inbox", "redrive", &first, "--dry-run"])["changed"], 2);
    let due = ["records", "list", "--due"];
    assert_eq!(
        ground.json(&due)["records"].as_array().unwrap().len(),
        0,
        "a dry run changes nothing"
    );
    assert_eq!(ground.json(&["inbox", "redrive", &first, "--group", "NOTIFY"])["changed"], 1);
    assert_eq!(ground.json(&due)["records"].as_array().unwrap().len(), 1);
    assert_eq!(ground.json(&["inbox", "redrive", "--all"])["changed"], 6);
    assert_eq!(ground.json(&due)["records"].as_array().unwrap().len(), 6);

    let said = ground.run(&["inbox", "redrive", &EventId::generate().to_string()]).badly(2);
    assert!(said.contains("no group has failed"), "{said}");
    ground.run(&["inbox", "discard", "--all", "--reason", "a test"]).badly(2);
    let gone = ["inbox", "discard", "--all", "--group", "NOTIFY", "--reason", "a test"];
    assert_eq!(ground.json(&gone)["changed"], 5);
    let dead = ground.json(&["inbox", "failed", "--state", "dead"]);
    assert_eq!(dead["events"].as_array().unwrap().len(), 5);
    assert!(dead["events"][0]["error"].as_str().unwrap().contains("a test"), "{dead}");
    // The envelope stays with what was given up, so that it can still be sent round again.
    let filter = semel::store::Filter { state: Some(semel::State::Dead), ..Default::default() };
    let page = place.ledger().list(&filter, None, 10).await.unwrap();
    assert!(page.entries.iter().all(|entry| entry.record.parcel.is_some()));
    place.close().await;
}

on!(failed_events_are_redriven_and_discarded: sqlite, postgres, redis);
