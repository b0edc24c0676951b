//! A service behind the layer for tests, which counts the calls of its handler.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, any};
use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;
use semel_core::executor::LocalReplay;
use semel_core::store::{BoxFuture, Draft, Opened};
use semel_core::{
    AnyStore, AttemptId, Context, Executor, Fingerprint, Key, Kind, OnCrash, OperationId,
    Principal, Store,
};
use semel_tower::http::{IdempotencyLayer, Rules};
use semel_tower::{PrincipalFrom, Tenant};
use tokio::sync::Semaphore;

use crate::backend::{Backend, Server};

/// Counts the calls of a handler.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs(Arc<AtomicU32>);

impl Runs {
    /// Counts one more call and returns its number, from 1.
    pub(crate) fn next(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Returns the number of calls so far.
    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Returns a handler for any method that counts its calls.
    pub(crate) fn handler<F, Fut>(&self, answer: F) -> MethodRouter
    where
        F: Fn(HandlerCall) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output: IntoResponse> + Send,
    {
        let runs = self.clone();
        any(move |request: Request| {
            let (runs, answer) = (runs.clone(), answer.clone());
            async move {
                let n = runs.next();
                let (parts, body) = request.into_parts();
                let body = axum::body::to_bytes(body, usize::MAX).await.expect("a whole body");
                let claim = parts.extensions.get().cloned();
                answer(HandlerCall { n, claim, parts, body }).await.into_response()
            }
        })
    }
}

/// A request that reached the handler.
#[derive(Debug)]
pub(crate) struct HandlerCall {
    /// The number of this run of the handler, from 1.
    pub(crate) n: u32,
    /// The claim under which the handler runs, if any.
    pub(crate) claim: Option<Context>,
    pub(crate) parts: Parts,
    pub(crate) body: Bytes,
}

impl HandlerCall {
    /// Returns `201 run N`, which is different in every run.
    pub(crate) fn created(&self) -> (StatusCode, String) {
        (StatusCode::CREATED, format!("run {}", self.n))
    }

    /// Returns the attempt and the operation id.
    pub(crate) fn operation(&self) -> (u32, OperationId) {
        let claim = self.claim.as_ref().expect("a request with a key has a claim");
        (claim.attempt(), claim.operation_id())
    }

    /// Returns what a handler sends to a provider: attempt, operation id and downstream key.
    pub(crate) fn provider_call(&self) -> (u32, OperationId, String) {
        let claim = self.claim.as_ref().expect("a request with a key has a claim");
        let key = claim.downstream_key("charge").expect("a durable claim");
        (claim.attempt(), claim.operation_id(), key)
    }
}

/// A handler that answers `201 run N` at once.
pub(crate) fn created(call: HandlerCall) -> std::future::Ready<(StatusCode, String)> {
    std::future::ready(call.created())
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

    /// Returns a handler that answers `201 run N` after it has passed the gate.
    pub(crate) fn handler(
        &self,
    ) -> impl Fn(HandlerCall) -> BoxFuture<'static, (StatusCode, String)> + Clone + use<> {
        let gate = self.clone();
        move |call| {
            let gate = gate.clone();
            Box::pin(async move {
                gate.pass().await;
                call.created()
            })
        }
    }
}

/// Creates an executor on the backend's records. A second executor stands for another process.
pub(crate) async fn executor(backend: &impl Backend) -> Executor<AnyStore> {
    Executor::new(backend.any_store().await)
}

/// Creates an executor without a local cache, which reads the store every time.
pub(crate) async fn forgetful_executor(backend: &impl Backend) -> Executor<AnyStore> {
    let builder = Executor::builder(backend.any_store().await).local_replay(LocalReplay::OFF);
    builder.build().expect("settings that work")
}

/// Returns a layer for one tenant whose callers share their keys.
pub(crate) fn layer<S: Store>(executor: Executor<S>) -> IdempotencyLayer<S> {
    IdempotencyLayer::fenced(executor, Tenant::fixed("acme"), PrincipalFrom::global())
}

/// Serves one handler at `/orders` and at every other path, with these rules.
pub(crate) async fn serve<G, F, Fut>(backend: &G, rules: Rules, answer: F) -> (Server, Runs)
where
    G: Backend,
    F: Fn(HandlerCall) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output: IntoResponse> + Send + 'static,
{
    let layer = layer(executor(backend).await).rules(rules);
    let runs = Runs::default();
    (Server::start(backend, router(&runs, answer).layer(layer)).await, runs)
}

/// Returns a router with one handler at `/orders` and at every other path.
pub(crate) fn router<F, Fut>(runs: &Runs, answer: F) -> Router
where
    F: Fn(HandlerCall) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output: IntoResponse> + Send + 'static,
{
    let handler = runs.handler(answer);
    Router::new().route("/orders", handler.clone()).fallback_service(handler)
}

/// Returns the ledger key of `POST /orders` under `id`.
pub(crate) fn order_key(id: &str) -> Key {
    Key::new(Kind::Http, "acme", "POST /orders", Principal::global(), id).expect("a key")
}

/// Claims a key like a process that then dies: the claim is never renewed or settled.
pub(crate) async fn abandoned<S: Store>(store: &S, key: &Key, on_crash: OnCrash) -> OperationId {
    let draft = Draft {
        key: key.clone(),
        fingerprint: Fingerprint::none(),
        operation_id: OperationId::generate(),
        attempt_id: AttemptId::generate(),
        attempt: 1,
        owner: Arc::from("gone:1:1"),
        lease: Duration::from_secs(30),
        on_crash,
        keep: Duration::from_secs(3_600),
        retry_payload: None,
    };
    let opened = store.open(&draft).await.expect("the store answers");
    assert!(matches!(opened, Opened::Inserted { .. }), "{key:?} is not free");
    draft.operation_id
}
