//! Tests of requests that pass through the layer, and of requests that only seem to.

use axum::Router;
use axum::routing::post as on_post;
use http::Request;
use semel_core::store::memory::MemoryStore;
use semel_tower::axum::OperationContext;
use semel_tower::http::Rules;

use crate::backend::{Sent, body, post, run};
use crate::support::{layer, send, with};

/// Returns a router that answers whether it runs under a claim. A key is required at `/required`.
fn app() -> Router {
    let handler = on_post(async |claim: Option<OperationContext>| claim.is_some().to_string());
    let layer = layer(MemoryStore::new()).route("POST /required", Rules::new().required());
    Router::new().route("/orders", handler.clone()).route("/required", handler).layer(layer)
}

/// Returns whether the request ran under a claim.
async fn claimed(app: &Router, request: Request<Sent>) -> bool {
    send(app, request).await.text() == "true"
}

fn call(path: &str, content_type: &str) -> Request<Sent> {
    let request = Request::post(path).header("idempotency-key", "k");
    request.header("content-type", content_type).body(body("")).expect("a request")
}

#[test]
fn a_grpc_call_with_a_key_passes_unless_its_route_requires_one() {
    run(async {
        for content_type in ["application/grpc", "application/grpc+proto", "application/grpc-web"] {
            assert!(!claimed(&app(), call("/orders", content_type)).await, "{content_type}");
            assert!(claimed(&app(), call("/required", content_type)).await, "{content_type}");
        }
        assert!(claimed(&app(), call("/orders", "application/json")).await);
    });
}

#[test]
fn a_request_for_an_event_stream_runs_under_its_key() {
    run(async {
        for accept in [
            "text/event-stream",
            "Text/Event-Stream",
            "text/event-stream; charset=utf-8",
            "text/event-stream, application/json",
            "application/json, text/event-stream",
            "text/event-stream;q=0.5, */*",
            "*/*",
        ] {
            let app = app();
            let request = || with(post("/orders", "k", "{}"), "accept", accept);
            assert!(claimed(&app, request()).await, "{accept}");
            assert!(send(&app, request()).await.replayed(), "{accept}");
        }
    });
}
