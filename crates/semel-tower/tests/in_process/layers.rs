//! Tests with layers of other crates, above and below in one `ServiceBuilder`.

use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::routing::post as on_post;
use http::{Method, StatusCode};
use semel_core::store::memory::MemoryStore;
use semel_tower::axum::OperationContext;
use tower::ServiceBuilder;
use tower_http::cors::CorsLayer;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

use crate::backend::{request, run};
use crate::support::{layer, order, send, with};

fn timeout() -> TimeoutLayer {
    TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_secs(3_600))
}

#[test]
fn cors_tracing_and_timeouts_work_around_the_layer_and_middleware_below_it() {
    run(async {
        let stack = ServiceBuilder::new()
            .layer(TraceLayer::new_for_http())
            .layer(CorsLayer::permissive())
            .layer(timeout())
            .layer(layer(MemoryStore::new()))
            .map_request(|request: http::Request<_>| request.map(axum::body::Body::new))
            .layer(from_fn(
                async |OperationContext(claim): OperationContext, request: Request, next: Next| {
                    let mut response = next.run(request).await;
                    let attempt = claim.attempt().into();
                    response.headers_mut().insert("content-language", attempt);
                    response
                },
            ));
        let app = Router::new().route("/orders", on_post(async |body: String| body)).layer(stack);
        for replayed in [false, true] {
            let answer = send(&app, with(order(), "origin", "https://shop.example")).await;
            assert_eq!((answer.text(), answer.replayed()), ("{}", replayed));
            assert_eq!(answer.header("content-language"), Some("1"), "of the middleware below");
            assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
        }
        let preflight =
            with(request(Method::OPTIONS, "/orders", ""), "origin", "https://a.example");
        let preflight = with(preflight, "access-control-request-method", "POST");
        let answer = send(&app, preflight).await;
        assert_eq!(answer.header("access-control-allow-methods"), Some("*"));
    });
}

#[test]
fn the_same_layers_work_below_it_too() {
    run(async {
        let stack = ServiceBuilder::new()
            .layer(layer(MemoryStore::new()))
            .layer(TraceLayer::new_for_http())
            .layer(timeout())
            .layer(CorsLayer::permissive());
        let app = Router::new().route("/orders", on_post(async |body: String| body)).layer(stack);
        for replayed in [false, true] {
            let answer = send(&app, order()).await;
            assert_eq!((answer.text(), answer.replayed()), ("{}", replayed));
        }
    });
}
