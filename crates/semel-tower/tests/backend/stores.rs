//! The backends: memory, a SQLite file, a PostgreSQL or MariaDB database, a Redis prefix.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel_core::clock::micros;
use semel_core::store::memory::MemoryStore;
use semel_core::{AttemptId, Clock, Timestamp};
use semel_redis::RedisStore;
use semel_sql::mysql::MySqlStore;
use semel_sql::postgres::{PgOptions, PgStore};
use semel_sql::sqlite::SqliteStore;
use semel_sql::sqlx::mysql::MySqlConnection;
use semel_sql::sqlx::postgres::{PgConnectOptions, PgConnection};
use semel_sql::sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use semel_sql::sqlx::{self, AssertSqlSafe, ConnectOptions as _, Connection as _};
use semel_testkit::Fixture;

use super::{AtomicBackend, Backend, Protocol};

/// Returns a name that no other running test or process uses.
fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst))
}

fn server(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("set {variable} or run `cargo xtask test`, which starts the servers")
    })
}

fn stopped_clock() -> Clock {
    Clock::manual(Timestamp::from_micros(1_700_000_000_000_000))
}

/// A backend with records in memory.
pub(crate) struct Memory {
    store: MemoryStore,
    clock: Clock,
}

impl Memory {
    /// Creates a backend with a capacity of `capacity` keys.
    pub(crate) fn for_keys(capacity: usize) -> Self {
        let clock = stopped_clock();
        Self { store: MemoryStore::with(capacity, clock.clone()), clock }
    }
}

impl Fixture for Memory {
    type Store = MemoryStore;

    async fn store(&self) -> MemoryStore {
        self.store.clone()
    }

    async fn advance(&self, span: Duration) {
        self.clock.advance(span);
    }
}

impl Backend for Memory {
    async fn open() -> Self {
        Self::for_keys(MemoryStore::CAPACITY)
    }

    fn protocol(&self) -> Protocol {
        Protocol::H1
    }
}

/// A backend with records in memory, whose tests use HTTP/2.
pub(crate) struct MemoryOverH2(Memory);

impl Fixture for MemoryOverH2 {
    type Store = MemoryStore;

    async fn store(&self) -> MemoryStore {
        self.0.store().await
    }

    async fn advance(&self, span: Duration) {
        self.0.advance(span).await;
    }
}

impl Backend for MemoryOverH2 {
    async fn open() -> Self {
        Self(Memory::open().await)
    }

    fn protocol(&self) -> Protocol {
        Protocol::H2
    }
}

/// A backend with records in a SQLite file, in a separate directory.
pub(crate) struct Sqlite {
    directory: PathBuf,
    clock: Clock,
}

impl Sqlite {
    fn path(&self) -> PathBuf {
        self.directory.join("ledger.db")
    }

