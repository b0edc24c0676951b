//! Tests batches of which a part is locked, refused or lost: every step gets its own answer at
//! once.

use std::time::Duration;

use semel_core::claim::Lease;
use semel_core::key::Key;
use semel_core::policy::OnCrash;
use semel_core::store::{Draft, ErrorKind, Opened, Renewed, Renewer, Settled, Settlement, Store};
use semel_sql::mysql::MySqlStore;
use semel_sql::sqlx::{self, MySqlConnection};
use semel_testkit::Fixture;
use semel_testkit::fixture::run;
use tokio::time::timeout;

use crate::fixture::{LONG, TestDatabase, at, at_once, claim, draft, key, keys, success};

const LENGTH: Duration = Duration::from_secs(30);

/// Locks the rows of some keys, until the connection is dropped.
async fn lock(database: &TestDatabase, keys: &[Key]) -> MySqlConnection {
    let mut holder = database.plain().await;
    sqlx::raw_sql("BEGIN").execute(&mut holder).await.expect("begin");
    for key in keys {
        let lock = format!("SELECT 1 FROM semel_record WHERE {} FOR UPDATE", at(key));
        sqlx::raw_sql(sqlx::AssertSqlSafe(lock)).execute(&mut holder).await.expect("locked");
    }
    holder
}

/// Makes the server refuse writes to a key.
async fn refuse(database: &TestDatabase, event: &str, side: &str, key: &Key) {
    database
        .run(&format!(
            "CREATE TRIGGER refuse BEFORE {event} ON semel_record FOR EACH ROW \
             IF {side}.{} THEN SIGNAL SQLSTATE '45000'; END IF",
            at(key)
        ))
        .await;
}

async fn claims(store: &MySqlStore, keys: &[Key]) -> Vec<Lease> {
    let mut leases = Vec::new();
    for key in keys {
        leases.push(claim(store, key).await);
    }
    leases
}

/// Settles a first claim alone, and the others behind it in one batch.
async fn settle_together(
    store: &MySqlStore,
    settlements: &[(Lease, Settlement)],
) -> Vec<Result<Settled, ErrorKind>> {
    let alone = claim(store, &key("alone")).await;
    let settlement = Settlement::Removed;
    let first = store.settle(&alone, &settlement);
    let others = settlements.iter().map(|(lease, settlement)| store.settle(lease, settlement));
    let others = futures_util::future::join_all(others);
    let (first, others) = tokio::join!(first, others);
    assert_eq!(first.expect("settle"), Settled::Done);
    others.into_iter().map(|settled| settled.map_err(|error| error.kind())).collect()
}

#[test]
fn locked_rows_neither_fail_nor_delay_the_renewal_of_others() {
    run(async {
        let database = TestDatabase::new().await;
        let store = database.connect().await;
        let keys = keys(80);
        let mut leases: Vec<_> =
            claims(&store, &keys).await.into_iter().map(|lease| (lease, LENGTH)).collect();
        leases[3].0.fence = semel_core::Fence(7);
        database.run("UPDATE semel_record SET lease_until = 7").await;
        let holder = lock(&database, &[keys[0].clone(), keys[41].clone(), keys[70].clone()]).await;
        let mut renewer = store.renewer().await.expect("renewer");
        at_once(async |_| {
            let renewed = renewer.renew(&leases).await;
            for (i, renewed) in renewed.expect("an answer each").into_iter().enumerate() {
                let expected = match i {
                    0 | 41 | 70 => Renewed::Unknown,
                    3 => Renewed::Lost,
                    _ => Renewed::Extended,
                };
                assert_eq!(renewed, expected, "place {i}");
            }
        })
        .await;
        let extended = "SELECT COUNT(*) FROM semel_record WHERE lease_until > 7";
        assert_eq!(database.number(extended).await, 76);
        drop(holder);
        let free = async {
            while renewer.renew(&leases[..1]).await.expect("renew") != [Renewed::Extended] {}
        };
        timeout(LONG, free).await.expect("free again");
    });
}

