//! Tests claim, work and outcome in one commit, and what breaks that.

use std::time::Duration;

use semel_core::State;
use semel_core::store::{ErrorKind, Opened, Settled, Store, TransactionalStore};
use semel_sql::postgres::{PgStore, PgTransaction};
use semel_testkit::Fixture;
use sqlx::{Acquire, PgConnection};

use crate::database::{Database, draft, key, lease, success};

async fn run(connection: &mut PgConnection, sql: &'static str) {
    sqlx::raw_sql(sql).execute(connection).await.expect("runs");
}

async fn orders(database: &Database) -> i64 {
    let mut connection = database.connection().await;
    sqlx::query_scalar("select count(*) from orders")
        .fetch_one(&mut connection)
        .await
        .expect("count")
}

async fn with_orders() -> (Database, PgStore) {
    let database = Database::new().await;
    database.run("create table orders (id integer primary key, note text)").await;
    let store = database.store().await;
    (database, store)
}

#[tokio::test]
async fn claim_work_and_outcome_commit_together() {
    let (database, store) = with_orders().await;
    let first = draft(&key("k"));
    let mut transaction = store.begin().await.expect("begun");
    let connection = PgStore::connection(&mut transaction);
    let opened = store.open_in(connection, &first).await.expect("opened");
    run(connection, "insert into orders values (1, 'a')").await;
    let settled = store.settle_in(connection, &lease(&first, &opened), &success("ok")).await;
    assert_eq!(settled.expect("settled"), Settled::Done);
    assert!(store.peek(&first.key).await.expect("peeked").is_none(), "nothing before the commit");
    store.commit(transaction).await.expect("committed");
    let record = store.peek(&first.key).await.expect("peeked").expect("there").record;
    assert_eq!(record.state, State::Succeeded);
    assert_eq!(orders(&database).await, 1);
}

#[tokio::test]
async fn a_dropped_transaction_leaves_nothing_and_frees_its_connection() {
    let (database, _) = with_orders().await;
    let store = database.settings().transactions(1).connect().await.expect("connected");
    for at in 0..3 {
        let mut transaction = store.begin().await.expect("begun");
        let connection = PgStore::connection(&mut transaction);
        let opened = store.open_in(connection, &draft(&key(&at.to_string()))).await;
        assert!(matches!(opened.expect("opened"), Opened::Inserted { .. }));
        run(connection, "insert into orders values (1, 'a')").await;
        drop(transaction);
    }
    assert_eq!(orders(&database).await, 0);
}

#[tokio::test]
async fn work_that_commits_is_refused_at_its_end() {
    let (database, store) = with_orders().await;
    for (id, end) in [("c", "commit"), ("cb", "commit; begin"), ("r", "rollback")] {
        let first = draft(&key(id));
        let mut transaction = store.begin().await.expect("begun");
        let connection = PgStore::connection(&mut transaction);
        let opened = store.open_in(connection, &first).await.expect("opened");
        run(connection, end).await;
        let settled = store.settle_in(connection, &lease(&first, &opened), &success("ok")).await;
        let error = settled.expect_err("not in the claim's transaction any more");
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{end}: {error}");
        assert!(error.to_string().contains("COMMIT"), "{error}");
        store.rollback(transaction).await;
        let record = store.peek(&first.key).await.expect("peeked").map(|peeked| peeked.record);
        assert_ne!(record.map(|record| record.state), Some(State::Succeeded), "{end}");
    }
    assert_eq!(orders(&database).await, 0);
}

#[tokio::test]
async fn a_nested_transaction_of_the_work_is_a_savepoint() {
    let (database, store) = with_orders().await;
    let first = draft(&key("k"));
    let mut transaction = store.begin().await.expect("begun");
    let connection = PgStore::connection(&mut transaction);
    let opened = store.open_in(connection, &first).await.expect("opened");
    let mut kept = connection.begin().await.expect("savepoint");
    run(&mut kept, "insert into orders values (1, 'kept')").await;
    kept.commit().await.expect("released");
    let mut undone = connection.begin().await.expect("savepoint");
    run(&mut undone, "insert into orders values (2, 'undone')").await;
    drop(undone);
    let settled = store.settle_in(connection, &lease(&first, &opened), &success("ok")).await;
    assert_eq!(settled.expect("settled"), Settled::Done);
    store.commit(transaction).await.expect("committed");
    assert_eq!(orders(&database).await, 1);
}

