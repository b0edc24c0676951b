//! Tests of operations and their rules: axum's templates, literal paths, and custom names.

use axum::Router;
use axum::routing::any;
use http::{HeaderValue, Method};
use semel_tower::axum::OperationContext;
use semel_tower::http::Rules;
use tower::Layer as _;

use crate::backend::{Backend, Server, in_memory, post, request};
use crate::support::{Runs, created, executor, layer};

async fn a_template_is_one_operation_with_rules_of_its_own<G: Backend>(backend: G) {
    let layer =
        layer(executor(&backend).await).route("POST /orders/{id}/refunds", Rules::new().required());
    let runs = Runs::default();
    let router = Router::new()
        .route("/orders", runs.handler(created))
        .route("/orders/{id}/refunds", runs.handler(created))
        .layer(layer);
    let server = Server::start(&backend, router).await;
    assert_eq!(server.send(request(Method::POST, "/orders", "{}")).await.status, 201);
    for id in [1, 2] {
        let missing =
            server.send(request(Method::POST, &format!("/orders/{id}/refunds"), "{}")).await;
        assert_eq!(missing.problem().as_deref(), Some("key-missing"));
    }
    // PATCH is another operation, for which there are no rules.
    assert_eq!(server.send(request(Method::PATCH, "/orders/1/refunds", "{}")).await.status, 201);
    assert_eq!(server.send(post("/orders/1/refunds", "k", "{}")).await.status, 201);
    assert!(server.send(post("/orders/1/refunds", "k", "{}")).await.replayed());
    // Both are one operation, so the same key for another order is a mistake and not a second
    // refund.
    let other = server.send(post("/orders/2/refunds", "k", "{}")).await;
    assert_eq!(other.problem().as_deref(), Some("key-reused"));
    assert_eq!(runs.count(), 3);
}

async fn a_nested_router_has_its_whole_template<G: Backend>(backend: G) {
    let layer = layer(executor(&backend).await)
        .route("POST /api/v1/orders/{id}/refunds", Rules::new().required())
        .route("POST /orders/{id}/refunds", Rules::new());
    let runs = Runs::default();
    let orders = Router::new().route("/{id}/refunds", runs.handler(created));
    let router = Router::new().nest("/api", Router::new().nest("/v1/orders", orders)).layer(layer);
    let server = Server::start(&backend, router).await;
    let missing = server.send(request(Method::POST, "/api/v1/orders/1/refunds", "{}")).await;
    assert_eq!(missing.problem().as_deref(), Some("key-missing"));
    assert_eq!(server.send(post("/api/v1/orders/1/refunds", "k", "{}")).await.status, 201);
    assert!(server.send(post("/api/v1/orders/1/refunds", "k", "{}")).await.replayed());
    assert_eq!(runs.count(), 1);
}

async fn a_layer_on_one_route_leaves_the_others_alone<G: Backend>(backend: G) {
    let layer = layer(executor(&backend).await).rules(Rules::new().required());
    let runs = Runs::default();
    let router = Router::new()
        .route("/orders", runs.handler(created))
        .route_layer(layer)
        .route("/free", runs.handler(created));
    let server = Server::start(&backend, router).await;
    assert_eq!(server.send(request(Method::POST, "/orders", "{}")).await.status, 400);
    for _ in 0..2 {
        assert!(!server.send(post("/free", "k", "{}")).await.replayed());
    }
    assert_eq!(runs.count(), 2);
}

async fn outside_a_router_the_operation_is_the_path<G: Backend>(backend: G) {
    let layer = layer(executor(&backend).await).route("POST /orders/1", Rules::new().required());
    let runs = Runs::default();
    let router = Router::new().route("/orders/{id}", runs.handler(created));
    let server = Server::start(&backend, layer.layer(router)).await;
    assert_eq!(server.send(request(Method::POST, "/orders/1", "{}")).await.status, 400);
    assert_eq!(server.send(request(Method::POST, "/orders/2", "{}")).await.status, 201);
    assert!(!server.send(post("/orders/1", "k", "{}")).await.replayed());
    assert!(!server.send(post("/orders/2", "k", "{}")).await.replayed(), "another operation");
    assert!(server.send(post("/orders/1", "k", "{}")).await.replayed());
    assert_eq!(runs.count(), 3);
}

