//! PostgreSQL: the statements of bare clients.

use std::str::FromStr;

use semel_core::Key;
use semel_sql::postgres::{PgOptions, PgStore};
use sqlx::postgres::{PgConnectOptions, Postgres};
use sqlx::{ConnectOptions, Connection, Executor as _, PgConnection, Row};

use super::BoxError;
use super::arguments::StoreName;
use super::database::{Database, Granted, Targets};
use super::ours::{self, BODY, micros};

const OPEN: &str = include_str!("../../../crates/semel-sql/src/postgres/queries/open.sql");
const SETTLE: &str = include_str!("../../../crates/semel-sql/src/postgres/queries/settle.sql");

const TABLES: &str = "create table bench_claim (key bytea primary key, fence bigint not null, \
     state smallint not null, body bytea); \
     create table bench_order (id bigint primary key, body bytea not null)";
const CLAIM: &str = "insert into bench_claim (key, fence, state) values ($1, $2, 0) \
     on conflict (key) do nothing";
const COMPLETE: &str = "update bench_claim set state = 1, body = $3 \
     where key = $1 and fence = $2 and state = 0";

/// Inserts rows as `run` leaves them, settled now or so long ago that they have expired.
const LOAD: &str = "insert into semel_record (digest, kind, tenant, scope, principal, id, number, \
     fingerprint, state, operation_id, attempt_id, attempt, fence, owner, on_crash, keep_us, body, \
     content_type, created_at, updated_at, completed_at, expires_at, sweep_at) \
     select sha256(('r' || $2 || i)::bytea), 1, 'bench', 'LOADED', ''::bytea, 'r' || $2 || i, 2, \
       ''::bytea, 1, substr(sha256(i::text::bytea), 1, 16), substr(sha256(i::text::bytea), 1, 16), \
       1, us, 'bench:1:1', 0, 86400000000, $3, 'application/json', us, us, us, us + $4, us + $4 \
     from generate_series(1, $1) i, \
       (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us) clock";

/// A private database on the server.
pub(crate) struct PgDatabase {
    name: String,
    admin: PgConnectOptions,
    options: PgConnectOptions,
}

impl Database for PgDatabase {
    const NAME: &'static str = "postgres";
    const TARGETS: Targets = Targets { run: 2.5, transact: Some(0.95), waiters: Some(10.0) };

    type Sql = Postgres;
    type Store = PgStore;

    async fn create(purpose: &str) -> Result<Self, BoxError> {
        let url = StoreName::Postgres.url()?;
        let admin = PgConnectOptions::from_str(&url)?.disable_statement_logging();
        let name = format!("semel_bench_{purpose}_{}", std::process::id());
        let mut connection = admin.connect().await?;
        connection.execute(sqlx::AssertSqlSafe(format!("create database {name}"))).await?;
        connection.close().await?;
        let options = admin.clone().database(&name);
        options.connect().await?.execute(TABLES).await?;
        Ok(Self { name, admin, options })
    }

    async fn remove(self) -> Result<(), BoxError> {
        let mut connection = self.admin.connect().await?;
        let text = format!("drop database {} with (force)", self.name);
        connection.execute(sqlx::AssertSqlSafe(text)).await?;
        Ok(())
    }

    async fn open_store(&self, connections: Option<usize>) -> Result<PgStore, BoxError> {
        let options = PgOptions::with(self.options.clone());
        let options = connections.map_or(options.clone(), |count| options.connections(count));
        let store = options.connect().await?;
        store.migrate().await?;
        Ok(store)
    }

    async fn connect(&self, ours: bool) -> Result<PgConnection, BoxError> {
        let mut options = self.options.clone();
        if ours {
            options = options.options([
                ("plan_cache_mode", "force_generic_plan"),
                ("enable_seqscan", "off"),
                ("enable_hashjoin", "off"),
                ("enable_mergejoin", "off"),
                ("jit", "off"),
            ]);
        }
        Ok(options.connect().await?)
    }

    async fn load(&self, count: u32, expired: bool) -> Result<(), BoxError> {
        let mut connection = self.options.connect().await?;
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

    async fn claim(
        connection: &mut PgConnection,
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

    async fn open(connection: &mut PgConnection, number: u64) -> Result<Granted, BoxError> {
        let draft = ours::draft(number);
        let digest = *draft.key.digest().as_bytes();
        let [a, b, c, d, e, f, g, h, ..] = digest;
        let (lease, keep) = (micros(draft.lease), micros(draft.keep));
        let row = sqlx::query(OPEN)
            .bind(digest.as_slice())
            .bind(i16::from(draft.key.kind().code()))
            .bind(draft.key.tenant())
            .bind(draft.key.scope())
            .bind(draft.key.principal().as_bytes())
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
        (attempt, fence): Granted,
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

    async fn select(connection: &mut PgConnection, key: &Key) -> Result<(i64, usize), BoxError> {
        let row = sqlx::query("select state, body from semel_record where digest = $1")
            .bind(key.digest().as_bytes().to_vec())
            .fetch_one(connection)
            .await?;
        Ok((row.try_get::<i16, _>(0)?.into(), row.try_get::<Vec<u8>, _>(1)?.len()))
    }

    async fn orders(connection: &mut PgConnection) -> Result<i64, BoxError> {
        Ok(sqlx::query_scalar("select count(*) from bench_order").fetch_one(connection).await?)
    }
}
