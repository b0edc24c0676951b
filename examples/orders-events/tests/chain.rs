//! The whole chain, on SQLite with the bus and on PostgreSQL with NATS: everything once.

use std::time::{Duration, Instant};

use orders_events::chain::{Broker, Shop};
use orders_events::shop::Tables;
use semel_sql::postgres::PgStore;
use semel_sql::sqlite::SqliteStore;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

fn unique() -> String {
    let since = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_nanos();
    format!("{}_{since}", std::process::id())
}

fn from_environment(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("set {name} or run `cargo xtask test`, which starts the servers")
    })
}

/// Places ten orders, each three times, and waits until the shop has come to rest.
async fn play<S: Tables>(shop: &Shop<S>) -> (i64, i64, i64, usize) {
    for n in 0..10 {
        let mut placed = Vec::new();
        for _ in 0..3 {
            placed.push(shop.order(&format!("order-{n}"), "tea", 1).await.expect("an order"));
        }
        assert!(placed.windows(2).all(|pair| pair[0] == pair[1]), "one order for each key");
    }
    let began = Instant::now();
    loop {
        let counted = shop.count().await.expect("counts");
        if counted == (10, 90, 10, 10) || began.elapsed() > Duration::from_secs(120) {
            return counted;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_order_is_reserved_packed_and_thanked_for_once_on_sqlite_and_the_bus() {
    let path = std::env::temp_dir().join(format!("semel-orders-events-{}.db", unique()));
    let open = async || {
        let store = SqliteStore::open(&path).await.expect("a store");
        Shop::open(store, &Broker::Bus).await.expect("a shop")
    };
    let shop = open().await;
    assert_eq!(play(&shop).await, (10, 90, 10, 10));
    shop.close().await;
    // The next day nothing of it happens again.
    let shop = open().await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(shop.count().await.expect("counts"), (10, 90, 10, 0));
    shop.close().await;
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{end}", path.display()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_order_is_reserved_packed_and_thanked_for_once_on_postgres_and_nats() {
    let (server, url) =
        (from_environment("SEMEL_TEST_POSTGRES_URL"), from_environment("SEMEL_TEST_NATS_URL"));
    let name = format!("orders_events_{}", unique());
    let mut side = PgConnection::connect(&server).await.expect("the server");
    side.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.expect("a database");
    let (base, _) = server.rsplit_once('/').expect("a database in the URL");
    let store = PgStore::connect(&format!("{base}/{name}")).await.expect("a store");
    store.migrate().await.expect("tables");
    let broker = Broker::Nats { url, stream: format!("SHOP_{}", unique()) };
    let shop = Shop::open(store.clone(), &broker).await.expect("a shop");
    assert_eq!(play(&shop).await, (10, 90, 10, 10));
    shop.close().await;
    drop(store);
    let drop = AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"));
    side.execute(drop).await.expect("dropped");
}
