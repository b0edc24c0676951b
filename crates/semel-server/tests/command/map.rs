//! Tests of `semel map`.

use std::time::{Duration, Instant};

use semel_ids::shared::{CacheSlot, SharedCache as _};
use semel_redis::RedisCache;
use semel_server::store::StoreHandle;

use crate::fixture::{Fixture, on, server, sql};
use crate::program::{Ended, run};

const TABLE: [&str; 4] = ["--table", "orders", "--type", "ORDER"];

/// Creates a table of `count` orders without mappings. Returns their public ids.
async fn table(fixture: &Fixture, count: usize) -> Vec<String> {
    let made =
        run(fixture.scratch.path(), ["ids", "new", "ord", "--count", &count.to_string()]).well();
    sql(
        fixture,
        "CREATE TABLE orders (id INTEGER NOT NULL PRIMARY KEY, tenant_id VARCHAR(64) NOT NULL, \
         public_id VARCHAR(64) NOT NULL, internal_id CHAR(26) NOT NULL)",
    )
    .await;
    sql(fixture, "CREATE UNIQUE INDEX orders_public ON orders (tenant_id, public_id)").await;
    let rows: Vec<String> = made
        .lines()
        .enumerate()
        .map(|(at, id)| format!("({at}, 'acme', '{id}', '{}')", id[4..].to_uppercase()))
        .collect();
    for rows in rows.chunks(200) {
        sql(fixture, &format!("INSERT INTO orders VALUES {}", rows.join(", "))).await;
    }
    made.lines().map(str::to_owned).collect()
}

fn map(fixture: &Fixture, verb: &str, words: &[&str]) -> Ended {
    fixture.run(&[&["map", verb], &TABLE[..], words].concat())
}

fn json_of(ended: &Ended) -> serde_json::Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

/// Backfills the map, verifies it, damages it and repairs it.
async fn a_table_moves_into_the_map(fixture: Fixture) {
    table(&fixture, 250).await;
    let planned = json_of(&map(&fixture, "backfill", &["--dry-run", "--json"]));
    assert_eq!((&planned["written"], &planned["dry_run"]), (&250.into(), &true.into()));
    let lacking = map(&fixture, "verify", &["--json"]);
    assert_eq!(json_of(&lacking)["missing"]["count"], 250, "a dry run writes nothing");
    assert!(lacking.badly(3).contains("map repair"));
    let filled = map(&fixture, "backfill", &["--batch", "100", "--json"]);
    assert_eq!(json_of(&filled)["written"], 250);
    filled.well();
    let again = json_of(&map(&fixture, "backfill", &["--json"]));
    assert_eq!((&again["written"], &again["already"]), (&0.into(), &250.into()));
    assert!(map(&fixture, "verify", &[]).well().contains("matched: 250"));

    sql(
        &fixture,
        "DELETE FROM semel_id_map WHERE public_id IN (SELECT public_id FROM orders WHERE id < 3)",
    )
    .await;
    sql(&fixture, "DELETE FROM orders WHERE id = 9").await;
    let wrong = json_of(&map(&fixture, "verify", &["--json"]));
    assert_eq!((&wrong["missing"]["count"], &wrong["extra"]["count"]), (&3.into(), &1.into()));
    let planned = map(&fixture, "repair", &["--grace", "0s", "--dry-run", "--json"]);
    assert_eq!(json_of(&planned)["inserted"]["count"], 3);
    let young = map(&fixture, "repair", &["--json"]);
    assert_eq!(json_of(&young)["left_young"]["count"], 1);
    let printed = young.badly(3);
    assert!(printed.contains("later run") && printed.contains("not propagated"), "{printed}");
    let mended = map(&fixture, "repair", &["--grace", "0s", "--json"]);
    assert_eq!(json_of(&mended)["revoked"]["count"], 1, "{mended:?}");
    assert_eq!(mended.code, Some(0), "{mended:?}");
    map(&fixture, "verify", &[]).well();
}

