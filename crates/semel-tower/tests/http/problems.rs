//! Tests of problems: their form, their members, their pages.

use std::path::Path;

use http::{Method, StatusCode};
use semel_tower::http::{Rules, Slug};
use serde_json::json;

use crate::backend::{Answer, Backend, Server, in_memory, post, request};
use crate::support::{Gate, Runs, created, executor, layer, router, serve};

/// Checks the properties that every problem has.
fn is_a_problem(answer: &Answer, slug: Slug, status: u16) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert!(!answer.replayed());
    let json = answer.json();
    assert_eq!(json["type"], format!("urn:semel:problem:{}", slug.as_str()));
    assert_eq!(json["title"], slug.title());
    assert_eq!(json["status"], status);
    assert_eq!(json["instance"], "/orders");
    assert_eq!(json["code"], slug.code());
    assert!(json["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{json}");
}

async fn a_problem_has_advice<G: Backend>(backend: G) {
    let gate = Gate::new();
    let (server, _) = serve(&backend, Rules::new().required(), gate.handler()).await;

    let answer = server.send(request(Method::POST, "/orders?a=1", "{}")).await;
    is_a_problem(&answer, Slug::KeyMissing, 400);
    assert_eq!(
        (&answer.json()["retryable"], &answer.json()["safe_new_key"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(answer.json().get("operation_id"), None);

    let answer = server.send(post("/orders", "a,b", "{}")).await;
    is_a_problem(&answer, Slug::KeyInvalid, 400);

    let first = server.sending(post("/orders", "k", "{}"));
    gate.reached().await;
    let answer = server.send(post("/orders", "k", "{}")).await;
    is_a_problem(&answer, Slug::InProgress, 409);
    assert_eq!(
        (&answer.json()["retryable"], &answer.json()["safe_new_key"]),
        (&json!(true), &json!(false))
    );
    let operation = answer.json()["operation_id"].as_str().map(str::len);
    assert_eq!(operation, Some(26), "a ULID");

    let answer = server.send(post("/orders", "k", "[]")).await;
    is_a_problem(&answer, Slug::KeyReused, 422);
    assert_eq!(
        (&answer.json()["retryable"], &answer.json()["safe_new_key"]),
        (&json!(false), &json!(false))
    );
    gate.open();
    first.await.expect("an answer");
}

async fn a_problem_shows_neither_keys_nor_messages_of_a_handler<G: Backend>(backend: G) {
    let rules = Rules::new().command(|command| command.max_attempts(1));
    let secret = "the password of the database is hunter2";
    let (server, _) =
        serve(&backend, rules, move |_| async move { (StatusCode::INTERNAL_SERVER_ERROR, secret) })
            .await;
    server.send(post("/orders", "a-key-nobody-may-see", "{}")).await;
    for body in ["{}", "[]"] {
        let answer = server.send(post("/orders", "a-key-nobody-may-see", body)).await;
        assert!(answer.problem().is_some());
        assert!(!answer.text().contains("a-key-nobody"), "{answer:?}");
        assert!(!answer.text().contains("hunter2"), "{answer:?}");
    }
}

async fn the_type_of_a_problem_can_be_a_link<G: Backend>(backend: G) {
    let layer = layer(executor(&backend).await)
        .problem_types("https://example.com/errors/")
        .rules(Rules::new().required());
    let runs = Runs::default();
    let server = Server::start(&backend, router(&runs, created).layer(layer)).await;
    let answer = server.send(request(Method::POST, "/orders", "{}")).await;
    assert_eq!(answer.json()["type"], "https://example.com/errors/key-missing");
}

async fn a_layer_outside_sees_which_problem_it_is<G: Backend>(backend: G) {
    let inside = layer(executor(&backend).await).rules(Rules::new().required());
    let runs = Runs::default();
    let shown = axum::middleware::map_response(async |response: axum::response::Response| {
        let slug = response.extensions().get::<Slug>().map(|slug| slug.as_str());
        ([("x-slug", slug.unwrap_or("none"))], response)
    });
    let router = router(&runs, created).layer(inside).layer(shown);
    let server = Server::start(&backend, router).await;
    let problem = server.send(request(Method::POST, "/orders", "{}")).await;
    assert_eq!(problem.header("x-slug"), Some("key-missing"));
    assert_eq!(server.send(post("/orders", "k", "{}")).await.header("x-slug"), Some("none"));
}

#[test]
fn every_problem_has_its_page() {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
    let mut missing = Vec::new();
    for slug in Slug::ALL {
        let page = pages.join(format!("{}.md", slug.as_str()));
        let text = std::fs::read_to_string(page).unwrap_or_default();
        if !text.contains(slug.as_str()) || !text.contains(&slug.status().as_u16().to_string()) {
            missing.push(slug.as_str());
        }
    }
    assert!(missing.is_empty(), "no page with the problem and its status: {missing:?}");
}

#[test]
fn the_table_of_problems_is_the_documented_one() {
    let documented = [
        ("key-missing", 400),
        ("key-invalid", 400),
        ("key-reused", 422),
        ("in-progress", 409),
        ("backing-off", 409),
        ("failed", 409),
        ("dead", 409),
        ("uncertain", 409),
        ("claim-lost", 409),
        ("result-unavailable", 409),
        ("result-too-large", 500),
        ("body-too-large", 413),
        ("body-incomplete", 400),
        ("body-timeout", 408),
        ("tenant-unknown", 401),
        ("principal-unknown", 401),
        ("replay-refused", 403),
        ("work-failed", 500),
        ("work-timeout", 504),
        ("upstream-unreachable", 502),
        ("upstream-ambiguous", 504),
        ("overloaded", 503),
        ("store-full", 503),
        ("store-unavailable", 503),
        ("shutting-down", 503),
        ("misconfigured", 500),
        ("operation-unknown", 404),
        ("public-id-invalid", 400),
        ("public-id-not-found", 404),
    ];
    let table: Vec<_> =
        Slug::ALL.iter().map(|slug| (slug.as_str(), slug.status().as_u16())).collect();
    assert_eq!(table, documented);
    assert_eq!(Slug::KeyReused.code(), "KEY_REUSED");
}

in_memory! {
    a_problem_has_advice,
    a_problem_shows_neither_keys_nor_messages_of_a_handler,
    the_type_of_a_problem_can_be_a_link,
    a_layer_outside_sees_which_problem_it_is,
}
