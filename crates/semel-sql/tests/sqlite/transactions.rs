//! Tests callers' transactions, for which the writer waits.

use std::future::pending;

use super::*;

async fn orders(place: &Place) -> i64 {
    let row = place
        .foreign_connection()
        .await
        .fetch_one("SELECT count(*) FROM orders")
        .await
        .expect("counts");
    row.get(0)
}

async fn insert_order(transaction: &mut SqliteTransaction) {
    let connection = SqliteStore::connection(transaction);
    connection.execute("INSERT INTO orders VALUES (1)").await.expect("inserts");
}

const ORDERS: &str = "CREATE TABLE orders (n INTEGER)";

#[tokio::test]
async fn claim_work_and_outcome_commit_together_or_not_at_all() {
    let place = Place::new();
    let store = place.open().await;
    place.run(ORDERS.into()).await;
    for (id, commit) in [("undone", false), ("kept", true)] {
        let mut transaction = store.begin().await.expect("begins");
        let draft = draft(id);
        let opened = store.open_in(SqliteStore::connection(&mut transaction), &draft).await;
        let Ok(Opened::Inserted { fence }) = opened else { panic!("{opened:?}") };
        insert_order(&mut transaction).await;
        let connection = SqliteStore::connection(&mut transaction);
        let settled = store.settle_in(connection, &lease(&draft, fence), &done()).await;
        assert_eq!(settled.expect("settles"), Settled::Done);
        if commit {
            store.commit(transaction).await.expect("commits");
        } else {
            store.rollback(transaction).await;
        }
    }
    assert_eq!(orders(&place).await, 1);
    assert!(has(&store, "kept").await && !has(&store, "undone").await);
}

#[tokio::test]
async fn a_transaction_may_take_over_what_it_finds() {
    let place = Place::new();
    let store = place.open().await;
    let old = claim(&store, &draft("a")).await;
    let mut transaction = store.begin().await.expect("begins");
    let connection = SqliteStore::connection(&mut transaction);
    let next = draft("a");
    let Ok(Opened::Existing { record, .. }) = store.open_in(connection, &next).await else {
        panic!("it is there")
    };
    let change = Change::Regrant(next.clone());
    let swapped = store.swap_in(connection, &next.key, record.version(), &change).await;
    let Ok(Swapped::Done { fence }) = swapped else { panic!("{swapped:?}") };
    assert!(fence > old.fence);
    let settled = store.settle_in(connection, &lease(&next, fence), &done()).await;
    assert_eq!(settled.expect("settles"), Settled::Done);
    store.commit(transaction).await.expect("commits");
    assert_eq!(store.settle(&old, &done()).await.expect("settles"), Settled::Lost);
}

#[tokio::test]
async fn a_dropped_transaction_rolls_back_and_gives_the_writer_back() {
    let place = Place::new();
    let store = place.open().await;
    place.run(ORDERS.into()).await;
    let mut transaction = store.begin().await.expect("begins");
    insert_order(&mut transaction).await;
    // Dropped on a thread without a runtime.
    std::thread::spawn(move || drop(transaction)).join().expect("no panic");
    claim(&store, &draft("a")).await;
    assert_eq!(orders(&place).await, 0);
}

#[tokio::test]
async fn a_transaction_that_outlives_its_limit_is_cut_off_and_the_others_go_on() {
    let place = Place::new();
    let limit = Duration::from_millis(50);
    let store = place.builder().work_limit(limit).open().await.expect("opens");
    assert_eq!(store.work_limit(Duration::from_secs(30)), Some(limit));
    let default = place.open().await;
    for (lease, limit) in [(6, 2), (30, 10), (3_600, 10)] {
        let limit = Some(Duration::from_secs(limit));
        assert_eq!(default.work_limit(Duration::from_secs(lease)), limit, "everybody waits for it");
    }
    let stuck = async {
        let _transaction = store.begin().await.expect("begins");
        pending::<()>().await;
    };
    let draft = draft("a");
    let (cut, lease) =
        tokio::join!(tokio::time::timeout(limit, stuck), async { claim(&store, &draft).await });
    assert!(cut.is_err());
    assert_eq!(store.settle(&lease, &done()).await.expect("settles"), Settled::Done);
}

