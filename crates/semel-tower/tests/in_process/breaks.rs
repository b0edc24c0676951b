//! Tests of work that breaks off below the layer: a retry continues the same operation.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::post as on_post;
use http::StatusCode;
use semel_core::store::memory::MemoryStore;
use semel_core::{Key, Kind, Principal, State, Store as _};
use semel_tower::axum::OperationContext;
use tower_http::timeout::TimeoutLayer;

use crate::support::{layer, order, send};

/// The clock is paused: it jumps to the timeout as soon as all tasks wait.
#[tokio::test(start_paused = true)]
async fn a_timeout_below_the_layer_is_a_failure_and_its_retry_is_the_same_operation() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&seen);
    let handler = on_post(async move |OperationContext(claim): OperationContext| {
        let key = claim.downstream_key("charge").expect("a durable claim");
        let first = {
            let mut recorded = recorded.lock().expect("not poisoned");
            recorded.push((claim.attempt(), claim.operation_id(), key));
            recorded.len() == 1
        };
        if first {
            // The charge has been made, and then the handler hangs.
            std::future::pending::<()>().await;
        }
        "paid"
    });
    let store = MemoryStore::new();
    let app = Router::new()
        .route("/orders", handler)
        .layer(TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, Duration::from_secs(5)))
        .layer(layer(store.clone()));
    assert_eq!(send(&app, order()).await.status, 408);
    let key = Key::new(Kind::Http, "acme", "POST /orders", Principal::global(), "k");
    let found = store.peek(&key.expect("a key")).await.expect("the store answers");
    assert_eq!(found.expect("a record").record.state, State::Failed);
    assert_eq!(send(&app, order()).await.text(), "paid");
    let seen = seen.lock().expect("not poisoned");
    let [(1, operation, charge), (2, again, charged)] = &seen[..] else {
        panic!("one attempt and its retry: {seen:?}")
    };
    assert_eq!((operation, charge), (again, charged));
}

/// A 424 of a failed dependency and a 499 also mean that the work broke off.
#[tokio::test]
async fn statuses_of_work_that_broke_off_keep_the_operation() {
    for status in [408, 424, 499, 500, 503] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&seen);
        let handler = on_post(async move |OperationContext(claim): OperationContext| {
            recorded.lock().expect("not poisoned").push(claim.operation_id());
            StatusCode::from_u16(status).expect("a status")
        });
        let app = Router::new().route("/orders", handler).layer(layer(MemoryStore::new()));
        for _ in 0..2 {
            assert_eq!(send(&app, order()).await.status, status);
        }
        let seen = seen.lock().expect("not poisoned");
        assert_eq!((seen.len(), seen[0] == seen[1]), (2, true), "{status}");
    }
}
