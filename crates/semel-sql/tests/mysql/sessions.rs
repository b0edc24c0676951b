//! Tests connections on which work ran: session state that it leaves is never seen by other work.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::Duration;

use semel_core::store::{Store as _, TransactionalStore as _};
use semel_servers::{MariaDb, Options};
use semel_sql::mysql::{MySqlStore, MySqlTransaction};
use semel_sql::sqlx::{self, AssertSqlSafe, MySqlConnection};
use semel_testkit::fixture::run;

use crate::fixture::{LONG, TestDatabase, draft, key};

async fn number(connection: &mut MySqlConnection, text: &str) -> i64 {
    let text = AssertSqlSafe(format!("SELECT CAST(({text}) AS SIGNED)"));
    sqlx::query_scalar(text).fetch_one(connection).await.expect("a number")
}

/// Connects a store whose transactions use one connection, unless it is replaced.
async fn single(database: &TestDatabase) -> MySqlStore {
    database.settings().transactions(1).connect().await.expect("connected")
}

async fn ended(store: &MySqlStore, transaction: MySqlTransaction, commits: bool) {
    if commits {
        store.commit(transaction).await.expect("committed");
    } else {
        store.rollback(transaction).await;
    }
}

/// State that work may leave behind, and a query that returns 0 if other work does not see it.
const LEFT: [(&str, &str); 8] = [
    ("USE mysql", "DATABASE() = 'mysql'"),
    ("SET SESSION sql_mode = ''", "@@sql_mode = ''"),
    ("SET SESSION time_zone = '+05:00'", "@@time_zone = '+05:00'"),
    ("SET SESSION TRANSACTION READ ONLY", "@@transaction_read_only"),
    (
        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "@@transaction_isolation = 'SERIALIZABLE'",
    ),
    ("SET SESSION foreign_key_checks = 0", "@@foreign_key_checks = 0"),
    ("SET @tenant = 'acme'", "@tenant IS NOT NULL"),
    // Hides the table of that name.
    (
        "CREATE TEMPORARY TABLE effect (n INT); INSERT INTO effect VALUES (1), (2)",
        "SELECT COUNT(*) FROM effect",
    ),
];

async fn nothing_is_left(database: TestDatabase) {
    let database = database.and_effects().await;
    let mariadb = database.number("VERSION() LIKE '%MariaDB%'").await == 1;
    let store = single(&database).await;
    for commits in [true, false] {
        for (leaves, sees) in LEFT {
            let sees = match (mariadb, sees) {
                (true, "@@transaction_read_only") => "@@tx_read_only",
                (true, "@@transaction_isolation = 'SERIALIZABLE'") => {
                    "@@tx_isolation = 'SERIALIZABLE'"
                }
                _ => sees,
            };
            let mut transaction = store.begin().await.expect("begun");
            let connection = MySqlStore::connection(&mut transaction);
            let before = number(connection, "CONNECTION_ID()").await;
            sqlx::raw_sql(leaves).execute(&mut *connection).await.expect(leaves);
            assert_ne!(number(connection, sees).await, 0, "{leaves} is seen by itself");
            ended(&store, transaction, commits).await;
            let mut transaction = store.begin().await.expect("begun");
            let connection = MySqlStore::connection(&mut transaction);
            assert_eq!(number(connection, sees).await, 0, "{leaves} is seen by another");
            assert_ne!(number(connection, "CONNECTION_ID()").await, before);
            store.rollback(transaction).await;
        }
    }
}

#[test]
fn session_state_that_work_leaves_is_never_seen_by_other_work_on_mariadb() {
    run(async { nothing_is_left(TestDatabase::new().await).await });
}

#[test]
fn session_state_that_work_leaves_is_never_seen_by_other_work_on_mysql() {
    run(async { nothing_is_left(TestDatabase::mysql9().await).await });
}

#[test]
fn locks_of_the_work_are_gone_with_its_transaction() {
    run(async {
        for database in [TestDatabase::new().await, TestDatabase::mysql9().await] {
            let store = single(&database).await;
            for commits in [true, false] {
                let mut transaction = store.begin().await.expect("begun");
                let connection = MySqlStore::connection(&mut transaction);
                assert_eq!(number(connection, "GET_LOCK('semel-test', 0)").await, 1);
                ended(&store, transaction, commits).await;
                assert_eq!(database.number("IS_FREE_LOCK('semel-test')").await, 1, "{commits}");
            }
        }
    });
}

