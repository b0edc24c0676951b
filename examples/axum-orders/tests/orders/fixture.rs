//! One service on one file, with a turnstile in front of its handlers.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use axum_orders::client::{Answer, Client};
use axum_orders::database;
use axum_orders::server::Server;
use axum_orders::turnstile::Turnstile;
use serde_json::{Value, json};

pub(crate) struct Fixture {
    pub(crate) alice: Client,
    pub(crate) turnstile: Turnstile,
    db: PathBuf,
    server: Server,
}

/// Returns an order of two teas and a mug: 2100 cents.
pub(crate) fn order() -> Value {
    json!({ "lines": [{ "sku": "tea", "quantity": 2 }, { "sku": "mug", "quantity": 1 }] })
}

/// Returns the path of a file that does not exist yet.
pub(crate) fn file(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).expect("a directory");
    directory.join("orders.db")
}

impl Fixture {
    pub(crate) async fn open(name: &str) -> Self {
        Self::on(file(name)).await
    }

    async fn on(db: PathBuf) -> Self {
        let turnstile = Turnstile::default();
        let addr: SocketAddr = ([127, 0, 0, 1], 0).into();
        let server = Server::start_with(addr, &db, |routes| turnstile.around(routes)).await;
        let server = server.expect("a server");
        let alice = Client::new(server.addr(), "acme", "alice-token");
        Self { alice, turnstile, db, server }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    pub(crate) fn db(&self) -> &Path {
        &self.db
    }

    pub(crate) async fn place(&self, key: &str) -> Answer {
        let placed = self.alice.post("/orders", key, &order()).await.expect("an answer");
        assert_eq!(placed.status, 201, "{placed:?}");
        placed
    }

    /// Places an order with `Prefer: respond-async`. The handler waits meanwhile, so on a runtime
    /// of one thread the client gets its 202 before there is a response.
    pub(crate) async fn place_for_later(&self, key: &'static str, order: Value) -> Answer {
        let before = self.turnstile.arrived();
        self.turnstile.close();
        let alice = self.alice.clone();
        let response = tokio::spawn(async move {
            let headers = [("idempotency-key", key), ("prefer", "respond-async")];
            alice.post_with("/orders", &headers, &order).await
        });
        self.turnstile.until_arrived(before + 1).await;
        self.turnstile.open();
        response.await.expect("a task").expect("an answer")
    }

    pub(crate) async fn rows(&self, table: &'static str) -> i64 {
        let count = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
        let reading = database::reading(&self.db);
        let (rows,): (i64,) = sqlx::query_as(count).fetch_one(&reading).await.expect("a count");
        reading.close().await;
        rows
    }

    /// Starts another server on the same file.
    pub(crate) async fn restart(self) -> Self {
        self.server.stop().await.expect("stopped");
        Self::on(self.db).await
    }

    pub(crate) async fn close(self) {
        self.server.stop().await.expect("stopped");
    }
}
