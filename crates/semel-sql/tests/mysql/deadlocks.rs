//! Tests transactions that the server rolled back by itself while the work continued.

use semel_core::executor::{LocalReplay, Unit};
use semel_core::{Command, Error, Executor, Key, State};
use semel_servers::{MariaDb, Options};
use semel_sql::mysql::MySqlStore;
use semel_sql::sqlx::{self, AssertSqlSafe, MySqlConnection, Row as _};
use semel_testkit::fixture::run;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::fixture::{LONG, TestDatabase};

/// Returns a database with two rows that transactions contend for, and a table for effects.
async fn with_contended_rows(database: TestDatabase) -> TestDatabase {
    let database = database.and_effects().await;
    database
        .run(
            "CREATE TABLE stock (id INT PRIMARY KEY, n INT NOT NULL); \
             INSERT INTO stock VALUES (1, 0), (2, 0); \
             CREATE TABLE weight (id INT AUTO_INCREMENT PRIMARY KEY, n INT NOT NULL)",
        )
        .await;
    database
}

async fn sent(connection: &mut MySqlConnection, text: &'static str) {
    sqlx::raw_sql(text).execute(connection).await.expect(text);
}

/// Starts a transaction that holds row 2, waits for row 1, and has written so much that the server
/// lets it win a deadlock.
async fn rival(database: &TestDatabase) -> JoinHandle<()> {
    let mut rival = database.plain().await;
    sent(&mut rival, "START TRANSACTION").await;
    let rows = vec!["(0)"; 2_000].join(",");
    let weight = AssertSqlSafe(format!("INSERT INTO weight (n) VALUES {rows}"));
    sqlx::raw_sql(weight).execute(&mut rival).await.expect("weight");
    sent(&mut rival, "UPDATE stock SET n = n + 1 WHERE id = 2").await;
    let id: i64 = sqlx::query_scalar("SELECT CAST(CONNECTION_ID() AS SIGNED)")
        .fetch_one(&mut rival)
        .await
        .expect("an id");
    let waiting = tokio::spawn(async move {
        sent(&mut rival, "UPDATE stock SET n = n + 1 WHERE id = 1").await;
        sent(&mut rival, "ROLLBACK").await;
    });
    let mut watcher = database.plain().await;
    let seen = async { while !waits_for_a_lock(&mut watcher, id).await {} };
    timeout(LONG, seen).await.expect("the rival waits for row 1");
    waiting
}

/// Returns whether the transaction of session `id` waits for a lock. Reads the monitor, which is
/// always up to date: `information_schema.innodb_trx` is cached while it is queried more often than
/// every 100 ms.
async fn waits_for_a_lock(connection: &mut MySqlConnection, id: i64) -> bool {
    let row = sqlx::raw_sql("SHOW ENGINE INNODB STATUS").fetch_one(connection).await;
    let status: String = row.and_then(|row| row.try_get(2)).expect("the monitor");
    let session = format!("thread id {id},");
    let mut transactions = status.split("---TRANSACTION");
    transactions.any(|shown| shown.contains("LOCK WAIT") && shown.contains(&session))
}

fn number(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?;
    error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>().map(|error| error.number())
}

fn executor(store: MySqlStore) -> Executor<MySqlStore> {
    Executor::builder(store).local_replay(LocalReplay::OFF).build().expect("an executor")
}

async fn effects(database: &TestDatabase) -> i64 {
    database.number("SELECT COUNT(*) FROM effect").await
}

/// Runs work that meets a deadlock if another transaction contends for its rows, ignores the error
/// and continues.
async fn ignore_deadlock(mut unit: Unit<MySqlStore>, url: Option<String>) -> Result<(), String> {
    let connection = unit.conn();
    sent(connection, "UPDATE stock SET n = n + 1 WHERE id = 1").await;
    if let Some(url) = url {
        let database = TestDatabase::borrowed(&url);
        let rival = rival(&database).await;
        let lost =
            sqlx::raw_sql("UPDATE stock SET n = n + 1 WHERE id = 2").execute(&mut *connection);
        let lost = lost.await.expect_err("a deadlock");
        assert_eq!(number(&lost), Some(1213), "{lost}");
        rival.await.expect("the rival won");
    }
    for _ in 0..3 {
        sent(connection, "INSERT INTO effect (name) VALUES ('one')").await;
    }
    Ok(())
}

