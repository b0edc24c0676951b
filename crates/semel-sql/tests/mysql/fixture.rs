//! A database per test on the server given by the environment, and helpers for the tests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_core::claim::{AttemptId, Lease, OperationId};
use semel_core::fingerprint::Fingerprint;
use semel_core::key::Key;
use semel_core::outcome::{ErrorText, Outcome, Recorded};
use semel_core::policy::OnCrash;
use semel_core::store::{BoxFuture, Draft, Opened, Settlement, Store};
use semel_sql::mysql::{Builder, MySqlStore};
use semel_sql::sqlx::{self, AssertSqlSafe, Connection, MySqlConnection};
use semel_testkit::Fixture;
use tokio::time::timeout;

/// A time limit that is not exceeded even on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Runs a step several times. If the step waited for a held lock, every run would take at least a
/// second, the lock wait of the store's sessions; a busy machine delays some runs, but not all.
pub(crate) async fn at_once(mut step: impl AsyncFnMut(u32)) {
    let mut fastest = Duration::MAX;
    for round in 0..25 {
        let since = Instant::now();
        step(round).await;
        fastest = fastest.min(since.elapsed());
        if round > 3 && fastest < Duration::from_millis(900) {
            return;
        }
    }
    panic!("a lock is waited for: {fastest:?} at least");
}

/// A database that is dropped with the test.
pub(crate) struct TestDatabase {
    server: String,
    name: String,
    borrowed: bool,
}

impl TestDatabase {
    /// Creates an empty database on MariaDB.
    pub(crate) async fn bare() -> Self {
        Self::bare_at(&url_in("SEMEL_TEST_MYSQL_URL")).await
    }

    /// Creates an empty database on the server at `url`.
    pub(crate) async fn bare_at(url: &str) -> Self {
        let server = url.rsplit_once('/').expect("the URL names a database").0.to_owned();
        let name = format!("semel_{}", OperationId::generate()).to_lowercase();
        let database = Self { server, name, borrowed: false };
        let mut root = MySqlConnection::connect(url).await.expect("the server answers");
        let create = format!("CREATE DATABASE {}", database.name);
        sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut root).await.expect("may create");
        database
    }

    /// Creates a database with the store's schema, on MariaDB.
    pub(crate) async fn new() -> Self {
        Self::at(&url_in("SEMEL_TEST_MYSQL_URL")).await
    }

    /// Creates a database with the store's schema, on MySQL 9.
    pub(crate) async fn mysql9() -> Self {
        Self::at(&url_in("SEMEL_TEST_MYSQL9_URL")).await
    }

    /// Creates a database with the store's schema, on the server at `url`.
    pub(crate) async fn at(url: &str) -> Self {
        let database = Self::bare_at(url).await;
        database.connect().await.migrate().await.expect("the schema is created");
        database
    }

    /// Uses the database at `url`, and does not drop it.
    pub(crate) fn borrowed(url: &str) -> Self {
        let (server, name) = url.rsplit_once('/').expect("the URL names a database");
        Self { server: server.to_owned(), name: name.to_owned(), borrowed: true }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Does not drop the database, because its server ends first.
    pub(crate) fn leave(mut self) {
        self.borrowed = true;
    }

    pub(crate) fn url(&self) -> String {
        format!("{}/{}", self.server, self.name)
    }

    /// Returns settings of a store in this database, with limits that a busy machine does not
    /// exceed.
    pub(crate) fn settings(&self) -> Builder {
        MySqlStore::builder(&self.url()).statement_timeout(LONG)
    }

    pub(crate) async fn connect(&self) -> MySqlStore {
        self.settings().connect().await.expect("the server answers")
    }

    /// Connects a store with one connection, on which concurrent steps share statements.
    pub(crate) async fn with_one_connection(&self) -> MySqlStore {
        self.settings().connections(1).connect().await.expect("the server answers")
    }

    /// Opens a connection as an application does.
    pub(crate) async fn plain(&self) -> MySqlConnection {
        MySqlConnection::connect(&self.url()).await.expect("the server answers")
    }

    pub(crate) async fn run(&self, text: &str) {
        let mut connection = self.plain().await;
        sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut connection).await.expect(text);
    }

    pub(crate) async fn number(&self, text: &str) -> i64 {
        let mut connection = self.plain().await;
        let text = format!("SELECT CAST(({text}) AS SIGNED)");
        sqlx::query_scalar(AssertSqlSafe(text.clone()))
            .fetch_one(&mut connection)
            .await
            .expect(&text)
    }
}

fn url_in(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("set {variable} or run `cargo xtask test`, which starts the servers")
    })
}

/// Blocks statements in their middle until it is dropped.
pub(crate) struct Gate {
    database: String,
    _holder: MySqlConnection,
}

impl TestDatabase {
    /// Creates a gate for statements that do `event` (`INSERT`, `UPDATE`, `DELETE`) to the row of
    /// `key`. It blocks between the filling of the row and its writing.
    pub(crate) async fn gate(&self, event: &str, key: &Key) -> Gate {
        let side = if event == "INSERT" { "NEW" } else { "OLD" };
        self.run(&format!(
            "CREATE TRIGGER gate BEFORE {event} ON semel_record FOR EACH ROW \
             IF {side}.{} THEN DO GET_LOCK(DATABASE(), 60); DO RELEASE_LOCK(DATABASE()); END IF",
            at(key)
        ))
        .await;
        let mut holder = self.plain().await;
        let lock = "SELECT GET_LOCK(DATABASE(), 0)";
        sqlx::raw_sql(lock).execute(&mut holder).await.expect("locked");
        Gate { database: self.url(), _holder: holder }
    }
}

