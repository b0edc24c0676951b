//! Tests of `semel outbox`.

use semel_core::ErrorText;
use semel_core::outbox::Disposition;

use crate::fixture::{Fixture, audited, on, sql};
use crate::seeds::{orders, relayed};

fn dead() -> Disposition {
    Disposition::Dead { error: ErrorText::new("refused: too large"), holds_partition: false }
}

/// Status, list, redrive and discard, by id and by filter.
async fn events_are_redriven_and_discarded(fixture: Fixture) {
    let store = fixture.open_store().await;
    let events = orders(&store, 12).await;
    let status = fixture.json(&["outbox", "status"]);
    assert_eq!((&status["waiting"], &status["dead"]), (&12.into(), &0.into()), "{status}");
    relayed(&store, dead()).await;
    let status = fixture.json(&["outbox", "status"]);
    assert_eq!((&status["waiting"], &status["dead"]), (&0.into(), &12.into()), "{status}");

    let first = fixture.json(&["outbox", "list", "--status", "dead", "--limit", "8"]);
    let next = first["next"].as_u64().unwrap().to_string();
    let rest = fixture.json(&["outbox", "list", "--status", "dead", "--after", &next]);
    let count = |page: &serde_json::Value| page["events"].as_array().unwrap().len();
    assert_eq!((count(&first), count(&rest), &rest["next"]), (8, 4, &serde_json::Value::Null));
    assert_eq!(first["events"][0]["error"], "refused: too large");
    assert_eq!(first["events"][0]["bytes"], "\"order-1\"".len());
    let table = fixture.run(&["outbox", "list"]).well();
    assert_eq!(table.lines().count(), 13, "{table}");

    let [one, two] = [events[0].to_string(), events[1].to_string()];
    assert_eq!(fixture.json(&["outbox", "redrive", &one, "--dry-run"])["changed"], 1);
    assert_eq!(fixture.json(&["outbox", "status"])["dead"], 12, "a dry run changes nothing");
    let twice = fixture.json(&["outbox", "redrive", &one, &one]);
    assert_eq!(twice["changed"], 1, "an event that is named twice counts once");
    let output = fixture.run(&["outbox", "redrive", &one, &two]).badly(1);
    assert!(output.contains("1 of the 2 named events"), "{output}");
    assert_eq!(fixture.json(&["outbox", "redrive", "--all"])["changed"], 10);
    assert_eq!(fixture.json(&["outbox", "redrive", "--all"])["changed"], 0);
    assert_eq!(fixture.json(&["outbox", "status"])["pending"], 12);

    fixture.run(&["outbox", "discard", "--all", "--reason", "a test"]).badly(2);
    let gone = ["outbox", "discard", "--all", "--type", "order.placed", "--reason", "a test"];
    assert_eq!(fixture.json(&[&gone[..], &["--dry-run"]].concat())["changed"], 12);
    let discarded = fixture.run(&gone);
    let [_, kept] = audited(&discarded.stderr);
    assert_eq!((&kept["audit"], &kept["count"]), (&"outbox discard".into(), &12.into()), "{kept}");
    assert_eq!(
        (&kept["filter"]["type"], &kept["reason"]),
        (&"order.placed".into(), &"a test".into())
    );
    assert_eq!(discarded.well().trim(), "12 events discarded");
    let listed = fixture.json(&["outbox", "list", "--limit", "1"]);
    assert!(listed["events"][0]["error"].as_str().unwrap().contains("a test"), "{listed}");
    store.close().await;
}

on!(events_are_redriven_and_discarded: sqlite, mysql);

/// Discarded events raise no warning and are not redriven by --all, but only by their ids or
/// status.
async fn a_discarded_event_is_redriven_only_by_id_or_status(fixture: Fixture) {
    let store = fixture.open_store().await;
    let events = orders(&store, 4).await;
    relayed(&store, dead()).await;
    store.close().await;
    let [one, two, ..] = [0, 1].map(|at: usize| events[at].to_string());
    let doctor = || fixture.run(&["doctor", "--json"]).well();
    assert!(doctor().contains("outbox-dead"));
    let refunded = ["outbox", "discard", &one, &two, "--reason", "refunded by hand"];
    assert_eq!(fixture.json(&refunded)["changed"], 2);
    let runbook = ["outbox", "redrive", "--all", "--status", "dead"];
    assert_eq!(fixture.json(&runbook)["changed"], 2, "the two others");
    assert_eq!(fixture.json(&["outbox", "redrive", "--all"])["changed"], 0);
    let status = fixture.json(&["outbox", "status"]);
    assert_eq!(
        (&status["pending"], &status["dead"], &status["discarded"]),
        (&2.into(), &0.into(), &2.into())
    );
    assert!(!doctor().contains("outbox-dead"), "the alert is over");
    let table = fixture.run(&["outbox", "list", "--status", "discarded"]).well();
    assert_eq!(table.matches("refunded by hand").count(), 2, "{table}");
    let listed = fixture.json(&["outbox", "list", "--status", "discarded"]);
    let first = &listed["events"][0];
    assert!(first["discarded_at"].is_string() && first["published_at"].is_null(), "{first}");

    assert_eq!(fixture.json(&["outbox", "redrive", &one])["changed"], 1, "by its id");
    let named = ["outbox", "redrive", "--all", "--status", "discarded"];
    assert_eq!(fixture.json(&named)["changed"], 1, "by its status");
    assert_eq!(fixture.json(&["outbox", "status"])["pending"], 4);
}

