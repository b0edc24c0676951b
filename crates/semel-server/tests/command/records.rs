//! `semel records`: listing, finding, releasing, purging.

use semel_core::{Key, Kind, OnCrash, Principal};

use crate::ground::{Ground, audited, damage, on, sql};
use crate::program::Ended;
use crate::seeds::{HOUR, claimed, dead, ended, failed, key, succeeded, uncertain};

fn ids(listed: &serde_json::Value) -> Vec<String> {
    let records = listed["records"].as_array().unwrap();
    let mut ids: Vec<String> =
        records.iter().map(|record| record["id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids
}

/// Filters find what they name, and pages give everything once.
async fn records_are_listed(ground: Ground) {
    let place = ground.place().await;
    let ledger = place.ledger();
    for at in 0..7 {
        ended(&ledger, &key("PAY", &format!("p{at}")), succeeded("1", "ord_1", HOUR)).await;
    }
    ended(&ledger, &key("REFUND", "f"), failed("no\nroom")).await;
    ended(&ledger, &key("REFUND", "d"), dead("used up")).await;
    let theirs = Key::new(Kind::Http, "other", "POST /x", Principal::of("ann"), "h").unwrap();
    ended(&ledger, &theirs, uncertain("?")).await;
    ended(&ledger, &key("POST /x/y", "below"), dead("no")).await;
    claimed(&ledger, &key("PAY", "running"), OnCrash::Rerun, HOUR).await;

    let list = |words: &[&str]| ground.json(&[&["records", "list"], words].concat());
    assert_eq!(ids(&list(&[])).len(), 12);
    assert_eq!(ids(&list(&["--scope", "REFUND"])), ["d", "f"]);
    assert_eq!(ids(&list(&["--scope", "POST /x"])), ["h"], "not what lies below");
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

    let table = ground.run(&["records", "list", "--scope", "REFUND"]).well();
    assert_eq!(table.lines().count(), 3, "one line a record: {table}");
    assert!(table.contains("DIGEST") && table.contains(r"no\nroom"), "{table}");
    place.close().await;
}

on!(records_are_listed: sqlite, mysql, redis);

/// A record is found by its id, its reference, what logs show of it, and its operation.
async fn a_record_is_found_by_any_of_its_names(ground: Ground) {
    let place = ground.place().await;
    let ledger = place.ledger();
    ended(&ledger, &key("PAY", "one"), succeeded("{\"paid\":1}", "pay_1", HOUR)).await;
    ended(&ledger, &key("PAY", "two"), dead("no")).await;
    let record = ground.json(&["records", "show", "one"])["command"].clone();
    assert_eq!(record["state"], "succeeded");
    let digest = record["digest"].as_str().unwrap();
    let operation = record["operation_id"].as_str().unwrap();
    for name in ["pay_1", digest, &digest[..8], operation] {
        let found = ground.json(&["records", "show", name]);
        assert_eq!(found["command"]["id"], "one", "{name}");
    }
    let exact =
        ["--kind", "command", "--tenant", "acme", "--scope", "PAY", "--principal", "global"];
    let found = ground.json(&[&["records", "show", "two"], &exact[..]].concat());
    assert_eq!(found["command"]["state"], "dead");
    assert_eq!(ground.run(&["records", "show", "one", "--body"]).well(), "{\"paid\":1}");
    place.close().await;
}

on!(a_record_is_found_by_any_of_its_names: sqlite, postgres, mysql, redis);

/// A name that matches several records is refused with the candidates.
async fn an_ambiguous_key_shows_its_candidates(ground: Ground) {
    let place = ground.place().await;
    let ledger = place.ledger();
    for scope in ["PAY", "REFUND"] {
        ended(&ledger, &key(scope, "k"), dead("no")).await;
    }
    for verb in [&["release"][..], &["purge"], &["resolve", "--rerun"], &["show"]] {
        let words = [&["records"], verb, &["k"]].concat();
        let ended = ground.run(&words);
        assert!(
            ended.stdout.contains("PAY") && ended.stdout.contains("REFUND"),
            "{}",
            ended.stdout
        );
        assert!(ended.badly(2).contains("--scope"));
    }
    let candidates = ground.run(&["records", "release", "k", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&candidates.stdout).unwrap();
    assert_eq!(said["candidates"].as_array().unwrap().len(), 2);
    ground.run(&["records", "release", "k", "--scope", "PAY"]).well();
    let left = ground.json(&["records", "list", "--state", "dead"]);
    assert_eq!(left["records"][0]["scope"], "REFUND");
    place.close().await;
}

on!(an_ambiguous_key_shows_its_candidates: sqlite, mysql);

/// An unknown key is one line and code 2, for every verb.
async fn an_unknown_key_is_refused(ground: Ground) {
    let answer = ground.scratch.file("answer.json", "{}");
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
        let said = ground.run(words).badly(2);
        assert!(said.contains("no record"), "{said}");
    }
}

on!(an_unknown_key_is_refused: sqlite, postgres, redis);

/// A released record is run by the next caller.
async fn a_released_record_is_due(ground: Ground) {
    let place = ground.place().await;
    let ledger = place.ledger();
    ended(&ledger, &key("PAY", "failed"), failed("no")).await;
    ended(&ledger, &key("PAY", "dead"), dead("no")).await;
    ended(&ledger, &key("PAY", "uncertain"), uncertain("?")).await;
    ended(&ledger, &key("PAY", "done"), succeeded("1", "r", HOUR)).await;
    for id in ["failed", "dead", "uncertain"] {
        let before = ground.json(&["records", "show", id]);
        ground.run(&["records", "release", id, "--dry-run"]).well();
        assert_eq!(ground.json(&["records", "show", id]), before, "a dry run changes nothing");
        let said = ground.run(&["records", "release", id]).well();
        assert!(said.contains("released"), "{said}");
    }
    assert_eq!(ids(&ground.json(&["records", "list", "--due"])), ["dead", "failed", "uncertain"]);
    let said = ground.run(&["records", "release", "done"]).badly(1);
    assert!(said.contains("succeeded"), "{said}");
    place.close().await;
}

on!(a_released_record_is_due: sqlite, redis);

/// One is purged by its name, many by what they have in common; what runs stays.
async fn purged_records_are_gone(ground: Ground) {
    let place = ground.place().await;
    let ledger = place.ledger();
    for at in 0..5 {
        ended(&ledger, &key("PAY", &format!("d{at}")), dead("no")).await;
    }
    ended(&ledger, &key("PAY", "one"), succeeded("1", "r", HOUR)).await;
    claimed(&ledger, &key("PAY", "held"), OnCrash::Rerun, HOUR).await;

    let said = ground.run(&["records", "purge", "held"]).badly(1);
    assert!(said.contains("runs"), "{said}");
    ground.run(&["records", "purge", "one", "--dry-run"]).well();
    assert_eq!(ground.json(&["records", "purge", "one"])["removed"], 1);
    ground.run(&["records", "show", "one"]).badly(2);
    let planned = ground.json(&["records", "purge", "--state", "dead", "--all", "--dry-run"]);
    assert_eq!(planned["removed"], 5, "{planned}");
    let purged = ground.json(&["records", "purge", "--state", "dead", "--all"]);
    assert_eq!(purged["removed"], 5, "{purged}");
    let said = ground.run(&["records", "purge", "--all"]).badly(2);
    assert!(said.contains("everything"), "{said}");
    let rest = ground.json(&["records", "purge", "--all", "--scope", "PAY"]);
    assert_eq!((&rest["removed"], &rest["left"]), (&0.into(), &1.into()), "{rest}");
    assert_eq!(ids(&ground.json(&["records", "list"])), ["held"]);
    place.close().await;
}

on!(purged_records_are_gone: sqlite, postgres);

/// Whatever a record holds, a terminal is told nothing by it, and nothing is hidden from its reader.
async fn what_is_stored_cannot_command_a_terminal(ground: Ground) {
    let place = ground.place().await;
    ended(&place.ledger(), &key("PAY\u{202e}", "k"), dead("\x1b[2J\x07\u{9b}1mgone")).await;
    place.close().await;
    for words in [
        &["records", "list"][..],
        &["records", "list", "--json"],
        &["records", "show", "k"],
        &["records", "show", "k", "--json"],
        &["records", "release", "k", "--dry-run"],
    ] {
        let Ended { stdout, .. } = ground.run(words);
        let obeyed = |c: char| c != '\n' && c.is_control() || c == '\u{202e}';
        assert!(!stdout.contains(obeyed), "{words:?}: {stdout:?}");
        assert!(stdout.contains("PAY\\u"), "{words:?} shows that there is something: {stdout:?}");
    }
    let listed = ground.json(&["records", "list"]);
    assert_eq!(listed["records"][0]["scope"], "PAY\u{202e}", "machines read what is stored");
}

on!(what_is_stored_cannot_command_a_terminal: sqlite, redis);

/// A list is as long as its lines, however long the answers are that it passes; `show` has them.
async fn a_list_tells_how_long_an_answer_is_and_leaves_it_there(ground: Ground) {
    let place = ground.place().await;
    let ledger = place.ledger();
    let answer = "x".repeat(900_000);
    for id in ["a", "b"] {
        ended(&ledger, &key("PAY", id), succeeded(&answer, "pay_1", HOUR)).await;
    }
    let listed = ground.json(&["records", "list"]);
    for record in listed["records"].as_array().unwrap() {
        assert_eq!(record["answer"]["bytes"], 900_000, "{record}");
        assert_eq!(record["answer"]["content_type"], "application/json");
        assert_eq!(record["reference"], "pay_1");
    }
    assert_eq!(ground.json(&["records", "show", "b"])["command"]["answer"]["bytes"], 900_000);
    assert_eq!(ground.run(&["records", "show", "a", "--body"]).well(), answer);
    place.close().await;
}

on!(a_list_tells_how_long_an_answer_is_and_leaves_it_there: sqlite, mysql, redis);

/// One damaged record is told wherever it is met, ends with code 3, and hides no other.
async fn a_record_that_cannot_be_read_is_told_and_hides_no_other(ground: Ground) {
    let place = ground.place().await;
    let ledger = place.ledger();
    for id in ["a", "b", "c"] {
        ended(&ledger, &key("PAY", id), dead("no")).await;
    }
    damage(&ground, &key("PAY", "b")).await;
    let digest: String = key("PAY", "b").digest().as_bytes().iter().map(hex).collect();

    let listed = ground.run(&["records", "list", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(ids(&told), ["a", "c"]);
    assert_eq!(told["unreadable"][0]["digest"], *digest);
    assert!(listed.badly(3).contains(&digest), "the operator is told which");
    let table = ground.run(&["records", "list"]);
    assert!(table.stdout.contains("unreadable"), "{}", table.stdout);
    assert_eq!(table.stdout.lines().count(), 4, "{}", table.stdout);
    table.badly(3);

    for words in [
        &["records", "show", &digest][..],
        &["records", "release", &digest[..8]],
        &["sweep", "--dry-run"],
        &["records", "purge", "--all", "--scope", "PAY", "--dry-run"],
    ] {
        assert!(ground.run(words).badly(3).contains("cannot be read"), "{words:?}");
    }
    let swept = ground.run(&["sweep", "--dry-run", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&swept.stdout).unwrap();
    assert_eq!(told["unreadable"], 1, "{told}");
    let doctor = ground.run(&["doctor", "--json"]);
    assert!(doctor.stdout.contains("records-unreadable"), "{}", doctor.stdout);
    ground.run(&["records", "show", "a"]).well();
    let purged = ground.run(&["records", "purge", "--all", "--scope", "PAY", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&purged.stdout).unwrap();
    assert_eq!((&told["removed"], &told["unreadable"]), (&2.into(), &1.into()), "{told}");
    // What was removed is audited, and then comes why that was not all.
    let [_, audit] = audited(&purged.stderr);
    let why = purged.stderr.lines().last().unwrap_or_default();
    assert!(audit["count"] == 2 && why.contains("cannot be read"), "{purged:?}");
    assert_eq!(purged.code, Some(3));
    place.close().await;
}

on!(a_record_that_cannot_be_read_is_told_and_hides_no_other: sqlite, postgres, mysql, redis);

/// A digest that was spoilt itself is where a list goes on, too: pages end, and a cursor that is none
/// is refused.
async fn a_list_gets_past_a_damaged_digest(ground: Ground) {
    let place = ground.place().await;
    for id in ["a", "b", "c"] {
        ended(&place.ledger(), &key("PAY", id), dead("no")).await;
    }
    sql(&ground, "UPDATE semel_record SET digest = digest || '\\x00'::bytea").await;
    for state in [&[][..], &["--state", "dead"]] {
        let (mut seen, mut after) = (Vec::new(), None::<String>);
        for _ in 0..3 {
            let from = after.iter().flat_map(|after| ["--after", after]);
            let words: Vec<_> = ["records", "list", "--limit", "1", "--json"].into();
            let words: Vec<_> = words.into_iter().chain(from).chain(state.to_vec()).collect();
            let Ended { stdout, .. } = ground.run(&words);
            let page: serde_json::Value = serde_json::from_str(&stdout).unwrap();
            seen.push(page["unreadable"][0]["digest"].as_str().unwrap().to_owned());
            after = page["next"].as_str().map(str::to_owned);
        }
        assert_eq!(after, None, "{seen:?}");
        assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    }
    for wrong in ["", "0", "xy"] {
        ground.run(&["records", "list", "--after", wrong]).badly(2);
    }
    place.close().await;
}

on!(a_list_gets_past_a_damaged_digest: postgres);

/// A cursor's digits do not show which store made it.
async fn a_cursor_of_another_store_is_code_2(ground: Ground) {
    let said = ground.run(&["records", "list", "--after", "00ff"]).badly(2);
    assert!(said.contains("not one of this store"), "{said}");
    let said = ground.run(&["inbox", "failed", "--after", "dead:00ff"]).badly(2);
    assert!(said.contains("not one of this store"), "{said}");
}

on!(a_cursor_of_another_store_is_code_2: redis);

/// A record in another state than the flags name does not match.
async fn a_whole_key_is_no_way_round_the_other_filters(ground: Ground) {
    let place = ground.place().await;
    ended(&place.ledger(), &key("PAY", "paid"), succeeded("1", "pay_1", HOUR)).await;
    let exact =
        ["--kind", "command", "--tenant", "acme", "--scope", "PAY", "--principal", "global"];
    let purge = [&["records", "purge", "paid"], &exact[..]].concat();
    for other in [&["--state", "failed"][..], &["--due"]] {
        let said = ground.run(&[&purge[..], other].concat()).badly(2);
        assert!(said.contains("among those that match the flags"), "{said}");
    }
    ground.run(&["records", "show", "paid"]).well();
    let purged = ground.json(&[&purge[..], &["--state", "succeeded"]].concat());
    assert_eq!(purged["removed"], 1);
    place.close().await;
}

on!(a_whole_key_is_no_way_round_the_other_filters: sqlite, redis);

/// One caller's records among others' come in pages of their own.
async fn a_callers_records_are_paged(ground: Ground) {
    let place = ground.place().await;
    let ledger = place.ledger();
    for at in 0..40 {
        let who = Principal::of(if at % 4 == 0 { "ann" } else { "bob" });
        let theirs = Key::new(Kind::Http, "acme", "POST /x", who, &format!("k{at:02}")).unwrap();
        ended(&ledger, &theirs, dead("no")).await;
    }
    let one = ground.json(&["records", "list", "--id", "k00"]);
    let digits = one["records"][0]["principal"].as_str().unwrap().to_owned();
    let (mut seen, mut after) = (Vec::new(), None::<String>);
    loop {
        let from = after.iter().flat_map(|after| ["--after", after]);
        let words = ["records", "list", "--limit", "3", "--principal", &digits];
        let page = ground.json(&words.into_iter().chain(from).collect::<Vec<_>>());
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
    place.close().await;
}

on!(a_callers_records_are_paged: sqlite, postgres, redis);

fn hex(byte: &u8) -> String {
    format!("{byte:02x}")
}
