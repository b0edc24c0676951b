//! The table that is copied, and the id map that it is copied into, in each of the databases.

use std::future::Future;

use semel_ids::TypedId;
use semel_ids::map::IdMap;
use semel_ids::migration::BusinessTable;
use semel_ids::resource::Order;
use semel_sql::business::Layout;
use semel_sql::mysql::MySqlTable;
use semel_sql::postgres::PgTable;
use semel_sql::sqlite::SqliteTable;
use sqlx::mysql::MySqlPool;
use sqlx::postgres::PgPool;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use sqlx::{AssertSqlSafe, Executor as _};
use ulid::Ulid;

use crate::BoxError;
use semel_stores::{Address, Backend};

/// Rows of one statement.
const ROWS: u64 = 1_000;
/// One row in this many has no tenant and is refused.
const UNUSABLE: u64 = 997;

/// A function over a map and its table, of any database.
pub(super) trait Visitor {
    /// The result.
    type Output;

    /// Runs with the opened store.
    fn visit<M: IdMap, T: BusinessTable>(
        self,
        map: M,
        table: T,
    ) -> impl Future<Output = Self::Output>;
}

/// Opens both and runs `visitor` with them.
pub(super) async fn visit<V: Visitor>(
    backend: &Backend,
    visitor: V,
) -> Result<V::Output, BoxError> {
    let layout = Layout::new("orders");
    Ok(match (backend.address(), pool(backend).await?) {
        (Address::Sqlite(_), Pool::Sqlite(pool)) => {
            let table = SqliteTable::open(pool, layout).await?;
            visitor.visit(backend.sqlite().await?, table).await
        }
        (Address::Postgres(_), Pool::Postgres(pool)) => {
            let table = PgTable::open(pool, layout).await?;
            visitor.visit(backend.postgres().await?, table).await
        }
        (Address::MySql(_), Pool::MySql(pool)) => {
            let table = MySqlTable::open(pool, layout).await?;
            visitor.visit(backend.mysql().await?, table).await
        }
        _ => return Err(format!("{} has no tables", backend.name()).into()),
    })
}

enum Pool {
    Sqlite(SqlitePool),
    Postgres(PgPool),
    MySql(MySqlPool),
}

async fn pool(backend: &Backend) -> Result<Pool, BoxError> {
    Ok(match backend.address() {
        Address::Sqlite(path) => {
            let options = SqliteConnectOptions::new().filename(path);
            Pool::Sqlite(SqlitePool::connect_with(options).await?)
        }
        Address::Postgres(url) => Pool::Postgres(PgPool::connect(url).await?),
        Address::MySql(url) => Pool::MySql(MySqlPool::connect(url).await?),
        Address::Memory(_) | Address::Redis { .. } => {
            return Err(format!("{} has no tables", backend.name()).into());
        }
    })
}

impl Pool {
    /// Runs statements in one transaction.
    async fn run(&self, statements: impl Iterator<Item = String>) -> Result<(), BoxError> {
        macro_rules! all {
            ($pool:expr) => {{
                let mut transaction = $pool.begin().await?;
                for statement in statements {
                    transaction.execute(AssertSqlSafe(statement)).await?;
                }
                transaction.commit().await?;
            }};
        }
        match self {
            Pool::Sqlite(pool) => all!(pool),
            Pool::Postgres(pool) => all!(pool),
            Pool::MySql(pool) => all!(pool),
        }
        Ok(())
    }

    async fn count(&self, sql: &'static str) -> Result<u64, BoxError> {
        let count: i64 = match self {
            Pool::Sqlite(pool) => sqlx::query_scalar(sql).fetch_one(pool).await?,
            Pool::Postgres(pool) => sqlx::query_scalar(sql).fetch_one(pool).await?,
            Pool::MySql(pool) => sqlx::query_scalar(sql).fetch_one(pool).await?,
        };
        Ok(u64::try_from(count)?)
    }

    fn literal(&self, id: Ulid) -> String {
        match self {
            Pool::Postgres(_) => format!("'\\x{:032x}'::bytea", id.0),
            Pool::Sqlite(_) | Pool::MySql(_) => format!("x'{:032x}'", id.0),
        }
    }

    const fn bytes(&self) -> &'static str {
        match self {
            Pool::Sqlite(_) => "BLOB",
            Pool::Postgres(_) => "bytea",
            Pool::MySql(_) => "BINARY(16)",
        }
    }
}

/// Creates the table with `rows` rows; returns how many of them are refused.
pub(super) async fn create(backend: &Backend, rows: u64) -> Result<u64, BoxError> {
    let pool = pool(backend).await?;
    let create = format!(
        "CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, tenant_id VARCHAR(64), \
         public_id VARCHAR(64) NOT NULL, internal_id {} NOT NULL)",
        pool.bytes()
    );
    pool.run(std::iter::once(create)).await?;
    let row = |n: u64| {
        // Numbers with holes, and a few tenants.
        let (key, tenant) = (n * 3, format!("'tenant-{}'", n % 5));
        let tenant = if is_unusable(n) { "NULL" } else { &tenant };
        let id = Ulid::from_parts(1_700_000_000_000 + n, fastrand::u128(..) >> 48);
        let public = TypedId::<Order>::new(id);
        format!("({key}, {tenant}, '{public}', {})", pool.literal(id))
    };
    let statements = (0..rows.div_ceil(ROWS)).map(|batch| {
        let numbers = batch * ROWS..rows.min((batch + 1) * ROWS);
        let rows: Vec<String> = numbers.map(row).collect();
        format!("INSERT INTO orders VALUES {}", rows.join(", "))
    });
    pool.run(statements).await?;
    let index = "CREATE UNIQUE INDEX orders_public ON orders (tenant_id, public_id)";
    pool.run(std::iter::once(index.to_owned())).await?;
    Ok((0..rows).filter(|n| is_unusable(*n)).count() as u64)
}

const fn is_unusable(n: u64) -> bool {
    n % UNUSABLE == UNUSABLE - 1
}

/// Counts the mappings in the database.
pub(super) async fn mappings(backend: &Backend) -> Result<u64, BoxError> {
    pool(backend).await?.count("SELECT COUNT(*) FROM semel_id_map WHERE status = 1").await
}
