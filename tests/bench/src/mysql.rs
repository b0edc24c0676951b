//! MariaDB: a bare client's single-row statements, each its own commit, and its transactions.
//!
//! As on PostgreSQL there are two kinds of bare client: one with statements like ours on our table,
//! and one with the least that claims and completes at all.

use std::str::FromStr;
use std::sync::Arc;

use semel_sql::mysql::MySqlStore;
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor as _, MySqlConnection, Row};

use super::arguments::{Arguments, StoreName};
use super::business::{Business, id};
use super::large::{self, Crowd};
use super::ours::{self, BODY, Replay, Run, Transact};
use super::pool::ReferencePool;
use super::postgres::micros;
use super::report::{Report, RowLabel, Target};
use super::{BoxError, TASKS, waiters};
use crate::contest::{Reference, contest};
use semel_bench::turns::Contender;

const STORE: &str = "mysql";

macro_rules! clock {
    () => {
        "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))"
    };
}

const TABLES: [&str; 2] = [
    "CREATE TABLE bench_claim (`key` BINARY(32) PRIMARY KEY, fence BIGINT NOT NULL, \
     state TINYINT NOT NULL, body BLOB) ENGINE = InnoDB",
    "CREATE TABLE bench_order (id BIGINT PRIMARY KEY, body BLOB NOT NULL) ENGINE = InnoDB",
];
const CLAIM: &str = "INSERT IGNORE INTO bench_claim (`key`, fence, state) VALUES (?, ?, 0)";
const COMPLETE: &str =
    "UPDATE bench_claim SET state = 1, body = ? WHERE `key` = ? AND fence = ? AND state = 0";
const OPEN: &str = concat!(
    "SET STATEMENT innodb_lock_wait_timeout = 0 FOR INSERT INTO semel_record (digest, kind, \
     tenant, scope, principal, id, number, fingerprint, state, operation_id, attempt_id, attempt, \
     fence, owner, lease_until, on_crash, keep_us, created_at, updated_at, body, content_type, \
     reference) VALUES (?, 1, ?, ?, ?, ?, 1, ?, 0, ?, ?, 1, ",
    clock!(),
    ", ?, ",
    clock!(),
    " + ?, ?, ?, ",
    clock!(),
    ", ",
    clock!(),
    ", ?, ?, ?) ON DUPLICATE KEY UPDATE number = number RETURNING digest, ",
    clock!(),
    ", number, fingerprint, state, operation_id, attempt_id, attempt, fence, owner, lease_until, \
     retry_at, on_crash, keep_us, body, content_type, reference, omitted_bytes, error, created_at, \
     updated_at, completed_at, expires_at"
);
const SETTLE: &str = concat!(
    "UPDATE semel_record SET number = number + 1, state = 1, lease_until = NULL, \
     retry_at = NULL, body = ?, content_type = 'application/json', reference = NULL, \
     omitted_bytes = NULL, error = NULL, updated_at = ",
    clock!(),
    ", completed_at = ",
    clock!(),
    ", expires_at = ",
    clock!(),
    " + 86400000000 WHERE digest = ? AND fence = ? AND attempt_id = ? AND state = 0"
);

/// A private database on the server, removed in the end.
struct Database {
    name: String,
    url: String,
    admin: MySqlConnectOptions,
    options: MySqlConnectOptions,
}

