//! Tests claims under contention: concurrent open transactions, storms on few keys, cancelled
//! callers.

use std::time::Duration;

use semel_core::claim::Lease;
use semel_core::store::{Change, ErrorKind, Filter, Settlement};
use semel_core::store::{Inspect, Opened, Settled, Store, Swapped};
use semel_sql::mysql::MySqlStore;
use semel_sql::sqlx::{self, Connection};
use semel_testkit::fixture::run;
use tokio::time::timeout;

use crate::fixture::{TestDatabase, at, at_once, claim, draft, failure, key, keys, lease, success};

#[test]
fn a_concurrent_claim_never_waits_for_an_open_transaction() {
    run(async {
        let database = TestDatabase::new().await;
        let store = database.connect().await;
        let mut holder = database.plain().await;
        let mut work = holder.begin().await.expect("begin");
        insert_in_another_transaction(&mut work, &key("held")).await;
        at_once(async |_| {
            let rival = store.open(&draft(&key("held"))).await;
            assert!(matches!(rival, Ok(Opened::Contended)), "{rival:?}");
        })
        .await;
        work.rollback().await.expect("rollback");
        claim(&store, &key("held")).await;
    });
}

async fn insert_in_another_transaction(
    connection: &mut sqlx::MySqlConnection,
    key: &semel_core::Key,
) {
    use semel_core::store::TransactionalStore as _;
    // The store of another instance, whose statement runs in this transaction.
    let url = std::env::var("SEMEL_TEST_MYSQL_URL").expect("set");
    let other = semel_sql::mysql::MySqlStore::connect(&url).await.expect("connects");
    let opened = other.open_in(connection, &draft(key)).await.expect("open_in");
    assert!(matches!(opened, Opened::Inserted { .. }), "{opened:?}");
}

#[test]
fn a_batch_with_one_held_key_grants_all_the_others() {
    run(async {
        let database = TestDatabase::new().await;
        let store = database.with_one_connection().await;
        let mut holder = database.plain().await;
        let mut work = holder.begin().await.expect("begin");
        insert_in_another_transaction(&mut work, &key("held")).await;
        claim(&store, &key("there")).await;
        at_once(async |round| {
            let name = |i| match i {
                7 => "there".to_owned(),
                20 => "held".to_owned(),
                _ => format!("k-{round}-{i}"),
            };
            let drafts: Vec<_> = (0..40).map(|i| draft(&key(&name(i)))).collect();
            let opens = drafts.iter().map(|draft| store.open(draft));
            let opened = futures_util::future::join_all(opens).await;
            for (i, opened) in opened.iter().enumerate() {
                match (i, opened) {
                    (20, Ok(Opened::Contended)) | (7, Ok(Opened::Existing { .. })) => {}
                    (20 | 7, other) => panic!("k-{i}: {other:?}"),
                    (_, opened) => assert!(matches!(opened, Ok(Opened::Inserted { .. })), "k-{i}"),
                }
            }
        })
        .await;
        work.rollback().await.expect("rollback");
    });
}

#[test]
fn a_record_under_an_open_write_is_read_as_it_was_last_committed() {
    run(async {
        let database = TestDatabase::new().await;
        let store = database.connect().await;
        let key = key("busy");
        let held = claim(&store, &key).await;
        let mut writer = database.plain().await;
        let mut work = writer.begin().await.expect("begin");
        let lock = format!("SELECT 1 FROM semel_record WHERE {} FOR UPDATE", at(&key));
        sqlx::raw_sql(sqlx::AssertSqlSafe(lock)).execute(&mut *work).await.expect("locked");
        at_once(async |_| {
            let opened = store.open(&draft(&key)).await;
            let Ok(Opened::Existing { record, .. }) = opened else { panic!("{opened:?}") };
            assert_eq!(record.attempt_id, held.attempt_id);
            let lost =
                store.swap(&key, record.version(), &Change::Settle(Settlement::Removed)).await;
            assert_eq!(lost.expect("swap"), Swapped::Lost, "another transaction holds the key");
        })
        .await;
        work.rollback().await.expect("rollback");
        assert_eq!(store.settle(&held, &success("done")).await.expect("settle"), Settled::Done);
    });
}

