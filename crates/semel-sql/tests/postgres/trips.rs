//! Counts the round trips of steps through a proxy.

use semel_core::store::{Change, Committed, Opened, Settled, Store, Swapped, TransactionalStore};
use semel_sql::postgres::{PgOptions, PgStore};

use crate::database::{Database, draft, failure, key, lease, success};
use crate::proxy::Proxy;

/// Returns a store with one connection behind a counting proxy, with every statement prepared.
async fn counted(database: &Database) -> (PgStore, Proxy) {
    let (proxy, options) = Proxy::before(&database.options).await;
    let store = PgOptions::with(options).connections(1).connect().await.expect("connected");
    once(&store, &proxy, "warm").await;
    transact(&store, &proxy, "warm transaction").await;
    (store, proxy)
}

/// Runs every verb once, and returns how many trips each took.
async fn once(store: &PgStore, proxy: &Proxy, id: &str) -> [u64; 5] {
    let key = key(id);
    let first = draft(&key);
    proxy.trips();
    let opened = store.open(&first).await.expect("opened");
    let open = proxy.trips();
    let settled = store.settle(&lease(&first, &opened), &failure("no")).await.expect("settled");
    assert_eq!(settled, Settled::Done);
    let settle = proxy.trips();
    let seen = store.open(&draft(&key)).await.expect("seen");
    let replay = proxy.trips();
    let Opened::Existing { record, .. } = seen else { panic!("not there: {seen:?}") };
    let change = Change::Regrant(draft(&key));
    let swapped = store.swap(&key, record.version(), &change).await.expect("swapped");
    assert!(matches!(swapped, Swapped::Done { .. }));
    let swap = proxy.trips();
    assert!(store.peek(&key).await.expect("peeked").is_some());
    [open, settle, replay, swap, proxy.trips()]
}

/// Runs a whole operation, and returns how many trips its beginning, its work and its end took.
async fn execute(store: &PgStore, proxy: &Proxy, id: &str, body: &'static str) -> [u64; 3] {
    let draft = draft(&key(id));
    proxy.trips();
    let (mut transaction, opened) = store.begin_and_open(&draft).await.expect("begun");
    let begin = proxy.trips();
    let work = sqlx::query("select 1").execute(PgStore::connection(&mut transaction)).await;
    work.expect("the work");
    let work = proxy.trips();
    let claim = lease(&draft, &opened);
    let committed = store.settle_and_commit(transaction, &claim, &success(body)).await;
    assert!(matches!(committed, Committed::Done), "{committed:?}");
    [begin, work, proxy.trips()]
}

/// Runs a claim, its work and its end as separate steps of the caller, and returns the trips of
/// each.
async fn transact(store: &PgStore, proxy: &Proxy, id: &str) -> [u64; 5] {
    let first = draft(&key(id));
    proxy.trips();
    let mut transaction = store.begin().await.expect("begun");
    let begin = proxy.trips();
    let connection = PgStore::connection(&mut transaction);
    let opened = store.open_in(connection, &first).await.expect("opened");
    let open = proxy.trips();
    sqlx::query("select 1").execute(&mut *connection).await.expect("the work");
    let work = proxy.trips();
    let settled = store.settle_in(connection, &lease(&first, &opened), &success("ok")).await;
    assert_eq!(settled.expect("settled"), Settled::Done);
    let settle = proxy.trips();
    store.commit(transaction).await.expect("committed");
    [begin, open, work, settle, proxy.trips()]
}

#[tokio::test]
async fn every_step_is_one_trip() {
    let database = Database::new().await;
    let (store, proxy) = counted(&database).await;
    let counts = once(&store, &proxy, "counted").await;
    assert_eq!(counts, [1; 5], "open, settle, replay, swap, peek");
}

#[tokio::test]
async fn a_protected_transaction_costs_two_trips_beside_its_work() {
    let database = Database::new().await;
    let (store, proxy) = counted(&database).await;
    for at in 0..2 {
        let counts = execute(&store, &proxy, &format!("small {at}"), "done").await;
        assert_eq!(counts, [1; 3], "begin and look, work, insert and commit");
    }
    let large: &'static str = "x".repeat(100_000).leak();
    execute(&store, &proxy, "prepares the insert", large).await;
    let counts = execute(&store, &proxy, "large", large).await;
    assert_eq!(counts, [1, 1, 2], "begin and look, work, insert, commit");
}

#[tokio::test]
async fn a_transaction_in_steps_costs_four_trips_beside_its_work() {
    let database = Database::new().await;
    let (store, proxy) = counted(&database).await;
    let counts = transact(&store, &proxy, "counted").await;
    assert_eq!(counts, [1; 5], "begin, open, work, settle, commit");
    // Returning the connection is free as well: the next transaction starts with its own BEGIN.
    let counts = transact(&store, &proxy, "counted again").await;
    assert_eq!(counts, [1; 5], "begin, open, work, settle, commit");
}

#[tokio::test]
async fn steps_that_wait_for_a_connection_share_one_statement() {
    let database = Database::new().await;
    let (store, proxy) = counted(&database).await;
    let claims = async |prefix: &str| {
        let drafts: Vec<_> = (0..40).map(|at| draft(&key(&format!("{prefix}{at}")))).collect();
        let opens = drafts.iter().map(|draft| store.open(draft));
        futures_util::future::join_all(opens).await
    };
    // The batch's own statement is prepared by the first round.
    claims("warm").await;
    proxy.trips();
    for opened in claims("counted").await {
        assert!(matches!(opened.expect("opened"), Opened::Inserted { .. }));
    }
    // The first takes the idle connection alone; the other thirty-nine share one statement.
    assert_eq!(proxy.trips(), 2);
}