impl Database {
    async fn create(url: &str, purpose: &str) -> Result<Self, BoxError> {
        let admin = MySqlConnectOptions::from_str(url)?.disable_statement_logging();
        let name = format!("semel_bench_{purpose}_{}", std::process::id());
        let mut connection = admin.connect().await?;
        connection.execute(sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"))).await?;
        let options = admin.clone().database(&name);
        let server = url.rsplit_once('/').map_or(url, |(server, _)| server);
        Ok(Self { url: format!("{server}/{name}"), name, admin, options })
    }

    async fn store(&self, connections: Option<usize>) -> Result<MySqlStore, BoxError> {
        let builder = MySqlStore::builder(&self.url);
        let builder = connections.map_or(builder.clone(), |count| builder.connections(count));
        let store = builder.connect().await?;
        store.migrate().await?;
        Ok(store)
    }

    async fn connect(&self) -> Result<MySqlConnection, BoxError> {
        let mut connection = self.options.connect().await?;
        connection.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await?;
        Ok(connection)
    }

    async fn pool(&self, count: usize) -> Result<ReferencePool<MySqlConnection>, BoxError> {
        let mut connections = Vec::with_capacity(count);
        for _ in 0..count {
            connections.push(self.connect().await?);
        }
        Ok(ReferencePool::new(connections))
    }

    async fn drop(self) -> Result<(), BoxError> {
        let mut connection = self.admin.connect().await?;
        connection.execute(sqlx::AssertSqlSafe(format!("DROP DATABASE {}", self.name))).await?;
        Ok(())
    }
}

async fn claim(
    connection: &mut MySqlConnection,
    key: &[u8; 32],
    fence: i64,
) -> Result<(), BoxError> {
    let claim = sqlx::query(CLAIM).bind(key.as_slice()).bind(fence);
    match claim.execute(connection).await?.rows_affected() {
        1 => Ok(()),
        _ => Err("the bare claim was not granted".into()),
    }
}

async fn complete(
    connection: &mut MySqlConnection,
    key: &[u8; 32],
    fence: i64,
) -> Result<(), BoxError> {
    let complete = sqlx::query(COMPLETE).bind(BODY.as_slice()).bind(key.as_slice()).bind(fence);
    match complete.execute(connection).await?.rows_affected() {
        1 => Ok(()),
        _ => Err("the bare completion was refused".into()),
    }
}

/// The least that claims and completes.
struct Minimal(ReferencePool<MySqlConnection>);

impl Contender for Minimal {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let key = *ours::key(number).digest().as_bytes();
        claim(&mut *self.0.take().await, &key, id(number)).await?;
        complete(&mut *self.0.take().await, &key, id(number)).await
    }
}

/// The store's statements from a bare client.
struct Own(ReferencePool<MySqlConnection>);

impl Own {
    async fn open(
        connection: &mut MySqlConnection,
        number: u64,
    ) -> Result<([u8; 16], i64), BoxError> {
        let draft = ours::draft(number);
        let row = sqlx::query(OPEN)
            .bind(draft.key.digest().as_bytes().to_vec())
            .bind(draft.key.tenant().as_bytes())
            .bind(draft.key.scope().as_bytes())
            .bind(draft.key.asked_by().as_bytes())
            .bind(draft.key.id().as_bytes())
            .bind(draft.fingerprint.as_bytes())
            .bind(draft.operation_id.to_bytes().to_vec())
            .bind(draft.attempt_id.to_bytes().to_vec())
            .bind(draft.owner.as_bytes())
            .bind(micros(draft.lease))
            .bind(draft.on_crash.code())
            .bind(micros(draft.keep))
            // No retry payload: a command has none.
            .bind(None::<&[u8]>)
            .bind(None::<&str>)
            .bind(None::<&str>)
            .fetch_one(connection)
            .await?;
        let attempt = draft.attempt_id.to_bytes();
        if row.try_get::<Vec<u8>, _>(6)? != attempt {
            return Err("our own claim was not granted".into());
        }
        Ok((attempt, row.try_get(8)?))
    }

    async fn settle(
        connection: &mut MySqlConnection,
        number: u64,
        (attempt, fence): ([u8; 16], i64),
    ) -> Result<(), BoxError> {
        let done = sqlx::query(SETTLE)
            .bind(BODY.as_slice())
            .bind(ours::key(number).digest().as_bytes().to_vec())
            .bind(fence)
            .bind(attempt.to_vec())
            .execute(connection)
            .await?;
        if done.rows_affected() == 1 { Ok(()) } else { Err("our own settle was refused".into()) }
    }
}

impl Contender for Own {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let granted = Self::open(&mut *self.0.take().await, number).await?;
        Self::settle(&mut *self.0.take().await, number, granted).await
    }
}

