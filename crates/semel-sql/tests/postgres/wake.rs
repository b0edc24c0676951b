//! Tests wake-ups of one store's waiters by another store's settlements.

use std::collections::HashSet;
use std::time::Duration;

use semel_core::Hint;
use semel_core::store::{ErrorKind, Store};
use semel_testkit::Fixture;
use tokio::time::timeout;

use crate::database::{Database, LONG, key};

#[tokio::test]
async fn hints_reach_another_store() {
    let database = Database::new().await;
    let (here, there) = (database.store().await, database.store().await);
    let mut listener = there.listen().await.expect("listening").expect("carried");
    let sent: HashSet<Hint> = (0..300).map(|at| key(&at.to_string()).digest().hint()).collect();
    for hint in &sent {
        here.announce(*hint);
    }
    let mut got = HashSet::new();
    while got.len() < sent.len() {
        got.insert(timeout(LONG, listener.next()).await.expect("in time").expect("a hint"));
    }
    assert_eq!(got, sent);
}

#[tokio::test]
async fn a_thousand_hints_are_few_messages() {
    let database = Database::new().await;
    let (here, there) = (database.store().await, database.store().await);
    let mut listener = sqlx::postgres::PgListener::connect_with(
        &sqlx::postgres::PgPoolOptions::new()
            .connect_with(database.options.clone())
            .await
            .expect("connected"),
    )
    .await
    .expect("listening");
    listener.listen("semel").await.expect("listening");
    for at in 0..1_000 {
        here.announce(key(&at.to_string()).digest().hint());
    }
    let (mut hints, mut messages) = (0, 0);
    while hints < 1_000 {
        let message = timeout(LONG, listener.recv()).await.expect("in time").expect("a message");
        hints += message.payload().len() / 16;
        messages += 1;
    }
    assert!(messages <= 4, "{messages} messages");
    drop(there);
}

#[tokio::test]
async fn a_lost_listener_returns_an_error() {
    let database = Database::new().await;
    let store = database.store().await;
    let mut listener = store.listen().await.expect("listening").expect("carried");
    crate::faults::kill_all(&database).await;
    let error = timeout(LONG, listener.next()).await.expect("in time").expect_err("lost");
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous), "{error}");
}

#[tokio::test]
async fn the_sending_task_ends_with_its_store() {
    let database = Database::bare().await;
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!(alive(), 0);
    let store = database.store().await;
    store.announce(key("k").digest().hint());
    assert_eq!(alive(), 1);
    drop(store);
    let ended = async {
        while alive() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, ended).await.expect("ended");
}
