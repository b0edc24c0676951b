//! SQLite with FULL synchronisation: one connection, one transaction after the other.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use semel_sql::sqlite::SqliteStore;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Executor as _, Row, SqliteConnection};

use super::arguments::Arguments;
use super::business::Business;
use super::large::{self, Crowd};
use super::ours::{self, BODY, Replay, Run, Transact};
use super::pool::ReferencePool;
use super::report::{Report, RowLabel, Target};
use super::{BoxError, TASKS, waiters};
use crate::contest::{Reference, contest};
use semel_bench::turns::Contender;

const STORE: &str = "sqlite";
const ORDERS: &str = "CREATE TABLE bench_order (id INTEGER PRIMARY KEY, body BLOB NOT NULL)";
const INSERT: &str = "INSERT INTO semel_record (digest, kind, tenant, scope, principal, id, number, \
    fingerprint, state, operation_id, attempt_id, attempt, fence, owner, lease_until, on_crash, \
    keep_us, created_at, updated_at, sweep_at) \
    VALUES (?1, 1, 'bench', 'ORDER_CREATE', x'', ?2, 1, x'', 0, ?3, ?3, 1, ?4, 'bench:1:1', \
    ?4 + 30000000, 0, 86400000000, ?4, ?4, ?4 + 86430000000) ON CONFLICT (digest) DO NOTHING";
const SETTLE: &str = "UPDATE semel_record SET number = number + 1, state = 1, lease_until = NULL, \
    body = ?4, content_type = 'application/json', updated_at = ?5, completed_at = ?5, \
    expires_at = ?5 + 86400000000, sweep_at = ?5 + 86400000000 \
    WHERE digest = ?1 AND fence = ?2 AND attempt_id = ?3 AND state = 0";

/// A private directory, removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn create() -> Result<Self, BoxError> {
        let path = std::env::temp_dir().join(format!("semel-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Creates a file with the schema; returns the reference's connection to it.
    async fn reference(&self, name: &str) -> Result<ReferencePool<SqliteConnection>, BoxError> {
        SqliteStore::open(self.file(name)).await?.close().await;
        let mut connection = connect(&self.file(name)).await?;
        connection.execute(ORDERS).await?;
        Ok(ReferencePool::new(vec![connection]))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn connect(path: &std::path::Path) -> Result<SqliteConnection, BoxError> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(5))
        .disable_statement_logging();
    Ok(options.connect().await?)
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    ours::micros(since)
}

struct Granted {
    digest: [u8; 32],
    attempt: [u8; 16],
    fence: i64,
}

async fn claim(connection: &mut SqliteConnection, number: u64) -> Result<Granted, BoxError> {
    let (key, fence) = (ours::key(number), now());
    let granted = Granted {
        digest: *key.digest().as_bytes(),
        attempt: semel_core::AttemptId::generate().to_bytes(),
        fence,
    };
    let done = sqlx::query(INSERT)
        .bind(granted.digest.as_slice())
        .bind(key.id())
        .bind(granted.attempt.as_slice())
        .bind(fence)
        .execute(connection)
        .await?;
    if done.rows_affected() == 1 { Ok(granted) } else { Err("the bare claim was refused".into()) }
}

async fn complete(connection: &mut SqliteConnection, granted: &Granted) -> Result<(), BoxError> {
    let done = sqlx::query(SETTLE)
        .bind(granted.digest.as_slice())
        .bind(granted.fence)
        .bind(granted.attempt.as_slice())
        .bind(BODY.as_slice())
        .bind(now())
        .execute(connection)
        .await?;
    if done.rows_affected() == 1 { Ok(()) } else { Err("the bare settle was refused".into()) }
}

/// Claims and completes, each in its own commit, as fenced work needs it.
struct Steps(ReferencePool<SqliteConnection>);

impl Contender for Steps {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let granted = claim(&mut *self.0.take().await, number).await?;
        complete(&mut *self.0.take().await, &granted).await
    }
}

/// Claims and completes in one transaction: cheaper, but a crash of the work would lose the claim.
struct Together(ReferencePool<SqliteConnection>);

impl Contender for Together {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let mut seat = self.0.take().await;
        let mut transaction = seat.begin_with("BEGIN IMMEDIATE").await?;
        let granted = claim(&mut transaction, number).await?;
        complete(&mut transaction, &granted).await?;
        Ok(transaction.commit().await?)
    }
}

/// Reads a row by its key.
struct Select(ReferencePool<SqliteConnection>, u64);

impl Contender for Select {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let key = ours::key(self.1 + number % 256);
        let row = sqlx::query("SELECT state, body FROM semel_record WHERE digest = ?")
            .bind(key.digest().as_bytes().to_vec())
            .fetch_one(&mut *self.0.take().await)
            .await?;
        match (row.try_get::<i64, _>(0)?, row.try_get::<Vec<u8>, _>(1)?.len()) {
            (1, 190..) => Ok(()),
            other => Err(format!("a settled record was expected: {other:?}").into()),
        }
    }
}