async fn an_operation_may_have_a_custom_name<G: Backend>(backend: G) {
    let layer = layer(executor(&backend).await)
        .operation(|request| {
            let name = request.headers.get("x-operation").map(HeaderValue::to_str);
            name.and_then(Result::ok).map(str::to_owned)
        })
        .route("PAY", Rules::new().required());
    let runs = Runs::default();
    let router = Router::new().route("/rpc", runs.handler(created)).layer(layer);
    let server = Server::start(&backend, router).await;
    let called = |name: &str, key: Option<&str>| {
        let mut request = request(Method::POST, "/rpc", "{}");
        request.headers_mut().insert("x-operation", name.parse().expect("a value"));
        if let Some(key) = key {
            request.headers_mut().insert("idempotency-key", key.parse().expect("a value"));
        }
        request
    };
    assert_eq!(server.send(called("PAY", None)).await.problem().as_deref(), Some("key-missing"));
    assert_eq!(server.send(called("SHIP", None)).await.status, 201);
    assert!(!server.send(called("PAY", Some("k"))).await.replayed());
    assert!(!server.send(called("SHIP", Some("k"))).await.replayed());
    assert!(!server.send(post("/rpc", "k", "{}")).await.replayed(), "falls back to the template");
    assert!(server.send(called("PAY", Some("k"))).await.replayed());
    assert_eq!(runs.count(), 4);
}

async fn paths_of_any_length_are_distinguished<G: Backend>(backend: G) {
    let layer = layer(executor(&backend).await);
    let runs = Runs::default();
    let router = Router::new().fallback_service(runs.handler(created)).layer(layer);
    let server = Server::start(&backend, router).await;
    let long = format!("/{}", "x".repeat(3_000));
    for path in [format!("{long}a"), format!("{long}b"), format!("{long}a/")] {
        assert!(!server.send(post(&path, "k", "{}")).await.replayed());
        assert!(server.send(post(&path, "k", "{}")).await.replayed());
    }
    assert_eq!(runs.count(), 3);
}

async fn a_handler_is_given_its_claim<G: Backend>(backend: G) {
    let layer = layer(executor(&backend).await);
    let handler = async |OperationContext(claim): OperationContext| {
        let key = claim.key();
        format!("{} {} {} {}", key.tenant(), key.scope(), key.id(), claim.attempt())
    };
    let perhaps = async |claim: Option<OperationContext>| claim.is_some().to_string();
    let router = Router::new()
        .route("/orders/{id}", any(handler))
        .route("/perhaps", any(perhaps))
        .layer(layer);
    let server = Server::start(&backend, router).await;
    let answer = server.send(post("/orders/1", "\"the key\"", "{}")).await;
    assert_eq!(answer.text(), "acme POST /orders/{id} the key 1");
    // The extractor refuses the request like the layer.
    let without = server.send(request(Method::POST, "/orders/1", "{}")).await;
    assert_eq!((without.status.as_u16(), without.problem().as_deref()), (400, Some("key-missing")));
    assert_eq!(without.header("cache-control"), Some("no-store"));
    assert_eq!(server.send(request(Method::POST, "/perhaps", "{}")).await.text(), "false");
    assert_eq!(server.send(post("/perhaps", "k", "{}")).await.text(), "true");
}

async fn a_handler_gets_the_request_as_it_was_sent<G: Backend>(backend: G) {
    let layer = layer(executor(&backend).await);
    let runs = Runs::default();
    let handler = runs.handler(|call| async move {
        let header = call.parts.headers.get("x-custom").cloned();
        format!(
            "{} {} {header:?} {:?}",
            call.parts.method,
            call.parts.uri.path_and_query().expect("a path"),
            call.body
        )
    });
    let router = Router::new().route("/orders", handler).layer(layer);
    let server = Server::start(&backend, router).await;
    let mut keyed = post("/orders?b=2&a=1", "k", "{ \"b\" : 2 , \"a\" : 1 }");
    keyed.headers_mut().insert("x-custom", "kept".parse().expect("a value"));
    let answer = server.send(keyed).await;
    let expected = r#"POST /orders?b=2&a=1 Some("kept") b"{ \"b\" : 2 , \"a\" : 1 }""#;
    assert_eq!(answer.text(), expected);
}

in_memory! {
    a_template_is_one_operation_with_rules_of_its_own,
    a_nested_router_has_its_whole_template,
    a_layer_on_one_route_leaves_the_others_alone,
    outside_a_router_the_operation_is_the_path,
    an_operation_may_have_a_custom_name,
    paths_of_any_length_are_distinguished,
    a_handler_is_given_its_claim,
    a_handler_gets_the_request_as_it_was_sent,
}
