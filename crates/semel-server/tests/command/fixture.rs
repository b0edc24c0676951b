//! A private store for a test, and the program that runs on it.

use std::path::{Path, PathBuf};
use std::process::Command;

use semel_server::store::{OpenMode, StoreHandle, StoreUrl};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection, PgConnection, SqliteConnection};

use crate::program::{self, Ended};

/// Runs a test on each of some stores.
macro_rules! on {
    ($test:ident: $($store:ident),+) => {
        mod $test {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $store() {
                    super::$test(crate::fixture::Fixture::$store().await).await;
                }
            )+
        }
    };
}
pub(crate) use on;

/// A directory that is removed after the test.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        let path = std::env::temp_dir().join(format!("semel-command-{}", unique()));
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file in the directory, and returns its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a unique name.
pub(crate) fn unique() -> String {
    semel_core::OperationId::generate().to_string().to_lowercase()
}

pub(crate) fn server(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("set {variable} or run `cargo xtask test`, which starts the servers")
    })
}

/// A private store for a test.
pub(crate) struct Fixture {
    pub(crate) scratch: Scratch,
    pub(crate) url: String,
    prefix: String,
    /// The server's URL and the name of the database, which is dropped after the test.
    database: Option<(String, String)>,
}

impl Fixture {
    fn at(url: String) -> Self {
        Self { scratch: Scratch::new(), url, prefix: "idem:".to_owned(), database: None }
    }

    /// Creates a SQLite file with the schema.
    pub(crate) async fn sqlite() -> Self {
        let fixture = Self::bare_sqlite();
        fixture.open_store().await.close().await;
        fixture
    }

    /// Returns the URL of a SQLite file that does not exist yet.
    pub(crate) fn bare_sqlite() -> Self {
        let mut fixture = Self::at(String::new());
        fixture.url = format!("sqlite:{}", fixture.scratch.path().join("ledger.db").display());
        fixture
    }

    /// Creates a database with the schema.
    pub(crate) async fn postgres() -> Self {
        let fixture = Self::bare_postgres().await;
        fixture.open_store().await;
        fixture
    }

    /// Creates a database without the schema.
    pub(crate) async fn bare_postgres() -> Self {
        let url = server("SEMEL_TEST_POSTGRES_URL");
        Self::database(url, "postgres").await
    }

    /// Creates a database with the schema.
    pub(crate) async fn mysql() -> Self {
        let fixture = Self::bare_mysql().await;
        fixture.open_store().await;
        fixture
    }

    /// Creates a database without the schema.
    pub(crate) async fn bare_mysql() -> Self {
        let url = server("SEMEL_TEST_MYSQL_URL");
        Self::database(url, "mysql").await
    }

    async fn database(server: String, kind: &str) -> Self {
        let name = format!("semel_command_{}", unique());
        create(&server, kind, &format!("CREATE DATABASE {name}")).await;
        let (before, parameters) = match server.split_once('?') {
            Some((before, parameters)) => (before.to_owned(), format!("?{parameters}")),
            None => (server.clone(), String::new()),
        };
        let address = match before.matches('/').count() {
            0..=2 => before.as_str(),
            _ => before.rsplit_once('/').expect("the URL names a database").0,
        };
        let url = format!("{address}/{name}{parameters}");
        let mut fixture = Self::at(url);
        fixture.database = Some((server, name));
        fixture
    }

    /// Reserves a key prefix in Redis.
    pub(crate) async fn redis() -> Self {
        let mut fixture = Self::at(server("SEMEL_TEST_REDIS_URL"));
        fixture.prefix = format!("command-{}:", unique());
        fixture
    }

    /// Opens the store as a service does.
    pub(crate) async fn open_store(&self) -> StoreHandle {
        let url: StoreUrl = self.url.parse().expect("a URL");
        StoreHandle::open(&url, OpenMode::Serve, &self.prefix).await.expect("the store opens")
    }

