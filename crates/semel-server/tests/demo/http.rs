//! Tests of the demo over HTTP.

use std::time::Duration;

use http::Method;
use serde_json::json;

use crate::caller::{Caller, TEA};
use crate::fixture::{Fixture, done, until_effects};

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_placed_once_and_every_repeat_gets_the_first_answer() {
    let fixture = Fixture::embedded();
    let (service, caller) = (fixture.start(), Caller::new());
    let base = service.url("orders");
    let first = caller.place(base, "k-1", TEA).await;
    let id = first.order_id();
    assert!(id.starts_with("ord_") && id.len() == 30, "{id}");
    let body = format!(r#"{{"order_id":"{id}","sku":"tea","quantity":2,"amount_cents":1999}}"#);
    assert_eq!(first.text(), body);
    assert_eq!(first.header("location"), Some(&*format!("/orders/{id}")));
    assert_eq!(first.header("content-type"), Some("application/json"));
    assert!(!first.replayed());
    // The same request in another spelling, and with a quoted key.
    let respelled = r#"{"amount_cents": 1999, "quantity": 2, "sku": "tea"}"#;
    for (key, order) in [("k-1", TEA), ("k-1", respelled), ("\"k-1\"", TEA)] {
        let again = caller.place(base, key, order).await;
        assert!(again.replayed(), "{}", again.text());
        assert_eq!((again.status, &again.body), (201, &first.body));
        assert_eq!(again.header("location"), first.header("location"));
    }
    assert_ne!(caller.place(base, "k-2", TEA).await.order_id(), id, "another key, another order");
    assert_eq!(until_effects(&caller, base, &done(2)).await, done(2));
    drop(service);
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_order_is_refused_and_its_key_is_free() {
    let fixture = Fixture::embedded();
    let (service, caller) = (fixture.start(), Caller::new());
    let base = service.url("orders");
    for (n, wrong) in [
        "",
        "tea",
        r#"{"sku":"tea","quantity":2}"#,
        r#"{"sku":"","quantity":2,"amount_cents":1}"#,
        r#"{"sku":"tea","quantity":0,"amount_cents":1}"#,
        r#"{"sku":"tea","quantity":"2","amount_cents":1}"#,
        r#"{"sku":"tea","quantity":2,"amount_cents":-1}"#,
        r#"{"sku":"tea","quantity":2,"amount_cents":1,"gift":true}"#,
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("k-{n}");
        caller.place(base, &key, wrong).await.is_problem(400, "ORDER_INVALID");
        let right = caller.place(base, &key, TEA).await;
        assert_eq!((right.status, right.replayed()), (201, false), "{wrong}: {}", right.text());
    }
    assert_eq!(until_effects(&caller, base, &done(8)).await, done(8), "nothing of the wrong ones");
    drop(service);
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_needs_a_tenant_and_a_key() {
    let fixture = Fixture::embedded();
    let (service, caller) = (fixture.start(), Caller::new());
    let base = service.url("orders");
    let orders = format!("{base}/orders");
    let send = async |method, headers: &[(&str, &str)]| {
        caller.send(method, &orders, headers, TEA).await.expect("an answer")
    };
    let unkeyed = send(Method::POST, &[("x-tenant-id", "acme")]).await;
    unkeyed.is_problem(400, "KEY_MISSING");
    let without_tenant = send(Method::POST, &[("idempotency-key", "k")]).await;
    without_tenant.is_problem(401, "TENANT_UNKNOWN");
    send(Method::GET, &[]).await.is_problem(401, "TENANT_UNKNOWN");
    let id = caller.place(base, "k", TEA).await.order_id();
    let shown = caller.send(Method::GET, &format!("{orders}/{id}"), &[], "").await;
    shown.expect("an answer").is_problem(401, "TENANT_UNKNOWN");
    // Another tenant's key is another key.
    let theirs = send(Method::POST, &[("x-tenant-id", "other"), ("idempotency-key", "k")]).await;
    assert_ne!(theirs.order_id(), id);
    drop(service);
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_order_under_the_same_key_is_refused() {
    let fixture = Fixture::embedded();
    let (service, caller) = (fixture.start(), Caller::new());
    let base = service.url("orders");
    caller.place(base, "k", TEA).await.order_id();
    let other = r#"{"sku":"mug","quantity":1,"amount_cents":700}"#;
    caller.place(base, "k", other).await.is_problem(422, "KEY_REUSED");
    assert_eq!(until_effects(&caller, base, &done(1)).await, done(1));
    drop(service);
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_found_by_its_public_id_and_by_no_other_tenant() {
    let fixture = Fixture::embedded();
    let (mut service, caller) = (fixture.start(), Caller::new());
    let (mut ids, mut bodies) = (Vec::new(), Vec::new());
    for (key, sku) in [("a", "tea"), ("b", "mug"), ("c", "Tässchen ☕")] {
        let order = json!({ "sku": sku, "quantity": 1, "amount_cents": 9_007_199_254_740_993_u64 });
        let placed = caller.place(service.url("orders"), key, &order.to_string()).await;
        ids.push(placed.order_id());
        bodies.push(placed.text().to_owned());
    }
    for restarted in [false, true] {
        if restarted {
            // The process loses its memory, but not the database.
            service.kill();
            service = fixture.start();
        }
        let base = service.url("orders");
        for (id, body) in ids.iter().zip(&bodies) {
            let found = caller.get(&format!("{base}/orders/{id}")).await;
            assert_eq!((found.status, found.text()), (200, &**body));
        }
        let several = format!("{base}/orders?ids={},{},{}", ids[2], ids[0], ids[2]);
        let found = caller.get(&several).await;
        let wanted = format!(r#"{{"orders":[{},{},{}]}}"#, bodies[2], bodies[0], bodies[2]);
        assert_eq!((found.status, found.text()), (200, &*wanted), "in the order of the request");
        let theirs = [("x-tenant-id", "other")];
        let one = format!("{base}/orders/{}", ids[0]);
        for url in [&one, &several] {
            let hidden = caller.send(Method::GET, url, &theirs, "").await.expect("an answer");
            hidden.is_problem(404, "NOT_FOUND");
        }
        let unknown = "ord_01arz3ndektsv4rrffq69g5fav";
        caller.get(&format!("{base}/orders/{unknown}")).await.is_problem(404, "NOT_FOUND");
        for wrong in ["ord_", "pay_01arz3ndektsv4rrffq69g5fav", &ids[0].to_uppercase()] {
            caller.get(&format!("{base}/orders/{wrong}")).await.is_problem(400, "INVALID_PARAM");
            let mixed = format!("{base}/orders?ids={},{wrong}", ids[0]);
            caller.get(&mixed).await.is_problem(400, "INVALID_PARAM");
        }
        caller.get(&format!("{base}/orders")).await.is_problem(400, "INVALID_PARAM");
    }
    drop(service);
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_effect_is_counted() {
    let fixture = Fixture::embedded();
    let (service, caller) = (fixture.start(), Caller::new());
    let base = service.url("orders");
    caller.place(base, "k", TEA).await.order_id();
    assert_eq!(until_effects(&caller, base, &done(1)).await, done(1));
    fixture
        .execute("INSERT INTO effects SELECT * FROM effects WHERE consumer_group = 'NOTIFY'")
        .await;
    let output = caller.get(&format!("{base}/effects")).await;
    let doubled =
        r#"{"orders":1,"effects":{"INVENTORY":1,"NOTIFY":2,"BILLING":1},"outbox_pending":0}"#;
    assert_eq!(output.text(), doubled, "the table accepts a second effect, and it is counted");
    assert_eq!(fixture.handled().await, 3);
    // An effect without an order does not hide a missing effect.
    fixture.execute("UPDATE effects SET order_id = x'00' WHERE consumer_group = 'BILLING'").await;
    assert_eq!(fixture.handled().await, 2);
    drop(service);
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_outside_the_load_cannot_inject_faults() {
    let fixture = Fixture::embedded();
    let (service, caller) = (fixture.start(), Caller::new());
    let url = format!("{}/orders", service.url("orders"));
    let headers = [("x-tenant-id", "acme"), ("idempotency-key", "k"), ("x-semel-chaos", "fail")];
    let answer = caller.send(Method::POST, &url, &headers, TEA).await.expect("an answer");
    assert_eq!(answer.status, 201, "{}", answer.text());
    drop(service);
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_readiness_and_metrics_are_served() {
    let fixture = Fixture::embedded();
    let (service, caller) = (fixture.start(), Caller::new());
    let (base, admin) = (service.url("orders"), service.url("admin"));
    caller.place(base, "k", TEA).await.order_id();
    caller.place(base, "k", TEA).await.order_id();
    assert_eq!(caller.get(&format!("{admin}/healthz")).await.status, 200);
    // The readiness check has a short time limit, and may fail at first on a busy machine.
    let ready = async {
        while caller.get(&format!("{admin}/readyz")).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ready).await.expect("the demo is ready");
    let metrics = caller.get(&format!("{admin}/metrics")).await;
    let executed = r#"semel_executions_total{kind="http",outcome="executed"} 1"#;
    assert!(metrics.text().contains(executed), "{}", metrics.text());
    assert!(!metrics.text().contains("acme"), "no tenant, key or id is shown");
    // The guide lists every metric that is shown.
    let guide = include_str!("../../../../docs/how-to/operating.md");
    for line in metrics.text().lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, _) = line.split_once(' ').expect("a name and a kind");
        let listed = guide.contains(&format!("`{name}")) || {
            // `_dead` behind `semel_outbox_pending`.
            let (_, short) =
                name.strip_prefix("semel_").and_then(|rest| rest.split_once('_')).expect("ours");
            guide.contains(&format!("`_{short}"))
        };
        assert!(listed, "{name} is not in the guide");
    }
    drop(service);
    fixture.remove().await;
}
