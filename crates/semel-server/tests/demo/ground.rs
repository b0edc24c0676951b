//! A database and a broker of a test's own, and the demo on them.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection, PgConnection, SqliteConnection};

use crate::caller::Caller;
use crate::program::{self, Service};

/// How long a loaded machine may take for what takes a second or ten.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where a demo keeps things, and what carries its events.
#[derive(Debug)]
pub(crate) struct Ground {
    directory: PathBuf,
    database: Database,
    broker: String,
    name: String,
}

#[derive(Debug)]
enum Database {
    /// In the directory.
    Sqlite,
    /// On the server at this URL, under the ground's name.
    Postgres(String),
    /// The same.
    MySql(String),
}

/// The URL of one of the test run's servers.
pub(crate) fn server(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("set {name} or run `cargo xtask test`, which starts the servers")
    })
}

/// A unique name.
pub(crate) fn unique() -> String {
    let since = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_nanos();
    format!("demo_{}_{since}", std::process::id())
}

impl Ground {
    fn new(database: Database, broker: &str) -> Self {
        let name = unique();
        let directory = std::env::temp_dir().join(format!("semel-{name}"));
        std::fs::create_dir(&directory).expect("a directory");
        Self { directory, database, broker: broker.to_owned(), name }
    }

    /// SQLite and the bus: what the demo does when it is told nothing.
    pub(crate) fn embedded() -> Self {
        Self::new(Database::Sqlite, "bus")
    }

    pub(crate) async fn postgres(broker: &str) -> Self {
        let url = server("SEMEL_TEST_POSTGRES_URL");
        let ground = Self::new(Database::Postgres(url.clone()), broker);
        let mut side = PgConnection::connect(&url).await.expect("the server");
        let create = AssertSqlSafe(format!("CREATE DATABASE {}", ground.name));
        sqlx::raw_sql(create).execute(&mut side).await.expect("a database");
        ground
    }

    pub(crate) async fn mysql(broker: &str) -> Self {
        let url = server("SEMEL_TEST_MYSQL_URL");
        let ground = Self::new(Database::MySql(url.clone()), broker);
        let mut side = MySqlConnection::connect(&url).await.expect("the server");
        let create = AssertSqlSafe(format!("CREATE DATABASE {}", ground.name));
        sqlx::raw_sql(create).execute(&mut side).await.expect("a database");
        ground
    }

    /// What the demo's own things are called on the broker.
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

    /// A file of this ground's.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The demo on this ground, on free ports, unless `more` says otherwise.
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
        // What a killed relay had in hands is due again soon.
        command.args(more).env("SEMEL_RELAY__LEASE", "2s").env("RUST_LOG", "warn");
        command
    }

    /// Starts it.
    #[track_caller]
    pub(crate) fn start(&self) -> Service {
        Service::start(self.demo(&[]))
    }

    /// Runs a statement on a connection of its own.
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

    /// Returns a number that a query counts.
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

    /// Orders that a group has handled, over all groups: neither second effects are counted, nor those
    /// of orders that are not there.
    pub(crate) async fn handled(&self) -> i64 {
        let pairs = "SELECT DISTINCT consumer_group, order_id FROM effects \
                     JOIN orders ON internal_id = order_id AND orders.tenant_id = effects.tenant_id";
        self.number(&format!("SELECT COUNT(*) FROM ({pairs}) AS pairs")).await
    }

    /// Takes away what the test has left.
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

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// What `/effects` says when there are so many orders and all is done.
pub(crate) fn done(orders: usize) -> String {
    format!(
        "{{\"orders\":{orders},\"effects\":{{\"INVENTORY\":{orders},\"NOTIFY\":{orders},\
         \"BILLING\":{orders}}},\"outbox_pending\":0}}"
    )
}

/// Waits until `/effects` says this, and gives what it said last.
pub(crate) async fn until_effects(caller: &Caller, base: &str, wanted: &str) -> String {
    let end = Instant::now() + PATIENCE;
    loop {
        let said = caller.get(&format!("{base}/effects")).await.text().to_owned();
        if said == wanted || Instant::now() > end {
            return said;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
