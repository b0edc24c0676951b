//! Tests of the whole service, on SQLite with the bus and on PostgreSQL with NATS.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use semel::outbox::{RowAction, Selection, Status};
use semel::postgres::PgStore;
use semel::sqlite::SqliteStore;
use serde_json::{Value, json};
use shop::service::{Broker, Shop};
use shop::tables::{Counts, STOCK, Tables};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tower::ServiceExt as _;

/// A timeout that only a hang exceeds.
const HANG: Duration = Duration::from_secs(120);

fn unique() -> String {
    let since = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_nanos();
    format!("{}_{since}", std::process::id())
}

fn from_environment(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("set {name} or run `cargo xtask test`, which starts the servers")
    })
}

/// A database file that is removed with the test.
struct File(PathBuf);

impl File {
    fn new() -> Self {
        Self(std::env::temp_dir().join(format!("semel-shop-{}.db", unique())))
    }

    async fn shop(&self) -> Shop<SqliteStore> {
        let store = SqliteStore::open(&self.0).await.expect("a store");
        Shop::start(store, &Broker::Bus).await.expect("a shop")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        for end in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{end}", self.0.display()));
        }
    }
}

/// A response whose body has been read.
struct Reply {
    status: StatusCode,
    replayed: bool,
    body: Value,
}

async fn read(response: Response<Body>) -> Reply {
    let (status, replayed) =
        (response.status(), response.headers().contains_key("idempotent-replayed"));
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Reply { status, replayed, body }
}

async fn post<S: Tables>(shop: &Shop<S>, key: &str, order: &Value) -> Reply {
    let request = Request::post("/orders")
        .header("x-tenant-id", "acme")
        .header("authorization", "Bearer alice")
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .body(Body::from(order.to_string()))
        .expect("a request");
    read(shop.routes().oneshot(request).await.expect("a response")).await
}

async fn show<S: Tables>(shop: &Shop<S>, tenant: &str, id: &str) -> Reply {
    let request = Request::get(format!("/orders/{id}")).header("x-tenant-id", tenant);
    let request = request.body(Body::empty()).expect("a request");
    read(shop.routes().oneshot(request).await.expect("a response")).await
}

fn tea() -> Value {
    json!({ "sku": "tea", "quantity": 1 })
}

async fn counts<S: Tables>(shop: &Shop<S>) -> Counts {
    shop.counts().await.expect("counts")
}

