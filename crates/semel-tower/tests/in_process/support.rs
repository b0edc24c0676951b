//! Helpers for tests of a router behind the layer that is called without a socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{HeaderName, HeaderValue, Request, Response};
use http_body_util::BodyExt as _;
use semel_core::store::{Draft, Opened};
use semel_core::{
    AttemptId, Executor, Fingerprint, Key, Kind, OnCrash, OperationId, Principal, Store,
};
use semel_testkit::faulty::{Faults, FaultyStore};
use semel_tower::http::IdempotencyLayer;
use semel_tower::{PrincipalFrom, Tenant};
use tokio::sync::Semaphore;
use tower::ServiceExt as _;

use crate::backend::{Answer, Sent, get, post};

/// Returns a layer with its own executor for one tenant whose callers share their keys.
pub(crate) fn layer<S: Store>(store: S) -> IdempotencyLayer<S> {
    IdempotencyLayer::fenced(Executor::new(store), Tenant::fixed("acme"), PrincipalFrom::global())
}

/// Wraps a store so that it fails according to a script.
pub(crate) fn faulty<S: Store>(store: S) -> (FaultyStore<S>, Faults) {
    let store = FaultyStore::new(store);
    let faults = store.faults().clone();
    (store, faults)
}

/// Sends a request and reads the whole response.
pub(crate) async fn send(app: &Router, request: Request<Sent>) -> Answer {
    let Ok(response) = app.clone().oneshot(request).await;
    read(response).await
}

/// Sends a request in a separate task, so that it is under way while the test continues.
pub(crate) fn sending(app: &Router, request: Request<Sent>) -> tokio::task::JoinHandle<Answer> {
    let app = app.clone();
    tokio::spawn(async move { send(&app, request).await })
}

/// Reads the whole response.
pub(crate) async fn read(response: Response<Body>) -> Answer {
    let (head, body) = response.into_parts();
    let read = body.collect().await.expect("all of the answer");
    let trailers = read.trailers().cloned().unwrap_or_default();
    let http::response::Parts { status, version, headers, .. } = head;
    Answer { status, version, headers, body: read.to_bytes(), trailers }
}

/// Creates the request `POST /orders` under the key `k`.
pub(crate) fn order() -> Request<Sent> {
    post("/orders", "k", "{}")
}

/// Adds a header to a request.
pub(crate) fn with(mut request: Request<Sent>, name: &'static str, value: &str) -> Request<Sent> {
    let value = HeaderValue::from_str(value).expect("a header value");
    request.headers_mut().append(HeaderName::from_static(name), value);
    request
}

/// Returns the URL of the outcome from a 202.
pub(crate) fn url(accepted: &Answer) -> String {
    assert_eq!(accepted.status, 202, "{accepted:?}");
    accepted.header("location").expect("where to ask").to_owned()
}

/// Polls `url` until the operation is over, and returns the last response.
pub(crate) async fn final_answer(app: &Router, url: &str) -> Answer {
    loop {
        let answer = send(app, get(url)).await;
        if answer.status != 202 {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Counts the runs of a handler.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs(Arc<AtomicU32>);

impl Runs {
    /// Counts one more run and returns its number, from 1.
    pub(crate) fn next(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Returns the number of runs so far.
    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A gate at which a handler waits until the test opens it.
#[derive(Clone, Debug)]
pub(crate) struct Gate(Arc<(Semaphore, Semaphore)>);

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Arc::new((Semaphore::new(0), Semaphore::new(0))))
    }

    /// Waits until the gate is opened for this handler.
    pub(crate) async fn pass(&self) {
        self.0.0.add_permits(1);
        self.0.1.acquire().await.expect("not closed").forget();
    }

    /// Waits until one more handler has reached the gate.
    pub(crate) async fn reached(&self) {
        self.0.0.acquire().await.expect("not closed").forget();
    }

    /// Lets one handler pass.
    pub(crate) fn open(&self) {
        self.0.1.add_permits(1);
    }
}

/// Claims `POST /orders` under `k` like a process that then dies. The crash policy is to verify.
pub(crate) async fn abandoned(store: &impl Store) {
    let key = Key::new(Kind::Http, "acme", "POST /orders", Principal::global(), "k");
    let draft = Draft {
        key: key.expect("a key"),
        fingerprint: Fingerprint::none(),
        operation_id: OperationId::generate(),
        attempt_id: AttemptId::generate(),
        attempt: 1,
        owner: Arc::from("gone:1:1"),
        lease: Duration::from_secs(30),
        on_crash: OnCrash::Verify,
        keep: Duration::from_secs(3_600),
        retry_payload: None,
    };
    let opened = store.open(&draft).await.expect("the store answers");
    assert!(matches!(opened, Opened::Inserted { .. }), "the key is not free");
}
