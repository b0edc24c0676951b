//! Tests the ledger inside transactions: those of the store, and those of a caller.

use std::pin::pin;
use std::time::Duration;

use semel_core::store::{Change, ErrorKind, Opened, Settled, Store, Swapped, TransactionalStore};
use semel_sql::mysql::MySqlStore;
use semel_sql::sqlx::{self, Connection};
use semel_testkit::fixture::run;
use tokio::time::timeout;

use crate::fixture::{LONG, TestDatabase, at, claim, draft, key, lease, success};

/// Less than the server's default wait for a lock, 50 s.
const AT_ONCE: Duration = Duration::from_secs(30);

async fn with_orders() -> (TestDatabase, MySqlStore) {
    let database = TestDatabase::new().await;
    database.run("CREATE TABLE orders (id INT AUTO_INCREMENT PRIMARY KEY, note VARCHAR(99))").await;
    let store = database.connect().await;
    (database, store)
}

async fn order(connection: &mut sqlx::MySqlConnection) {
    sqlx::query("INSERT INTO orders (note) VALUES ('one')")
        .execute(connection)
        .await
        .expect("order");
}

#[test]
fn claim_work_and_outcome_are_one_commit() {
    run(async {
        let (database, store) = with_orders().await;
        let draft = draft(&key("a"));
        let mut transaction = store.begin().await.expect("begin");
        let connection = MySqlStore::connection(&mut transaction);
        let opened = store.open_in(connection, &draft).await.expect("open");
        let Opened::Inserted { fence } = opened else { panic!("{opened:?}") };
        order(connection).await;
        let settled = store.settle_in(connection, &lease(&draft, fence), &success("ok")).await;
        assert_eq!(settled.expect("settle"), Settled::Done);
        assert!(
            store.peek(&key("a")).await.expect("peek").is_none(),
            "nothing shows before commit"
        );
        store.commit(transaction).await.expect("commit");
        let record = store.peek(&key("a")).await.expect("peek").expect("there").record;
        assert_eq!(record.state, semel_core::State::Succeeded);
        assert_eq!(database.number("SELECT COUNT(*) FROM orders").await, 1);
    });
}

#[test]
fn a_transaction_that_is_rolled_back_or_dropped_leaves_nothing() {
    run(async {
        let (database, store) = with_orders().await;
        for dropped in [false, true] {
            let mut transaction = store.begin().await.expect("begin");
            let connection = MySqlStore::connection(&mut transaction);
            let opened = store.open_in(connection, &draft(&key("a"))).await.expect("open");
            assert!(matches!(opened, Opened::Inserted { .. }), "{opened:?}");
            order(connection).await;
            if dropped { drop(transaction) } else { store.rollback(transaction).await }
        }
        // The server detects a closed connection after a while; the key is free when it has.
        let free = async {
            while !matches!(store.open(&draft(&key("a"))).await, Ok(Opened::Inserted { .. })) {
                tokio::task::yield_now().await;
            }
        };
        timeout(LONG, free).await.expect("the lock goes with the connection");
        assert_eq!(database.number("SELECT COUNT(*) FROM orders").await, 0);
    });
}

#[test]
fn a_transaction_never_waits_for_another_and_stays_usable() {
    run(async {
        let (database, store) = with_orders().await;
        let mut first = store.begin().await.expect("begin");
        let opened = store.open_in(MySqlStore::connection(&mut first), &draft(&key("a"))).await;
        assert!(matches!(opened, Ok(Opened::Inserted { .. })), "{opened:?}");
        let mut second = store.begin().await.expect("begin");
        let connection = MySqlStore::connection(&mut second);
        order(connection).await;
        let rival = draft(&key("a"));
        let rival = timeout(AT_ONCE, store.open_in(connection, &rival)).await.expect("at once");
        assert!(matches!(rival, Ok(Opened::Contended)), "{rival:?}");
        order(connection).await;
        store.commit(second).await.expect("a contended key undoes nothing of the transaction");
        assert_eq!(database.number("SELECT COUNT(*) FROM orders").await, 2);
        store.rollback(first).await;
    });
}

#[test]
fn a_record_that_came_after_the_snapshot_of_a_repeatable_read_is_seen() {
    run(async {
        let (database, store) = with_orders().await;
        let mut caller = database.plain().await;
        let snapshot = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ";
        sqlx::raw_sql(snapshot).execute(&mut caller).await.expect("set");
        let mut work = caller.begin().await.expect("begin");
        let read = format!("SELECT COUNT(*) FROM semel_record WHERE {}", at(&key("a")));
        let count = |text: String| sqlx::query_scalar::<_, i64>(sqlx::AssertSqlSafe(text));
        assert_eq!(count(read.clone()).fetch_one(&mut *work).await.expect("read"), 0);
        let held = claim(&store, &key("a")).await;
        let settled = store.settle(&held, &success("theirs")).await.expect("settle");
        assert_eq!(settled, Settled::Done);
        assert_eq!(
            count(read).fetch_one(&mut *work).await.expect("read"),
            0,
            "the snapshot is old"
        );
        let opened = store.open_in(&mut work, &draft(&key("a"))).await.expect("open");
        let Opened::Existing { record, .. } = opened else { panic!("granted twice: {opened:?}") };
        assert_eq!(record.attempt_id, held.attempt_id);
        assert_eq!(record.state, semel_core::State::Succeeded);
        work.rollback().await.expect("rollback");
    });
}

