//! A private database and broker for a test, and the demo that runs on them.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection, PgConnection, SqliteConnection};

use crate::caller::Caller;
use crate::program::{self, Service};

/// The time limit for something that takes one to ten seconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The database and the broker of a demo.
#[derive(Debug)]
pub(crate) struct Fixture {
    directory: PathBuf,
    database: Database,
    broker: String,
    name: String,
}

#[derive(Debug)]
enum Database {
    /// A SQLite file in the directory.
    Sqlite,
    /// A PostgreSQL database on the server at this URL, with the name of the fixture.
    Postgres(String),
    /// A MySQL database on the server at this URL, with the name of the fixture.
    MySql(String),
}

/// Returns the URL of one of the servers of the test run.
pub(crate) fn server(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("set {name} or run `cargo xtask test`, which starts the servers")
    })
}

/// Returns a unique name.
pub(crate) fn unique() -> String {
    let since = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_nanos();
    format!("demo_{}_{since}", std::process::id())
}

impl Fixture {
    fn new(database: Database, broker: &str) -> Self {
        let name = unique();
        let directory = std::env::temp_dir().join(format!("semel-{name}"));
        std::fs::create_dir(&directory).expect("a directory");
        Self { directory, database, broker: broker.to_owned(), name }
    }

    /// Creates a fixture with SQLite and the bus, the defaults of the demo.
    pub(crate) fn embedded() -> Self {
        Self::new(Database::Sqlite, "bus")
    }

    pub(crate) async fn postgres(broker: &str) -> Self {
        let url = server("SEMEL_TEST_POSTGRES_URL");
        let fixture = Self::new(Database::Postgres(url.clone()), broker);
        let mut side = PgConnection::connect(&url).await.expect("the server");
        let create = AssertSqlSafe(format!("CREATE DATABASE {}", fixture.name));
        sqlx::raw_sql(create).execute(&mut side).await.expect("a database");
        fixture
    }

    pub(crate) async fn mysql(broker: &str) -> Self {
        let url = server("SEMEL_TEST_MYSQL_URL");
        let fixture = Self::new(Database::MySql(url.clone()), broker);
        let mut side = MySqlConnection::connect(&url).await.expect("the server");
        let create = AssertSqlSafe(format!("CREATE DATABASE {}", fixture.name));
        sqlx::raw_sql(create).execute(&mut side).await.expect("a database");
        fixture
    }

    /// Returns the name of the demo's stream, exchange or keys on the broker.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn store(&self) -> String {
        match &self.database {
            Database::Sqlite => "sqlite:semel-demo.db".to_owned(),
            Database::Postgres(url) | Database::MySql(url) => {
                let (server, _) = url.rsplit_once('/').expect("a database in the URL");
                format!("{server}/{}", self.name)
            }
        }
    }

    /// Returns the path of a file in the directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns the command of a demo on this fixture, on free ports, with the arguments `more`.
    pub(crate) fn demo(&self, more: &[&str]) -> Command {
        let store = self.store();
        let mut flags = vec![
            ("--listen", "127.0.0.1:0"),
            ("--grpc-listen", "127.0.0.1:0"),
            ("--admin-listen", "127.0.0.1:0"),
        ];
        if !matches!(self.database, Database::Sqlite) {
            flags.push(("--store", &store));
        }
        if self.broker != "bus" {
            flags.extend([("--broker", &*self.broker), ("--name", &self.name)]);
        }
        let mut command = program::semel(&self.directory, ["demo"]);
        for (flag, value) in flags.into_iter().filter(|(flag, _)| !more.contains(flag)) {
            command.args([flag, value]);
        }
        // A short lease, so that the events of a killed relay are soon due again.
        command.args(more).env("SEMEL_RELAY__LEASE", "2s").env("RUST_LOG", "warn");
        command
    }

    /// Starts the demo.
    #[track_caller]
    pub(crate) fn start(&self) -> Service {
        Service::start(self.demo(&[]))
    }

    /// Runs a statement on a new connection.
    pub(crate) async fn execute(&self, statement: &str) {
        let sql = AssertSqlSafe(statement);
        match &self.database {
            Database::Sqlite => {
                let path = self.directory.join("semel-demo.db");
                let url = format!("sqlite:{}", path.display());
                let mut side = SqliteConnection::connect(&url).await.expect("the file");
                sqlx::raw_sql(sql).execute(&mut side).await.expect(statement);
                side.close().await.expect("closed");
            }
            Database::Postgres(_) => {
                let mut side = PgConnection::connect(&self.store()).await.expect("the server");
                sqlx::raw_sql(sql).execute(&mut side).await.expect(statement);
            }
            Database::MySql(_) => {
                let mut side = MySqlConnection::connect(&self.store()).await.expect("the server");
                sqlx::raw_sql(sql).execute(&mut side).await.expect(statement);
            }
        }
    }

    /// Returns the result of a query that counts rows.
    pub(crate) async fn number(&self, query: &str) -> i64 {
        let sql = AssertSqlSafe(query);
        let counted = match &self.database {
            Database::Sqlite => {
                let url = format!("sqlite:{}", self.directory.join("semel-demo.db").display());
                let mut side = SqliteConnection::connect(&url).await.expect("the file");
                sqlx::query_scalar(sql).fetch_one(&mut side).await
            }
            Database::Postgres(_) => {
                let mut side = PgConnection::connect(&self.store()).await.expect("the server");
                sqlx::query_scalar(sql).fetch_one(&mut side).await
            }
            Database::MySql(_) => {
                let mut side = MySqlConnection::connect(&self.store()).await.expect("the server");
                sqlx::query_scalar(sql).fetch_one(&mut side).await
            }
        };
        counted.expect(query)
    }

    /// Returns the number of existing orders that each group has handled, summed over all groups.
    /// Second effects are not counted.
    pub(crate) async fn handled(&self) -> i64 {
        let pairs = "SELECT DISTINCT consumer_group, order_id FROM effects \
                     JOIN orders ON internal_id = order_id AND orders.tenant_id = effects.tenant_id";
        self.number(&format!("SELECT COUNT(*) FROM ({pairs}) AS pairs")).await
    }

    /// Removes the database and the files of the test.
    pub(crate) async fn remove(self) {
        match &self.database {
            Database::Sqlite => {}
            Database::Postgres(url) => {
                let mut side = PgConnection::connect(url).await.expect("the server");
                let drop = AssertSqlSafe(format!("DROP DATABASE {} WITH (FORCE)", self.name));
                sqlx::raw_sql(drop).execute(&mut side).await.expect("dropped");
            }
            Database::MySql(url) => {
                let mut side = MySqlConnection::connect(url).await.expect("the server");
                let drop = AssertSqlSafe(format!("DROP DATABASE {}", self.name));
                sqlx::raw_sql(drop).execute(&mut side).await.expect("dropped");
            }
        }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Returns the response of `/effects` when this many orders are fully handled.
pub(crate) fn done(orders: usize) -> String {
    format!(
        "{{\"orders\":{orders},\"effects\":{{\"INVENTORY\":{orders},\"NOTIFY\":{orders},\
         \"BILLING\":{orders}}},\"outbox_pending\":0}}"
    )
}

/// Waits until `/effects` returns `wanted` or the time limit has passed, and returns the last
/// response.
pub(crate) async fn until_effects(caller: &Caller, base: &str, wanted: &str) -> String {
    let end = Instant::now() + PATIENCE;
    loop {
        let output = caller.get(&format!("{base}/effects")).await.text().to_owned();
        if output == wanted || Instant::now() > end {
            return output;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
