//! `semel map`.

use std::time::{Duration, Instant};

use semel_ids::shared::{CacheSlot, SharedCache as _};
use semel_redis::RedisCache;
use semel_server::store::StoreHandle;

use crate::ground::{Ground, on, server, sql};
use crate::program::{Ended, run};

const TABLE: [&str; 4] = ["--table", "orders", "--type", "ORDER"];

/// A table of so many orders, as it was before there was a map. Gives their ids.
async fn table(ground: &Ground, count: usize) -> Vec<String> {
    let made =
        run(ground.scratch.path(), ["ids", "new", "ord", "--count", &count.to_string()]).well();
    sql(
        ground,
        "CREATE TABLE orders (id INTEGER NOT NULL PRIMARY KEY, tenant_id VARCHAR(64) NOT NULL, \
         public_id VARCHAR(64) NOT NULL, internal_id CHAR(26) NOT NULL)",
    )
    .await;
    sql(ground, "CREATE UNIQUE INDEX orders_public ON orders (tenant_id, public_id)").await;
    let rows: Vec<String> = made
        .lines()
        .enumerate()
        .map(|(at, id)| format!("({at}, 'acme', '{id}', '{}')", id[4..].to_uppercase()))
        .collect();
    for rows in rows.chunks(200) {
        sql(ground, &format!("INSERT INTO orders VALUES {}", rows.join(", "))).await;
    }
    made.lines().map(str::to_owned).collect()
}

fn map(ground: &Ground, verb: &str, words: &[&str]) -> Ended {
    ground.run(&[&["map", verb], &TABLE[..], words].concat())
}

fn told(ended: &Ended) -> serde_json::Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

/// Fill, compare, spoil, mend.
async fn a_table_moves_into_the_map(ground: Ground) {
    table(&ground, 250).await;
    let planned = told(&map(&ground, "backfill", &["--dry-run", "--json"]));
    assert_eq!((&planned["written"], &planned["dry_run"]), (&250.into(), &true.into()));
    let lacking = map(&ground, "verify", &["--json"]);
    assert_eq!(told(&lacking)["missing"]["count"], 250, "a dry run writes nothing");
    assert!(lacking.badly(3).contains("map repair"));
    let filled = map(&ground, "backfill", &["--batch", "100", "--json"]);
    assert_eq!(told(&filled)["written"], 250);
    filled.well();
    let again = told(&map(&ground, "backfill", &["--json"]));
    assert_eq!((&again["written"], &again["already"]), (&0.into(), &250.into()));
    assert!(map(&ground, "verify", &[]).well().contains("matched: 250"));

    sql(
        &ground,
        "DELETE FROM semel_id_map WHERE public_id IN (SELECT public_id FROM orders WHERE id < 3)",
    )
    .await;
    sql(&ground, "DELETE FROM orders WHERE id = 9").await;
    let wrong = told(&map(&ground, "verify", &["--json"]));
    assert_eq!((&wrong["missing"]["count"], &wrong["extra"]["count"]), (&3.into(), &1.into()));
    let planned = map(&ground, "repair", &["--grace", "0s", "--dry-run", "--json"]);
    assert_eq!(told(&planned)["inserted"]["count"], 3);
    let young = map(&ground, "repair", &["--json"]);
    assert_eq!(told(&young)["left_young"]["count"], 1);
    let said = young.badly(3);
    assert!(said.contains("later run") && said.contains("not propagated"), "{said}");
    let mended = map(&ground, "repair", &["--grace", "0s", "--json"]);
    assert_eq!(told(&mended)["revoked"]["count"], 1, "{mended:?}");
    assert_eq!(mended.code, Some(0), "{mended:?}");
    map(&ground, "verify", &[]).well();
}

on!(a_table_moves_into_the_map: sqlite, postgres, mysql);

#[tokio::test(flavor = "multi_thread")]
async fn what_is_revived_is_no_longer_revoked_in_the_shared_cache() {
    let ground = Ground::sqlite().await;
    let ids = table(&ground, 1).await;
    map(&ground, "backfill", &[]).well();
    sql(&ground, "UPDATE semel_id_map SET status = 0").await;
    let url = server("SEMEL_TEST_REDIS_URL");
    let cache = RedisCache::builder().timeout(Duration::from_secs(20)).open(&url).unwrap();
    let key = format!("acme:ORDER:{}", ids[0]);
    cache.revoked(std::slice::from_ref(&key), Duration::from_secs(3_600)).await.unwrap();
    let words = ["map", "repair", "--revive-revoked"];
    let mut command = ground.command(&[&words, &TABLE[..]].concat());
    command.env("SEMEL_IDRESOLVE__CACHE__L2_URL", &url);
    Ended::from(command.output().unwrap()).well();
    assert_eq!(cache.get(&[&key]).await.unwrap(), [CacheSlot::Empty]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backfill_that_was_killed_goes_on_from_its_checkpoint() {
    let ground = Ground::sqlite().await;
    table(&ground, 400).await;
    let checkpoint = ground.scratch.path().join("orders.json");
    let keeping = ["--checkpoint", checkpoint.to_str().unwrap()];
    // So slow that it cannot come to its end before it is killed.
    let slow =
        [&["map", "backfill", "--batch", "10", "--rate", "10"], &TABLE[..], &keeping].concat();
    let mut child = ground.command(&slow).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while !checkpoint.exists() {
        assert!(Instant::now() < end, "no checkpoint appears");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let other = ["map", "backfill", "--table", "orders", "--type", "ORDER", "--tenant", "acme"];
    let said = ground.run(&[&other[..], &keeping].concat()).badly(2);
    assert!(said.contains("checkpoint"), "{said}");
    let rest = map(&ground, "backfill", &[&keeping[..], &["--json"]].concat());
    let said = told(&rest);
    assert!(said["resumed"].as_u64().unwrap() >= 10, "{said}");
    assert_eq!(said["seen"], 400);
    rest.well();
    assert!(!checkpoint.exists(), "a finished backfill leaves none");
    map(&ground, "verify", &[]).well();
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_cannot_be_used_are_findings_with_their_reasons() {
    let ground = Ground::sqlite().await;
    table(&ground, 3).await;
    sql(&ground, "INSERT INTO orders VALUES (9, 'acme', 'usr_x', 'y')").await;
    let ended = map(&ground, "backfill", &[]);
    assert!(ended.stdout.contains("not an internal id"), "{}", ended.stdout);
    assert!(ended.badly(3).contains("1 row"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_code_2() {
    let ground = Ground::sqlite().await;
    table(&ground, 1).await;
    for words in [
        &["--table", "nowhere", "--type", "ORDER"][..],
        &["--table", "orders; DROP TABLE orders", "--type", "ORDER"],
        &["--table", "orders", "--type", "ORDER", "--public-column", "nothing"],
        &["--table", "orders", "--type", "GIZMO"],
        &["--table", "orders", "--type", "gizmo", "--prefix", "giz"],
    ] {
        ground.run(&[&["map", "verify"], words].concat()).badly(2);
    }
    let nowhere = ["--checkpoint", "no/such/directory/x.json"];
    let said = map(&ground, "backfill", &nowhere).badly(2);
    assert!(said.contains("no/such/directory"), "{said}");
    let redis = Ground::redis().await;
    assert!(matches!(redis.place().await, StoreHandle::Redis(_)));
    assert!(map(&redis, "verify", &[]).badly(2).contains("map of public ids"));
}