/// Waits until every event was published and handled.
async fn settled<S: Tables>(shop: &Shop<S>, expected: Counts, letters: usize) {
    let began = Instant::now();
    loop {
        let waiting = shop.store().backlog().await.expect("the outbox").waiting;
        let found = (counts(shop).await, shop.letters().sent().len());
        if waiting == 0 && found == (expected, letters) {
            return;
        }
        assert!(began.elapsed() < HANG, "{found:?}, {waiting} events wait; expected {expected:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn after(orders: i64) -> Counts {
    Counts { orders, pieces: STOCK - orders, parcels: orders }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_gets_the_same_order_and_another_body_is_refused() {
    let file = File::new();
    let shop = file.shop().await;
    let first = post(&shop, "k-1", &tea()).await;
    assert_eq!((first.status, first.replayed), (StatusCode::CREATED, false), "{}", first.body);
    let again = post(&shop, "k-1", &tea()).await;
    assert_eq!((again.status, again.replayed), (StatusCode::CREATED, true));
    assert_eq!(again.body, first.body);
    let other = post(&shop, "k-1", &json!({ "sku": "tea", "quantity": 2 })).await;
    assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(counts(&shop).await.orders, 1);
    shop.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_order_leaves_nothing_and_its_key_is_free() {
    let file = File::new();
    let shop = file.shop().await;
    let refused = post(&shop, "k-1", &json!({ "sku": "tea", "quantity": 11 })).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert_eq!(counts(&shop).await.orders, 0);
    assert_eq!(post(&shop, "k-1", &tea()).await.status, StatusCode::CREATED);
    shop.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_whose_reply_was_lost_in_a_crash_is_not_placed_again() {
    let file = File::new();
    let crashed = file.shop().await;
    // Committed, and the process ends before its client has the response.
    let lost = post(&crashed, "k-1", &tea()).await;
    drop(crashed);

    let shop = file.shop().await;
    let retried = post(&shop, "k-1", &tea()).await;
    assert_eq!((retried.status, retried.replayed), (StatusCode::CREATED, true));
    assert_eq!(retried.body, lost.body);
    assert_eq!(counts(&shop).await.orders, 1);
    // The event was in the same commit, so it is handled.
    let began = Instant::now();
    while counts(&shop).await != after(1) {
        assert!(began.elapsed() < HANG, "{:?}", counts(&shop).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    shop.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_shown_by_its_public_id_to_its_tenant_only() {
    let file = File::new();
    let shop = file.shop().await;
    let placed = post(&shop, "k-1", &tea()).await;
    let id = placed.body["id"].as_str().expect("an id").to_owned();
    assert!(id.starts_with("ord_"), "{id}");
    let shown = show(&shop, "acme", &id).await;
    assert_eq!((shown.status, shown.body), (StatusCode::OK, placed.body));
    assert_eq!(show(&shop, "other", &id).await.status, StatusCode::NOT_FOUND);
    assert_eq!(show(&shop, "acme", "ord_nonsense").await.status, StatusCode::BAD_REQUEST);
    shop.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_shop_goes_on_where_it_was() {
    let file = File::new();
    let shop = file.shop().await;
    assert_eq!(post(&shop, "k-1", &tea()).await.status, StatusCode::CREATED);
    // Stopped at once: the events may or may not be handled by now.
    shop.stop().await;
    let shop = file.shop().await;
    let began = Instant::now();
    while counts(&shop).await != after(1) {
        assert!(began.elapsed() < HANG, "{:?}", counts(&shop).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    shop.stop().await;
}

/// Places ten orders, each sent three times, and then publishes every event once more.
async fn every_event_is_handled_once_by_each_group<S: Tables>(shop: &Shop<S>) {
    for n in 0..10 {
        let mut placed = Vec::new();
        for _ in 0..3 {
            placed.push(post(shop, &format!("k-{n}"), &tea()).await.body);
        }
        assert!(placed.windows(2).all(|pair| pair[0] == pair[1]), "one order for each key");
    }
    settled(shop, after(10), 10).await;

    let published = Selection { status: Some(Status::Published), ..Selection::default() };
    let again =
        shop.store().apply(&published, &RowAction::Republish, None, 100).await.expect("applied");
    assert_eq!(again.changed, 20, "order.placed and order.reserved of ten orders");
    settled(shop, after(10), 10).await;
    let mut keys: Vec<String> = shop.letters().sent().into_iter().map(|(key, _)| key).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 10, "one key for each letter");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_is_handled_once_by_each_group_on_sqlite_and_the_bus() {
    let file = File::new();
    let shop = file.shop().await;
    every_event_is_handled_once_by_each_group(&shop).await;
    shop.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_is_handled_once_by_each_group_on_postgres_and_nats() {
    let (server, url) =
        (from_environment("SEMEL_TEST_POSTGRES_URL"), from_environment("SEMEL_TEST_NATS_URL"));
    let name = format!("shop_{}", unique());
    let mut admin = PgConnection::connect(&server).await.expect("the server");
    admin.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.expect("a database");
    let (base, _) = server.rsplit_once('/').expect("a database in the URL");
    let store = PgStore::connect(&format!("{base}/{name}")).await.expect("a store");
    store.migrate().await.expect("tables");
    let broker = Broker::Nats { url, stream: format!("SHOP_{}", unique()) };
    let shop = Shop::start(store, &broker).await.expect("a shop");
    every_event_is_handled_once_by_each_group(&shop).await;
    shop.stop().await;
    let drop = AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"));
    admin.execute(drop).await.expect("dropped");
}
