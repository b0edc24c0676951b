//! `semel migrate`.

use crate::ground::{Ground, Scratch};
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
