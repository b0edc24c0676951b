//! Tests of `semel sweep`.

use std::time::Duration;

use semel_core::OnCrash;

use crate::fixture::{Fixture, on};
use crate::seeds::{HOUR, claimed, dead, ended, key, succeeded};

/// Expired records are removed, lapsed claims under Hold are suspended, all others stay.
async fn expired_records_are_swept(fixture: Fixture) {
    let store = fixture.open_store().await;
    let ledger = store.ledger();
    for at in 0..5 {
        ended(&ledger, &key("PAY", &format!("old-{at}")), succeeded("1", "r", Duration::ZERO))
            .await;
    }
    ended(&ledger, &key("PAY", "kept"), succeeded("1", "r", HOUR)).await;
    ended(&ledger, &key("PAY", "dead"), dead("no")).await;
    claimed(&ledger, &key("PAY", "held"), OnCrash::Hold, HOUR).await;
    claimed(&ledger, &key("PAY", "lapsed"), OnCrash::Hold, Duration::ZERO).await;

    let planned = fixture.json(&["sweep", "--dry-run"]);
    assert_eq!((&planned["removed"], &planned["suspended"]), (&5.into(), &1.into()), "{planned}");
    let some = fixture.json(&["sweep", "--limit", "2"]);
    assert_eq!(some["removed"].as_u64().unwrap() + some["suspended"].as_u64().unwrap(), 2);
    let rest = fixture.json(&["sweep"]);
    let total = rest["removed"].as_u64().unwrap() + rest["suspended"].as_u64().unwrap();
    assert_eq!(total, 4, "{rest}");
    assert!(fixture.run(&["sweep"]).well().contains("0 records removed, 0 suspended"));
    let left = fixture.json(&["records", "list"]);
    assert_eq!(left["records"].as_array().unwrap().len(), 4, "{left}");
    let uncertain = fixture.json(&["records", "list", "--state", "uncertain"]);
    assert_eq!(uncertain["records"][0]["id"], "lapsed");
    store.close().await;
}

on!(expired_records_are_swept: sqlite, redis);
