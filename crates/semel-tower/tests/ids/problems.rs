//! Tests the problems that callers get, and that they reveal nothing else.

use std::sync::atomic::Ordering;

use axum::body::Body;
use http::Request;
use semel_ids::ResolverSettings;
use semel_tower::http::Slug;

use crate::support::{Answer, OrderId, Shop, new_id, send};

fn is_a_problem(answer: &Answer, slug: Slug, code: &str) {
    assert_eq!(answer.status, slug.status(), "{answer:?}");
    assert_eq!(answer.headers["content-type"], "application/problem+json");
    assert_eq!(answer.headers["cache-control"], "no-store");
    let json = answer.json();
    assert_eq!(json["type"], format!("urn:semel:problem:{}", slug.as_str()));
    assert_eq!((&json["title"], &json["code"]), (&slug.title().into(), &code.into()));
    assert_eq!(json["status"], slug.status().as_u16());
}

#[tokio::test]
async fn each_situation_has_its_problem() {
    let shop = Shop::open();
    let unknown: OrderId = new_id();
    let invalid = shop.get("acme", "/orders/nonsense").await;
    is_a_problem(&invalid, Slug::PublicIdInvalid, "INVALID_PARAM");
    let unknown = format!("/orders/{unknown}");
    is_a_problem(&shop.get("acme", &unknown).await, Slug::PublicIdNotFound, "NOT_FOUND");
    let nobody = Request::get(&unknown).body(Body::empty()).expect("a request");
    is_a_problem(&send(&shop.app, nobody).await, Slug::TenantUnknown, "TENANT_UNKNOWN");
    assert_eq!(Slug::PublicIdInvalid.status().as_u16(), 400);
    assert_eq!(Slug::PublicIdNotFound.status().as_u16(), 404);
}

#[tokio::test]
async fn a_malformed_id_reads_neither_cache_nor_map() {
    let shop = Shop::open();
    let good: OrderId = new_id();
    let good = good.to_string();
    let bad = [
        good.to_uppercase(),
        good.replace("ord_", "usr_"),
        good.replace("ord_", "Ord_"),
        format!("{good}_"),
        format!("{good}%20"),
        format!("%20{good}"),
        format!("{good}_2X"),
        good[..good.len() - 1].to_owned(),
        good.replacen("ord_0", "ord_8", 1),
        "x".repeat(4_000),
        "ord_".to_owned(),
        "%ff".to_owned(),
        "1".to_owned(),
    ];
    for bad in &bad {
        for path in [format!("/order?order_id={bad}"), format!("/orders?order_id={good},{bad}")] {
            let answer = shop.get("acme", &path).await;
            is_a_problem(&answer, Slug::PublicIdInvalid, "INVALID_PARAM");
            assert!(answer.body.len() < 600, "the text of the request is not repeated at length");
        }
        let answer = shop.get("acme", format!("/orders/{bad}")).await;
        is_a_problem(&answer, Slug::PublicIdInvalid, "INVALID_PARAM");
    }
    for path in ["/order", "/order?order_id=", &format!("/order?order_id={good}&order_id={good}")] {
        let answer = shop.get("acme", path).await;
        is_a_problem(&answer, Slug::PublicIdInvalid, "INVALID_PARAM");
    }
    assert_eq!(shop.lookups.total(), 0);
    // A valid id is looked up in the cache and in the map, which shows that the counters work.
    shop.get("acme", format!("/orders/{good}")).await;
    assert_eq!(shop.lookups.total(), 2);
}

#[tokio::test]
async fn the_tenant_is_determined_before_ids_are_checked() {
    let shop = Shop::open();
    let id = shop.order("acme").await;
    for path in [format!("/orders/{id}"), "/orders/nonsense".to_owned(), "/orders".to_owned()] {
        let nobody = Request::get(&path).body(Body::empty()).expect("a request");
        is_a_problem(&send(&shop.app, nobody).await, Slug::TenantUnknown, "TENANT_UNKNOWN");
        let twice = Request::get(&path).header("x-tenant", "acme").header("x-tenant", "umbrella");
        let twice = send(&shop.app, twice.body(Body::empty()).expect("a request")).await;
        is_a_problem(&twice, Slug::TenantUnknown, "TENANT_UNKNOWN");
        let long = shop.get(&"t".repeat(65), &path).await;
        is_a_problem(&long, Slug::TenantUnknown, "TENANT_UNKNOWN");
    }
    assert_eq!(shop.lookups.total(), 0);
}

#[tokio::test]
async fn another_tenants_id_is_answered_like_one_that_never_existed() {
    let shop = Shop::open();
    let theirs = shop.order("umbrella").await;
    let never: OrderId = new_id();
    let revoked = shop.order("acme").await;
    assert!(shop.resolver.revoke("acme", revoked).await.expect("revoked").was_live);
    let expected = shop.get("acme", format!("/orders/{never}")).await;
    is_a_problem(&expected, Slug::PublicIdNotFound, "NOT_FOUND");
    for id in [theirs, revoked, theirs] {
        let answer = shop.get("acme", format!("/orders/{id}")).await;
        assert_eq!(answer.body, expected.body);
        assert_eq!(answer.headers, expected.headers);
        assert_eq!(answer.status, expected.status);
    }
    // The id is found by its own tenant.
    assert_eq!(shop.get("umbrella", format!("/orders/{theirs}")).await.status, 200);
}

#[tokio::test]
async fn an_unavailable_map_is_not_a_missing_id() {
    let shop = Shop::open();
    let id: OrderId = new_id();
    shop.lookups.away.store(true, Ordering::SeqCst);
    for path in [format!("/orders/{id}"), format!("/orders?order_id={id}")] {
        let answer = shop.get("acme", &path).await;
        is_a_problem(&answer, Slug::StoreUnavailable, "STORE_UNAVAILABLE");
        assert_eq!(answer.headers["retry-after"], "1");
        assert!(!answer.text().contains("10.1.2.3"), "the store's message is not sent to callers");
    }
    shop.lookups.away.store(false, Ordering::SeqCst);
    let answer = shop.get("acme", format!("/orders/{id}")).await;
    is_a_problem(&answer, Slug::PublicIdNotFound, "NOT_FOUND");
}

#[tokio::test]
async fn a_switched_off_resolver_is_no_fault_of_the_caller() {
    let shop = Shop::with(ResolverSettings { enabled: false, ..ResolverSettings::default() });
    let id: OrderId = new_id();
    for path in [format!("/orders/{id}"), format!("/orders?order_id={id}")] {
        is_a_problem(&shop.get("acme", &path).await, Slug::Misconfigured, "MISCONFIGURED");
    }
}

#[tokio::test]
async fn a_layer_outside_sees_which_problem_it_is() {
    let shop = Shop::open();
    let shown = axum::middleware::map_response(async |response: axum::response::Response| {
        let slug = response.extensions().get::<Slug>().map(|slug| slug.as_str());
        ([("x-slug", slug.unwrap_or("none"))], response)
    });
    let app = shop.app.clone().layer(shown);
    let request = Request::get("/orders/nonsense").header("x-tenant", "acme");
    let answer = send(&app, request.body(Body::empty()).expect("a request")).await;
    assert_eq!(answer.headers["x-slug"], "public-id-invalid");
}
