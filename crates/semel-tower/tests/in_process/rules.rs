//! Tests that rules that can match no request are reported, at start or at the first request that
//! shows it.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post as on_post;
use http::Method;
use semel_core::store::memory::MemoryStore;
use semel_tower::http::{IdempotencyLayer, Rules};
use tower::{Layer as _, ServiceExt as _};

use crate::backend::post;
use crate::recorder::Recorder;
use crate::support::{layer, send};

fn orders() -> Router {
    let created = || on_post(async || StatusCode::CREATED);
    Router::new()
        .route("/orders/{order_id}", created())
        .route("/orders/bulk", created())
        .route("/files/{*rest}", created())
        .nest("/api", Router::new().route("/refunds", created()))
}

fn with_rules<const N: usize>(names: [&str; N]) -> IdempotencyLayer<MemoryStore> {
    names.iter().fold(layer(MemoryStore::new()), |layer, name| layer.route(name, Rules::new()))
}

#[tokio::test]
async fn a_rule_whose_name_no_request_can_have_is_reported_at_start() {
    let (recorder, _subscribed) = Recorder::subscribe();
    let names = ["/orders", "post /orders", "POST /orders/:id", "PUT /orders"];
    let layer = with_rules(names).route("PUT /files", Rules::new().methods([Method::PUT]));
    let _app = orders().layer(layer);
    let mut warnings = recorder.warnings();
    warnings.sort();
    let reported: Vec<&str> =
        warnings.iter().map(|warning| warning.split(" |").next().unwrap_or_default()).collect();
    assert_eq!(reported, ["/orders", "POST /orders/:id", "PUT /orders", "post /orders"]);
}

#[tokio::test]
async fn a_custom_name_may_have_any_form() {
    let (recorder, _subscribed) = Recorder::subscribe();
    let layer = with_rules(["PAY"]).operation(|_| Some("PAY".to_owned()));
    let app = orders().layer(layer);
    assert_eq!(send(&app, post("/orders/7", "k", "{}")).await.status, 201);
    assert_eq!(recorder.warnings(), Vec::<String>::new());
}

#[tokio::test]
async fn a_rule_with_another_parameter_name_is_reported_by_the_first_request() {
    let (recorder, _subscribed) = Recorder::subscribe();
    let app = orders().layer(with_rules(["POST /orders/{id}"]));
    assert_eq!(send(&app, post("/orders/bulk", "k", "{}")).await.status, 201);
    assert_eq!(
        recorder.warnings(),
        Vec::<String>::new(),
        "a request to another route does not show it"
    );
    for key in ["k-1", "k-2"] {
        assert_eq!(send(&app, post("/orders/7", key, "{}")).await.status, 201);
    }
    let expected = "POST /orders/{id} | /orders/{order_id} | no route has the name of a rule: use \
                    the route's template as the name";
    assert_eq!(recorder.warnings(), [expected]);
}

#[tokio::test]
async fn a_rule_without_the_prefix_of_a_nested_router_is_reported() {
    let (recorder, _subscribed) = Recorder::subscribe();
    let app = orders().layer(with_rules(["POST /refunds"]));
    assert_eq!(send(&app, post("/api/refunds", "k", "{}")).await.status, 201);
    let warnings = recorder.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("POST /refunds | /api/refunds | "), "{warnings:?}");
}

#[tokio::test]
async fn a_template_is_reported_by_a_layer_that_sees_no_routes() {
    let (recorder, _subscribed) = Recorder::subscribe();
    let service = with_rules(["POST /orders/{order_id}"]).layer(orders());
    let sent = service.oneshot(post("/orders/7", "k", "{}")).await.expect("a response");
    assert_eq!(sent.status(), 201);
    let warnings = recorder.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("the layer sees no route"), "{warnings:?}");
}

#[tokio::test]
async fn rules_that_requests_match_are_not_reported() {
    let (recorder, _subscribed) = Recorder::subscribe();
    let names = ["POST /orders/{order_id}", "POST /orders/bulk", "POST /files/{*rest}"];
    let app = orders().layer(with_rules(names));
    for (at, path) in ["/orders/7", "/orders/bulk", "/files/a/b", "/nowhere"].iter().enumerate() {
        send(&app, post(path, &format!("k-{at}"), "{}")).await;
    }
    assert_eq!(recorder.warnings(), Vec::<String>::new());
}
