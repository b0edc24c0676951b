//! Tests functions with a unit: the body's writes, the claim and the answer are one commit.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use semel::executor::NoDurableClaim;
use semel::sql::sqlite::SqliteStore;
use semel::sql::sqlx::{self, Connection as _, SqliteConnection};
use semel::{Error, Execution, Executor, OnCrash};
use semel_macros::idempotent;

/// A SQLite file with a ledger and a table of charges.
struct Till {
    directory: PathBuf,
    executor: Executor<SqliteStore>,
}

impl Till {
    async fn open() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::SeqCst);
        let name = format!("semel-macros-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory below the temporary one");
        let store = SqliteStore::open(directory.join("till.db")).await.expect("opens");
        let till = Self { directory, executor: Executor::new(store) };
        sqlx::query("CREATE TABLE charge (number INTEGER PRIMARY KEY, cents INTEGER)")
            .execute(&mut till.connection().await)
            .await
            .expect("a table");
        till
    }

    async fn connection(&self) -> SqliteConnection {
        let file = self.directory.join("till.db");
        SqliteConnection::connect(&format!("sqlite:{}", file.display())).await.expect("connects")
    }

    async fn charges(&self) -> Vec<i64> {
        let rows: Vec<(i64,)> = sqlx::query_as("SELECT cents FROM charge ORDER BY number")
            .fetch_all(&mut self.connection().await)
            .await
            .expect("rows");
        rows.into_iter().map(|(cents,)| cents).collect()
    }
}

impl Drop for Till {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[idempotent(
    operation = "CHARGE",
    executor = till.executor,
    tenant = "acme",
    key = key,
    fields(cents),
    unit = unit
)]
async fn charge(
    till: &Till,
    key: &str,
    cents: i64,
) -> Result<Execution<i64>, Error<Box<dyn std::error::Error + Send + Sync>>> {
    let (number,) = sqlx::query_as("INSERT INTO charge (cents) VALUES (?) RETURNING number")
        .bind(cents)
        .fetch_one(unit.conn())
        .await?;
    if cents < 0 {
        return Err("the amount is negative".into());
    }
    Ok(number)
}

#[tokio::test]
async fn the_writes_and_the_answer_are_one_commit() {
    let till = Till::open().await;
    let first = charge(&till, "k-1", 5).await.expect("runs");
    assert_eq!((first.value(), first.replayed()), (Some(&1), false));
    let again = charge(&till, "k-1", 5).await.expect("replays");
    assert_eq!((again.value(), again.replayed()), (Some(&1), true));
    let refused = charge(&till, "k-1", 6).await;
    assert!(matches!(refused, Err(Error::Mismatch)), "{refused:?}");
    assert_eq!(till.charges().await, [5]);
}

#[tokio::test]
async fn an_error_rolls_the_writes_back() {
    let till = Till::open().await;
    let failed = charge(&till, "k-1", -1).await;
    assert!(matches!(failed, Err(Error::Work(_))), "{failed:?}");
    assert_eq!(till.charges().await, [0_i64; 0]);
}

#[idempotent(
    operation = "REMOTE",
    executor = till.executor,
    tenant = "acme",
    key = key,
    fields(),
    context = claim,
    unit = mut unit
)]
async fn one_commit(till: &Till, key: &str) -> Result<String, Error<NoDurableClaim>> {
    assert_eq!(unit.context().fence(), claim.fence());
    drop(unit);
    claim.downstream_key("charge")
}

#[idempotent(
    operation = "REMOTE",
    executor = till.executor,
    tenant = "acme",
    key = key,
    fields(),
    unit = unit,
    claim_first,
    on_crash = OnCrash::Hold
)]
async fn two_commits(till: &Till, key: &str) -> Result<String, Error<NoDurableClaim>> {
    unit.context().downstream_key("charge")
}

#[tokio::test]
async fn a_claim_that_is_committed_first_has_downstream_keys() {
    let till = Till::open().await;
    let refused = one_commit(&till, "k-1").await;
    assert!(matches!(refused, Err(Error::Work(NoDurableClaim))), "{refused:?}");
    let key = two_commits(&till, "k-2").await.expect("runs");
    assert_eq!(key.len(), 32);
    assert_eq!(two_commits(&till, "k-2").await.expect("replays"), key);
}
