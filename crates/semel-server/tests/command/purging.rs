//! Tests of failures of `semel records purge` and `semel sweep`, and of their audit lines.

use std::time::Duration;

use serde_json::{Value, json};

use crate::fixture::{Fixture, audited, on, sql};
use crate::seeds::{HOUR, dead, ended, failed, key, succeeded};

/// Returns the second audit line, which has the number of changes.
fn audit(stderr: &str) -> Value {
    let [_, end] = audited(stderr);
    end
}

/// A purge leaves audit lines, about one record or about a filter.
async fn purged_records_are_audited(fixture: Fixture) {
    let store = fixture.open_store().await;
    let ledger = store.ledger();
    for id in ["a", "b", "c"] {
        ended(&ledger, &key("PAY", id), dead("no")).await;
    }
    ended(&ledger, &key("PAY", "paid"), succeeded("1", "r", HOUR)).await;
    ended(&ledger, &key("PAY", "tried"), failed("no")).await;
    store.close().await;

    let purged = fixture.run(&["records", "purge", "paid", "--reason", "a right to be forgotten"]);
    let kept = audit(&purged.stderr);
    assert_eq!(
        (&kept["audit"], &kept["seen"]),
        (&"records purge".into(), &"succeeded".into()),
        "{kept}"
    );
    assert_eq!(kept["reason"], "a right to be forgotten");
    assert_eq!(kept["digest"].as_str().map(str::len), Some(64), "{kept}");
    assert!(kept["at"].is_string() && !purged.stderr.contains("\"paid\""), "{kept}");
    purged.well();

    let words = ["records", "purge", "--all", "--state", "dead", "--scope", "PAY"];
    let purged = fixture.run(&[&words[..], &["--reason", "done with"]].concat());
    let kept = audit(&purged.stderr);
    assert_eq!((&kept["audit"], &kept["count"]), (&"records purge".into(), &3.into()), "{kept}");
    assert_eq!(kept["filter"], json!({ "scope": "PAY", "state": "dead" }));
    assert_eq!(kept["reason"], "done with");
    purged.well();
    // Nothing is left to remove, and the audit shows that.
    let again = fixture.run(&words);
    let kept = audit(&again.stderr);
    assert_eq!((&kept["phase"], &kept["count"]), (&"end".into(), &0.into()), "{kept}");
    again.well();
}

on!(purged_records_are_audited: sqlite, redis);

/// The number of records that were removed before a failure is printed and audited.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_that_fails_midway_prints_its_progress() {
    let fixture = Fixture::sqlite().await;
    let store = fixture.open_store().await;
    let keys: Vec<_> = (0..6).map(|at| key("PAY", &format!("d{at}"))).collect();
    for key in &keys {
        ended(&store.ledger(), key, dead("no")).await;
    }
    store.close().await;
    // The records are listed in the order of their digests.
    let last = keys.iter().max_by_key(|key| key.digest().as_bytes().to_vec()).unwrap().id();
    let stuck = format!(
        "CREATE TRIGGER stuck BEFORE DELETE ON semel_record WHEN old.id = '{last}' \
         BEGIN SELECT RAISE(ABORT, 'the disk is gone'); END"
    );
    sql(&fixture, &stuck).await;
    let purged = fixture.run(&["records", "purge", "--all", "--scope", "PAY", "--json"]);
    assert_eq!((purged.code, purged.stdout.as_str()), (Some(4), ""), "{}", purged.stderr);
    assert!(purged.stderr.contains("5 records removed, then"), "{}", purged.stderr);
    let kept = audit(&purged.stderr);
    assert_eq!((&kept["phase"], &kept["count"]), (&"unfinished".into(), &5.into()), "{kept}");
    assert_eq!(fixture.json(&["records", "list"])["records"][0]["id"], last);
}

/// The number of records that a sweep removed before a failure is printed and audited.
#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_that_fails_midway_prints_its_progress() {
    let fixture = Fixture::sqlite().await;
    let store = fixture.open_store().await;
    ended(&store.ledger(), &key("PAY", "old"), succeeded("1", "r", Duration::ZERO)).await;
    store.close().await;
    // More records than one step takes; the second step fails.
    let columns = "kind, tenant, scope, principal, id, number, fingerprint, state, operation_id, \
                   attempt_id, attempt, fence, owner, on_crash, keep_us, created_at, updated_at, \
                   completed_at, expires_at, sweep_at";
    sql(
        &fixture,
        &format!(
            "INSERT INTO semel_record (digest, {columns}) \
             WITH RECURSIVE more(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM more WHERE n < 1500) \
             SELECT randomblob(32), {columns} FROM semel_record, more; \
             CREATE TRIGGER stuck BEFORE DELETE ON semel_record \
             WHEN (SELECT count(*) FROM semel_record) < 100 \
             BEGIN SELECT RAISE(ABORT, 'the disk is gone'); END"
        ),
    )
    .await;
    let output = fixture.run(&["sweep"]).badly(4);
    let kept = audit(&output);
    assert_eq!((&kept["phase"], &kept["count"]), (&"unfinished".into(), &1000.into()), "{kept}");
    assert!(output.contains("1000 records removed, 0 suspended, then"), "{output}");
}