#[test]
fn a_regrant_inside_a_transaction_is_undone_with_it() {
    run(async {
        let (_database, store) = with_orders().await;
        let held = claim(&store, &key("a")).await;
        let settled = store.settle(&held, &crate::fixture::failure()).await.expect("settle");
        assert_eq!(settled, Settled::Done);
        let before = store.peek(&key("a")).await.expect("peek").expect("there").record;
        let again = semel_core::store::Draft { attempt: 2, ..draft(&key("a")) };
        let mut transaction = store.begin().await.expect("begin");
        let connection = MySqlStore::connection(&mut transaction);
        let change = Change::Regrant(again.clone());
        let swapped = store.swap_in(connection, &key("a"), before.version(), &change).await;
        let Ok(Swapped::Done { fence }) = swapped else { panic!("{swapped:?}") };
        assert!(fence > before.fence);
        let settled = store.settle_in(connection, &lease(&again, fence), &success("ok")).await;
        assert_eq!(settled.expect("settle"), Settled::Done);
        store.rollback(transaction).await;
        let after = store.peek(&key("a")).await.expect("peek").expect("there").record;
        assert_eq!(after, before);
    });
}

#[test]
fn work_that_ends_its_transaction_is_refused_in_words() {
    run(async {
        let (_database, store) = with_orders().await;
        let settlements = [
            "COMMIT",
            "ROLLBACK",
            "CREATE TABLE t0 (x INT)",
            "TRUNCATE TABLE orders",
            "SET SESSION autocommit = 1",
        ];
        for (i, sabotage) in settlements.into_iter().enumerate() {
            let key = key(&format!("a-{i}"));
            let draft = draft(&key);
            let mut transaction = store.begin().await.expect("begin");
            let connection = MySqlStore::connection(&mut transaction);
            let opened = store.open_in(connection, &draft).await.expect("open");
            let Opened::Inserted { fence } = opened else { panic!("{opened:?}") };
            sqlx::raw_sql(sabotage).execute(&mut *connection).await.expect("runs");
            let settled = store.settle_in(connection, &lease(&draft, fence), &success("ok")).await;
            let error = match settled {
                // The claim is gone, or is in another transaction: then the commit fails.
                Err(error) => error,
                Ok(_) => store.commit(transaction).await.expect_err(sabotage),
            };
            assert_eq!(error.kind(), ErrorKind::Misconfigured, "{sabotage}: {error}");
            assert!(error.to_string().contains("do without COMMIT"), "{error}");
            let left = store.peek(&key).await.expect("peek").map(|found| found.record.state);
            assert_ne!(left, Some(semel_core::State::Succeeded), "{sabotage}");
        }
    });
}

#[test]
fn work_that_ends_its_transaction_and_begins_another_is_refused_at_the_commit() {
    run(async {
        let (database, store) = with_orders().await;
        let draft = draft(&key("a"));
        let mut transaction = store.begin().await.expect("begin");
        let connection = MySqlStore::connection(&mut transaction);
        let opened = store.open_in(connection, &draft).await.expect("open");
        let Opened::Inserted { fence } = opened else { panic!("{opened:?}") };
        sqlx::raw_sql("COMMIT; BEGIN").execute(&mut *connection).await.expect("runs");
        order(connection).await;
        let settled = store.settle_in(connection, &lease(&draft, fence), &success("ok")).await;
        assert_eq!(settled.expect("settle"), Settled::Done);
        let error = store.commit(transaction).await.expect_err("not the claim's transaction");
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        assert_eq!(
            database.number("SELECT COUNT(*) FROM orders").await,
            0,
            "nothing was committed"
        );
    });
}

#[test]
fn a_begin_of_the_work_is_a_savepoint() {
    run(async {
        let (database, store) = with_orders().await;
        for round in 0..3 {
            let draft = draft(&key(&format!("a-{round}")));
            let mut transaction = store.begin().await.expect("begin");
            let connection = MySqlStore::connection(&mut transaction);
            let opened = store.open_in(connection, &draft).await.expect("open");
            let Opened::Inserted { fence } = opened else { panic!("{opened:?}") };
            let mut kept = connection.begin().await.expect("savepoint");
            order(&mut kept).await;
            kept.commit().await.expect("released");
            let mut undone = connection.begin().await.expect("savepoint");
            order(&mut undone).await;
            drop(undone);
            let settled = store.settle_in(connection, &lease(&draft, fence), &success("ok")).await;
            assert_eq!(settled.expect("settle"), Settled::Done);
            store.commit(transaction).await.expect("commit");
            assert_eq!(database.number("SELECT COUNT(*) FROM orders").await, round + 1);
        }
    });
}