#[tokio::test]
async fn a_savepoint_left_open_is_not_taken_for_a_commit() {
    let (database, store) = with_orders().await;
    let mut transaction = store.begin().await.expect("begun");
    let connection = PgStore::connection(&mut transaction);
    std::mem::forget(connection.begin().await.expect("savepoint"));
    run(connection, "insert into orders values (1, 'a')").await;
    let error = store.commit(transaction).await.expect_err("a savepoint is open");
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert_eq!(orders(&database).await, 0);
}

/// Runs two transactions that each settled a claim that the other settles next.
async fn crossed(store: &PgStore) -> [semel_core::store::Result<Settled>; 2] {
    let drafts = [draft(&key("one")), draft(&key("two"))];
    let mut leases = Vec::new();
    for draft in &drafts {
        leases.push(lease(draft, &store.open(draft).await.expect("opened")));
    }
    let mut first: PgTransaction = store.begin().await.expect("begun");
    let mut second: PgTransaction = store.begin().await.expect("begun");
    let settlement = success("x");
    for (transaction, lease) in [(&mut first, leases[0]), (&mut second, leases[1])] {
        let settled = store.settle_in(PgStore::connection(transaction), &lease, &settlement).await;
        assert_eq!(settled.expect("settled"), Settled::Done);
    }
    let (one, two) = tokio::join!(
        async {
            let crossed =
                store.settle_in(PgStore::connection(&mut first), &leases[1], &settlement).await;
            store.rollback(first).await;
            crossed
        },
        async {
            let crossed =
                store.settle_in(PgStore::connection(&mut second), &leases[0], &settlement).await;
            store.rollback(second).await;
            crossed
        },
    );
    [one, two]
}

#[tokio::test]
async fn transactions_that_settle_each_others_claims_do_not_deadlock() {
    let database = Database::new().await;
    let store = database.store().await;
    let answers = crossed(&store).await;
    // At least one finds the other's row locked. The second may run after the first has rolled
    // back.
    let refused: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
    assert!(!refused.is_empty(), "{answers:?}");
    assert!(refused.iter().all(|e| e.kind() == ErrorKind::Unavailable), "{refused:?}");
}

#[tokio::test]
async fn a_serialisation_failure_tells_the_caller_to_run_the_transaction_again() {
    let (database, store) = with_orders().await;
    database.run("insert into orders values (1, 'a')").await;
    let first = draft(&key("k"));
    let claim = lease(&first, &store.open(&first).await.expect("opened"));
    let mut transaction = store.begin().await.expect("begun");
    let connection = PgStore::connection(&mut transaction);
    run(connection, "set transaction isolation level repeatable read").await;
    run(connection, "select * from orders").await;
    // Another session writes the record after this transaction's snapshot was taken.
    database.advance(Duration::from_millis(1)).await;
    let error = store.settle_in(connection, &claim, &success("ok")).await.expect_err("conflict");
    assert_eq!(error.kind(), ErrorKind::RetryTransaction, "{error}");
    store.rollback(transaction).await;
    assert_eq!(store.settle(&claim, &success("ok")).await.expect("settled"), Settled::Done);
}

#[tokio::test]
async fn transactions_are_bounded_and_the_wait_for_one_is_too() {
    let database = Database::new().await;
    let settings = database.settings().transactions(2);
    let store =
        settings.transaction_wait(Duration::from_millis(50)).connect().await.expect("connected");
    let one = store.begin().await.expect("begun");
    let two = store.begin().await.expect("begun");
    let error = store.begin().await.expect_err("both are in use");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("all 2 transactions"), "{error}");
    store.rollback(one).await;
    store.commit(two).await.expect("committed");
    store.rollback(store.begin().await.expect("begun")).await;
}

#[tokio::test]
async fn a_claim_inside_a_transaction_sees_the_clock_move() {
    let database = Database::new().await;
    let store = database.store().await;
    let key = key("k");
    assert!(matches!(store.open(&draft(&key)).await.expect("opened"), Opened::Inserted { .. }));
    let mut transaction = store.begin().await.expect("begun");
    let mut moments = Vec::new();
    for _ in 0..2 {
        let connection = PgStore::connection(&mut transaction);
        let opened = store.open_in(connection, &draft(&key)).await.expect("opened");
        let Opened::Existing { now, .. } = opened else { panic!("{opened:?}") };
        moments.push(now);
    }
    store.rollback(transaction).await;
    assert!(moments[0] < moments[1], "a transaction's own time stands still: {moments:?}");
}
