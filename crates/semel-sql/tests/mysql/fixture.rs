//! A database per test on the server that the environment names, and short ways to say things.

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

/// Longer than anything takes that only a busy machine is late with.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Takes a step several times. Were the lock that somebody holds waited for, every one of them would
/// take a second at least, which is what our sessions wait; a busy machine makes some of them late, and
/// not all.
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
    panic!("somebody is waited for: {fastest:?} at least");
}

/// A database that is dropped with the test.
pub(crate) struct Ground {
    server: String,
    name: String,
    borrowed: bool,
}

impl Ground {
    /// An empty database on MariaDB.
    pub(crate) async fn bare() -> Self {
        Self::bare_at(&url_in("SEMEL_TEST_MYSQL_URL")).await
    }

    /// An empty database on the server at `url`.
    pub(crate) async fn bare_at(url: &str) -> Self {
        let server = url.rsplit_once('/').expect("the URL names a database").0.to_owned();
        let name = format!("semel_{}", OperationId::generate()).to_lowercase();
        let ground = Self { server, name, borrowed: false };
        let mut root = MySqlConnection::connect(url).await.expect("the server answers");
        let create = format!("CREATE DATABASE {}", ground.name);
        sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut root).await.expect("may create");
        ground
    }

    /// A database with our schema, on MariaDB.
    pub(crate) async fn new() -> Self {
        Self::at(&url_in("SEMEL_TEST_MYSQL_URL")).await
    }

    /// A database with our schema, on MySQL 9.
    pub(crate) async fn mysql9() -> Self {
        Self::at(&url_in("SEMEL_TEST_MYSQL9_URL")).await
    }

    /// A database with our schema, on the server at `url`.
    pub(crate) async fn at(url: &str) -> Self {
        let ground = Self::bare_at(url).await;
        ground.connect().await.migrate().await.expect("the schema is created");
        ground
    }

    /// The database at `url`, which somebody else drops.
    pub(crate) fn borrowed(url: &str) -> Self {
        let (server, name) = url.rsplit_once('/').expect("the URL names a database");
        Self { server: server.to_owned(), name: name.to_owned(), borrowed: true }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Leaves the database to its server, which goes first.
    pub(crate) fn leave(mut self) {
        self.borrowed = true;
    }

    pub(crate) fn url(&self) -> String {
        format!("{}/{}", self.server, self.name)
    }

    /// Settings of a store in it, which a busy machine does not make impatient.
    pub(crate) fn settings(&self) -> Builder {
        MySqlStore::builder(&self.url()).statement_timeout(LONG)
    }

    pub(crate) async fn connect(&self) -> MySqlStore {
        self.settings().connect().await.expect("the server answers")
    }

    /// A store on which concurrent steps share statements.
    pub(crate) async fn one_lane(&self) -> MySqlStore {
        self.settings().connections(1).connect().await.expect("the server answers")
    }

    /// A connection as an application has it.
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

/// A place in the middle of a statement: whoever comes to it stays until the gate is dropped.
pub(crate) struct Gate {
    ground: String,
    _holder: MySqlConnection,
}

impl Ground {
    /// A gate for statements that do `event` (`INSERT`, `UPDATE`, `DELETE`) to the row of `key`.
    /// It stands between the filling of the row and its writing.
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
        Gate { ground: self.url(), _holder: holder }
    }
}

impl Gate {
    /// Waits until a statement stands at the gate; gives the id of its connection.
    pub(crate) async fn reached(&self) -> i64 {
        let mut watcher = MySqlConnection::connect(&self.ground).await.expect("the server answers");
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
        timeout(LONG, seen).await.expect("somebody comes")
    }

    /// Ends the connection that stands at the gate.
    pub(crate) async fn kill(&self) {
        let id = self.reached().await;
        let mut killer = MySqlConnection::connect(&self.ground).await.expect("the server answers");
        let kill = AssertSqlSafe(format!("KILL CONNECTION {id}"));
        sqlx::raw_sql(kill).execute(&mut killer).await.expect("killed");
    }
}

/// Keys in the order in which one statement meets them.
pub(crate) fn keys(count: usize) -> Vec<Key> {
    let mut keys: Vec<Key> = (0..count).map(|i| key(&format!("k-{i}"))).collect();
    keys.sort_by_key(Key::digest);
    keys
}

impl Drop for Ground {
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
        // A runtime cannot be blocked from within; a thread of its own can.
        let _ = std::thread::spawn(|| semel_testkit::fixture::run(clean)).join();
    }
}

impl Fixture for Ground {
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

impl Ground {
    /// What is remembered of the server's clock lies so much further back.
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

/// The condition that finds a key's row.
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
