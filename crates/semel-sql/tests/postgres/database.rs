//! A database for each test, and shared helpers to prepare one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel_core::clock::micros;
use semel_core::store::{BoxFuture, Draft, Opened, Settlement};
use semel_core::{
    AttemptId, ErrorText, Fence, Fingerprint, Key, Lease, OnCrash, OperationId, Outcome, Recorded,
};
use semel_servers::Server;
use semel_sql::postgres::{PgOptions, PgStore, Pooling};
use semel_testkit::Fixture;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};

const URL: &str = "SEMEL_TEST_POSTGRES_URL";

/// A time limit that is not exceeded even on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A fresh database, dropped with this value.
pub(crate) struct Database {
    /// The options to connect to the server directly.
    pub(crate) options: PgConnectOptions,
    name: String,
    /// The pooler through which the stores connect, if any.
    pub(crate) pooler: Option<Pooler>,
}

/// A private pooler, and the `pooling` setting of its stores.
pub(crate) struct Pooler {
    pub(crate) server: Server,
    pub(crate) pooling: Option<Pooling>,
}

/// Returns the options to connect to the server of the tests.
fn server() -> PgConnectOptions {
    let url = std::env::var(URL).unwrap_or_else(|_| {
        panic!("set {URL} or run `cargo xtask test`, which starts the servers")
    });
    url.parse().expect("a PostgreSQL URL")
}

impl Database {
    /// Creates an empty database.
    pub(crate) async fn bare() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::SeqCst);
        let name = format!("semel_{}_{count}", std::process::id());
        let database = Self { options: server().database(&name), name, pooler: None };
        database.remake("").await;
        database
    }

    /// Creates the database again, empty, with these clauses of `create database`.
    pub(crate) async fn remake(&self, clauses: &str) {
        let name = &self.name;
        let mut admin = server().connect().await.expect("the server is up");
        // It may also be left over from a killed process with the same id.
        for sql in [
            format!("drop database if exists {name} with (force)"),
            format!("create database {name} {clauses}"),
        ] {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut admin).await.expect("a new database");
        }
        admin.close().await.expect("closed");
    }

    /// Creates a database with the store's schema.
    pub(crate) async fn new() -> Self {
        let database = Self::bare().await;
        database.store().await.migrate().await.expect("migrated");
        database
    }

    /// Returns settings of a store in this database, with limits that a busy machine does not
    /// exceed.
    pub(crate) fn settings(&self) -> PgOptions {
        let settings = PgOptions::with(self.address());
        let settings = settings.statement_timeout(LONG).transaction_wait(LONG);
        match self.pooler.as_ref().and_then(|pooler| pooler.pooling) {
            Some(pooling) => settings.pooling(pooling),
            None => settings,
        }
    }

    /// Returns the options with which applications connect.
    pub(crate) fn address(&self) -> PgConnectOptions {
        let options = self.options.clone();
        match &self.pooler {
            Some(Pooler { server, .. }) => {
                let options = options.port(server.port()).ssl_mode(PgSslMode::Disable);
                options.extra_float_digits(None)
            }
            None => options,
        }
    }

    /// Opens a connection that does not belong to the store.
    pub(crate) async fn connection(&self) -> PgConnection {
        self.options.connect().await.expect("connected")
    }

    /// Runs a statement outside the store.
    pub(crate) async fn run(&self, sql: &str) -> u64 {
        let mut connection = self.connection().await;
        let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await;
        done.expect("runs").rows_affected()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let name = self.name.clone();
        // Not on the test's runtime, which may have ended or be the current one.
        let dropping = std::thread::spawn(move || {
            semel_testkit::fixture::run(async move {
                let Ok(mut admin) = server().connect().await else { return };
                let sql = format!("drop database if exists {name} with (force)");
                let _ = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut admin).await;
            });
        });
        let _ = dropping.join();
    }
}

impl Fixture for Database {
    type Store = PgStore;

    async fn store(&self) -> PgStore {
        self.settings().connect().await.expect("connected")
    }

    async fn advance(&self, span: Duration) {
        self.shift(micros(span)).await;
    }

    async fn jump(&self, span: Duration, ahead: bool) -> bool {
        let span = if ahead { micros(span) } else { -micros(span) };
        self.shift(span).await;
        self.forget_clock(span).await;
        true
    }

    fn corrupt<'a>(&'a self, key: &'a Key) -> Option<BoxFuture<'a, ()>> {
        Some(Box::pin(async move {
            let mut connection = self.connection().await;
            sqlx::query("update semel_record set state = 9 where digest = $1")
                .bind(key.digest().as_bytes().as_slice())
                .execute(&mut connection)
                .await
                .expect("damaged");
        }))
    }
}

impl Database {
    /// Moves the stored watermark of the server's clock back.
    pub(crate) async fn forget_clock(&self, span: i64) {
        let moved = format!("trusted = trusted - ({span}), suspect = suspect - ({span})");
        self.run(&format!("update semel_clock set {moved}")).await;
    }

    async fn shift(&self, span: i64) {
        let moved = ["created_at", "updated_at", "lease_until", "retry_at", "completed_at"]
            .into_iter()
            .chain(["expires_at", "sweep_at"])
            .map(|column| format!("{column} = {column} - ({span})"))
            .collect::<Vec<_>>()
            .join(", ");
        self.run(&format!("update semel_record set {moved}")).await;
    }
}

pub(crate) fn key(id: &str) -> Key {
    Key::command("tenant", "SCOPE", id).expect("valid")
}

pub(crate) fn draft(key: &Key) -> Draft {
    Draft {
        key: key.clone(),
        fingerprint: Fingerprint::opaque("request"),
        operation_id: OperationId::generate(),
        attempt_id: AttemptId::generate(),
        attempt: 1,
        owner: Arc::from("host:1:test"),
        lease: Duration::from_secs(30),
        on_crash: OnCrash::Rerun,
        keep: Duration::from_secs(3600),
        retry_payload: None,
    }
}

/// Returns the lease of a draft that was granted.
pub(crate) fn lease(draft: &Draft, opened: &Opened) -> Lease {
    Lease { digest: draft.key.digest(), fence: granted(opened), attempt_id: draft.attempt_id }
}

/// Returns the fence of a grant.
pub(crate) fn granted(opened: &Opened) -> Fence {
    match opened {
        Opened::Inserted { fence } => *fence,
        Opened::Existing { .. } | Opened::Contended => panic!("not granted: {opened:?}"),
    }
}

pub(crate) fn success(body: &'static str) -> Settlement {
    let outcome = Recorded::Whole(Outcome::new("text/plain", body));
    Settlement::Succeeded { outcome, keep: Duration::from_secs(3600) }
}

pub(crate) fn failure(text: &str) -> Settlement {
    let error = ErrorText::new(text);
    Settlement::Failed { error, retry_after: Some(Duration::ZERO), keep: Duration::from_secs(3600) }
}