on!(a_discarded_event_is_redriven_only_by_id_or_status: sqlite, postgres, mysql);

/// Events that a broker confirmed and lost are published again: each event once, even if it is
/// published meanwhile.
async fn published_events_are_sent_again(fixture: Fixture) {
    let store = fixture.open_store().await;
    orders(&store, 4).await;
    relayed(&store, Disposition::Published).await;
    let output = fixture.run(&["outbox", "redrive", "--all", "--status", "published"]).badly(2);
    assert!(output.contains("published"), "{output}");
    assert_eq!(fixture.json(&["outbox", "redrive", "--all"])["changed"], 0);
    // All events are never republished without a filter, nor more than a flag allows.
    for (flags, named) in [
        (&[][..], "--type or --tenant"),
        (&["--yes"], "--type or --tenant"),
        (&["--type", "order.placed"], "would republish 4; confirm it with --yes"),
        (&["--type", "order.placed", "--max", "3"], "--max 3 forbids that"),
    ] {
        let refused = fixture.run(&[&["outbox", "republish", "--all"], flags].concat());
        assert!(!refused.stderr.contains("\"audit\""), "{}", refused.stderr);
        assert!(refused.badly(2).contains(named), "{flags:?}");
        assert_eq!(fixture.json(&["outbox", "status"])["published"], 4, "{flags:?}");
    }
    let typed = ["outbox", "republish", "--all", "--type", "order.placed"];
    assert_eq!(fixture.json(&[&typed[..], &["--dry-run"]].concat())["changed"], 4);
    assert_eq!(fixture.json(&[&typed[..], &["--max", "4"]].concat())["changed"], 4);
    assert_eq!(fixture.json(&["outbox", "status"])["pending"], 4);
    relayed(&store, Disposition::Published).await;
    assert_eq!(fixture.json(&[&typed[..], &["--yes"]].concat())["changed"], 4);
    store.close().await;
}

on!(published_events_are_sent_again: sqlite, postgres);

/// If the count stops at its limit, a dry run prints `at least`; the verb itself counts to the end.
async fn a_count_at_its_limit_prints_at_least(fixture: Fixture) {
    let store = fixture.open_store().await;
    orders(&store, 1).await;
    relayed(&store, dead()).await;
    let same = "aggregatetype, aggregateid, type, source, content_type, headers, occurred_at, \
                status, attempts, due_at, in_partition, token, error, created_at, published_at, payload";
    let copies = format!(
        "INSERT INTO semel_outbox (id, tenant, {same}) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL \
         SELECT i + 1 FROM n WHERE i < 100000) SELECT id, 't' || i, {same} FROM semel_outbox, n"
    );
    sql(&fixture, &copies).await;
    let planned = fixture.json(&["outbox", "redrive", "--all", "--dry-run"]);
    assert_eq!((&planned["changed"], &planned["at_least"]), (&100_000.into(), &true.into()));
    let output = fixture.run(&["outbox", "redrive", "--all", "--dry-run"]).well();
    assert_eq!(output.trim(), "at least 100000 events would be redriven");
    // More events than are counted need --yes.
    for flags in [&[][..], &["--max", "2000000"]] {
        let refused = fixture.run(&[&["outbox", "redrive", "--all"], flags].concat()).badly(2);
        assert!(refused.contains("would redrive 100000 or more"), "{refused}");
    }
    let some = ["outbox", "redrive", "--all", "--tenant", "acme", "--dry-run"];
    assert_eq!(fixture.json(&some)["at_least"], false, "the event with this id is ours");
    store.close().await;
}

on!(a_count_at_its_limit_prints_at_least: sqlite, postgres);

#[tokio::test]
async fn a_store_without_an_outbox_is_code_2() {
    let fixture = Fixture::redis().await;
    for words in [&["outbox", "status"][..], &["outbox", "redrive", "--all"]] {
        assert!(fixture.run(words).badly(2).contains("no outbox"));
    }
}
