//! PostgreSQL: a bare client's single-row statements, each its own commit, and its transactions.
//!
//! Two kinds of bare client. One issues our own statements on our own table; the other the least
//! that claims and completes at all, on a table of four columns without our clock, judge or indexes.

use std::str::FromStr;
use std::sync::Arc;

use semel_sql::postgres::{PgOptions, PgStore};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor as _, PgConnection, Row};

use super::arguments::{Arguments, StoreName};
use super::business::{Business, id};
use super::large::{self, Crowd};
use super::ours::{self, BODY, Replay, Run, Transact};
use super::pool::ReferencePool;
use super::report::{Report, RowLabel, Target};
use super::{BoxError, TASKS, waiters};
use crate::contest::{Reference, contest};
use semel_bench::turns::Contender;

const STORE: &str = "postgres";
const OPEN: &str = include_str!("../../../crates/semel-sql/src/postgres/queries/open.sql");
const SETTLE: &str = include_str!("../../../crates/semel-sql/src/postgres/queries/settle.sql");

const TABLES: &str = "create table bench_claim (key bytea primary key, fence bigint not null, \
     state smallint not null, body bytea); \
     create table bench_order (id bigint primary key, body bytea not null)";
const CLAIM: &str = "insert into bench_claim (key, fence, state) values ($1, $2, 0) \
     on conflict (key) do nothing";
const COMPLETE: &str = "update bench_claim set state = 1, body = $3 \
     where key = $1 and fence = $2 and state = 0";

/// A private database on the server, removed in the end.
struct Database {
    name: String,
    admin: PgConnectOptions,
    options: PgConnectOptions,
}

impl Database {
    async fn create(url: &str, purpose: &str) -> Result<Self, BoxError> {
        let admin = PgConnectOptions::from_str(url)?.disable_statement_logging();
        let name = format!("semel_bench_{purpose}_{}", std::process::id());
        let mut connection = admin.connect().await?;
        connection.execute(sqlx::AssertSqlSafe(format!("create database {name}"))).await?;
        connection.close().await?;
        let options = admin.clone().database(&name);
        Ok(Self { name, admin, options })
    }

    async fn store(&self, connections: Option<usize>) -> Result<PgStore, BoxError> {
        let options = PgOptions::with(self.options.clone());
        let options = connections.map_or(options.clone(), |count| options.connections(count));
        let store = options.connect().await?;
        store.migrate().await?;
        Ok(store)
    }

    async fn pool(
        &self,
        count: usize,
        ours: bool,
    ) -> Result<ReferencePool<PgConnection>, BoxError> {
        let mut options = self.options.clone();
        if ours {
            // Planned as the store's own sessions plan them.
            options = options.options([
                ("plan_cache_mode", "force_generic_plan"),
                ("enable_seqscan", "off"),
                ("enable_hashjoin", "off"),
                ("enable_mergejoin", "off"),
                ("jit", "off"),
            ]);
        }
        let mut connections = Vec::with_capacity(count);
        for _ in 0..count {
            connections.push(options.connect().await?);
        }
        Ok(ReferencePool::new(connections))
    }

    async fn drop(self) -> Result<(), BoxError> {
        let mut connection = self.admin.connect().await?;
        let text = format!("drop database {} with (force)", self.name);
        connection.execute(sqlx::AssertSqlSafe(text)).await?;
        Ok(())
    }
}

/// The least that claims and completes.
struct Minimal(ReferencePool<PgConnection>);

async fn claim(connection: &mut PgConnection, key: &[u8; 32], fence: i64) -> Result<(), BoxError> {
    let claim = sqlx::query(CLAIM).bind(key.as_slice()).bind(fence);
    match claim.execute(connection).await?.rows_affected() {
        1 => Ok(()),
        _ => Err("the bare claim was not granted".into()),
    }
}

async fn complete(
    connection: &mut PgConnection,
    key: &[u8; 32],
    fence: i64,
) -> Result<(), BoxError> {
    let complete = sqlx::query(COMPLETE).bind(key.as_slice()).bind(fence).bind(BODY.as_slice());
    match complete.execute(connection).await?.rows_affected() {
        1 => Ok(()),
        _ => Err("the bare completion was refused".into()),
    }
}

impl Contender for Minimal {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let key = *ours::key(number).digest().as_bytes();
        claim(&mut *self.0.take().await, &key, id(number)).await?;
        complete(&mut *self.0.take().await, &key, id(number)).await
    }
}

/// Our statements, without us.
struct Own(ReferencePool<PgConnection>);