impl Gate {
    /// Waits until a statement is blocked by the gate, and returns the id of its connection.
    pub(crate) async fn reached(&self) -> i64 {
        let mut watcher =
            MySqlConnection::connect(&self.database).await.expect("the server answers");
        let text = "SELECT CAST(MAX(id) AS SIGNED) FROM information_schema.processlist \
                    WHERE db = DATABASE() AND state = 'User lock'";
        let seen = async {
            loop {
                let id: Option<i64> =
                    sqlx::query_scalar(text).fetch_one(&mut watcher).await.expect("list");
                if let Some(id) = id {
                    return id;
                }
            }
        };
        timeout(LONG, seen).await.expect("a statement reaches the gate")
    }

    /// Kills the connection that is blocked by the gate.
    pub(crate) async fn kill(&self) {
        let id = self.reached().await;
        let mut killer =
            MySqlConnection::connect(&self.database).await.expect("the server answers");
        let kill = AssertSqlSafe(format!("KILL CONNECTION {id}"));
        sqlx::raw_sql(kill).execute(&mut killer).await.expect("killed");
    }
}

/// Returns keys in the order in which one statement locks them.
pub(crate) fn keys(count: usize) -> Vec<Key> {
    let mut keys: Vec<Key> = (0..count).map(|i| key(&format!("k-{i}"))).collect();
    keys.sort_by_key(Key::digest);
    keys
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        if self.borrowed {
            return;
        }
        let (url, name) = (self.url(), self.name.clone());
        let clean = async move {
            let mut connection = MySqlConnection::connect(&url).await.ok()?;
            let drop = format!("SET lock_wait_timeout = 5; DROP DATABASE {name}");
            sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut connection).await.ok()
        };
        // A runtime cannot be blocked from within, but a thread of its own can.
        let _ = std::thread::spawn(|| semel_testkit::fixture::run(clean)).join();
    }
}

impl Fixture for TestDatabase {
    type Store = MySqlStore;

    async fn store(&self) -> MySqlStore {
        self.connect().await
    }

    async fn advance(&self, span: Duration) {
        self.shift(semel_core::clock::micros(span)).await;
    }

    async fn jump(&self, span: Duration, ahead: bool) -> bool {
        let by = semel_core::clock::micros(span);
        self.shift(if ahead { by } else { -by }).await;
        self.forget_clock(if ahead { by } else { -by }).await;
        true
    }

    fn corrupt<'a>(&'a self, key: &'a Key) -> Option<BoxFuture<'a, ()>> {
        Some(Box::pin(async move {
            self.run(&format!("UPDATE semel_record SET state = 9 WHERE {}", at(key))).await;
        }))
    }
}

impl TestDatabase {
    /// Moves the stored watermark of the server's clock back.
    pub(crate) async fn forget_clock(&self, by: i64) {
        let sql = format!(
            "UPDATE semel_clock SET trusted = trusted - ({by}), suspect = suspect - ({by})"
        );
        self.run(&sql).await;
    }

    async fn shift(&self, by: i64) {
        self.run(&format!(
            "UPDATE semel_record SET created_at = created_at - ({by}), updated_at = updated_at - ({by}), \
             lease_until = lease_until - ({by}), retry_at = retry_at - ({by}), \
             completed_at = completed_at - ({by}), expires_at = expires_at - ({by})"
        ))
        .await;
    }
}

/// Returns the condition that selects a key's row.
pub(crate) fn at(key: &Key) -> String {
    let hex: String = key.digest().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("digest = x'{hex}'")
}

pub(crate) fn key(id: &str) -> Key {
    Key::command("acme", "ORDER_CREATE", id).expect("a valid key")
}

pub(crate) fn draft(key: &Key) -> Draft {
    Draft {
        key: key.clone(),
        fingerprint: Fingerprint::opaque("order"),
        operation_id: OperationId::generate(),
        attempt_id: AttemptId::generate(),
        attempt: 1,
        owner: Arc::from("host:1:test"),
        lease: Duration::from_secs(30),
        on_crash: OnCrash::Rerun,
        keep: Duration::from_secs(60),
        retry_payload: None,
    }
}

/// Claims a free key.
pub(crate) async fn claim(store: &impl Store, key: &Key) -> Lease {
    let draft = draft(key);
    match store.open(&draft).await.expect("open") {
        Opened::Inserted { fence } => lease(&draft, fence),
        other @ (Opened::Existing { .. } | Opened::Contended) => {
            panic!("expected a grant, got {other:?}")
        }
    }
}

pub(crate) fn lease(draft: &Draft, fence: semel_core::Fence) -> Lease {
    Lease { digest: draft.key.digest(), fence, attempt_id: draft.attempt_id }
}

pub(crate) fn success(text: &str) -> Settlement {
    Settlement::Succeeded {
        outcome: Recorded::Whole(Outcome::new("text/plain", text.to_owned())),
        keep: Duration::from_secs(60),
    }
}

pub(crate) fn failure() -> Settlement {
    Settlement::Failed {
        error: ErrorText::new("no"),
        retry_after: Some(Duration::ZERO),
        keep: Duration::from_secs(60),
    }
}