on!(a_table_moves_into_the_map: sqlite, postgres, mysql);

#[tokio::test(flavor = "multi_thread")]
async fn revived_ids_are_no_longer_revoked_in_the_shared_cache() {
    let fixture = Fixture::sqlite().await;
    let ids = table(&fixture, 1).await;
    map(&fixture, "backfill", &[]).well();
    sql(&fixture, "UPDATE semel_id_map SET status = 0").await;
    let url = server("SEMEL_TEST_REDIS_URL");
    let cache = RedisCache::builder().timeout(Duration::from_secs(20)).open(&url).unwrap();
    let key = format!("acme:ORDER:{}", ids[0]);
    cache.revoked(std::slice::from_ref(&key), Duration::from_secs(3_600)).await.unwrap();
    let words = ["map", "repair", "--revive-revoked"];
    let mut command = fixture.command(&[&words, &TABLE[..]].concat());
    command.env("SEMEL_IDRESOLVE__CACHE__L2_URL", &url);
    Ended::from(command.output().unwrap()).well();
    assert_eq!(cache.get(&[&key]).await.unwrap(), [CacheSlot::Empty]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_backfill_continues_from_its_checkpoint() {
    let fixture = Fixture::sqlite().await;
    table(&fixture, 400).await;
    let checkpoint = fixture.scratch.path().join("orders.json");
    let keeping = ["--checkpoint", checkpoint.to_str().unwrap()];
    // So slow that the backfill cannot end before it is killed.
    let slow =
        [&["map", "backfill", "--batch", "10", "--rate", "10"], &TABLE[..], &keeping].concat();
    let mut child = fixture.command(&slow).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while !checkpoint.exists() {
        assert!(Instant::now() < end, "no checkpoint appears");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let other = ["map", "backfill", "--table", "orders", "--type", "ORDER", "--tenant", "acme"];
    let printed = fixture.run(&[&other[..], &keeping].concat()).badly(2);
    assert!(printed.contains("checkpoint"), "{printed}");
    let rest = map(&fixture, "backfill", &[&keeping[..], &["--json"]].concat());
    let printed = json_of(&rest);
    assert!(printed["resumed"].as_u64().unwrap() >= 10, "{printed}");
    assert_eq!(printed["seen"], 400);
    rest.well();
    assert!(!checkpoint.exists(), "a finished backfill leaves none");
    map(&fixture, "verify", &[]).well();
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_cannot_be_used_are_findings_with_their_reasons() {
    let fixture = Fixture::sqlite().await;
    table(&fixture, 3).await;
    sql(&fixture, "INSERT INTO orders VALUES (9, 'acme', 'usr_x', 'y')").await;
    let ended = map(&fixture, "backfill", &[]);
    assert!(ended.stdout.contains("not an internal id"), "{}", ended.stdout);
    assert!(ended.badly(3).contains("1 row"));
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_tables_and_columns_are_code_2() {
    let fixture = Fixture::sqlite().await;
    table(&fixture, 1).await;
    for words in [
        &["--table", "nowhere", "--type", "ORDER"][..],
        &["--table", "orders; DROP TABLE orders", "--type", "ORDER"],
        &["--table", "orders", "--type", "ORDER", "--public-column", "nothing"],
        &["--table", "orders", "--type", "GIZMO"],
        &["--table", "orders", "--type", "gizmo", "--prefix", "giz"],
    ] {
        fixture.run(&[&["map", "verify"], words].concat()).badly(2);
    }
    let nowhere = ["--checkpoint", "no/such/directory/x.json"];
    let printed = map(&fixture, "backfill", &nowhere).badly(2);
    assert!(printed.contains("no/such/directory"), "{printed}");
    let redis = Fixture::redis().await;
    assert!(matches!(redis.open_store().await, StoreHandle::Redis(_)));
    assert!(map(&redis, "verify", &[]).badly(2).contains("map of public ids"));
}
