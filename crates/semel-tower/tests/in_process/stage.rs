//! A router behind the layer, called without a socket, and what its handlers tell the tests.

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

/// The layer of a service for one tenant whose callers share their keys, in a process of its own.
pub(crate) fn layer<S: Store>(store: S) -> IdempotencyLayer<S> {
    IdempotencyLayer::fenced(Executor::new(store), Tenant::fixed("acme"), PrincipalFrom::global())
}

/// A store that fails as its script says.
pub(crate) fn faulty<S: Store>(store: S) -> (FaultyStore<S>, Faults) {
    let store = FaultyStore::new(store);
    let faults = store.faults().clone();
    (store, faults)
}

/// Sends a request and reads all of the answer.
pub(crate) async fn send(app: &Router, request: Request<Sent>) -> Answer {
    let Ok(response) = app.clone().oneshot(request).await;
    read(response).await
}

/// The same in a task of its own: the request is under way while the test goes on.
pub(crate) fn sending(app: &Router, request: Request<Sent>) -> tokio::task::JoinHandle<Answer> {
    let app = app.clone();
    tokio::spawn(async move { send(&app, request).await })
}

/// All of a response.
pub(crate) async fn read(response: Response<Body>) -> Answer {
    let (head, body) = response.into_parts();
    let read = body.collect().await.expect("all of the answer");
    let trailers = read.trailers().cloned().unwrap_or_default();
    let http::response::Parts { status, version, headers, .. } = head;
    Answer { status, version, headers, body: read.to_bytes(), trailers }
}

/// `POST /orders` under the key `k`.
pub(crate) fn order() -> Request<Sent> {
    post("/orders", "k", "{}")
}

/// A request with one more header.
pub(crate) fn with(mut request: Request<Sent>, name: &'static str, value: &str) -> Request<Sent> {
    let value = HeaderValue::from_str(value).expect("a header value");
    request.headers_mut().append(HeaderName::from_static(name), value);
    request
}

/// The URL of an answer that is accepted and not made yet.
pub(crate) fn url(accepted: &Answer) -> String {
    assert_eq!(accepted.status, 202, "{accepted:?}");
    accepted.header("location").expect("where to ask").to_owned()
}

/// Asks at `url` until the operation is over.
pub(crate) async fn heard(app: &Router, url: &str) -> Answer {
    loop {
        let answer = send(app, get(url)).await;
        if answer.status != 202 {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// How often a handler ran.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs(Arc<AtomicU32>);

impl Runs {
    /// Counts one more and says which it is, from 1.
    pub(crate) fn next(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// So far.
    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

/// Where a handler waits until the test lets it go on.
#[derive(Clone, Debug)]
pub(crate) struct Gate(Arc<(Semaphore, Semaphore)>);

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Arc::new((Semaphore::new(0), Semaphore::new(0))))
    }

    /// The handler is here, and goes on when the gate is opened for it.
    pub(crate) async fn pass(&self) {
        self.0.0.add_permits(1);
        self.0.1.acquire().await.expect("not closed").forget();
    }

    /// Waits until one more handler has come to the gate.
    pub(crate) async fn reached(&self) {
        self.0.0.acquire().await.expect("not closed").forget();
    }

    /// Lets one handler go on.
    pub(crate) fn open(&self) {
        self.0.1.add_permits(1);
    }
}

/// Claims `POST /orders` under `k` as a process does that then dies; its verifier must be asked.
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