    /// Opens a connection outside of the store's pool.
    pub(crate) async fn connection(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new().filename(self.path());
        options.busy_timeout(Duration::from_secs(30)).connect().await.expect("opens")
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Fixture for Sqlite {
    type Store = SqliteStore;

    async fn store(&self) -> SqliteStore {
        let store = SqliteStore::builder(self.path()).clock(self.clock.clone()).open().await;
        store.expect("a ledger in a new directory")
    }

    async fn advance(&self, span: Duration) {
        self.clock.advance(span);
    }
}

impl Backend for Sqlite {
    async fn open() -> Self {
        let directory = std::env::temp_dir().join(format!("semel-tower-{}", unique()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).expect("a directory below the temporary one");
        let backend = Self { directory, clock: stopped_clock() };
        backend.store().await.close().await;
        sqlx::raw_sql("create table orders (note text not null)")
            .execute(&mut backend.connection().await)
            .await
            .expect("a table");
        backend
    }

    fn protocol(&self) -> Protocol {
        Protocol::H2
    }
}

impl AtomicBackend for Sqlite {
    async fn insert(connection: &mut SqliteConnection, note: &str) {
        let insert = sqlx::query("insert into orders (note) values (?)").bind(note);
        insert.execute(connection).await.expect("written");
    }

    async fn rows(&self) -> Vec<String> {
        sqlx::query_scalar("select note from orders order by note")
            .fetch_all(&mut self.connection().await)
            .await
            .expect("read")
    }
}

/// A backend with its own PostgreSQL database, which is dropped with this value.
pub(crate) struct Postgres {
    options: PgConnectOptions,
    name: String,
}

impl Postgres {
    fn admin() -> PgConnectOptions {
        server("SEMEL_TEST_POSTGRES_URL").parse().expect("a PostgreSQL URL")
    }

    /// Opens a connection outside of the store's pool.
    pub(crate) async fn connection(&self) -> PgConnection {
        self.options.connect().await.expect("connected")
    }

    async fn run(options: &PgConnectOptions, statements: &[String]) {
        let mut connection = options.connect().await.expect("the server is up");
        for sql in statements {
            let run = sqlx::raw_sql(AssertSqlSafe(sql.as_str())).execute(&mut connection);
            run.await.expect("runs");
        }
        connection.close().await.expect("closed");
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let name = self.name.clone();
        // A separate thread, because the test's runtime may be shut down or be running this code.
        let dropping = std::thread::spawn(move || {
            semel_testkit::fixture::run(async move {
                let Ok(mut admin) = Self::admin().connect().await else { return };
                let sql = format!("drop database if exists {name} with (force)");
                let _ = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut admin).await;
            });
        });
        let _ = dropping.join();
    }
}

impl Fixture for Postgres {
    type Store = PgStore;

    async fn store(&self) -> PgStore {
        PgOptions::with(self.options.clone()).connect().await.expect("connected")
    }

    async fn advance(&self, span: Duration) {
        let span = micros(span);
        let moved = ["created_at", "updated_at", "lease_until", "retry_at", "completed_at"]
            .into_iter()
            .chain(["expires_at", "sweep_at"])
            .map(|column| format!("{column} = {column} - {span}"))
            .collect::<Vec<_>>()
            .join(", ");
        Self::run(&self.options, &[format!("update semel_record set {moved}")]).await;
    }
}

impl Backend for Postgres {
    async fn open() -> Self {
        let name = format!("semel_tower_{}", unique());
        let backend = Self { options: Self::admin().database(&name), name: name.clone() };
        // Drops a database that a killed process with the same id may have left.
        let remake = [
            format!("drop database if exists {name} with (force)"),
            format!("create database {name}"),
        ];
        Self::run(&Self::admin(), &remake).await;
        backend.store().await.migrate().await.expect("migrated");
        Self::run(&backend.options, &["create table orders (note text not null)".to_owned()]).await;
        backend
    }

    fn protocol(&self) -> Protocol {
        Protocol::H1
    }
}

impl AtomicBackend for Postgres {
    async fn insert(connection: &mut PgConnection, note: &str) {
        let insert = sqlx::query("insert into orders (note) values ($1)").bind(note);
        insert.execute(connection).await.expect("written");
    }

    async fn rows(&self) -> Vec<String> {
        sqlx::query_scalar("select note from orders order by note")
            .fetch_all(&mut self.connection().await)
            .await
            .expect("read")
    }
}

/// A backend with its own MariaDB database, which is dropped with this value.
pub(crate) struct MariaDb {
    name: String,
}

impl MariaDb {
    fn server() -> String {
        let url = server("SEMEL_TEST_MYSQL_URL");
        url.rsplit_once('/').expect("the URL names a database").0.to_owned()
    }

    fn url(&self) -> String {
        format!("{}/{}", Self::server(), self.name)
    }

    /// Opens a connection outside of the store's pool.
    pub(crate) async fn connection(&self) -> MySqlConnection {
        MySqlConnection::connect(&self.url()).await.expect("connected")
    }

    async fn run(url: &str, sql: String) -> sqlx::Result<()> {
        let mut connection = MySqlConnection::connect(url).await?;
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.map(|_| ())
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        let name = self.name.clone();
        // A separate thread, because the test's runtime may be shut down or be running this code.
        let dropping = std::thread::spawn(move || {
            semel_testkit::fixture::run(async move {
                let drop = format!("DROP DATABASE IF EXISTS {name}");
                let _ = Self::run(&server("SEMEL_TEST_MYSQL_URL"), drop).await;
            });
        });
        let _ = dropping.join();
    }
}

impl Fixture for MariaDb {
    type Store = MySqlStore;

    async fn store(&self) -> MySqlStore {
        MySqlStore::connect(&self.url()).await.expect("connected")
    }

    async fn advance(&self, span: Duration) {
        let span = micros(span);
        let moved = ["created_at", "updated_at", "lease_until", "retry_at", "completed_at"]
            .into_iter()
            .chain(["expires_at"])
            .map(|column| format!("{column} = {column} - {span}"))
            .collect::<Vec<_>>()
            .join(", ");
        let url = self.url();
        let moving = Self::run(&url, format!("UPDATE semel_record SET {moved}"));
        moving.await.expect("moved");
    }
}

impl Backend for MariaDb {
    async fn open() -> Self {
        let backend = Self { name: format!("semel_tower_{}", unique()) };
        let name = &backend.name;
        // Drops a database that a killed process with the same id may have left.
        let remake = format!("DROP DATABASE IF EXISTS {name}; CREATE DATABASE {name}");
        Self::run(&server("SEMEL_TEST_MYSQL_URL"), remake).await.expect("a new database");
        backend.store().await.migrate().await.expect("migrated");
        let orders =
            "CREATE TABLE orders (note VARCHAR(255) COLLATE utf8mb4_bin NOT NULL)".to_owned();
        Self::run(&backend.url(), orders).await.expect("a table");
        backend
    }

    fn protocol(&self) -> Protocol {
        Protocol::H2
    }
}

impl AtomicBackend for MariaDb {
    async fn insert(connection: &mut MySqlConnection, note: &str) {
        let insert = sqlx::query("INSERT INTO orders (note) VALUES (?)").bind(note.to_owned());
        insert.execute(connection).await.expect("written");
    }

    async fn rows(&self) -> Vec<String> {
        sqlx::query_scalar("SELECT note FROM orders ORDER BY note")
            .fetch_all(&mut self.connection().await)
            .await
            .expect("read")
    }
}

/// A backend with its own key prefix in Redis.
pub(crate) struct Redis {
    prefix: String,
}

impl Fixture for Redis {
    type Store = RedisStore;

    async fn store(&self) -> RedisStore {
        let url = server("SEMEL_TEST_REDIS_URL");
        RedisStore::builder().prefix(&self.prefix).connect(&url).await.expect("the server answers")
    }

    async fn advance(&self, span: Duration) {
        self.store().await.rewind(span).await.expect("the server answers");
    }
}

impl Backend for Redis {
    async fn open() -> Self {
        let random = AttemptId::generate().to_bytes().map(|byte| format!("{byte:02x}")).concat();
        Self { prefix: format!("test:{random}:") }
    }

    fn protocol(&self) -> Protocol {
        Protocol::H2
    }
}