#[tokio::test]
async fn a_cancelled_borrower_gives_the_turn_to_the_next() {
    let place = Place::new();
    let store = place.open().await;
    let turn = store.begin().await.expect("begins");
    {
        let mut waiting = Box::pin(store.begin());
        assert!(poll!(&mut waiting).is_pending());
    }
    store.rollback(turn).await;
    let next = store.begin().await.expect("begins");
    store.commit(next).await.expect("commits");
}

#[tokio::test]
async fn a_replay_does_not_wait_for_a_transaction() {
    let place = Place::new();
    let store = place.open().await;
    settled(&store, "a").await;
    let _turn = store.begin().await.expect("begins");
    let opened = store.open(&draft("a")).await;
    assert!(
        matches!(opened, Ok(Opened::Existing { record, .. }) if record.state == State::Succeeded)
    );
}

#[tokio::test]
async fn a_begin_of_the_work_is_a_savepoint() {
    let place = Place::new();
    let store = place.open().await;
    place.run(ORDERS.into()).await;
    let mut transaction = store.begin().await.expect("begins");
    insert_order(&mut transaction).await;
    let mut nested = SqliteStore::connection(&mut transaction).begin().await.expect("nests");
    nested.execute("INSERT INTO orders VALUES (2)").await.expect("inserts");
    nested.rollback().await.expect("rolls back");
    store.commit(transaction).await.expect("commits");
    assert_eq!(orders(&place).await, 1);
}

#[tokio::test]
async fn work_that_ends_the_transaction_itself_is_refused() {
    let place = Place::new();
    let store = place.open().await;
    for settlement in ["COMMIT", "ROLLBACK", "COMMIT; BEGIN IMMEDIATE"] {
        let draft = draft(settlement);
        let mut transaction = store.begin().await.expect("begins");
        let connection = SqliteStore::connection(&mut transaction);
        let opened = store.open_in(connection, &draft).await;
        let Ok(Opened::Inserted { fence }) = opened else { panic!("{opened:?}") };
        connection.execute(settlement).await.expect("SQLite lets it");
        let refused = store.settle_in(connection, &lease(&draft, fence), &done()).await;
        let refused = refused.expect_err("not in the transaction any more");
        assert_eq!(refused.kind(), ErrorKind::Misconfigured, "{settlement}");
        assert!(refused.to_string().contains("leave COMMIT and ROLLBACK"), "{refused}");
        let refused = store.commit(transaction).await.expect_err("not ours");
        assert_eq!(refused.kind(), ErrorKind::Misconfigured, "{settlement}");
    }
    let after = store.begin().await.expect("the next transaction has a sound connection");
    store.commit(after).await.expect("commits");
    claim(&store, &draft("after")).await;
}

#[tokio::test]
async fn a_constraint_that_fails_at_the_commit_is_certain_and_leaves_nothing() {
    let place = Place::new();
    let store = place.open().await;
    let tables = "CREATE TABLE customers (n INTEGER PRIMARY KEY); CREATE TABLE orders \
                  (n INTEGER REFERENCES customers (n) DEFERRABLE INITIALLY DEFERRED)";
    place.run(tables.into()).await;
    let mut transaction = store.begin().await.expect("begins");
    let connection = SqliteStore::connection(&mut transaction);
    let opened = store.open_in(connection, &draft("a")).await;
    assert!(matches!(opened, Ok(Opened::Inserted { .. })));
    insert_order(&mut transaction).await;
    let refused = store.commit(transaction).await.expect_err("there is no such customer");
    assert_eq!(refused.kind(), ErrorKind::Refused, "{refused}");
    assert!(refused.to_string().contains("FOREIGN KEY"), "{refused}");
    let after = store.begin().await.expect("the writer is free again");
    store.commit(after).await.expect("commits");
    assert_eq!(orders(&place).await, 0);
    claim(&store, &draft("a")).await;
}

#[tokio::test]
async fn a_nested_transaction_left_open_is_not_committed() {
    let place = Place::new();
    let store = place.open().await;
    place.run(ORDERS.into()).await;
    let mut transaction = store.begin().await.expect("begins");
    insert_order(&mut transaction).await;
    let nested = SqliteStore::connection(&mut transaction).begin().await.expect("nests");
    std::mem::forget(nested);
    let refused = store.commit(transaction).await.expect_err("half-open");
    assert_eq!(refused.kind(), ErrorKind::Misconfigured, "{refused}");
    let after = store.begin().await.expect("begins");
    store.commit(after).await.expect("commits");
    assert_eq!(orders(&place).await, 0);
}
