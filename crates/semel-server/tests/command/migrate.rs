//! `semel migrate`.

use semel_server::store::{OpenMode, StoreHandle};
use serde_json::Value;

use crate::ground::{Ground, Scratch, on, sql};
use crate::program::run;

/// From nothing to a schema, and no further.
async fn comes_up_to_date(ground: Ground) {
    let planned = ground.json(&["migrate", "apply", "--dry-run"]);
    assert_eq!(planned["applied"].as_array().unwrap().len(), 3, "{planned}");
    let again = ground.json(&["migrate", "apply", "--dry-run"]);
    assert_eq!(planned, again, "a dry run changes nothing");
    let applied = ground.json(&["migrate", "apply"]);
    assert_eq!(applied["applied"], planned["applied"]);
    let nothing = ground.json(&["migrate", "apply"]);
    assert_eq!(nothing["applied"], serde_json::json!([]));
    assert!(ground.run(&["migrate", "apply"]).well().contains("up to date"));
    let verified = ground.json(&["migrate", "verify"]);
    assert_eq!((&verified["ok"], &verified["findings"]), (&true.into(), &serde_json::json!([])));
    ground.run(&["records", "list"]).well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_comes_up_to_date() {
    comes_up_to_date(Ground::bare_sqlite()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_comes_up_to_date() {
    let ground = Ground::bare_postgres().await;
    let lacking = ground.run(&["migrate", "verify"]);
    assert!(lacking.stdout.contains("semel_record"), "{}", lacking.stdout);
    assert!(lacking.stdout.contains("run `semel migrate apply`"), "{}", lacking.stdout);
    let unread = ground.run(&["records", "list"]).badly(1);
    assert!(unread.contains("semel_record") && unread.contains("semel doctor"), "{unread}");
    assert!(lacking.badly(3).contains("migrate apply"));
    comes_up_to_date(ground).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql_comes_up_to_date() {
    comes_up_to_date(Ground::bare_mysql().await).await;
}

/// Both services, started on the store: each says the same, and neither starts.
fn no_service_starts(ground: &Ground, words: &str) {
    let gateway = ["gateway", "--upstream", "http://127.0.0.1:9", "--principal", "header:x-user"];
    for service in [&gateway[..], &["demo", "--grpc-listen", "127.0.0.1:0"]] {
        let place = ["--listen", "127.0.0.1:0", "--admin-listen", "off"];
        let said = ground.run(&[service, &place].concat()).badly(1);
        assert!(said.contains(words) && said.contains("migrate print"), "{service:?}: {said}");
    }
}

/// A history that says that all is done is no proof: what is not there is told, with its fix, and
/// nothing is said to have been applied.
async fn what_no_migration_mends_is_told_and_no_service_starts(ground: Ground) {
    for (damage, words) in [
        ("ALTER TABLE semel_record DROP COLUMN owner", "semel_record has no column owner"),
        ("DROP TABLE semel_outbox", "table semel_outbox does not exist"),
    ] {
        sql(&ground, damage).await;
        for flags in [&[][..], &["--dry-run"]] {
            let apply = [&["migrate", "apply"], flags].concat();
            let ended = ground.run(&[&apply[..], &["--json"]].concat());
            let said: Value = serde_json::from_str(&ended.stdout).unwrap();
            assert_eq!(said["applied"], serde_json::json!([]), "{said}");
            assert!(said["findings"].to_string().contains(words), "{said}");
            ended.badly(3);
            let text = ground.run(&apply);
            assert!(text.stdout.contains(words), "{}", text.stdout);
            assert!(text.stdout.contains("fix: "), "{}", text.stdout);
            for untrue in ["up to date", "appl"] {
                assert!(!text.stdout.contains(untrue), "{}", text.stdout);
            }
            assert!(text.badly(3).contains("no migration fixes"));
        }
        let verified = ground.run(&["migrate", "verify"]).badly(3);
        assert!(!verified.contains("migrate apply"), "which would not help: {verified}");
    }
    no_service_starts(&ground, "semel_record has no column owner");
}

on!(what_no_migration_mends_is_told_and_no_service_starts: sqlite, postgres, mysql);

/// Without it a claim that meets another inserts a second one.
async fn no_service_starts_on_a_ledger_without_its_key(ground: Ground) {
    let (damage, words) = match ground.url.starts_with("postgres") {
        true => ("DROP CONSTRAINT semel_record_pkey", "does not keep digest unique"),
        false => ("DROP PRIMARY KEY", "semel_record has no primary key"),
    };
    sql(&ground, &format!("ALTER TABLE semel_record {damage}")).await;
    let refused =
        StoreHandle::open(&ground.url.parse().unwrap(), OpenMode::Serve, "").await.unwrap_err();
    assert!(refused.to_string().contains(words), "{refused}");
    ground.run(&["migrate", "apply"]).badly(3);
}

on!(no_service_starts_on_a_ledger_without_its_key: postgres, mysql);

/// Only what is missing is applied, and only that is said.
async fn a_later_migration_is_applied_alone(ground: Ground) {
    sql(&ground, "DROP TABLE semel_id_map").await;
    sql(&ground, "DELETE FROM semel_migration WHERE version = 3").await;
    let planned = ground.json(&["migrate", "apply", "--dry-run"]);
    let applied = ground.json(&["migrate", "apply"]);
    assert_eq!(applied["applied"][0]["version"], 3, "{applied}");
    assert_eq!(applied["applied"].as_array().unwrap().len(), 1, "{applied}");
    assert_eq!(planned["applied"], applied["applied"]);
    ground.run(&["migrate", "verify", "--strict"]).well();
}

on!(a_later_migration_is_applied_alone: sqlite, postgres, mysql);

/// Findings that are warnings do not stop a service.
async fn a_warning_about_the_schema_is_told_and_stops_nobody(ground: Ground) {
    let (of, columns, values) = match ground.url.split(':').next() {
        Some("mysql") => (" ON semel_record", "version, checksum, applied_at", "99, 'x', 1"),
        _ => ("", "version, name, checksum, applied_at", "99, 'later', 'x', 1"),
    };
    sql(&ground, &format!("DROP INDEX semel_record_reference{of}")).await;
    sql(&ground, &format!("INSERT INTO semel_migration ({columns}) VALUES ({values})")).await;
    for words in [
        &["records", "list"][..],
        &["outbox", "status"],
        &["inbox", "failed"],
        &["sweep"],
        &["migrate", "verify"],
    ] {
        ground.run(words).well();
    }
    let applied = ground.run(&["migrate", "apply"]).well();
    assert!(applied.contains("up to date"), "{applied}");
    let doctor = ground.run(&["doctor"]).well();
    for said in [applied, doctor.clone(), ground.run(&["migrate", "verify"]).well()] {
        assert!(said.contains("no index semel_record_reference"), "{said}");
        assert!(said.contains("the schema is at version 99"), "{said}");
    }
    assert!(doctor.contains("none is dead or uncertain"), "the rest is looked at: {doctor}");
    ground.run(&["migrate", "verify", "--strict"]).badly(3);
    ground.place().await.close().await;
}

on!(a_warning_about_the_schema_is_told_and_stops_nobody: sqlite, postgres, mysql);

#[tokio::test]
async fn a_file_without_the_schema_has_findings() {
    let ground = Ground::bare_sqlite();
    ground.scratch.file("ledger.db", "");
    let ended = ground.run(&["migrate", "verify", "--json"]);
    assert!(ended.stdout.contains("sql-table-missing"), "{}", ended.stdout);
    ended.badly(3);
    let doctor = ground.run(&["doctor"]);
    assert!(doctor.stdout.contains("semel_record"), "{}", doctor.stdout);
    doctor.badly(3);
}

#[test]
fn a_schema_is_printed_without_a_store() {
    let scratch = Scratch::new();
    for (words, says) in [
        (&["migrate", "print", "sqlite"][..], "SQLite"),
        (&["migrate", "print", "postgres"], "PostgreSQL"),
        (&["migrate", "print", "mysql"], "MySQL"),
        (&["migrate", "print", "--store", "postgres://nowhere/x"], "PostgreSQL"),
        (&["migrate", "print"], "SQLite"),
    ] {
        let script = run(scratch.path(), words).well();
        assert!(script.contains("semel_record") && script.contains(says), "{script}");
    }
    for words in [
        &["migrate", "print", "redis"][..],
        &["migrate", "print", "--store", "redis://nowhere"],
        &["migrate", "apply", "--store", "redis://nowhere"],
    ] {
        assert!(run(scratch.path(), words).well().contains("nothing to migrate"));
    }
}
