//! Tests of `semel inbox`.

use semel_core::EventId;
use semel_core::store::Inspect as _;
use semel_server::store::StoreHandle;

use crate::fixture::{Fixture, audited, damage, on, sql};
use crate::seeds::handled;

/// Failed events are listed by group, redriven, and discarded.
async fn failed_events_are_redriven_and_discarded(fixture: Fixture) {
    let handle = fixture.open_store().await;
    let events: Vec<EventId> = (0..5).map(|_| EventId::generate()).collect();
    for event in &events {
        handled(&handle, "NOTIFY", *event, false).await;
        handled(&handle, "INVENTORY", *event, true).await;
    }
    handled(&handle, "BILLING", events[0], false).await;

    let all = fixture.json(&["inbox", "failed"]);
    assert_eq!(all["events"].as_array().unwrap().len(), 6, "{all}");
    let group = fixture.json(&["inbox", "failed", "--group", "NOTIFY", "--limit", "3"]);
    assert_eq!(group["events"].as_array().unwrap().len(), 3);
    let after = group["next"].as_str().unwrap();
    let rest = fixture.json(&["inbox", "failed", "--group", "NOTIFY", "--after", after]);
    assert_eq!((rest["events"].as_array().unwrap().len(), rest["next"].as_str()), (2, None));
    let table = fixture.run(&["inbox", "failed", "--group", "BILLING"]).well();
    assert!(table.contains("the shelf is empty") && table.contains("order.placed"), "{table}");

    let first = events[0].to_string();
    assert_eq!(fixture.json(&["inbox", "redrive", &first, "--dry-run"])["changed"], 2);
    let due = ["records", "list", "--due"];
    assert_eq!(
        fixture.json(&due)["records"].as_array().unwrap().len(),
        0,
        "a dry run changes nothing"
    );
    assert_eq!(fixture.json(&["inbox", "redrive", &first, "--group", "NOTIFY"])["changed"], 1);
    assert_eq!(fixture.json(&due)["records"].as_array().unwrap().len(), 1);
    let all = fixture.json(&["inbox", "redrive", "--all"]);
    assert_eq!((&all["changed"], &all["already"]), (&5.into(), &1.into()), "each once: {all}");
    assert_eq!(fixture.json(&due)["records"].as_array().unwrap().len(), 6);

    let output = fixture.run(&["inbox", "redrive", &EventId::generate().to_string()]).badly(2);
    assert!(output.contains("no group has a failed record"), "{output}");
    fixture.run(&["inbox", "discard", "--all", "--reason", "a test"]).badly(2);
    let gone = ["inbox", "discard", "--all", "--group", "NOTIFY", "--reason", "a test"];
    assert_eq!(fixture.json(&gone)["changed"], 5);
    let again = fixture.json(&gone);
    assert_eq!((&again["changed"], &again["already"]), (&0.into(), &0.into()), "{again}");
    let discarded = fixture.json(&["inbox", "failed", "--state", "discarded"]);
    assert_eq!(discarded["events"].as_array().unwrap().len(), 5);
    assert_eq!(discarded["events"][0]["error"], "a test", "{discarded}");
    // A discarded record keeps the event, so that it can still be redriven.
    let discarded = Some(semel_core::State::Discarded);
    let filter = semel_core::store::Filter { state: discarded, ..Default::default() };
    let discarded = entries(&handle, &filter).await;
    assert!(
        discarded.len() >= 5 && discarded.iter().all(|entry| entry.record.retry_payload.is_some())
    );
    handle.close().await;
}

on!(failed_events_are_redriven_and_discarded: sqlite, postgres, redis);

/// Discarded events are not listed as failed and not redriven by --all, but only by their ids or
/// state.
async fn a_discarded_event_is_redriven_only_by_id_or_state(fixture: Fixture) {
    let handle = fixture.open_store().await;
    let events: Vec<EventId> = (0..3).map(|_| EventId::generate()).collect();
    for event in &events {
        handled(&handle, "NOTIFY", *event, false).await;
    }
    handle.close().await;
    let [one, two, _] = [0, 1, 2].map(|at: usize| events[at].to_string());
    let refunded = ["inbox", "discard", &one, &two, "--reason", "refunded by hand"];
    assert_eq!(fixture.json(&refunded)["changed"], 2);
    let again = fixture.json(&refunded);
    assert_eq!((&again["changed"], &again["already"]), (&0.into(), &2.into()), "{again}");
    let left = fixture.json(&["inbox", "failed"]);
    assert_eq!(left["events"].as_array().unwrap().len(), 1, "{left}");
    let strict = ["doctor", "--strict", "--json"];
    assert!(
        !fixture.run(&strict).stdout.contains("records-dead"),
        "a discarded event needs no attention"
    );

    let runbook = ["inbox", "redrive", "--all", "--group", "NOTIFY"];
    assert_eq!(fixture.json(&runbook)["changed"], 1, "the other one");
    let all = fixture.json(&["inbox", "redrive", "--all"]);
    assert_eq!((&all["changed"], &all["already"]), (&0.into(), &1.into()), "{all}");
    let table = fixture.run(&["inbox", "failed", "--state", "discarded"]).well();
    assert_eq!(table.matches("refunded by hand").count(), 2, "{table}");
    assert_eq!(fixture.json(&["inbox", "redrive", &one])["changed"], 1, "by its id");
    let named = ["inbox", "redrive", "--all", "--state", "discarded"];
    assert_eq!(fixture.json(&named)["changed"], 1, "by its state");
    assert_eq!(fixture.json(&["records", "list", "--due"])["records"].as_array().unwrap().len(), 3);
}