#[test]
fn settles_that_share_a_statement_each_get_their_own_answer() {
    run(async {
        let database = TestDatabase::new().await;
        let store = database.with_one_connection().await;
        let keys: Vec<_> = (0..64).map(|i| key(&format!("k-{i}"))).collect();
        let mut leases = Vec::new();
        for key in &keys {
            leases.push(claim(&store, key).await);
        }
        // Every third claim is lost.
        for lease in leases.iter_mut().step_by(3) {
            lease.fence = semel_core::Fence(lease.fence.0 + 1);
        }
        let settlements: Vec<_> = (0..64)
            .map(|i| match i % 4 {
                0 => success(&"x".repeat(i * 100)),
                1 => failure(),
                2 => Settlement::Removed,
                _ => Settlement::Dead { error: semel_core::ErrorText::new("dead 💀 ") },
            })
            .collect();
        let settles = leases
            .iter()
            .zip(&settlements)
            .map(|(lease, settlement)| store.settle(lease, settlement));
        let settled = futures_util::future::join_all(settles).await;
        for (i, settled) in settled.into_iter().enumerate() {
            let expected = if i % 3 == 0 { Settled::Lost } else { Settled::Done };
            assert_eq!(settled.expect("settle"), expected, "k-{i}");
            let record = store.peek(&keys[i]).await.expect("peek").map(|peeked| peeked.record);
            let state = match (i % 3, i % 4) {
                (0, _) => Some(semel_core::State::Running),
                (_, 0) => Some(semel_core::State::Succeeded),
                (_, 1) => Some(semel_core::State::Failed),
                (_, 2) => None,
                (_, _) => Some(semel_core::State::Dead),
            };
            assert_eq!(record.as_ref().map(|record| record.state), state, "k-{i}");
            if let (Some(record), Some(ended)) = (&record, state)
                && ended != semel_core::State::Running
            {
                let now = record.updated_at;
                let before = semel_core::Record { number: 1, ..record.clone() };
                let expected = before.ended(&settlements[i], now).expect("it remains");
                assert_eq!(*record, expected, "k-{i} is what its own settlement makes of it");
            }
        }
    });
}

/// Settles as an executor does: if another transaction holds the row, it tries again. That
/// transaction ends soon, unless a busy machine delays it.
async fn settle(store: &MySqlStore, lease: &Lease, settlement: &Settlement) -> Settled {
    for _ in 0..120_000 {
        match store.settle(lease, settlement).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            settled => return settled.expect("no error leaks from settle"),
        }
    }
    panic!("the row stays locked")
}

#[test]
fn a_storm_on_few_keys_leaks_no_error() {
    run(async {
        let database = TestDatabase::new().await;
        let stores = [database.connect().await, database.connect().await, database.connect().await];
        let tasks: Vec<_> = (0..64usize)
            .map(|task| {
                let store = stores[task % stores.len()].clone();
                tokio::spawn(async move {
                    let (mut granted, mut seen) = (0u32, 0u32);
                    for round in 0..40usize {
                        let key = key(&format!("hot-{}", (task + round) % 8));
                        let draft = draft(&key);
                        match store.open(&draft).await.expect("no error leaks from open") {
                            Opened::Inserted { fence } => {
                                granted += 1;
                                let settlement =
                                    if round % 2 == 0 { Settlement::Removed } else { failure() };
                                let held = lease(&draft, fence);
                                assert_eq!(settle(&store, &held, &settlement).await, Settled::Done);
                            }
                            Opened::Existing { record, .. } if record.held(record.updated_at) => {
                                seen += 1;
                            }
                            Opened::Existing { record, .. } => {
                                let change = Change::Settle(Settlement::Removed);
                                let swap = store.swap(&key, record.version(), &change).await;
                                let _ = swap.expect("no error leaks from swap");
                            }
                            Opened::Contended => seen += 1,
                        }
                    }
                    (granted, seen)
                })
            })
            .collect();
        let mut sum = (0, 0);
        for task in tasks {
            let (granted, seen) = task.await.expect("no error leaked");
            sum = (sum.0 + granted, sum.1 + seen);
        }
        assert!(sum.0 > 0 && sum.1 > 0, "the storm had both grants and collisions: {sum:?}");
    });
}