/// A row read by its key.
struct Select(ReferencePool<MySqlConnection>, u64);

impl Contender for Select {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let key = ours::key(self.1 + number % 256);
        let row = sqlx::query("SELECT state, body FROM semel_record WHERE digest = ?")
            .bind(key.digest().as_bytes().to_vec())
            .fetch_one(&mut *self.0.take().await)
            .await?;
        match (row.try_get::<i8, _>(0)?, row.try_get::<Vec<u8>, _>(1)?.len()) {
            (1, 190..) => Ok(()),
            other => Err(format!("a settled record was expected: {other:?}").into()),
        }
    }
}

/// What a caller would write without us: BEGIN, claim, order, completion, COMMIT.
struct Naive(ReferencePool<MySqlConnection>);

impl Contender for Naive {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let key = *ours::key(number).digest().as_bytes();
        let mut seat = self.0.take().await;
        let mut transaction = seat.begin().await?;
        claim(&mut transaction, &key, id(number)).await?;
        MySqlStore::place(&mut transaction, number).await?;
        complete(&mut transaction, &key, id(number)).await?;
        Ok(transaction.commit().await?)
    }
}

/// The same transaction with statements like ours.
struct NaiveOwn(ReferencePool<MySqlConnection>);

impl Contender for NaiveOwn {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let mut seat = self.0.take().await;
        let mut transaction = seat.begin().await?;
        let granted = Own::open(&mut transaction, number).await?;
        MySqlStore::place(&mut transaction, number).await?;
        Own::settle(&mut transaction, number, granted).await?;
        Ok(transaction.commit().await?)
    }
}

/// The order alone.
struct Unprotected(ReferencePool<MySqlConnection>);

impl Contender for Unprotected {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let mut seat = self.0.take().await;
        let mut transaction = seat.begin().await?;
        MySqlStore::place(&mut transaction, number).await?;
        Ok(transaction.commit().await?)
    }
}

fn beside(name: &str, contender: Arc<impl Contender>, target: Option<Target>) -> Reference {
    Reference { name: name.to_owned(), contender, target }
}

pub(crate) async fn bench(arguments: &Arguments, report: &mut Report) -> Result<(), BoxError> {
    let url = StoreName::MySql.url()?;
    let database = Database::create(&url, "run").await?;
    for table in TABLES {
        database.connect().await?.execute(table).await?;
    }
    let done = measure(&database, arguments, report).await;
    database.drop().await?;
    done?;
    match arguments.large {
        Some(many) => crowded(&url, many, arguments, report).await,
        None => Ok(()),
    }
}

async fn measure(
    database: &Database,
    arguments: &Arguments,
    report: &mut Report,
) -> Result<(), BoxError> {
    let (store, pace) = (database.store(arguments.store_connections).await?, arguments.pace);
    let label = |bench, concurrency| RowLabel { bench, store: STORE, concurrency };
    for tasks in TASKS {
        let target = match tasks {
            1 => Some(Target::AtLeast(0.9)),
            64 => Some(Target::AtLeast(1.5)),
            _ => None,
        };
        let connections = tasks.min(arguments.connections);
        let references = vec![
            beside(
                &format!("bare client, our statements, {connections} connections"),
                Arc::new(Own(database.pool(connections).await?)),
                target,
            ),
            beside(
                &format!("bare client, minimal claim and complete, {connections} connections"),
                Arc::new(Minimal(database.pool(connections).await?)),
                target,
            ),
        ];
        let run = Run::new(ours::executor(store.clone())?);
        contest(report, label("run", tasks), run, references, pace).await?;
    }
    let first = 1 << 60;
    let replay = Replay::prepare(store.clone(), first, false).await?;
    let local = Replay::prepare(store.clone(), first + 1_000, true).await?;
    for tasks in TASKS {
        let connections = tasks.min(arguments.connections);
        let name = format!("bare select, {connections} connections");
        let select = || async {
            let select = Arc::new(Select(database.pool(connections).await?, first));
            Ok::<_, BoxError>(vec![beside(&name, select, None)])
        };
        contest(report, label("replay", tasks), replay.clone(), select().await?, pace).await?;
        contest(report, label("replay-local", tasks), local.clone(), select().await?, pace).await?;
    }
    transact(database, &store, arguments, report).await?;
    let other = database.store(None).await?;
    waiters::bench(report, STORE, (store, other), None, pace).await
}

