//! Tests that sessions of callers' transactions are reused only while they are clean.

use std::time::Duration;

use semel_core::store::TransactionalStore;
use semel_sql::postgres::PgStore;
use semel_testkit::Fixture;
use sqlx::{Acquire, Row};

use crate::database::Database;

/// Returns the id of the server process of a transaction, which is then committed.
async fn backend(store: &PgStore) -> i32 {
    let mut transaction = store.begin().await.expect("begun");
    let connection = PgStore::connection(&mut transaction);
    let row = sqlx::raw_sql("select pg_backend_pid()").fetch_one(connection).await;
    store.commit(transaction).await.expect("committed");
    row.expect("asked").get(0)
}

#[tokio::test]
async fn a_session_is_reused_until_its_lifetime_is_over() {
    let database = Database::new().await;
    let store = database.store().await;
    let first = backend(&store).await;
    for _ in 0..5 {
        assert_eq!(backend(&store).await, first, "reset, not reopened");
    }
    let brief = database.settings().max_lifetime(Duration::ZERO);
    let brief = brief.connect().await.expect("connected");
    assert_ne!(backend(&brief).await, backend(&brief).await);
}

#[tokio::test]
async fn a_session_whose_savepoint_was_left_open_is_not_used_again() {
    let database = Database::new().await;
    let store = database.store().await;
    let first = backend(&store).await;
    let mut transaction = store.begin().await.expect("begun");
    let nested = PgStore::connection(&mut transaction).begin().await.expect("a savepoint");
    std::mem::forget(nested);
    store.rollback(transaction).await;
    assert_ne!(backend(&store).await, first);
}

#[tokio::test]
async fn nested_transactions_of_the_work_are_savepoints_on_a_reused_session() {
    let database = Database::new().await;
    database.run("create table kept (name text)").await;
    let store = database.store().await;
    let first = backend(&store).await;
    let mut transaction = store.begin().await.expect("begun");
    let connection = PgStore::connection(&mut transaction);
    for (name, keep) in [("kept", true), ("dropped", false)] {
        let mut nested = connection.begin().await.expect("a savepoint");
        let insert = sqlx::query("insert into kept values ($1)").bind(name);
        insert.execute(&mut *nested).await.expect("inserted");
        match keep {
            true => nested.commit().await.expect("released"),
            false => nested.rollback().await.expect("rolled back"),
        }
    }
    let count = async || -> i64 {
        let count = sqlx::query_scalar("select count(*) from kept");
        count.fetch_one(&mut database.connection().await).await.expect("counted")
    };
    assert_eq!(count().await, 0, "nothing is committed before the transaction is");
    store.commit(transaction).await.expect("committed");
    assert_eq!(count().await, 1);
    assert_eq!(backend(&store).await, first);
}