#[test]
fn leases_that_were_renewed_stay_so_when_the_connection_is_lost_over_others() {
    run(async {
        let database = TestDatabase::new().await;
        let store = database.connect().await;
        let keys = keys(128);
        let leases: Vec<_> =
            claims(&store, &keys).await.into_iter().map(|lease| (lease, LENGTH)).collect();
        let gate = database.gate("UPDATE", &keys[0]).await;
        let mut renewer = store.renewer().await.expect("renewer");
        let (renewed, ()) = tokio::join!(renewer.renew(&leases), gate.kill());
        let renewed = renewed.expect("an answer each");
        assert_eq!(renewed[..64], [Renewed::Unknown; 64]);
        assert_eq!(renewed[64..], [Renewed::Extended; 64]);
        drop(gate);
        database.run("DROP TRIGGER gate").await;
        let again = renewer.renew(&leases).await.expect("on another connection");
        assert_eq!(again, [Renewed::Extended; 128]);
    });
}

#[test]
fn a_claim_that_another_transaction_holds_is_not_settled_and_the_others_are() {
    run(async {
        let database = TestDatabase::new().await;
        let store = database.with_one_connection().await;
        let held = key("held");
        let lease = claim(&store, &held).await;
        let mut rounds = Vec::new();
        for round in 0..25 {
            let keys: Vec<_> = (0..19).map(|i| key(&format!("k-{round}-{i}"))).collect();
            rounds.push(claims(&store, &keys).await);
        }
        let holder = lock(&database, std::slice::from_ref(&held)).await;
        at_once(async |round| {
            let mut settlements = vec![(lease, success("done"))];
            let free = std::mem::take(&mut rounds[round as usize]);
            settlements.extend(free.into_iter().map(|lease| (lease, success("done"))));
            // In the order in which one statement locks them, with the held one somewhere among the
            // others.
            settlements.sort_by_key(|(lease, _)| lease.digest);
            let settled = settle_together(&store, &settlements).await;
            for ((of, _), settled) in settlements.iter().zip(settled) {
                let held = of.digest == held.digest();
                let expected = if held { Err(ErrorKind::Unavailable) } else { Ok(Settled::Done) };
                assert_eq!(settled, expected);
            }
        })
        .await;
        drop(holder);
    });
}

#[test]
fn a_refused_settlement_does_not_affect_those_written_before_or_sent_after() {
    run(async {
        let database = TestDatabase::new().await;
        let store = database.with_one_connection().await;
        let keys = keys(5);
        let leases = claims(&store, &keys).await;
        // Settlements share a statement, removals are statements of their own.
        let mut settlements: Vec<_> =
            leases.iter().map(|lease| (*lease, Settlement::Removed)).collect();
        settlements[0].1 = success("a");
        settlements[1].1 = success("b");
        refuse(&database, "DELETE", "OLD", &keys[3]).await;
        let done = Ok(Settled::Done);
        let refused = Err(ErrorKind::Unavailable);
        let settled = settle_together(&store, &settlements).await;
        assert_eq!(settled, [done, done, done, refused, done]);
        assert_eq!(database.number("SELECT COUNT(*) FROM semel_record WHERE state = 0").await, 1);
    });
}

#[test]
fn a_connection_lost_over_one_settlement_is_ambiguous_for_that_one_only() {
    run(async {
        let database = TestDatabase::new().await;
        let store = database.with_one_connection().await;
        let keys = keys(5);
        let leases = claims(&store, &keys).await;
        let mut settlements: Vec<_> =
            leases.iter().map(|lease| (*lease, Settlement::Removed)).collect();
        settlements[0].1 = success("a");
        settlements[1].1 = success("b");
        let gate = database.gate("DELETE", &keys[3]).await;
        let (settled, ()) = tokio::join!(settle_together(&store, &settlements), gate.kill());
        let done = Ok(Settled::Done);
        let unsent = Err(ErrorKind::Unavailable);
        assert_eq!(settled, [done, done, unsent, Err(ErrorKind::Ambiguous), done]);
        let again = store.settle(&leases[2], &Settlement::Removed).await;
        assert_eq!(again.expect("the batcher has another connection"), Settled::Done);
    });
}