#[test]
fn a_claim_that_another_transaction_holds_is_not_waited_for_inside_a_transaction() {
    run(async {
        let (database, store) = with_orders().await;
        let held = claim(&store, &key("a")).await;
        let (mut one, mut two) = (database.plain().await, database.plain().await);
        sqlx::raw_sql("BEGIN").execute(&mut one).await.expect("begin");
        sqlx::raw_sql("BEGIN").execute(&mut two).await.expect("begin");
        order(&mut one).await;
        let lock = format!("SELECT 1 FROM semel_record WHERE {} FOR UPDATE", at(&key("a")));
        sqlx::raw_sql(sqlx::AssertSqlSafe(lock)).execute(&mut two).await.expect("locked");
        let settlement = success("ok");
        let settled = timeout(AT_ONCE, store.settle_in(&mut one, &held, &settlement)).await;
        let error = settled.expect("at once").expect_err("held");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        sqlx::raw_sql("ROLLBACK").execute(&mut two).await.expect("rollback");
        let settled = store.settle_in(&mut one, &held, &settlement).await.expect("free now");
        assert_eq!(settled, Settled::Done, "the transaction lost nothing by it");
        sqlx::raw_sql("COMMIT").execute(&mut one).await.expect("commit");
        assert_eq!(database.number("SELECT COUNT(*) FROM orders").await, 1);
    });
}

/// Returns the error of a step inside a transaction whose statement is never answered.
async fn stuck(
    database: &TestDatabase,
    store: &MySqlStore,
    verb: &str,
) -> semel_core::store::Error {
    let held = claim(store, &key("a")).await;
    let record = store.peek(&key("a")).await.expect("peek").expect("there").record;
    let (event, gated) = if verb == "open" { ("INSERT", "b") } else { ("UPDATE", "a") };
    let gate = database.gate(event, &key(gated)).await;
    let mut transaction = store.begin().await.expect("begin");
    let connection = MySqlStore::connection(&mut transaction);
    let step = async {
        match verb {
            "open" => store.open_in(connection, &draft(&key("b"))).await.map(|_| ()),
            "swap" => {
                let change = Change::Regrant(draft(&key("a")));
                let key = key("a");
                let swap = store.swap_in(connection, &key, record.version(), &change);
                swap.await.map(|_| ())
            }
            _ => store.settle_in(connection, &held, &success("ok")).await.map(|_| ()),
        }
    };
    let error = {
        let mut step = pin!(step);
        tokio::select! {
            answered = &mut step => panic!("{verb}: {answered:?}"),
            _ = gate.reached() => {}
        }
        // Nothing is left to do but wait for the server, so the paused clock reaches the limit at
        // once.
        tokio::time::pause();
        timeout(LONG * 10, step).await.expect("a limit").expect_err("stuck")
    };
    tokio::time::resume();
    drop(gate);
    store.rollback(transaction).await;
    error
}

#[tokio::test]
async fn a_step_inside_a_transaction_has_a_time_limit_and_did_not_happen() {
    for verb in ["open", "swap", "settle"] {
        let database = TestDatabase::new().await;
        let error = stuck(&database, &database.connect().await, verb).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{verb}: {error}");
    }
}

#[test]
fn a_connection_lost_inside_a_transaction_leaves_no_doubt() {
    run(async {
        let (database, store) = with_orders().await;
        let gate = database.gate("INSERT", &key("b")).await;
        let mut transaction = store.begin().await.expect("begin");
        let connection = MySqlStore::connection(&mut transaction);
        let draft = draft(&key("b"));
        let (opened, ()) = tokio::join!(store.open_in(connection, &draft), gate.kill());
        let error = opened.expect_err("its connection was killed");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let settlement = success("ok");
        let settled =
            store.settle_in(connection, &lease(&draft, semel_core::Fence(1)), &settlement).await;
        let error = settled.expect_err("there is no connection");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    });
}

#[test]
fn a_callers_time_zone_moves_no_clock() {
    run(async {
        for database in [TestDatabase::new().await, TestDatabase::mysql9().await] {
            let store = database.connect().await;
            for zone in ["+13:00", "-12:00", "+05:30"] {
                let mut caller = database.plain().await;
                let set = format!("SET time_zone = '{zone}'; START TRANSACTION");
                sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(&mut caller).await.expect("set");
                let draft = draft(&key(zone));
                let opened = store.open_in(&mut caller, &draft).await.expect("open");
                let Opened::Inserted { fence } = opened else { panic!("{opened:?}") };
                sqlx::raw_sql("COMMIT").execute(&mut caller).await.expect("commit");
                // By the clock of a session without a time zone of its own.
                let peeked = store.peek(&key(zone)).await.expect("peek").expect("there");
                let left = peeked.record.lease_until.and_then(|end| end.remaining(peeked.now));
                let left = left.expect("the lease runs");
                assert!(left <= draft.lease && left + LONG > draft.lease, "{zone}: {left:?}");
                assert_eq!(peeked.record.fence, fence);
                let now = u64::try_from(peeked.now.as_micros()).expect("after 1970");
                assert!(fence.0 <= now && fence.0 + 60_000_000 > now, "{zone}: {fence:?}");
                assert!(peeked.record.created_at <= peeked.now, "{zone}");
            }
        }
    });
}
