//! `semel records purge` and `semel sweep` where something goes wrong, and what an audit keeps of them.

use std::time::Duration;

use serde_json::{Value, json};

use crate::ground::{Ground, audited, on, sql};
use crate::seeds::{HOUR, dead, ended, failed, key, succeeded};

/// The second line of the audit, which says what was done.
fn audit(stderr: &str) -> Value {
    let [_, end] = audited(stderr);
    end
}

/// What is removed leaves lines behind: about a record, or about all that a filter let through.
async fn what_is_purged_is_audited(ground: Ground) {
    let place = ground.place().await;
    let ledger = place.ledger();
    for id in ["a", "b", "c"] {
        ended(&ledger, &key("PAY", id), dead("no")).await;
    }
    ended(&ledger, &key("PAY", "paid"), succeeded("1", "r", HOUR)).await;
    ended(&ledger, &key("PAY", "tried"), failed("no")).await;
    place.close().await;

    let purged = ground.run(&["records", "purge", "paid", "--reason", "a right to be forgotten"]);
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
    let purged = ground.run(&[&words[..], &["--reason", "done with"]].concat());
    let kept = audit(&purged.stderr);
    assert_eq!((&kept["audit"], &kept["count"]), (&"records purge".into(), &3.into()), "{kept}");
    assert_eq!(kept["filter"], json!({ "scope": "PAY", "state": "dead" }));
    assert_eq!(kept["reason"], "done with");
    purged.well();
    // Nothing is left for it to do, and that is said.
    let again = ground.run(&words);
    let kept = audit(&again.stderr);
    assert_eq!((&kept["phase"], &kept["count"]), (&"end".into(), &0.into()), "{kept}");
    again.well();
}

on!(what_is_purged_is_audited: sqlite, redis);

/// What was removed before a failure is told, and audited.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_that_fails_midway_says_how_far_it_came() {
    let ground = Ground::sqlite().await;
    let place = ground.place().await;
    let keys: Vec<_> = (0..6).map(|at| key("PAY", &format!("d{at}"))).collect();
    for key in &keys {
        ended(&place.ledger(), key, dead("no")).await;
    }
    place.close().await;
    // They are listed in the order of their digests.
    let last = keys.iter().max_by_key(|key| key.digest().as_bytes().to_vec()).unwrap().id();
    let stuck = format!(
        "CREATE TRIGGER stuck BEFORE DELETE ON semel_record WHEN old.id = '{last}' \
         BEGIN SELECT RAISE(ABORT, 'the disk is gone'); END"
    );
    sql(&ground, &stuck).await;
    let purged = ground.run(&["records", "purge", "--all", "--scope", "PAY", "--json"]);
    assert_eq!((purged.code, purged.stdout.as_str()), (Some(4), ""), "{}", purged.stderr);
    assert!(purged.stderr.contains("5 records removed, then"), "{}", purged.stderr);
    let kept = audit(&purged.stderr);
    assert_eq!((&kept["phase"], &kept["count"]), (&"unfinished".into(), &5.into()), "{kept}");
    assert_eq!(ground.json(&["records", "list"])["records"][0]["id"], last);
}

/// The same of a sweep.
#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_that_fails_midway_says_how_far_it_came() {
    let ground = Ground::sqlite().await;
    let place = ground.place().await;
    ended(&place.ledger(), &key("PAY", "old"), succeeded("1", "r", Duration::ZERO)).await;
    place.close().await;
    // More than one step takes, and at the end of the second step it is stuck.
    let columns = "kind, tenant, scope, principal, id, number, fingerprint, state, operation_id, \
                   attempt_id, attempt, fence, owner, on_crash, keep_us, created_at, updated_at, \
                   completed_at, expires_at, sweep_at";
    sql(
        &ground,
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
    let said = ground.run(&["sweep"]).badly(4);
    let kept = audit(&said);
    assert_eq!((&kept["phase"], &kept["count"]), (&"unfinished".into(), &1000.into()), "{kept}");
    assert!(said.contains("1000 records removed, 0 suspended, then"), "{said}");
}
