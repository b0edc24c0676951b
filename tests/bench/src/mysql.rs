//! MariaDB: the statements of bare clients.

use std::str::FromStr;

use semel_core::Key;
use semel_sql::mysql::MySqlStore;
use sqlx::mysql::{MySql, MySqlConnectOptions};
use sqlx::{ConnectOptions, Executor as _, MySqlConnection, Row};

use super::BoxError;
use super::arguments::StoreName;
use super::database::{Database, Granted, Targets};
use super::ours::{self, BODY, micros};

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

/// A private database on the server.
pub(crate) struct MySqlDatabase {
    name: String,
    url: String,
    admin: MySqlConnectOptions,
    options: MySqlConnectOptions,
}

impl Database for MySqlDatabase {
    const NAME: &'static str = "mysql";
    const TARGETS: Targets = Targets { run: 1.5, transact: None, waiters: None };

    type Sql = MySql;
    type Store = MySqlStore;

    async fn create(purpose: &str) -> Result<Self, BoxError> {
        let url = StoreName::MySql.url()?;
        let admin = MySqlConnectOptions::from_str(&url)?.disable_statement_logging();
        let name = format!("semel_bench_{purpose}_{}", std::process::id());
        let mut connection = admin.connect().await?;
        connection.execute(sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"))).await?;
        let options = admin.clone().database(&name);
        let mut connection = options.connect().await?;
        for table in TABLES {
            connection.execute(table).await?;
        }
        let server = url.rsplit_once('/').map_or(url.as_str(), |(server, _)| server);
        Ok(Self { url: format!("{server}/{name}"), name, admin, options })
    }

    async fn remove(self) -> Result<(), BoxError> {
        let mut connection = self.admin.connect().await?;
        connection.execute(sqlx::AssertSqlSafe(format!("DROP DATABASE {}", self.name))).await?;
        Ok(())
    }

    async fn open_store(&self, connections: Option<usize>) -> Result<MySqlStore, BoxError> {
        let builder = MySqlStore::builder(&self.url);
        let builder = connections.map_or(builder.clone(), |count| builder.connections(count));
        let store = builder.connect().await?;
        store.migrate().await?;
        Ok(store)
    }

    async fn connect(&self, _ours: bool) -> Result<MySqlConnection, BoxError> {
        let mut connection = self.options.connect().await?;
        connection.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await?;
        Ok(connection)
    }

    async fn load(&self, count: u32, expired: bool) -> Result<(), BoxError> {
        let mut connection = self.connect(false).await?;
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

    async fn open(connection: &mut MySqlConnection, number: u64) -> Result<Granted, BoxError> {
        let draft = ours::draft(number);
        let row = sqlx::query(OPEN)
            .bind(draft.key.digest().as_bytes().to_vec())
            .bind(draft.key.tenant().as_bytes())
            .bind(draft.key.scope().as_bytes())
            .bind(draft.key.principal().as_bytes())
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
        (attempt, fence): Granted,
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

    async fn select(connection: &mut MySqlConnection, key: &Key) -> Result<(i64, usize), BoxError> {
        let row = sqlx::query("SELECT state, body FROM semel_record WHERE digest = ?")
            .bind(key.digest().as_bytes().to_vec())
            .fetch_one(connection)
            .await?;
        Ok((row.try_get::<i8, _>(0)?.into(), row.try_get::<Vec<u8>, _>(1)?.len()))
    }

    async fn orders(connection: &mut MySqlConnection) -> Result<i64, BoxError> {
        let count = sqlx::query_scalar("SELECT COUNT(*) FROM bench_order");
        Ok(count.fetch_one(connection).await?)
    }
}

/// Returns a statement that inserts records. `seq_1_to_N` is MariaDB's own table of numbers.
/// Digests are spread over their whole range like real ones, but in order, because loading is not
/// measured.
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