#[test]
fn a_refused_claim_does_not_affect_those_in_other_statements() {
    run(async {
        let database = TestDatabase::new().await;
        let store = database.with_one_connection().await;
        let keys = keys(8);
        refuse(&database, "INSERT", "NEW", &keys[1]).await;
        // A held key makes the batch be halved; the refused key comes after granted ones.
        let mut holder = database.plain().await;
        sqlx::raw_sql("BEGIN").execute(&mut holder).await.expect("begin");
        let opened =
            semel_core::store::TransactionalStore::open_in(&store, &mut holder, &draft(&keys[0]))
                .await;
        assert!(matches!(opened, Ok(Opened::Inserted { .. })), "{opened:?}");
        let drafts: Vec<Draft> = [&key("alone")].into_iter().chain(&keys).map(draft).collect();
        let opens = futures_util::future::join_all(drafts.iter().map(|draft| store.open(draft)));
        let opened = timeout(LONG, opens).await.expect("an answer each");
        let mut granted = 0;
        for (draft, opened) in drafts.iter().zip(&opened) {
            let there = store.peek(&draft.key).await.expect("peek").is_some();
            match opened {
                Ok(Opened::Inserted { .. }) => granted += 1,
                Ok(Opened::Contended) => assert_eq!(draft.key, keys[0]),
                other => {
                    let error = other.as_ref().expect_err("nobody else claims these keys");
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                }
            }
            assert_eq!(there, matches!(opened, Ok(Opened::Inserted { .. })), "{opened:?}");
        }
        assert_eq!(granted, 7, "all but the held and the refused one: {opened:?}");
    });
}

#[test]
fn a_sweep_skips_locked_records_and_does_not_report_more() {
    run(async {
        let database = TestDatabase::new().await;
        let store = database.connect().await;
        let keys = keys(12);
        for (i, lease) in claims(&store, &keys).await.iter().enumerate() {
            assert_eq!(store.settle(lease, &success("old")).await.expect("settle"), Settled::Done);
            let oldest = format!("UPDATE semel_record SET expires_at = {} WHERE ", i + 1);
            database.run(&(oldest + &at(&keys[i]))).await;
        }
        let holder = lock(&database, &keys[..2]).await;
        assert_eq!(store.sweep(100).await.expect("sweep").removed, 10);
        at_once(async |_| {
            let swept = store.sweep(2).await.expect("sweep");
            assert_eq!((swept.removed, swept.more), (0, false), "only locked ones are left");
        })
        .await;
        drop(holder);
        let freed = async { while store.sweep(100).await.expect("sweep").removed == 0 {} };
        timeout(LONG, freed).await.expect("free again");
    });
}

#[test]
fn a_lapsed_claim_that_was_to_be_verified_is_suspended_after_its_keep_and_never_removed() {
    run(async {
        let database = TestDatabase::new().await;
        let store = database.connect().await;
        for (id, on_crash) in
            [("rerun", OnCrash::Rerun), ("hold", OnCrash::Hold), ("verify", OnCrash::Verify)]
        {
            let opened = store.open(&Draft { on_crash, ..draft(&key(id)) }).await.expect("open");
            assert!(matches!(opened, Opened::Inserted { .. }), "{opened:?}");
        }
        database.advance(Duration::from_secs(31)).await;
        let swept = store.sweep(10).await.expect("sweep");
        assert_eq!((swept.removed, swept.suspended), (0, 1), "held ones at the end of the lease");
        database.advance(Duration::from_secs(61)).await;
        let swept = store.sweep(10).await.expect("sweep");
        assert_eq!((swept.removed, swept.suspended), (1, 1), "the others after their keep");
        for id in ["hold", "verify"] {
            let record = store.peek(&key(id)).await.expect("peek").expect("kept").record;
            assert_eq!(record.state, semel_core::State::Uncertain, "{id}");
        }
        assert!(store.peek(&key("rerun")).await.expect("peek").is_none());
    });
}