async fn transact(
    database: &Database,
    store: &MySqlStore,
    arguments: &Arguments,
    report: &mut Report,
) -> Result<(), BoxError> {
    let mut placed = 0;
    for tasks in TASKS {
        // As many connections as the store has for transactions.
        let connections = tasks.min(16);
        let references = vec![
            beside(
                &format!("naive transaction, {connections} connections"),
                Arc::new(Naive(database.pool(connections).await?)),
                None,
            ),
            beside(
                &format!("naive transaction, our statements, {connections} connections"),
                Arc::new(NaiveOwn(database.pool(connections).await?)),
                None,
            ),
            beside(
                &format!("no protection, {connections} connections"),
                Arc::new(Unprotected(database.pool(connections).await?)),
                None,
            ),
        ];
        let label = RowLabel { bench: "transact", store: STORE, concurrency: tasks };
        let ours = Transact::new(ours::executor(store.clone())?);
        placed += contest(report, label, ours, references, arguments.pace).await?;
    }
    let orders: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM bench_order")
        .fetch_one(&mut database.connect().await?)
        .await?;
    if u64::try_from(orders).ok() != Some(placed) {
        return Err(format!("{placed} transactions placed {orders} orders").into());
    }
    Ok(())
}

/// `seq_1_to_N` is MariaDB's own table of numbers. Digests are spread over their whole range like
/// real ones, but come in order, because loading is not what is measured.
fn load(from: u32, to: u32) -> String {
    format!(
        "INSERT INTO semel_record (digest, kind, tenant, scope, principal, id, number, \
         fingerprint, state, operation_id, attempt_id, attempt, fence, owner, on_crash, keep_us, \
         body, content_type, created_at, updated_at, completed_at, expires_at) \
         SELECT UNHEX(CONCAT(LPAD(HEX(FLOOR(seq * ?)), 8, '0'), \
         SUBSTRING(SHA2(CONCAT(?, seq), 256), 9))), 1, 'bench', 'LOADED', '', CONCAT(?, seq), 2, '', \
         1, UNHEX(MD5(seq)), UNHEX(MD5(seq)), 1, {clock}, 'bench:1:1', 0, 86400000000, ?, \
         'application/json', {clock}, {clock}, {clock}, {clock} + ? FROM seq_{from}_to_{to}",
        clock = clock!()
    )
}

struct Loader(Database);

impl Crowd for Loader {
    type Store = MySqlStore;

    async fn store(&self) -> Result<MySqlStore, BoxError> {
        self.0.store(None).await
    }

    async fn load(&self, count: u32, expired: bool) -> Result<(), BoxError> {
        let mut connection = self.0.connect().await?;
        let life = if expired { -1_000_000_i64 } else { 86_400_000_000 };
        let name = if expired { "old" } else { "new" };
        for from in (1..=count).step_by(100_000) {
            let to = count.min(from + 99_999);
            sqlx::query(sqlx::AssertSqlSafe(load(from, to)))
                .bind(f64::from(u32::MAX) / f64::from(count))
                .bind(name)
                .bind(name)
                .bind(BODY.as_slice())
                .bind(life)
                .execute(&mut connection)
                .await?;
        }
        connection.execute("ANALYZE TABLE semel_record").await?;
        Ok(())
    }
}

async fn crowded(
    url: &str,
    many: u32,
    arguments: &Arguments,
    report: &mut Report,
) -> Result<(), BoxError> {
    let small = Loader(Database::create(url, "small").await?);
    let large = Loader(Database::create(url, "large").await?);
    let done = large::bench(report, STORE, (&small, &large), many, arguments.pace).await;
    small.0.drop().await?;
    large.0.drop().await?;
    done
}
