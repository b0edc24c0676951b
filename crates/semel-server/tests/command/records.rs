//! Tests of `semel records`: listing, finding, releasing, purging.

use semel_core::{Key, Kind, OnCrash, Principal};

use crate::fixture::{Fixture, audited, damage, on, sql};
use crate::program::Ended;
use crate::seeds::{HOUR, claimed, dead, ended, failed, key, succeeded, uncertain};

fn ids(listed: &serde_json::Value) -> Vec<String> {
    let records = listed["records"].as_array().unwrap();
    let mut ids: Vec<String> =
        records.iter().map(|record| record["id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids
}

/// Filters find the matching records, and pages list every record once.
async fn records_are_listed(fixture: Fixture) {
    let store = fixture.open_store().await;
    let ledger = store.ledger();
    for at in 0..7 {
        ended(&ledger, &key("PAY", &format!("p{at}")), succeeded("1", "ord_1", HOUR)).await;
    }
    ended(&ledger, &key("REFUND", "f"), failed("no\nroom")).await;
    ended(&ledger, &key("REFUND", "d"), dead("used up")).await;
    let theirs = Key::new(Kind::Http, "other", "POST /x", Principal::of("ann"), "h").unwrap();
    ended(&ledger, &theirs, uncertain("?")).await;
    ended(&ledger, &key("POST /x/y", "below"), dead("no")).await;
    claimed(&ledger, &key("PAY", "running"), OnCrash::Rerun, HOUR).await;

    let list = |words: &[&str]| fixture.json(&[&["records", "list"], words].concat());
    assert_eq!(ids(&list(&[])).len(), 12);
    assert_eq!(ids(&list(&["--scope", "REFUND"])), ["d", "f"]);
    assert_eq!(ids(&list(&["--scope", "POST /x"])), ["h"], "not the paths below");
    assert_eq!(ids(&list(&["--state", "dead"])), ["below", "d"]);
    assert_eq!(ids(&list(&["--kind", "http", "--tenant", "other"])), ["h"]);
    assert_eq!(ids(&list(&["--id", "p3"])), ["p3"]);
    assert_eq!(ids(&list(&["--due"])), Vec::<String>::new());
    assert_eq!(ids(&list(&["--principal", "global", "--tenant", "other"])), Vec::<String>::new());

    let (mut seen, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = match &after {
            None => list(&["--limit", "4"]),
            Some(after) => list(&["--limit", "4", "--after", after]),
        };
        assert!(page["records"].as_array().unwrap().len() <= 4);
        seen.extend(ids(&page));
        after = page["next"].as_str().map(str::to_owned);
        if after.is_none() {
            break;
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 12, "{seen:?}");

    let table = fixture.run(&["records", "list", "--scope", "REFUND"]).well();
    assert_eq!(table.lines().count(), 3, "one line per record: {table}");
    assert!(table.contains("DIGEST") && table.contains(r"no\nroom"), "{table}");
    store.close().await;
}

on!(records_are_listed: sqlite, mysql, redis);

/// A record is found by its id, its reference, its digest, and its operation id.
async fn a_record_is_found_by_any_of_its_ids(fixture: Fixture) {
    let store = fixture.open_store().await;
    let ledger = store.ledger();
    ended(&ledger, &key("PAY", "one"), succeeded("{\"paid\":1}", "pay_1", HOUR)).await;
    ended(&ledger, &key("PAY", "two"), dead("no")).await;
    let record = fixture.json(&["records", "show", "one"])["command"].clone();
    assert_eq!(record["state"], "succeeded");
    let digest = record["digest"].as_str().unwrap();
    let operation = record["operation_id"].as_str().unwrap();
    for name in ["pay_1", digest, &digest[..8], operation] {
        let found = fixture.json(&["records", "show", name]);
        assert_eq!(found["command"]["id"], "one", "{name}");
    }
    let exact =
        ["--kind", "command", "--tenant", "acme", "--scope", "PAY", "--principal", "global"];
    let found = fixture.json(&[&["records", "show", "two"], &exact[..]].concat());
    assert_eq!(found["command"]["state"], "dead");
    assert_eq!(fixture.run(&["records", "show", "one", "--body"]).well(), "{\"paid\":1}");
    store.close().await;
}

on!(a_record_is_found_by_any_of_its_ids: sqlite, postgres, mysql, redis);

/// A name that matches several records is refused with the candidates.
async fn an_ambiguous_key_shows_its_candidates(fixture: Fixture) {
    let store = fixture.open_store().await;
    let ledger = store.ledger();
    for scope in ["PAY", "REFUND"] {
        ended(&ledger, &key(scope, "k"), dead("no")).await;
    }
    for verb in [&["release"][..], &["purge"], &["resolve", "--rerun"], &["show"]] {
        let words = [&["records"], verb, &["k"]].concat();
        let ended = fixture.run(&words);
        assert!(
            ended.stdout.contains("PAY") && ended.stdout.contains("REFUND"),
            "{}",
            ended.stdout
        );
        assert!(ended.badly(2).contains("--scope"));
    }
    let candidates = fixture.run(&["records", "release", "k", "--json"]);
    let output: serde_json::Value = serde_json::from_str(&candidates.stdout).unwrap();
    assert_eq!(output["candidates"].as_array().unwrap().len(), 2);
    fixture.run(&["records", "release", "k", "--scope", "PAY"]).well();
    let left = fixture.json(&["records", "list", "--state", "dead"]);
    assert_eq!(left["records"][0]["scope"], "REFUND");
    store.close().await;
}

on!(an_ambiguous_key_shows_its_candidates: sqlite, mysql);

/// An unknown key is one line and code 2, for every verb.
async fn an_unknown_key_is_refused(fixture: Fixture) {
    let answer = fixture.scratch.file("answer.json", "{}");
    for words in [
        &["records", "show", "nobody"][..],
        &["records", "release", "nobody"],
        &["records", "purge", "nobody"],
        &["records", "resolve", "nobody", "--rerun"],
        &["records", "resolve", "nobody", "--succeeded", &answer],
        &["records", "show", "01ARZ3NDEKTSV4RRFFQ69G5FAV"],
        &["records", "show", "00112233"],
        &["records", "show", "nobody", "--tenant", "acme"],
    ] {
        let output = fixture.run(words).badly(2);
        assert!(output.contains("no record"), "{output}");
    }
}

on!(an_unknown_key_is_refused: sqlite, postgres, redis);

/// A released record is run by the next caller.
async fn a_released_record_is_due(fixture: Fixture) {
    let store = fixture.open_store().await;
    let ledger = store.ledger();
    ended(&ledger, &key("PAY", "failed"), failed("no")).await;
    ended(&ledger, &key("PAY", "dead"), dead("no")).await;
    ended(&ledger, &key("PAY", "uncertain"), uncertain("?")).await;
    ended(&ledger, &key("PAY", "done"), succeeded("1", "r", HOUR)).await;
    for id in ["failed", "dead", "uncertain"] {
        let before = fixture.json(&["records", "show", id]);
        fixture.run(&["records", "release", id, "--dry-run"]).well();
        assert_eq!(fixture.json(&["records", "show", id]), before, "a dry run changes nothing");
        let output = fixture.run(&["records", "release", id]).well();
        assert!(output.contains("released"), "{output}");
    }
    assert_eq!(ids(&fixture.json(&["records", "list", "--due"])), ["dead", "failed", "uncertain"]);
    let output = fixture.run(&["records", "release", "done"]).badly(1);
    assert!(output.contains("succeeded"), "{output}");
    store.close().await;
}

on!(a_released_record_is_due: sqlite, redis);

/// One record is purged by its id, many by filters; claims whose lease runs stay.
async fn purged_records_are_gone(fixture: Fixture) {
    let store = fixture.open_store().await;
    let ledger = store.ledger();
    for at in 0..5 {
        ended(&ledger, &key("PAY", &format!("d{at}")), dead("no")).await;
    }
    ended(&ledger, &key("PAY", "one"), succeeded("1", "r", HOUR)).await;
    claimed(&ledger, &key("PAY", "held"), OnCrash::Rerun, HOUR).await;

    let output = fixture.run(&["records", "purge", "held"]).badly(1);
    assert!(output.contains("runs"), "{output}");
    fixture.run(&["records", "purge", "one", "--dry-run"]).well();
    assert_eq!(fixture.json(&["records", "purge", "one"])["removed"], 1);
    fixture.run(&["records", "show", "one"]).badly(2);
    let planned = fixture.json(&["records", "purge", "--state", "dead", "--all", "--dry-run"]);
    assert_eq!(planned["removed"], 5, "{planned}");
    let purged = fixture.json(&["records", "purge", "--state", "dead", "--all"]);
    assert_eq!(purged["removed"], 5, "{purged}");
    let output = fixture.run(&["records", "purge", "--all"]).badly(2);
    assert!(output.contains("everything"), "{output}");
    let rest = fixture.json(&["records", "purge", "--all", "--scope", "PAY"]);
    assert_eq!((&rest["removed"], &rest["left"]), (&0.into(), &1.into()), "{rest}");
    assert_eq!(ids(&fixture.json(&["records", "list"])), ["held"]);
    store.close().await;
}

on!(purged_records_are_gone: sqlite, postgres);

/// Control characters in a record are escaped, so that they neither reach a terminal nor hide text.
async fn stored_control_characters_do_not_reach_a_terminal(fixture: Fixture) {
    let store = fixture.open_store().await;
    ended(&store.ledger(), &key("PAY\u{202e}", "k"), dead("\x1b[2J\x07\u{9b}1mgone")).await;
    store.close().await;
    for words in [
        &["records", "list"][..],
        &["records", "list", "--json"],
        &["records", "show", "k"],
        &["records", "show", "k", "--json"],
        &["records", "release", "k", "--dry-run"],
    ] {
        let Ended { stdout, .. } = fixture.run(words);
        let obeyed = |c: char| c != '\n' && c.is_control() || c == '\u{202e}';
        assert!(!stdout.contains(obeyed), "{words:?}: {stdout:?}");
        assert!(stdout.contains("PAY\\u"), "{words:?} shows that there is something: {stdout:?}");
    }
    let listed = fixture.json(&["records", "list"]);
    assert_eq!(listed["records"][0]["scope"], "PAY\u{202e}", "machines read what is stored");
}

on!(stored_control_characters_do_not_reach_a_terminal: sqlite, redis);

/// A list shows the size of an outcome, not its body; `show` prints the body.
async fn a_list_shows_the_size_of_an_outcome_and_not_its_body(fixture: Fixture) {
    let store = fixture.open_store().await;
    let ledger = store.ledger();
    let answer = "x".repeat(900_000);
    for id in ["a", "b"] {
        ended(&ledger, &key("PAY", id), succeeded(&answer, "pay_1", HOUR)).await;
    }
    let listed = fixture.json(&["records", "list"]);
    for record in listed["records"].as_array().unwrap() {
        assert_eq!(record["answer"]["bytes"], 900_000, "{record}");
        assert_eq!(record["answer"]["content_type"], "application/json");
        assert_eq!(record["reference"], "pay_1");
    }
    assert_eq!(fixture.json(&["records", "show", "b"])["command"]["answer"]["bytes"], 900_000);
    assert_eq!(fixture.run(&["records", "show", "a", "--body"]).well(), answer);
    store.close().await;
}

on!(a_list_shows_the_size_of_an_outcome_and_not_its_body: sqlite, mysql, redis);

/// Every command that meets a damaged record reports it, ends with code 3, and still shows the
/// others.
async fn an_unreadable_record_is_reported_and_hides_no_other(fixture: Fixture) {
    let store = fixture.open_store().await;
    let ledger = store.ledger();
    for id in ["a", "b", "c"] {
        ended(&ledger, &key("PAY", id), dead("no")).await;
    }
    damage(&fixture, &key("PAY", "b")).await;
    let digest: String = key("PAY", "b").digest().as_bytes().iter().map(hex).collect();

    let listed = fixture.run(&["records", "list", "--json"]);
    let reported: serde_json::Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(ids(&reported), ["a", "c"]);
    assert_eq!(reported["unreadable"][0]["digest"], *digest);
    assert!(listed.badly(3).contains(&digest), "the output contains its digest");
    let table = fixture.run(&["records", "list"]);
    assert!(table.stdout.contains("unreadable"), "{}", table.stdout);
    assert_eq!(table.stdout.lines().count(), 4, "{}", table.stdout);
    table.badly(3);

    for words in [
        &["records", "show", &digest][..],
        &["records", "release", &digest[..8]],
        &["sweep", "--dry-run"],
        &["records", "purge", "--all", "--scope", "PAY", "--dry-run"],
    ] {
        assert!(fixture.run(words).badly(3).contains("cannot be read"), "{words:?}");
    }
    let swept = fixture.run(&["sweep", "--dry-run", "--json"]);
    let reported: serde_json::Value = serde_json::from_str(&swept.stdout).unwrap();
    assert_eq!(reported["unreadable"], 1, "{reported}");
    let doctor = fixture.run(&["doctor", "--json"]);
    assert!(doctor.stdout.contains("records-unreadable"), "{}", doctor.stdout);
    fixture.run(&["records", "show", "a"]).well();
    let purged = fixture.run(&["records", "purge", "--all", "--scope", "PAY", "--json"]);
    let reported: serde_json::Value = serde_json::from_str(&purged.stdout).unwrap();
    assert_eq!(
        (&reported["removed"], &reported["unreadable"]),
        (&2.into(), &1.into()),
        "{reported}"
    );
    // The audit line comes first, then the message about the unreadable record.
    let [_, audit] = audited(&purged.stderr);
    let why = purged.stderr.lines().last().unwrap_or_default();
    assert!(audit["count"] == 2 && why.contains("cannot be read"), "{purged:?}");
    assert_eq!(purged.code, Some(3));
    store.close().await;
}

on!(an_unreadable_record_is_reported_and_hides_no_other: sqlite, postgres, mysql, redis);

/// A damaged digest can be a cursor, too: the pages of a list end, and an invalid cursor is
/// refused.
async fn a_list_gets_past_a_damaged_digest(fixture: Fixture) {
    let store = fixture.open_store().await;
    for id in ["a", "b", "c"] {
        ended(&store.ledger(), &key("PAY", id), dead("no")).await;
    }
    sql(&fixture, "UPDATE semel_record SET digest = digest || '\\x00'::bytea").await;
    for state in [&[][..], &["--state", "dead"]] {
        let (mut seen, mut after) = (Vec::new(), None::<String>);
        for _ in 0..3 {
            let from = after.iter().flat_map(|after| ["--after", after]);
            let words: Vec<_> = ["records", "list", "--limit", "1", "--json"].into();
            let words: Vec<_> = words.into_iter().chain(from).chain(state.to_vec()).collect();
            let Ended { stdout, .. } = fixture.run(&words);
            let page: serde_json::Value = serde_json::from_str(&stdout).unwrap();
            seen.push(page["unreadable"][0]["digest"].as_str().unwrap().to_owned());
            after = page["next"].as_str().map(str::to_owned);
        }
        assert_eq!(after, None, "{seen:?}");
        assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    }
    for wrong in ["", "0", "xy"] {
        fixture.run(&["records", "list", "--after", wrong]).badly(2);
    }
    store.close().await;
}

on!(a_list_gets_past_a_damaged_digest: postgres);

/// A cursor's digits do not show which store made it.
async fn a_cursor_of_another_store_is_code_2(fixture: Fixture) {
    let output = fixture.run(&["records", "list", "--after", "00ff"]).badly(2);
    assert!(output.contains("not one of this store"), "{output}");
    let output = fixture.run(&["inbox", "failed", "--after", "dead:00ff"]).badly(2);
    assert!(output.contains("not one of this store"), "{output}");
}

on!(a_cursor_of_another_store_is_code_2: redis);

/// A record in a state other than that of the flags does not match.
async fn a_whole_key_does_not_bypass_the_other_filters(fixture: Fixture) {
    let store = fixture.open_store().await;
    ended(&store.ledger(), &key("PAY", "paid"), succeeded("1", "pay_1", HOUR)).await;
    let exact =
        ["--kind", "command", "--tenant", "acme", "--scope", "PAY", "--principal", "global"];
    let purge = [&["records", "purge", "paid"], &exact[..]].concat();
    for other in [&["--state", "failed"][..], &["--due"]] {
        let output = fixture.run(&[&purge[..], other].concat()).badly(2);
        assert!(output.contains("among those that match the flags"), "{output}");
    }
    fixture.run(&["records", "show", "paid"]).well();
    let purged = fixture.json(&[&purge[..], &["--state", "succeeded"]].concat());
    assert_eq!(purged["removed"], 1);
    store.close().await;
}

on!(a_whole_key_does_not_bypass_the_other_filters: sqlite, redis);

/// The records of one caller are paged separately from those of others.
async fn a_callers_records_are_paged(fixture: Fixture) {
    let store = fixture.open_store().await;
    let ledger = store.ledger();
    for at in 0..40 {
        let who = Principal::of(if at % 4 == 0 { "ann" } else { "bob" });
        let theirs = Key::new(Kind::Http, "acme", "POST /x", who, &format!("k{at:02}")).unwrap();
        ended(&ledger, &theirs, dead("no")).await;
    }
    let one = fixture.json(&["records", "list", "--id", "k00"]);
    let digits = one["records"][0]["principal"].as_str().unwrap().to_owned();
    let (mut seen, mut after) = (Vec::new(), None::<String>);
    loop {
        let from = after.iter().flat_map(|after| ["--after", after]);
        let words = ["records", "list", "--limit", "3", "--principal", &digits];
        let page = fixture.json(&words.into_iter().chain(from).collect::<Vec<_>>());
        let found = ids(&page);
        after = page["next"].as_str().map(str::to_owned);
        assert!(found.len() == 3 || found.len() < 3 && after.is_none(), "{page}");
        seen.extend(found);
        if after.is_none() {
            break;
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen, (0..40).step_by(4).map(|at| format!("k{at:02}")).collect::<Vec<_>>());
    store.close().await;
}

on!(a_callers_records_are_paged: sqlite, postgres, redis);

fn hex(byte: &u8) -> String {
    format!("{byte:02x}")
}