/// BEGIN, claim, order, completion, COMMIT.
struct Naive(ReferencePool<SqliteConnection>);

impl Contender for Naive {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let mut seat = self.0.take().await;
        let mut transaction = seat.begin_with("BEGIN IMMEDIATE").await?;
        let granted = claim(&mut transaction, number).await?;
        SqliteStore::place(&mut transaction, number).await?;
        complete(&mut transaction, &granted).await?;
        Ok(transaction.commit().await?)
    }
}

/// Inserts the order alone.
struct Unprotected(ReferencePool<SqliteConnection>);

impl Contender for Unprotected {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let mut seat = self.0.take().await;
        let mut transaction = seat.begin_with("BEGIN IMMEDIATE").await?;
        SqliteStore::place(&mut transaction, number).await?;
        Ok(transaction.commit().await?)
    }
}

fn beside(name: &str, contender: Arc<impl Contender>, target: Option<Target>) -> Reference {
    Reference { name: format!("{name}, 1 connection"), contender, target }
}

pub(crate) async fn bench(arguments: &Arguments, report: &mut Report) -> Result<(), BoxError> {
    let directory = Directory::create()?;
    let (pace, path) = (arguments.pace, directory.file("ours.db"));
    let store = SqliteStore::open(&path).await?;
    connect(&path).await?.execute(ORDERS).await?;
    let label = |bench, concurrency| RowLabel { bench, store: STORE, concurrency };
    let steps = Arc::new(Steps(directory.reference("steps.db").await?));
    let together = Arc::new(Together(directory.reference("together.db").await?));
    for tasks in TASKS {
        let target = (tasks == 64).then_some(Target::AtLeast(3.0));
        let references = vec![
            beside("claim and complete, each a transaction", Arc::clone(&steps), target),
            beside("both in one transaction", Arc::clone(&together), target),
        ];
        let run = Run::new(ours::executor(store.clone())?);
        contest(report, label("run", tasks), run, references, pace).await?;
    }
    let first = 1 << 60;
    let replay = Replay::prepare(store.clone(), first, false).await?;
    let local = Replay::prepare(store.clone(), first + 1_000, true).await?;
    let select = Arc::new(Select(ReferencePool::new(vec![connect(&path).await?]), first));
    for tasks in TASKS {
        let select = || vec![beside("bare select", Arc::clone(&select), None)];
        contest(report, label("replay", tasks), replay.clone(), select(), pace).await?;
        contest(report, label("replay-local", tasks), local.clone(), select(), pace).await?;
    }
    let naive = Arc::new(Naive(directory.reference("naive.db").await?));
    let unprotected = Arc::new(Unprotected(directory.reference("unprotected.db").await?));
    for tasks in TASKS {
        let references = vec![
            beside("naive transaction", Arc::clone(&naive), None),
            beside("no protection", Arc::clone(&unprotected), None),
        ];
        let ours = Transact::new(ours::executor(store.clone())?);
        contest(report, label("transact", tasks), ours, references, pace).await?;
    }
    let other = SqliteStore::open(&path).await?;
    waiters::bench(report, STORE, (store.clone(), other.clone()), None, pace).await?;
    other.close().await;
    store.close().await;
    if let Some(many) = arguments.large {
        let (small, large) = (Loader(directory.file("s.db")), Loader(directory.file("l.db")));
        large::bench(report, STORE, (&small, &large), many, pace).await?;
    }
    Ok(())
}

const LOAD: &str = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) \
    INSERT INTO semel_record (digest, kind, tenant, scope, principal, id, number, fingerprint, \
    state, operation_id, attempt_id, attempt, fence, owner, on_crash, keep_us, body, content_type, \
    created_at, updated_at, completed_at, expires_at, sweep_at) \
    SELECT randomblob(32), 1, 'bench', 'LOADED', x'', 'r' || i, 2, x'', 1, randomblob(16), \
    randomblob(16), 1, ?2, 'bench:1:1', 0, 86400000000, ?3, 'application/json', ?2, ?2, ?2, \
    ?2 + ?4, ?2 + ?4 FROM n";

struct Loader(PathBuf);

impl Crowd for Loader {
    type Store = SqliteStore;

    async fn store(&self) -> Result<SqliteStore, BoxError> {
        Ok(SqliteStore::open(&self.0).await?)
    }

    async fn load(&self, count: u32, expired: bool) -> Result<(), BoxError> {
        let mut connection = connect(&self.0).await?;
        // Loading is not measured.
        connection.execute("PRAGMA synchronous = OFF").await?;
        let life = if expired { -1_000_000_i64 } else { 86_400_000_000 };
        let mut left = count;
        while left > 0 {
            let some = left.min(100_000);
            sqlx::query(LOAD)
                .bind(i64::from(some))
                .bind(now())
                .bind(BODY.as_slice())
                .bind(life)
                .execute(&mut connection)
                .await?;
            left -= some;
        }
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").await?;
        Ok(connection.close().await?)
    }
}
