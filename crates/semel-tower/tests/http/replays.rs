//! Repeats get the first answer.

use axum::Router;
use axum::routing::post as on_post;
use semel_tower::axum::Claim;
use semel_tower::http::IdempotencyLayer;
use semel_tower::{Scope, Tenant};

use crate::ground::{Ground, Server, on_every_store, post};

async fn a_repeat_gets_the_first_answer<G: Ground>(ground: G) {
    let layer =
        IdempotencyLayer::new(ground.executor().await, Tenant::fixed("acme"), Scope::global());
    let handler = async |Claim(claim): Claim| claim.operation_id().to_string();
    let server =
        Server::start(&ground, Router::new().route("/orders", on_post(handler)).layer(layer)).await;
    let first = server.send(post("/orders", "k-1", "{}")).await;
    let again = server.send(post("/orders", "k-1", "{}")).await;
    assert!(!first.replayed());
    assert!(again.replayed());
    assert_eq!(first.body, again.body);
    server.stop().await;
}

on_every_store! {
    a_repeat_gets_the_first_answer,
}