impl Own {
    /// The fence, if the claim was granted.
    async fn open(connection: &mut PgConnection, number: u64) -> Result<([u8; 16], i64), BoxError> {
        let draft = ours::draft(number);
        let digest = *draft.key.digest().as_bytes();
        let [a, b, c, d, e, f, g, h, ..] = digest;
        let (lease, keep) = (micros(draft.lease), micros(draft.keep));
        let row = sqlx::query(OPEN)
            .bind(digest.as_slice())
            .bind(i16::from(draft.key.kind().code()))
            .bind(draft.key.tenant())
            .bind(draft.key.scope())
            .bind(draft.key.asked_by().as_bytes())
            .bind(draft.key.id())
            .bind(draft.fingerprint.as_bytes())
            .bind(draft.operation_id.to_bytes().to_vec())
            .bind(draft.attempt_id.to_bytes().to_vec())
            .bind(1_i32)
            .bind(&*draft.owner)
            .bind(lease)
            .bind(i16::from(draft.on_crash.code()))
            .bind(keep)
            .bind(lease + keep)
            .bind(i64::from_be_bytes([a, b, c, d, e, f, g, h]))
            // No retry payload: a command has none.
            .bind(None::<&[u8]>)
            .bind(None::<&str>)
            .bind(None::<&str>)
            .fetch_one(connection)
            .await?;
        let fence: Option<i64> = row.try_get(1)?;
        Ok((draft.attempt_id.to_bytes(), fence.ok_or("our own claim was not granted")?))
    }

    async fn settle(
        connection: &mut PgConnection,
        number: u64,
        (attempt, fence): ([u8; 16], i64),
    ) -> Result<(), BoxError> {
        let row = sqlx::query(SETTLE)
            .bind(ours::key(number).digest().as_bytes().to_vec())
            .bind(fence)
            .bind(attempt.to_vec())
            .bind(1_i16)
            .bind(None::<i64>)
            .bind(BODY.as_slice())
            .bind("application/json")
            .bind(None::<&str>)
            .bind(None::<i64>)
            .bind(None::<&str>)
            .bind(86_400_000_000_i64)
            .fetch_one(connection)
            .await?;
        let done: Option<bool> = row.try_get(0)?;
        if done == Some(true) { Ok(()) } else { Err("our own settle was refused".into()) }
    }
}

pub(crate) fn micros(span: std::time::Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

impl Contender for Own {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let granted = Self::open(&mut *self.0.take().await, number).await?;
        Self::settle(&mut *self.0.take().await, number, granted).await
    }
}

/// A row read by its key.
struct Select(ReferencePool<PgConnection>, u64);

impl Contender for Select {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let key = ours::key(self.1 + number % 256);
        let row = sqlx::query("select state, body from semel_record where digest = $1")
            .bind(key.digest().as_bytes().to_vec())
            .fetch_one(&mut *self.0.take().await)
            .await?;
        match (row.try_get::<i16, _>(0)?, row.try_get::<Vec<u8>, _>(1)?.len()) {
            (1, 190..) => Ok(()),
            other => Err(format!("a settled record was expected: {other:?}").into()),
        }
    }
}

/// What a caller would write without us: BEGIN, claim, order, completion, COMMIT.
struct Naive(ReferencePool<PgConnection>);

impl Contender for Naive {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let key = *ours::key(number).digest().as_bytes();
        let mut seat = self.0.take().await;
        let mut transaction = seat.begin().await?;
        claim(&mut transaction, &key, id(number)).await?;
        PgStore::place(&mut transaction, number).await?;
        complete(&mut transaction, &key, id(number)).await?;
        Ok(transaction.commit().await?)
    }
}

/// The same transaction with our own statements.
struct NaiveOwn(ReferencePool<PgConnection>);

impl Contender for NaiveOwn {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let mut seat = self.0.take().await;
        let mut transaction = seat.begin().await?;
        let granted = Own::open(&mut transaction, number).await?;
        PgStore::place(&mut transaction, number).await?;
        Own::settle(&mut transaction, number, granted).await?;
        Ok(transaction.commit().await?)
    }
}

/// The order alone.
struct Unprotected(ReferencePool<PgConnection>);

impl Contender for Unprotected {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let mut seat = self.0.take().await;
        let mut transaction = seat.begin().await?;
        PgStore::place(&mut transaction, number).await?;
        Ok(transaction.commit().await?)
    }
}

fn beside(name: &str, contender: Arc<impl Contender>, target: Option<Target>) -> Reference {
    Reference { name: name.to_owned(), contender, target }
}