async fn a_swallowed_deadlock_commits_nothing(database: TestDatabase) {
    let database = with_contended_rows(database).await;
    let executor = executor(database.connect().await);
    for claim_first in [false, true] {
        let id = format!("claim-first-{claim_first}");
        let command = || {
            let key = Key::command("acme", "ORDER_CREATE", &id).expect("a key");
            let command = Command::new(key);
            if claim_first { command.claim_first() } else { command }
        };
        let before = effects(&database).await;
        for round in 0..3 {
            let url = Some(database.url());
            let done = executor.transact(command(), move |unit| ignore_deadlock(unit, url)).await;
            let error = done.expect_err("nothing of it can be committed");
            assert!(matches!(error, Error::Store(_)), "round {round}: {error:?}");
            assert!(error.to_string().contains("1213"), "round {round}: {error}");
            assert_eq!(effects(&database).await, before, "round {round}");
        }
        let done = executor.transact(command(), |unit| ignore_deadlock(unit, None)).await;
        assert!(!done.expect("no rival, no deadlock").replayed());
        assert_eq!(effects(&database).await, before + 3);
        let again = executor.transact(command(), |unit| ignore_deadlock(unit, None)).await;
        assert!(again.expect("replayed").replayed());
        let key = Key::command("acme", "ORDER_CREATE", &id).expect("a key");
        let record = executor.peek(&key).await.expect("a store").expect("a record").record;
        assert_eq!(record.state, State::Succeeded);
        assert_eq!(effects(&database).await, before + 3);
    }
}

#[test]
fn a_swallowed_deadlock_commits_nothing_on_mariadb() {
    run(async { a_swallowed_deadlock_commits_nothing(TestDatabase::new().await).await });
}

#[test]
fn a_swallowed_deadlock_commits_nothing_on_mysql() {
    run(async { a_swallowed_deadlock_commits_nothing(TestDatabase::mysql9().await).await });
}

#[test]
fn a_swallowed_lock_wait_commits_nothing_where_it_rolls_back() {
    run(async {
        let options = Options::new()
            .flag("--innodb-rollback-on-timeout=ON")
            .flag("--innodb-lock-wait-timeout=1");
        let server = MariaDb::start(options).expect("a private server");
        let database = with_contended_rows(TestDatabase::at(server.url()).await).await;
        let executor = executor(database.connect().await);
        let key = Key::command("acme", "ORDER_CREATE", "waits").expect("a key");
        let mut holder = database.plain().await;
        sent(&mut holder, "START TRANSACTION; UPDATE stock SET n = 1 WHERE id = 2").await;
        let work = |mut unit: Unit<MySqlStore>| async move {
            let connection = unit.conn();
            sent(connection, "UPDATE stock SET n = n + 1 WHERE id = 1").await;
            let waited = sqlx::raw_sql("UPDATE stock SET n = n + 1 WHERE id = 2");
            let waited = waited.execute(&mut *connection).await.expect_err("held by another");
            assert_eq!(number(&waited), Some(1205), "{waited}");
            sent(connection, "INSERT INTO effect (name) VALUES ('one')").await;
            Ok::<(), String>(())
        };
        for round in 0..3 {
            let done = executor.transact(Command::new(key.clone()), work).await;
            let error = done.expect_err("nothing of it can be committed");
            assert!(error.to_string().contains("1205"), "round {round}: {error}");
            assert_eq!(effects(&database).await, 0, "round {round}");
        }
    });
}

#[test]
fn a_caller_whose_own_transaction_was_rolled_back_by_a_deadlock_gets_an_error() {
    run(async {
        use semel_core::store::{ErrorKind, Opened, TransactionalStore as _};
        let database = with_contended_rows(TestDatabase::new().await).await;
        let store = database.connect().await;
        let mut caller = database.plain().await;
        sent(&mut caller, "START TRANSACTION; UPDATE stock SET n = n + 1 WHERE id = 1").await;
        let waiting = rival(&database).await;
        // The caller's own statement completes the deadlock, and its claim is rolled back with its
        // transaction.
        let draft = crate::fixture::draft(&crate::fixture::key("m3"));
        let opened = store.open_in(&mut caller, &draft).await.expect("open");
        let Opened::Inserted { fence } = opened else { panic!("{opened:?}") };
        let lost =
            sqlx::raw_sql("UPDATE stock SET n = n + 1 WHERE id = 2").execute(&mut caller).await;
        assert_eq!(number(&lost.expect_err("a deadlock")), Some(1213));
        timeout(LONG, waiting).await.expect("in time").expect("the rival won");
        let lease = crate::fixture::lease(&draft, fence);
        let settled = store.settle_in(&mut caller, &lease, &crate::fixture::success("no")).await;
        let error = settled.expect_err("there is no transaction any more");
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains("1213"), "{error}");
    });
}
