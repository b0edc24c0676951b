//! Tests with any tower service behind the layer, not only axum's: readiness and errors.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use semel_core::store::memory::MemoryStore;
use semel_core::{Executor, Store as _};
use semel_testkit::faulty::{Fault, FaultyStore, StoreCall};
use semel_tower::Body;
use semel_tower::http::Rules;
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

use crate::backend::{Backend, Server, in_memory, post, request, run};
use crate::support::{Runs, executor, layer, order_key};

/// A service that may only be called after it was ready, like a concurrency limit.
struct Strict {
    ready: bool,
    runs: Runs,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { ready: false, runs: self.runs.clone() }
    }
}

impl<B> Service<Request<B>> for Strict {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without being ready");
        ready(Ok(Response::new(Full::from(format!("run {}", self.runs.next())))))
    }
}

async fn the_service_that_was_ready_is_the_one_that_is_called<G: Backend>(backend: G) {
    let runs = Runs::default();
    let strict = Strict { ready: false, runs: runs.clone() };
    let server = Server::start(&backend, layer(executor(&backend).await).layer(strict)).await;
    let mut client = server.client().await;
    for n in [1, 2] {
        let answer = client.send(post("/orders", &format!("k-{n}"), "{}")).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (200, &*format!("run {n}")));
    }
    assert_eq!(client.send(request(Method::POST, "/orders", "{}")).await.text(), "run 3");
    assert_eq!(client.send(request(Method::GET, "/orders", "")).await.text(), "run 4");
    assert!(client.send(post("/orders", "k-1", "{}")).await.replayed());
}

async fn a_service_that_runs_unprotected_is_ready_too<G: Backend>(backend: G) {
    let store = FaultyStore::new(backend.any_store().await);
    store.faults().always(StoreCall::Open, Fault::Refuse);
    let layer = layer(Executor::new(store)).rules(Rules::new().fail_open());
    let strict = Strict { ready: false, runs: Runs::default() };
    let server = Server::start(&backend, layer.layer(strict)).await;
    assert_eq!(server.send(post("/orders", "k", "{}")).await.text(), "run 1");
}

#[test]
fn an_error_of_the_service_is_returned_and_a_failure() {
    run(async {
        let store = MemoryStore::new();
        let runs = Runs::default();
        let service = layer(Executor::new(store.clone())).layer(service_fn({
            let runs = runs.clone();
            move |_: Request<Body<Full<Bytes>>>| {
                ready(match runs.next() {
                    1 => Err(std::io::Error::other("the upstream hung up")),
                    _ => Ok(Response::new(Full::from("done"))),
                })
            }
        }));
        let send = || {
            let request = Request::post("/orders").header("idempotency-key", "k");
            service.clone().oneshot(request.body(Full::from("{}")).expect("a request"))
        };
        let error = send().await.expect_err("the service's own");
        assert_eq!(error.to_string(), "the upstream hung up");
        let found = store.peek(&order_key("k")).await.expect("in memory").expect("a record");
        let error_text = found.record.error.expect("a failure").to_string();
        assert_eq!(error_text, "the upstream hung up");
        let answer = send().await.expect("an answer");
        assert_eq!((answer.status(), runs.count()), (StatusCode::OK, 2));
        let again = send().await.expect("an answer");
        assert_eq!(again.headers()["idempotent-replayed"], "true");
        assert_eq!(runs.count(), 2);
    });
}

in_memory! {
    the_service_that_was_ready_is_the_one_that_is_called,
    a_service_that_runs_unprotected_is_ready_too,
}
