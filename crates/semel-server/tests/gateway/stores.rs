//! Tests of a ledger that is down.

use std::time::Duration;

use semel_testkit::proxy::FaultProxy;

use crate::caller::{Caller, get};
use crate::fixture::{Fixture, PATIENCE};
use crate::sharing::Database;
use crate::shop::Shop;

#[tokio::test(flavor = "multi_thread")]
async fn without_its_ledger_only_routes_that_fail_open_run() {
    let (fixture, shop, database) = (Fixture::new(), Shop::open().await, Database::new().await);
    let proxy = FaultProxy::start(database.server()).await.unwrap();
    let store = database.url_through(proxy.addr());
    let config =
        format!("[ledger]\nstore = \"{store}\"\n[[route]]\npath = \"/log\"\nfail_open = true");
    let gateway = fixture.configured(&shop.url(), &config);
    let caller = Caller::new(&gateway);
    let ready = format!("{}/readyz", gateway.url("admin"));
    assert_eq!(caller.post("/orders", "before", "{}").await.status, 201);
    // The readiness check has a short time limit, and may fail at first on a busy machine.
    let is_ready = async {
        while get(&ready).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, is_ready).await.expect("the gateway is ready");

    proxy.reset_next(100_000);
    proxy.reset_all();
    let refused = caller.post("/orders", "k", "{}").await;
    assert_eq!(refused.problem(), (503, "store-unavailable".to_owned()));
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(shop.seen("/orders").len(), 1, "refused before the upstream was called");
    assert_eq!(get(&ready).await.status, 503);
    assert_eq!(get(&format!("{}/healthz", gateway.url("admin"))).await.status, 200);
    let open = caller.post("/log", "k", "{}").await;
    assert_eq!((open.status.as_u16(), shop.seen("/log").len()), (201, 1));
    let metrics = get(&format!("{}/metrics", gateway.url("admin"))).await;
    assert!(metrics.text().contains("semel_fail_open_requests_total 1"), "{}", metrics.text());

    proxy.heal();
    assert!(caller.post("/orders", "before", "{}").await.replayed());
    assert_eq!(caller.post("/orders", "k", "{}").await.status, 201);
}