on!(a_discarded_event_is_redriven_only_by_id_or_state: sqlite, postgres, mysql, redis);

/// Returns all matching records. A page of Redis may be empty without being the last.
async fn entries(
    handle: &StoreHandle,
    filter: &semel_core::store::Filter,
) -> Vec<semel_core::Entry> {
    let (mut entries, mut after) = (Vec::new(), None);
    loop {
        let page = handle.ledger().list(filter, after.as_ref(), 100).await.unwrap();
        entries.extend(page.entries);
        after = page.next;
        if after.is_none() {
            return entries;
        }
    }
}

/// Triggers that settle all other records as soon as one record is changed, as another operator
/// could.
const RACE: [(&str, &str); 2] = [
    (
        "sqlite",
        "CREATE TRIGGER race AFTER UPDATE ON semel_record WHEN NEW.attempt = 0 BEGIN \
         UPDATE semel_record SET state = 1, number = number + 1, retry_at = NULL, error = NULL, \
         body = x'', content_type = 'application/octet-stream', reference = NULL \
         WHERE digest <> NEW.digest; END",
    ),
    (
        "postgres",
        "CREATE FUNCTION race() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         UPDATE semel_record SET state = 1, number = number + 1, retry_at = NULL, error = NULL, \
         body = '', content_type = 'application/octet-stream', reference = NULL \
         WHERE digest <> NEW.digest; RETURN NULL; END $$; \
         CREATE TRIGGER race AFTER UPDATE ON semel_record FOR EACH ROW \
         WHEN (NEW.attempt = 0 AND pg_trigger_depth() = 0) EXECUTE FUNCTION race()",
    ),
];

/// Records that were settled between the list and the verb are counted and left alone, which is not
/// an error.
async fn records_that_change_during_a_redrive_are_reported_and_left_alone(fixture: Fixture) {
    let handle = fixture.open_store().await;
    for _ in 0..3 {
        handled(&handle, "NOTIFY", EventId::generate(), false).await;
    }
    handle.close().await;
    let race = RACE.iter().find(|(store, _)| fixture.url.starts_with(store)).unwrap();
    sql(&fixture, race.1).await;
    let output = fixture.run(&["inbox", "redrive", "--all", "--dry-run"]).well();
    assert_eq!(output.trim(), "3 records would be redriven");
    let redriven = fixture.run(&["inbox", "redrive", "--all"]);
    let [_, kept] = audited(&redriven.stderr);
    assert_eq!((&kept["audit"], &kept["count"]), (&"inbox redrive".into(), &1.into()), "{kept}");
    assert_eq!(
        redriven.well().trim(),
        "1 record redriven, 2 changed meanwhile and were left alone"
    );
    let left = fixture.json(&["records", "list", "--state", "succeeded"]);
    assert_eq!(left["records"].as_array().unwrap().len(), 2, "{left}");
    let again = fixture.json(&["inbox", "redrive", "--all"]);
    assert_eq!(
        (&again["changed"], &again["already"], &again["moved"]),
        (&0.into(), &1.into(), &0.into())
    );
}

on!(records_that_change_during_a_redrive_are_reported_and_left_alone: sqlite, postgres);

/// An event whose record cannot be read is reported, and the others are redriven.
async fn an_unreadable_event_stops_no_redrive(fixture: Fixture) {
    let handle = fixture.open_store().await;
    let events: Vec<EventId> = (0..3).map(|_| EventId::generate()).collect();
    for event in &events {
        handled(&handle, "NOTIFY", *event, false).await;
    }
    let filter =
        semel_core::store::Filter { id: Some(events[1].to_string()), ..Default::default() };
    damage(&fixture, &entries(&handle, &filter).await[0].key).await;
    let redriven = fixture.run(&["inbox", "redrive", "--all", "--json"]);
    let reported: serde_json::Value = serde_json::from_str(&redriven.stdout).unwrap();
    assert_eq!(
        (&reported["changed"], &reported["unreadable"]),
        (&2.into(), &1.into()),
        "{reported}"
    );
    assert!(redriven.badly(3).contains("1 record cannot be read"));
    let failed = fixture.run(&["inbox", "failed"]);
    assert_eq!(failed.stdout.matches("unreadable").count(), 1, "{}", failed.stdout);
    failed.badly(3);
    handle.close().await;
}

on!(an_unreadable_event_stops_no_redrive: sqlite, mysql, redis);