#[test]
fn a_connection_on_which_nothing_was_left_is_used_again_until_its_time_is_over() {
    run(async {
        for database in [TestDatabase::new().await, TestDatabase::mysql9().await] {
            let database = database.and_effects().await;
            for (lifetime, reused) in [(LONG * 60, true), (Duration::ZERO, false)] {
                let settings = database.settings().transactions(1).max_lifetime(lifetime);
                let store = settings.connect().await.expect("connected");
                let mut seen = Vec::new();
                for commits in [true, false, true] {
                    let mut transaction = store.begin().await.expect("begun");
                    let connection = MySqlStore::connection(&mut transaction);
                    seen.push(number(connection, "CONNECTION_ID()").await);
                    let effect = sqlx::query("INSERT INTO effect (name) VALUES ('one')");
                    effect.execute(connection).await.expect("an effect");
                    ended(&store, transaction, commits).await;
                }
                seen.dedup();
                assert_eq!(seen.len(), if reused { 1 } else { 3 }, "{seen:?}");
            }
        }
    });
}

/// Starts a proxy that leads new connections to the server at the port in `target`; open
/// connections stay.
fn leading_to(target: Arc<AtomicU16>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = ("127.0.0.1", target.load(Ordering::SeqCst));
            let server = TcpStream::connect(server).expect("the server answers");
            for (from, to) in [(&client, &server), (&server, &client)] {
                let _ = to.set_nodelay(true);
                let clones = (from.try_clone().expect("a clone"), to.try_clone().expect("a clone"));
                thread::spawn(move || pass(clones.0, clones.1));
            }
        }
    });
    port
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Creates a database `shop` with the store's schema, and an account that a read-only server
/// refuses.
async fn shop(server: &semel_servers::Server) {
    let root = TestDatabase::borrowed(server.url());
    root.run(
        "CREATE DATABASE shop; CREATE USER app@'127.0.0.1'; \
         GRANT ALL PRIVILEGES ON shop.* TO app@'127.0.0.1'",
    )
    .await;
    let url = server.url().replace("/mysql", "/shop");
    MySqlStore::connect(&url).await.expect("connected").migrate().await.expect("migrated");
}

#[test]
fn after_a_switchover_no_connection_stays_with_the_old_read_only_server() {
    run(async {
        let [old, new] = [0, 1].map(|_| MariaDb::start(Options::new()).expect("a private server"));
        shop(&old).await;
        shop(&new).await;
        let target = Arc::new(AtomicU16::new(old.port()));
        let port = leading_to(Arc::clone(&target));
        let url = format!("mysql://app@127.0.0.1:{port}/shop");
        let settings =
            MySqlStore::builder(&url).connections(1).transactions(2).statement_timeout(LONG);
        let store = settings.connect().await.expect("connected");
        let transact = async |id: String| {
            let mut transaction = store.begin().await?;
            let connection = MySqlStore::connection(&mut transaction);
            let opened = store.open_in(connection, &draft(&key(&id))).await;
            match opened {
                Ok(_) => store.commit(transaction).await,
                Err(error) => {
                    store.rollback(transaction).await;
                    Err(error)
                }
            }
        };
        transact("before".into()).await.expect("on the old server");
        let _ = store.open(&draft(&key("before-too"))).await.expect("on the old server");
        target.store(new.port(), Ordering::SeqCst);
        TestDatabase::borrowed(old.url()).run("SET GLOBAL read_only = 1").await;
        let mut failed = Vec::new();
        for round in 0..20 {
            failed
                .extend(transact(format!("t-{round}")).await.err().map(|error| error.to_string()));
        }
        assert_eq!(failed, [""; 0], "of 20 transactions");
        for round in 0..20 {
            let opened = store.open(&draft(&key(&format!("r-{round}")))).await;
            failed.extend(opened.err().map(|error| error.to_string()));
        }
        assert!(failed.len() <= 1, "of 20, besides the one that finds out: {failed:?}");
    });
}