    /// Returns a command of the program with these arguments and this store, which is not started
    /// yet.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let store = ["--store", &self.url];
        let mut command =
            program::semel(self.scratch.path(), arguments.iter().copied().chain(store));
        command.env("SEMEL_LEDGER__PREFIX", &self.prefix);
        command
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ended {
        Ended::from(self.command(arguments).output().expect("the program can be started"))
    }

    /// Runs a command that must succeed, and returns its JSON output.
    #[track_caller]
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
        let printed = self.run(&arguments).well();
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
    }
}

/// Returns the two audit lines of a command.
#[track_caller]
pub(crate) fn audited(stderr: &str) -> [Value; 2] {
    let lines: Vec<Value> = stderr
        .lines()
        .filter(|line| line.contains("\"audit\":"))
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let [begin, end] = <[Value; 2]>::try_from(lines).unwrap_or_else(|_| panic!("{stderr}"));
    assert_eq!((&begin["phase"], begin.get("count")), (&"begin".into(), None), "{begin}");
    for name in ["audit", "run", "actor", "reason"] {
        assert_eq!(begin[name], end[name], "{name}");
    }
    assert!(begin["actor"].as_str().is_some_and(|actor| !actor.is_empty()), "{begin}");
    [begin, end]
}

/// Runs SQL statements on a separate connection.
pub(crate) async fn sql(fixture: &Fixture, text: &str) {
    let text = AssertSqlSafe(text.to_owned());
    let done = match fixture.url.split(':').next() {
        Some("sqlite") => {
            let mut connection = SqliteConnection::connect(&fixture.url).await.unwrap();
            sqlx::raw_sql(text).execute(&mut connection).await.map(drop)
        }
        Some("postgres") => {
            let mut connection = PgConnection::connect(&fixture.url).await.unwrap();
            sqlx::raw_sql(text).execute(&mut connection).await.map(drop)
        }
        _ => {
            let mut connection = MySqlConnection::connect(&fixture.url).await.unwrap();
            sqlx::raw_sql(text).execute(&mut connection).await.map(drop)
        }
    };
    done.expect("runs");
}

/// Damages a record in a column that the filters of a database do not read.
pub(crate) async fn damage(fixture: &Fixture, key: &semel_core::Key) {
    let digest: String = key.digest().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let name = match fixture.url.split(':').next() {
        Some("redis") => {
            let client = redis::Client::open(fixture.url.as_str()).expect("a URL");
            let mut connection = client.get_connection().expect("the server answers");
            let mut damage = redis::cmd("SETRANGE");
            damage.arg(format!("{}{digest}", fixture.prefix)).arg(1).arg(b"\x09");
            return damage.exec(&mut connection).expect("damaged");
        }
        Some("postgres") => format!("'\\x{digest}'"),
        _ => format!("x'{digest}'"),
    };
    sql(fixture, &format!("UPDATE semel_record SET on_crash = 9 WHERE digest = {name}")).await;
}

async fn create(server: &str, kind: &str, sql: &str) {
    let sql = AssertSqlSafe(sql.to_owned());
    if kind == "postgres" {
        let mut admin = PgConnection::connect(server).await.expect("the server answers");
        sqlx::raw_sql(sql).execute(&mut admin).await.expect("may create");
    } else {
        let mut admin = MySqlConnection::connect(server).await.expect("the server answers");
        sqlx::raw_sql(sql).execute(&mut admin).await.expect("may create");
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let Some((server, name)) = self.database.take() else { return };
        // A separate thread, because this code may run on the test's runtime.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                if server.starts_with("postgres") {
                    let Ok(mut admin) = PgConnection::connect(&server).await else { return };
                    let sql = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
                    let _ = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut admin).await;
                } else {
                    let Ok(mut admin) = MySqlConnection::connect(&server).await else { return };
                    let sql = format!("DROP DATABASE IF EXISTS {name}");
                    let _ = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut admin).await;
                }
            });
        });
        let _ = dropping.join();
    }
}
