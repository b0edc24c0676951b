//! Tests idempotent functions on PostgreSQL and Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use semel::executor::LocalReplay;
use semel::redis::RedisStore;
use semel::sql::postgres::{PgOptions, PgStore};
use semel::sql::sqlx::postgres::{PgConnectOptions, PgConnection};
use semel::sql::sqlx::{self, AssertSqlSafe, ConnectOptions as _};
use semel::store::AnyStore;
use semel::{AttemptId, Error, Execution, Executor, Store, Wait};
use semel_macros::idempotent;
use tokio::task::JoinSet;

use crate::{Order, OutOfStock, Request};

fn server(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("set {variable} or run `cargo xtask test`, which starts the servers")
    })
}

/// Returns a random name that no other test uses.
fn name() -> String {
    AttemptId::generate().to_bytes().map(|byte| format!("{byte:02x}")).concat()
}

/// Returns an executor without a local cache, which reads the store for every call.
fn executor<S: Store>(store: S) -> Executor<S> {
    Executor::builder(store).local_replay(LocalReplay::OFF).build().expect("the default policy")
}

/// A service on a store of any type.
#[derive(Clone)]
struct Branch {
    executor: Executor<AnyStore>,
    runs: Arc<AtomicU32>,
}

impl Branch {
    fn on<S: Store + semel::store::Inspect>(store: S) -> Self {
        Self { executor: executor(AnyStore::new(store)), runs: Arc::default() }
    }

    #[idempotent(
        operation = "CREATE_ORDER",
        executor = self.executor,
        tenant = tenant,
        key = request.key,
        fields(request.sku, amount = request.cents),
        wait = Wait::Deadline(std::time::Duration::from_secs(60))
    )]
    async fn create(
        &self,
        tenant: &str,
        request: Request,
    ) -> Result<Execution<Order>, Error<OutOfStock>> {
        let number = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
        if request.cents == 0 && number == 1 {
            return Err(OutOfStock);
        }
        Ok(Order { number, sku: request.sku, cents: request.cents })
    }
}

/// Tests an idempotent function on the store of `branch`.
async fn check_repeats(branch: Branch) {
    // The first run fails, and the next caller runs the work again.
    let failed = branch.create("acme", Request::new("k-0", "tea", 0)).await;
    assert!(matches!(failed, Err(Error::Work(OutOfStock))), "{failed:?}");
    let retried = branch.create("acme", Request::new("k-0", "tea", 0)).await.expect("runs");
    assert_eq!((retried.attempt(), retried.value().map(|order| order.number)), (Some(2), Some(2)));
    // Of many concurrent callers one runs the work, and all get its answer.
    let mut callers = JoinSet::new();
    for _ in 0..16 {
        let branch = branch.clone();
        callers.spawn(async move { branch.create("acme", Request::new("k-1", "mug", 5)).await });
    }
    let mut replayed = 0;
    while let Some(answer) = callers.join_next().await {
        let answer = answer.expect("no panic").expect("an answer");
        replayed += u32::from(answer.replayed());
        let order = Order { number: 3, sku: "mug".to_owned(), cents: 5 };
        assert_eq!(answer.into_value(), Some(order));
    }
    assert_eq!((replayed, branch.runs.load(Ordering::SeqCst)), (15, 3));
    let other = branch.create("acme", Request::new("k-1", "mug", 6)).await;
    assert!(matches!(other, Err(Error::Mismatch)), "{other:?}");
    let elsewhere = branch.create("umbrella", Request::new("k-1", "mug", 6)).await;
    assert_eq!(elsewhere.expect("another tenant's key").value().map(|order| order.number), Some(4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_runs_once_per_key_on_redis() {
    let builder = RedisStore::builder().prefix(format!("test:{}:", name()));
    let store = builder.connect(&server("SEMEL_TEST_REDIS_URL")).await.expect("the server answers");
    check_repeats(Branch::on(store)).await;
}

/// A database that one test creates and drops.
struct Database {
    name: String,
    options: PgConnectOptions,
}

impl Database {
    async fn make() -> Self {
        let name = format!("semel_macros_{}", name());
        admin(&format!("create database {name}")).await;
        let server: PgConnectOptions =
            server("SEMEL_TEST_POSTGRES_URL").parse().expect("a PostgreSQL URL");
        let database = Self { options: server.database(&name), name };
        database.store().await.migrate().await.expect("migrated");
        database
    }

    async fn store(&self) -> PgStore {
        PgOptions::with(self.options.clone()).connect().await.expect("connected")
    }

    async fn connection(&self) -> PgConnection {
        self.options.connect().await.expect("connected")
    }

    async fn drop(self) {
        admin(&format!("drop database {} with (force)", self.name)).await;
    }
}

async fn admin(sql: &str) {
    let options: PgConnectOptions =
        server("SEMEL_TEST_POSTGRES_URL").parse().expect("a PostgreSQL URL");
    let mut connection = options.connect().await.expect("the server is up");
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.expect("runs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_runs_once_per_key_on_postgres() {
    let database = Database::make().await;
    check_repeats(Branch::on(database.store().await)).await;
    database.drop().await;
}

#[idempotent(
    operation = "CHARGE",
    executor = executor,
    tenant = "acme",
    key = key,
    fields(cents),
    unit = unit
)]
async fn charge(
    executor: &Executor<PgStore>,
    key: &str,
    cents: i64,
) -> Result<Execution<i64>, Error<Box<dyn std::error::Error + Send + Sync>>> {
    let (number,): (i64,) =
        sqlx::query_as("insert into charge (cents) values ($1) returning number")
            .bind(cents)
            .fetch_one(unit.conn())
            .await?;
    if cents < 0 {
        return Err("the amount is negative".into());
    }
    Ok(number)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_writes_and_the_answer_are_one_commit_on_postgres() {
    let database = Database::make().await;
    let table = "create table charge (number bigserial primary key, cents bigint not null)";
    sqlx::raw_sql(table).execute(&mut database.connection().await).await.expect("a table");
    let executor = executor(database.store().await);
    let failed = charge(&executor, "k-0", -1).await;
    assert!(matches!(failed, Err(Error::Work(_))), "{failed:?}");
    let first = charge(&executor, "k-1", 5).await.expect("runs");
    let again = charge(&executor, "k-1", 5).await.expect("replays");
    assert_eq!((first.replayed(), again.replayed()), (false, true));
    assert_eq!(first.value(), again.value());
    let refused = charge(&executor, "k-1", 6).await;
    assert!(matches!(refused, Err(Error::Mismatch)), "{refused:?}");
    let charges: Vec<i64> = sqlx::query_scalar("select cents from charge")
        .fetch_all(&mut database.connection().await)
        .await
        .expect("read");
    assert_eq!(charges, [5]);
    database.drop().await;
}