pub(crate) async fn bench(arguments: &Arguments, report: &mut Report) -> Result<(), BoxError> {
    let url = StoreName::Postgres.url()?;
    let database = Database::create(&url, "run").await?;
    database.options.connect().await?.execute(TABLES).await?;
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
    let store = database.store(arguments.store_connections).await?;
    let label = |bench, concurrency| RowLabel { bench, store: STORE, concurrency };
    for tasks in TASKS {
        let target = match tasks {
            1 => Some(Target::AtLeast(0.9)),
            64 => Some(Target::AtLeast(2.5)),
            _ => None,
        };
        let connections = tasks.min(arguments.connections);
        let references = vec![
            beside(
                &format!("bare client, our statements, {connections} connections"),
                Arc::new(Own(database.pool(connections, true).await?)),
                target,
            ),
            beside(
                &format!("bare client, minimal claim and complete, {connections} connections"),
                Arc::new(Minimal(database.pool(connections, false).await?)),
                target,
            ),
        ];
        let run = Run::new(ours::executor(store.clone())?);
        contest(report, label("run", tasks), run, references, arguments.pace).await?;
    }
    let first = 1 << 60;
    let replay = Replay::prepare(store.clone(), first, false).await?;
    let local = Replay::prepare(store.clone(), first + 1_000, true).await?;
    for tasks in TASKS {
        let connections = tasks.min(arguments.connections);
        let name = format!("bare select, {connections} connections");
        let select = || async {
            let select = Arc::new(Select(database.pool(connections, true).await?, first));
            Ok::<_, BoxError>(vec![beside(&name, select, None)])
        };
        let pace = arguments.pace;
        contest(report, label("replay", tasks), replay.clone(), select().await?, pace).await?;
        contest(report, label("replay-local", tasks), local.clone(), select().await?, pace).await?;
    }
    transact(database, &store, arguments, report).await?;
    let other = database.store(None).await?;
    waiters::bench(report, STORE, (store, other), Some(10.0), arguments.pace).await
}

async fn transact(
    database: &Database,
    store: &PgStore,
    arguments: &Arguments,
    report: &mut Report,
) -> Result<(), BoxError> {
    let mut placed = 0;
    for tasks in TASKS {
        // As many connections as the store has for transactions.
        let connections = tasks.min(16);
        let target = (tasks == 16).then_some(Target::AtLeast(0.95));
        let references = vec![
            beside(
                &format!("naive transaction, {connections} connections"),
                Arc::new(Naive(database.pool(connections, false).await?)),
                target,
            ),
            beside(
                &format!("naive transaction, our statements, {connections} connections"),
                Arc::new(NaiveOwn(database.pool(connections, true).await?)),
                target,
            ),
            beside(
                &format!("no protection, {connections} connections"),
                Arc::new(Unprotected(database.pool(connections, false).await?)),
                None,
            ),
        ];
        let label = RowLabel { bench: "transact", store: STORE, concurrency: tasks };
        let ours = Transact::new(ours::executor(store.clone())?);
        placed += contest(report, label, ours, references, arguments.pace).await?;
    }
    let mut connection = database.options.connect().await?;
    let orders: i64 =
        sqlx::query_scalar("select count(*) from bench_order").fetch_one(&mut connection).await?;
    if u64::try_from(orders).ok() != Some(placed) {
        return Err(format!("{placed} transactions placed {orders} orders").into());
    }
    Ok(())
}

/// Rows as `run` leaves them, settled now or settled so long ago that they have expired.
const LOAD: &str = "insert into semel_record (digest, kind, tenant, scope, principal, id, number, \
     fingerprint, state, operation_id, attempt_id, attempt, fence, owner, on_crash, keep_us, body, \
     content_type, created_at, updated_at, completed_at, expires_at, sweep_at) \
     select sha256(('r' || $2 || i)::bytea), 1, 'bench', 'LOADED', ''::bytea, 'r' || $2 || i, 2, \
       ''::bytea, 1, substr(sha256(i::text::bytea), 1, 16), substr(sha256(i::text::bytea), 1, 16), \
       1, us, 'bench:1:1', 0, 86400000000, $3, 'application/json', us, us, us, us + $4, us + $4 \
     from generate_series(1, $1) i, \
       (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us) clock";

struct Loader(Database);

impl Crowd for Loader {
    type Store = PgStore;

    async fn store(&self) -> Result<PgStore, BoxError> {
        self.0.store(None).await
    }

    async fn load(&self, count: u32, expired: bool) -> Result<(), BoxError> {
        let mut connection = self.0.options.connect().await?;
        let life = if expired { -1_000_000_i64 } else { 86_400_000_000 };
        sqlx::query(LOAD)
            .bind(i64::from(count))
            .bind(if expired { "old" } else { "new" })
            .bind(BODY.as_slice())
            .bind(life)
            .execute(&mut connection)
            .await?;
        connection.execute("vacuum (analyze) semel_record").await?;
        connection.execute("checkpoint").await?;
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
