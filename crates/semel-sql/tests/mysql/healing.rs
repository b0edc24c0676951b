//! Tests a store whose connections are killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use semel_core::store::{ErrorKind, Opened, Store};
use semel_sql::mysql::MySqlStore;
use semel_sql::sqlx::{self, AssertSqlSafe, Row};
use semel_testkit::fixture::run;
use tokio::time::timeout;

use crate::fixture::{LONG, TestDatabase, draft, key, lease, success};

/// Kills every other connection to the test's database, and returns their number.
pub(crate) async fn kill_all(database: &TestDatabase) -> usize {
    let mut killer = database.plain().await;
    let text = "SELECT CAST(id AS SIGNED) FROM information_schema.processlist \
                WHERE db = DATABASE() AND id <> CONNECTION_ID()";
    let rows = sqlx::query(text).fetch_all(&mut killer).await.expect("list");
    let mut killed = 0;
    for row in rows {
        let id: i64 = row.try_get(0).expect("an id");
        // A connection that ended by itself in between counts too.
        let kill = sqlx::raw_sql(AssertSqlSafe(format!("KILL CONNECTION {id}")));
        killed += usize::from(kill.execute(&mut killer).await.is_ok());
    }
    killed
}

/// Claims and settles a key, and returns whether nothing failed. Failures are counted in `felt` at
/// once, since they may not end while connections are being killed.
async fn use_once(store: &MySqlStore, id: &str, felt: &AtomicU32) -> bool {
    let draft = draft(&key(id));
    let granted = match store.open(&draft).await {
        Ok(Opened::Inserted { fence }) => Ok(fence),
        Ok(other) => panic!("nobody else claims this key: {other:?}"),
        Err(error) => {
            felt.fetch_add(1, Ordering::SeqCst);
            Err((error.kind(), retry(|| store.peek(&draft.key)).await))
        }
    };
    let (fence, sound) = match granted {
        Ok(fence) => (fence, true),
        Err((ErrorKind::Ambiguous, Some(peeked))) => {
            assert_eq!(peeked.record.attempt_id, draft.attempt_id);
            (peeked.record.fence, false)
        }
        Err((ErrorKind::Ambiguous, None)) => return false,
        Err((kind, peeked)) => {
            assert_eq!(kind, ErrorKind::Unavailable);
            assert!(peeked.is_none(), "unavailable means that nothing happened");
            return false;
        }
    };
    match store.settle(&lease(&draft, fence), &success("ok")).await {
        Ok(_) => sound,
        Err(error) => {
            let kinds = [ErrorKind::Ambiguous, ErrorKind::Unavailable];
            assert!(kinds.contains(&error.kind()), "{error}");
            felt.fetch_add(1, Ordering::SeqCst);
            false
        }
    }
}

#[test]
fn connections_that_are_killed_under_load_are_replaced_and_no_claim_is_given_twice() {
    run(async {
        let database = TestDatabase::new().await;
        // With the default limits of a service, which determine how soon it recovers.
        let store = MySqlStore::builder(&database.url()).connect().await.expect("connected");
        let (over, felt) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let tasks: Vec<_> = (0..16)
            .map(|task| {
                let (store, over, felt) = (store.clone(), Arc::clone(&over), Arc::clone(&felt));
                tokio::spawn(async move {
                    let (mut round, mut rest, mut healed) = (0, 30, 0);
                    while rest > 0 {
                        let after = over.load(Ordering::SeqCst);
                        let sound = use_once(&store, &format!("k-{task}-{round}"), &felt).await;
                        round += 1;
                        if after {
                            rest -= 1;
                            healed += u32::from(sound);
                        }
                    }
                    healed
                })
            })
            .collect();
        let killing = async {
            let mut killed = 0;
            while killed < 40 || felt.load(Ordering::SeqCst) == 0 {
                killed += kill_all(&database).await;
            }
        };
        timeout(LONG, killing).await.expect("connections die, and that is felt");
        over.store(true, Ordering::SeqCst);
        let mut healed = 0;
        for task in tasks {
            healed += task.await.expect("no wrong answer");
        }
        // The connections that were killed last fail a little later, at their next use.
        assert!(healed > 16 * 20, "the store healed: {healed} of {}", 16 * 30);
    });
}

/// Reads until the store answers: a read may be repeated.
async fn retry<T, F>(read: impl Fn() -> F) -> T
where
    F: Future<Output = semel_core::store::Result<T>>,
{
    let answer = async {
        loop {
            if let Ok(answer) = read().await {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, answer).await.expect("the store heals")
}

#[test]
fn transactions_and_renewers_get_new_connections() {
    use semel_core::store::{Renewed, Renewer as _, TransactionalStore as _};
    run(async {
        let database = TestDatabase::new().await;
        let store = database.connect().await;
        let transaction = store.begin().await.expect("begin");
        store.rollback(transaction).await;
        let mut renewer = store.renewer().await.expect("renewer");
        let held = crate::fixture::claim(&store, &key("a")).await;
        assert!(kill_all(&database).await >= 3);
        let transaction = store.begin().await.expect("a dead connection is replaced unseen");
        store.rollback(transaction).await;
        let leases = [(held, Duration::from_secs(30))];
        let error = renewer.renew(&leases).await.expect_err("its connection was killed");
        assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
        assert_eq!(renewer.renew(&leases).await.expect("healed"), [Renewed::Extended]);
    });
}

#[test]
fn a_runtime_that_ends_while_steps_are_queued_takes_them_with_it_quietly() {
    let database = run(TestDatabase::new());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        let store = database.with_one_connection().await;
        for i in 0..64 {
            let store = store.clone();
            tokio::spawn(async move {
                let _ = store.open(&draft(&key(&format!("k-{i}")))).await;
            });
        }
        // Every task runs once: the first is in progress, the others queue behind it.
        tokio::task::yield_now().await;
    });
    drop(runtime);
    let left = run(database.number("SELECT COUNT(*) FROM semel_record"));
    assert!(left <= 1, "what was never sent did not happen: {left}");
}
