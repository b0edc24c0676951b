//! Tests a claim that was made first and is settled in a transaction with one snapshot for all its
//! reads.

use std::time::Duration;

use semel_core::executor::{Claimed, LocalReplay};
use semel_core::{Command, Error, Execution, Executor, Outcome, State};
use semel_sql::mysql::MySqlStore;
use semel_sql::sqlx::{self, AssertSqlSafe, MySqlConnection};
use semel_testkit::fixture::run;
use tokio::time::timeout;

use crate::fixture::{LONG, TestDatabase, at_once, key};

/// A lease that lapses during the test; the work waits for that, not for a time.
const LEASE: Duration = Duration::from_millis(300);
/// A lease that is renewed during the test, even on a busy machine.
const RENEWED: Duration = Duration::from_secs(9);

async fn executor(database: &TestDatabase) -> Executor<MySqlStore> {
    Executor::builder(database.connect().await)
        .local_replay(LocalReplay::OFF)
        .build()
        .expect("the default policy is valid")
}

fn command() -> Command {
    Command::new(key("a")).lease(LEASE)
}

/// Waits until a third of the lease has passed: then it was renewed, or it lapses.
async fn outlasted(executor: &Executor<MySqlStore>) {
    let outlasted = async {
        loop {
            let found = executor.peek(&key("a")).await.expect("a store").expect("a record");
            if found.record.number > 1 || !found.record.held(found.now) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LONG, outlasted).await.expect("renewed or lapsed");
}

async fn rivals(executor: &Executor<MySqlStore>) -> Result<Execution<u32>, Error<String>> {
    executor.run(command(), |_| async { Ok(7) }).await
}

/// Opens a caller's own connection in a transaction of the level that `set` sets. If the server can
/// be set so, the transaction cannot write rows that were changed after its snapshot.
async fn fixed(database: &TestDatabase, set: &str) -> MySqlConnection {
    let mut connection = database.plain().await;
    let known: i64 = sqlx::query_scalar(
        "SELECT CAST(COUNT(*) AS SIGNED) FROM information_schema.system_variables \
         WHERE variable_name = 'innodb_snapshot_isolation'",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap_or(0);
    if known > 0 {
        let strict = "SET SESSION innodb_snapshot_isolation = ON";
        sqlx::raw_sql(strict).execute(&mut connection).await.expect("set");
    }
    let text = format!("{set}; START TRANSACTION");
    sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut connection).await.expect("begun");
    connection
}

/// Statements that set the isolation level of a session, or only that of its next transaction.
const LEVELS: [&str; 4] = [
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
     SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
     SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
];

#[test]
fn a_claim_handed_to_a_transaction_outlasts_its_lease_and_is_settled() {
    run(settled_at(&LEVELS, TestDatabase::new));
}

#[test]
fn a_claim_handed_to_a_transaction_outlasts_its_lease_and_is_settled_on_mysql9() {
    run(settled_at(&LEVELS[2..3], TestDatabase::mysql9));
}

async fn settled_at(levels: &[&str], place: impl AsyncFn() -> TestDatabase) {
    for level in levels {
        let database = place().await;
        database.run("CREATE TABLE orders (note VARCHAR(99)) ENGINE = InnoDB").await;
        let (executor, rival) = (executor(&database).await, executor(&database).await);
        let Ok(Claimed::Granted(mut claim)) = executor.claim(command()).await else {
            panic!("a grant");
        };
        let mut connection = fixed(&database, level).await;
        executor.hold_in(&mut connection, &mut claim).await.expect("held");
        // Not from the ledger's table: a level that locks what it reads would block renewals by
        // itself.
        let seen = "SELECT COUNT(*) FROM orders; INSERT INTO orders VALUES ('one')";
        sqlx::raw_sql(seen).execute(&mut connection).await.expect("a snapshot");
        outlasted(&executor).await;
        let found = executor.peek(&key("a")).await.expect("a store").expect("a record");
        assert_eq!(found.record.number, 1, "{level}: renewed beside a snapshot");
        at_once(async |_| {
            let told = rivals(&rival).await.expect("an answer");
            assert!(told.in_progress(), "{level}: live work is not taken over: {told:?}");
        })
        .await;
        let swept = rival.sweep(10).await.expect("swept");
        assert_eq!((swept.removed, swept.suspended), (0, 0));
        let outcome = Outcome::new(Outcome::JSON, "1");
        executor.settle_in(&mut connection, claim, outcome).await.expect("settled");
        sqlx::raw_sql("COMMIT").execute(&mut connection).await.expect("committed");
        let found = executor.peek(&key("a")).await.expect("a store").expect("a record");
        assert_eq!((found.record.state, found.record.attempt), (State::Succeeded, 1));
        assert_eq!(rivals(&rival).await.expect("an answer").value(), Some(&1));
        assert_eq!(database.number("SELECT COUNT(*) FROM orders").await, 1);
    }
}

#[test]
fn long_work_of_a_claim_that_came_first_completes() {
    run(async {
        let database = TestDatabase::new().await;
        database.run("CREATE TABLE orders (note VARCHAR(99)) ENGINE = InnoDB").await;
        let (executor, rival) = (executor(&database).await, executor(&database).await);
        let (looking, lookers) = (executor.clone(), rival.clone());
        let work = move |mut unit: semel_core::executor::Unit<MySqlStore>| async move {
            let order = "INSERT INTO orders SELECT COUNT(*) FROM semel_record";
            sqlx::raw_sql(order).execute(unit.conn()).await.map_err(|e| e.to_string())?;
            outlasted(&looking).await;
            assert!(rivals(&lookers).await.expect("an answer").in_progress());
            Ok::<u32, String>(1)
        };
        let done = executor
            .transact(command().lease(RENEWED).claim_first(), work)
            .await
            .expect("it completes");
        assert_eq!((done.replayed(), done.value()), (false, Some(&1)));
        assert_eq!(rivals(&rival).await.expect("an answer").value(), Some(&1));
        assert_eq!(database.number("SELECT COUNT(*) FROM orders").await, 1);
    });
}