#[test]
fn a_caller_cancelled_in_mid_statement_does_not_affect_the_next() {
    run(async {
        let database = TestDatabase::new().await;
        let store = database.connect().await;
        for round in 0..200u64 {
            let left = draft(&key(&format!("left-{round}")));
            let brief = Duration::from_micros(round * 10);
            let _ = timeout(brief, store.open(&left)).await;
            let stays = key(&format!("stays-{round}"));
            let held = claim(&store, &stays).await;
            let settled = store.settle(&held, &success("mine")).await.expect("settle");
            assert_eq!(settled, Settled::Done);
            let peeked = store.peek(&stays).await.expect("peek").expect("there");
            assert_eq!(
                peeked.record.attempt_id, held.attempt_id,
                "each caller gets its own answer"
            );
        }
    });
}

#[test]
fn a_sweep_beside_claims_removes_no_live_record_and_delays_no_caller() {
    run(async {
        let database = TestDatabase::new().await;
        let store = database.connect().await;
        for i in 0..600 {
            let held = claim(&store, &key(&format!("old-{i}"))).await;
            assert_eq!(store.settle(&held, &success("old")).await.expect("settle"), Settled::Done);
        }
        database.run("UPDATE semel_record SET expires_at = 1 WHERE state = 1").await;
        let sweeper = store.clone();
        let sweeping = tokio::spawn(async move {
            let mut removed = 0;
            loop {
                let swept = sweeper.sweep(50).await.expect("sweep");
                removed += swept.removed;
                if !swept.more {
                    return removed;
                }
            }
        });
        for i in 0..300 {
            let held = claim(&store, &key(&format!("new-{i}"))).await;
            assert_eq!(store.settle(&held, &success("new")).await.expect("settle"), Settled::Done);
        }
        assert_eq!(sweeping.await.expect("no panic"), 600);
        let left = database.number("SELECT COUNT(*) FROM semel_record").await;
        assert_eq!(left, 300, "what was completed meanwhile is all there");
    });
}

#[test]
fn a_fence_of_a_slow_batch_is_greater_than_one_given_meanwhile() {
    run(async {
        let database = TestDatabase::new().await;
        let store = database.with_one_connection().await;
        let rival = database.connect().await;
        let keys = keys(2);
        let gate = database.gate("INSERT", &keys[0]).await;
        let drafts = [draft(&key("alone")), draft(&keys[0]), draft(&keys[1])];
        let opens = futures_util::future::join_all(drafts.iter().map(|draft| store.open(draft)));
        let meanwhile = async {
            gate.reached().await;
            let held = claim(&rival, &keys[1]).await;
            assert_eq!(
                rival.settle(&held, &Settlement::Removed).await.expect("settle"),
                Settled::Done
            );
            drop(gate);
            held.fence
        };
        let (opened, given) = tokio::join!(opens, meanwhile);
        let Ok(Opened::Inserted { fence }) = opened[2] else { panic!("{opened:?}") };
        assert!(fence > given, "{fence:?} was granted after {given:?}");
        let record = rival.peek(&keys[1]).await.expect("peek").expect("there").record;
        assert_eq!(record.fence, fence, "what is stored is what was granted");
    });
}

#[test]
fn text_of_any_kind_is_stored_byte_by_byte() {
    run(async {
        let database = TestDatabase::new().await;
        let store = database.connect().await;
        for text in ["naïve ", "😀", "😁", " lead", "e\u{301}", "ﬁ", "\u{200b}x"] {
            let key = semel_core::Key::command(text, text, text).expect("valid");
            let mut draft = draft(&key);
            draft.owner = text.into();
            let opened = store.open(&draft).await.expect("open");
            assert!(matches!(opened, Opened::Inserted { .. }), "{text:?} is a key of its own");
            let record = store.peek(&key).await.expect("peek").expect("there").record;
            assert_eq!(&*record.owner, text);
            let filter = Filter { tenant: Some(text.into()), ..Filter::default() };
            let page = store.list(&filter, None, 10).await.expect("list");
            assert_eq!(page.entries.len(), 1, "{text:?} is listed under its own tenant");
            assert_eq!(page.entries[0].key.id(), text);
        }
    });
}
