//! Tests of `semel migrate`.

use semel_server::store::{OpenMode, StoreHandle};
use serde_json::Value;

use crate::fixture::{Fixture, Scratch, on, sql};
use crate::program::run;

/// Applies the schema to an empty store, and checks that a second run changes nothing.
async fn comes_up_to_date(fixture: Fixture, migrations: usize) {
    let planned = fixture.json(&["migrate", "apply", "--dry-run"]);
    assert_eq!(planned["applied"].as_array().unwrap().len(), migrations, "{planned}");
    let again = fixture.json(&["migrate", "apply", "--dry-run"]);
    assert_eq!(planned, again, "a dry run changes nothing");
    let applied = fixture.json(&["migrate", "apply"]);
    assert_eq!(applied["applied"], planned["applied"]);
    let nothing = fixture.json(&["migrate", "apply"]);
    assert_eq!(nothing["applied"], serde_json::json!([]));
    assert!(fixture.run(&["migrate", "apply"]).well().contains("up to date"));
    let verified = fixture.json(&["migrate", "verify"]);
    assert_eq!((&verified["ok"], &verified["findings"]), (&true.into(), &serde_json::json!([])));
    fixture.run(&["records", "list"]).well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_comes_up_to_date() {
    comes_up_to_date(Fixture::bare_sqlite(), 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_comes_up_to_date() {
    let fixture = Fixture::bare_postgres().await;
    let lacking = fixture.run(&["migrate", "verify"]);
    assert!(lacking.stdout.contains("semel_record"), "{}", lacking.stdout);
    assert!(lacking.stdout.contains("run `semel migrate apply`"), "{}", lacking.stdout);
    let unread = fixture.run(&["records", "list"]).badly(1);
    assert!(unread.contains("semel_record") && unread.contains("semel doctor"), "{unread}");
    assert!(lacking.badly(3).contains("migrate apply"));
    comes_up_to_date(fixture, 6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql_comes_up_to_date() {
    comes_up_to_date(Fixture::bare_mysql().await, 5).await;
}

/// Checks that neither service starts on the store, and that both print the same reason.
fn no_service_starts(fixture: &Fixture, words: &str) {
    let gateway = ["gateway", "--upstream", "http://127.0.0.1:9", "--principal", "header:x-user"];
    for service in [&gateway[..], &["demo", "--grpc-listen", "127.0.0.1:0"]] {
        let flags = ["--listen", "127.0.0.1:0", "--admin-listen", "off"];
        let output = fixture.run(&[service, &flags].concat()).badly(1);
        assert!(
            output.contains(words) && output.contains("migrate print"),
            "{service:?}: {output}"
        );
    }
}

/// A complete migration history is no proof: missing columns are reported with a fix, and no
/// migration is reported as applied.
async fn damage_that_no_migration_fixes_is_reported_and_no_service_starts(fixture: Fixture) {
    for (damage, words) in [
        ("ALTER TABLE semel_record DROP COLUMN owner", "semel_record has no column owner"),
        ("DROP TABLE semel_outbox", "table semel_outbox does not exist"),
    ] {
        sql(&fixture, damage).await;
        for flags in [&[][..], &["--dry-run"]] {
            let apply = [&["migrate", "apply"], flags].concat();
            let ended = fixture.run(&[&apply[..], &["--json"]].concat());
            let output: Value = serde_json::from_str(&ended.stdout).unwrap();
            assert_eq!(output["applied"], serde_json::json!([]), "{output}");
            assert!(output["findings"].to_string().contains(words), "{output}");
            ended.badly(3);
            let text = fixture.run(&apply);
            assert!(text.stdout.contains(words), "{}", text.stdout);
            assert!(text.stdout.contains("fix: "), "{}", text.stdout);
            for untrue in ["up to date", "appl"] {
                assert!(!text.stdout.contains(untrue), "{}", text.stdout);
            }
            assert!(text.badly(3).contains("no migration fixes"));
        }
        let verified = fixture.run(&["migrate", "verify"]).badly(3);
        assert!(!verified.contains("migrate apply"), "applying would not help: {verified}");
    }
    no_service_starts(&fixture, "semel_record has no column owner");
}

on!(damage_that_no_migration_fixes_is_reported_and_no_service_starts: sqlite, postgres, mysql);

/// Without the unique key, two claims of one key would both be inserted.
async fn no_service_starts_on_a_ledger_without_its_key(fixture: Fixture) {
    let (damage, words) = match fixture.url.starts_with("postgres") {
        true => ("DROP CONSTRAINT semel_record_pkey", "does not keep digest unique"),
        false => ("DROP PRIMARY KEY", "semel_record has no primary key"),
    };
    sql(&fixture, &format!("ALTER TABLE semel_record {damage}")).await;
    let refused =
        StoreHandle::open(&fixture.url.parse().unwrap(), OpenMode::Serve, "").await.unwrap_err();
    assert!(refused.to_string().contains(words), "{refused}");
    fixture.run(&["migrate", "apply"]).badly(3);
}

on!(no_service_starts_on_a_ledger_without_its_key: postgres, mysql);

/// Only missing migrations are applied and reported.
async fn a_later_migration_is_applied_alone(fixture: Fixture) {
    sql(&fixture, "DROP TABLE semel_id_map").await;
    sql(&fixture, "DELETE FROM semel_migration WHERE version = 3").await;
    let planned = fixture.json(&["migrate", "apply", "--dry-run"]);
    let applied = fixture.json(&["migrate", "apply"]);
    assert_eq!(applied["applied"][0]["version"], 3, "{applied}");
    assert_eq!(applied["applied"].as_array().unwrap().len(), 1, "{applied}");
    assert_eq!(planned["applied"], applied["applied"]);
    fixture.run(&["migrate", "verify", "--strict"]).well();
}

on!(a_later_migration_is_applied_alone: sqlite, postgres, mysql);

/// Findings that are warnings do not stop a service.
async fn a_warning_about_the_schema_is_reported_and_stops_no_service(fixture: Fixture) {
    let (of, columns, values) = match fixture.url.split(':').next() {
        Some("mysql") => (" ON semel_record", "version, checksum, applied_at", "99, 'x', 1"),
        _ => ("", "version, name, checksum, applied_at", "99, 'later', 'x', 1"),
    };
    sql(&fixture, &format!("DROP INDEX semel_record_reference{of}")).await;
    sql(&fixture, &format!("INSERT INTO semel_migration ({columns}) VALUES ({values})")).await;
    for words in [
        &["records", "list"][..],
        &["outbox", "status"],
        &["inbox", "failed"],
        &["sweep"],
        &["migrate", "verify"],
    ] {
        fixture.run(words).well();
    }
    let applied = fixture.run(&["migrate", "apply"]).well();
    assert!(applied.contains("up to date"), "{applied}");
    let doctor = fixture.run(&["doctor"]).well();
    for output in [applied, doctor.clone(), fixture.run(&["migrate", "verify"]).well()] {
        assert!(output.contains("no index semel_record_reference"), "{output}");
        assert!(output.contains("the schema is at version 99"), "{output}");
    }
    assert!(doctor.contains("none is dead or uncertain"), "the rest is looked at: {doctor}");
    fixture.run(&["migrate", "verify", "--strict"]).badly(3);
    fixture.open_store().await.close().await;
}

on!(a_warning_about_the_schema_is_reported_and_stops_no_service: sqlite, postgres, mysql);

#[tokio::test]
async fn a_file_without_the_schema_has_findings() {
    let fixture = Fixture::bare_sqlite();
    fixture.scratch.file("ledger.db", "");
    let ended = fixture.run(&["migrate", "verify", "--json"]);
    assert!(ended.stdout.contains("sql-table-missing"), "{}", ended.stdout);
    ended.badly(3);
    let doctor = fixture.run(&["doctor"]);
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
