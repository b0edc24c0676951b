//! Random histories of every store compared with the reference model.
//!
//! The model and the histories are in `semel-testkit`; here are the fixtures, which advance a store's
//! time without waiting.

use std::time::Duration;

use semel_core::clock::{Clock, Timestamp, micros};
use semel_core::store::memory::MemoryStore;
use semel_redis::RedisStore;
use semel_sql::mysql::MySqlStore;
use semel_sql::postgres::PgStore;
use semel_sql::sqlite::SqliteStore;
use semel_testkit::Fixture;
use semel_testkit::model::{self, Report, Settings};
use sqlx::mysql::MySqlConnection;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::BoxError;
use crate::report::Line;
use semel_stores::Address;
use semel_stores::PrivateStore;

/// Runs random histories on the store.
///
/// # Errors
/// The store could not be opened.
pub async fn run(private: &PrivateStore, settings: Settings) -> Result<Line, BoxError> {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let began = Instant::now();
    let report = match private.backend().address() {
        Address::Memory(_) => {
            let store = MemoryStore::with(MemoryStore::CAPACITY, clock.clone());
            model::run(Memory { store, clock }, settings).await
        }
        Address::Sqlite(path) => {
            let store = SqliteStore::builder(path).clock(clock.clone()).open().await?;
            let options = SqliteConnectOptions::new().filename(path);
            let aside = Mutex::new(options.connect().await?);
            model::run(Sqlite { store, clock, aside }, settings).await
        }
        Address::Postgres(url) => {
            let store = private.backend().postgres().await?;
            let aside = Mutex::new(PgConnection::connect(url).await?);
            model::run(Postgres { store, aside }, settings).await
        }
        Address::MySql(url) => {
            let store = private.backend().mysql().await?;
            let aside = Mutex::new(MySqlConnection::connect(url).await?);
            model::run(MySql { store, aside }, settings).await
        }
        Address::Redis { .. } => {
            model::run(Redis { store: private.backend().redis().await? }, settings).await
        }
    };
    Ok(line(private.backend().name(), &report, began.elapsed()))
}

fn line(store: &str, report: &Report, took: Duration) -> Line {
    let mut line = Line::new()
        .column("store", store)
        .column("seed", report.seed.to_string())
        .column("histories", report.cases)
        .column("steps", report.operations)
        .column("seconds", took.as_secs_f64())
        .zero("mismatches", report.mismatches.len())
        .promise(report.operations > 0, "no step was taken");
    if !report.mismatches.is_empty() {
        line.broken.push(report.to_string());
    }
    line
}

struct Memory {
    store: MemoryStore,
    clock: Clock,
}

impl Fixture for Memory {
    type Store = MemoryStore;

    async fn store(&self) -> MemoryStore {
        self.store.clone()
    }

    async fn advance(&self, span: Duration) {
        self.clock.advance(span);
    }

    fn forgets_by_itself(&self) -> bool {
        true
    }
}

struct Sqlite {
    store: SqliteStore,
    clock: Clock,
    aside: Mutex<SqliteConnection>,
}

/// Moves the stored high-water mark of the clock, ahead of which nothing is removed.
fn mark(by: i64) -> AssertSqlSafe<String> {
    AssertSqlSafe(format!(
        "UPDATE semel_clock SET trusted = trusted + ({by}), suspect = suspect + ({by})"
    ))
}

fn signed(span: Duration, ahead: bool) -> i64 {
    if ahead { micros(span) } else { -micros(span) }
}

impl Fixture for Sqlite {
    type Store = SqliteStore;

    async fn store(&self) -> SqliteStore {
        self.store.clone()
    }

    async fn advance(&self, span: Duration) {
        self.clock.advance(span);
        // As if it had been swept meanwhile.
        self.aside.lock().await.execute(mark(micros(span))).await.expect("the mark is moved");
    }

    async fn jump(&self, span: Duration, ahead: bool) -> bool {
        let now = self.clock.now().as_micros();
        self.clock.set(Timestamp::from_micros(now + signed(span, ahead)));
        true
    }
}

struct Redis {
    store: RedisStore,
}

impl Fixture for Redis {
    type Store = RedisStore;

    async fn store(&self) -> RedisStore {
        self.store.clone()
    }

    async fn advance(&self, span: Duration) {
        self.store.rewind(span).await.expect("the server answers");
    }

    async fn jump(&self, span: Duration, ahead: bool) -> bool {
        let store = &self.store;
        let moved = if ahead { store.rewind(span).await } else { store.set_back(span).await };
        moved.expect("the server answers");
        true
    }

    fn doubts_its_clock(&self) -> bool {
        false
    }

    fn forgets_by_itself(&self) -> bool {
        true
    }
}

struct Postgres {
    store: PgStore,
    aside: Mutex<PgConnection>,
}

/// Moves every stored time back.
const PAST_PG: &str = "UPDATE semel_record SET \
    created_at = created_at - $1, updated_at = updated_at - $1, lease_until = lease_until - $1, \
    retry_at = retry_at - $1, completed_at = completed_at - $1, expires_at = expires_at - $1, \
    sweep_at = sweep_at - $1";
const PAST_MYSQL: &str = "UPDATE semel_record, (SELECT ? AS span) past SET \
    created_at = created_at - span, updated_at = updated_at - span, \
    lease_until = lease_until - span, retry_at = retry_at - span, \
    completed_at = completed_at - span, expires_at = expires_at - span";

impl Fixture for Postgres {
    type Store = PgStore;

    async fn store(&self) -> PgStore {
        self.store.clone()
    }

    async fn advance(&self, span: Duration) {
        let past = sqlx::query(PAST_PG).bind(micros(span));
        self.aside.lock().await.execute(past).await.expect("the times are moved");
    }

    async fn jump(&self, span: Duration, ahead: bool) -> bool {
        let by = signed(span, ahead);
        let past = sqlx::query(PAST_PG).bind(by);
        self.aside.lock().await.execute(past).await.expect("the times are moved");
        self.aside.lock().await.execute(mark(-by)).await.expect("the mark is moved");
        true
    }
}

struct MySql {
    store: MySqlStore,
    aside: Mutex<MySqlConnection>,
}

impl Fixture for MySql {
    type Store = MySqlStore;

    async fn store(&self) -> MySqlStore {
        self.store.clone()
    }

    async fn advance(&self, span: Duration) {
        let past = sqlx::query(PAST_MYSQL).bind(micros(span));
        self.aside.lock().await.execute(past).await.expect("the times are moved");
    }

    async fn jump(&self, span: Duration, ahead: bool) -> bool {
        let by = signed(span, ahead);
        let past = sqlx::query(PAST_MYSQL).bind(by);
        self.aside.lock().await.execute(past).await.expect("the times are moved");
        self.aside.lock().await.execute(mark(-by)).await.expect("the mark is moved");
        true
    }
}
