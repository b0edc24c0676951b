//! Which problems say that a new key is safe: those of requests that no key of theirs was ever
//! claimed for.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Router;
use axum::routing::post as on_post;
use http::{HeaderName, Method, Request, StatusCode};
use semel_core::store::memory::MemoryStore;
use semel_core::{Executor, OnFailure, OperationId};
use semel_sql::sqlite::SqliteStore;
use semel_testkit::Fixture as _;
use semel_testkit::faulty::{Fault, StoreCall};
use semel_tower::axum::Tx;
use semel_tower::http::{IdempotencyLayer, OPERATIONS, Rules, Slug};
use semel_tower::{PrincipalFrom, Tenant};

use crate::backend::{Answer, Backend as _, Memory, Sent, Sqlite, get, post, request, run};
use crate::stage::{Gate, abandoned, faulty, layer, order, send, sending, with};

/// What was said of each kind of problem.
#[derive(Default)]
struct Said(BTreeMap<&'static str, bool>);

impl Said {
    fn note(&mut self, slug: Slug, answer: &Answer) {
        assert_eq!(answer.problem().as_deref(), Some(slug.as_str()), "{answer:?}");
        let safe = answer.json()["safe_new_key"].as_bool().expect("said either way");
        self.0.insert(slug.as_str(), safe);
    }
}

/// A router at `/orders` with routes that fail in ways of their own.
fn failing() -> Router {
    let large = on_post(async || "a long answer");
    let fails = on_post(async || StatusCode::SERVICE_UNAVAILABLE);
    let panics = on_post(async || {
        if true {
            panic!("on purpose")
        }
    });
    let slow = on_post(async || std::future::pending::<()>().await);
    Router::new()
        .route("/orders", on_post(async || "done"))
        .route("/large", large)
        .route("/fails", fails.clone())
        .route("/backs-off", fails.clone())
        .route("/gives-up", fails)
        .route("/panics", panics)
        .route("/slow", slow)
        .route("/wrong", on_post(async |_: Tx<SqliteStore>| "never"))
}

async fn ask(app: &Router, path: &str, times: usize) -> Answer {
    let mut answer = send(app, post(path, "k", "{}")).await;
    for _ in 1..times {
        answer = send(app, post(path, "k", "{}")).await;
    }
    answer
}

/// Problems of single requests, and of requests that were sent before.
async fn told_by_routes(said: &mut Said) {
    let hour = Duration::from_secs(3_600);
    let ends = |on_failure| Rules::new().command(move |command| command.on_failure(on_failure));
    let layer = layer(MemoryStore::new())
        .rules(Rules::new().required().max_request(10))
        .route("POST /large", Rules::new().max_response(3))
        .route("POST /fails", ends(OnFailure::Keep))
        .route("POST /backs-off", ends(OnFailure::Backoff { base: hour, cap: hour }))
        .route("POST /gives-up", Rules::new().command(|command| command.max_attempts(1)))
        .route(
            "POST /slow",
            Rules::new().command(|command| command.work_timeout(Duration::from_millis(10))),
        );
    let app = failing().layer(layer);
    said.note(Slug::KeyMissing, &send(&app, request(Method::POST, "/orders", "{}")).await);
    let unreadable = with(request(Method::POST, "/orders", "{}"), "idempotency-key", "\"open");
    said.note(Slug::KeyInvalid, &send(&app, unreadable).await);
    let long = post("/orders", "k", r#"{"amount":1}"#);
    said.note(Slug::BodyTooLarge, &send(&app, long).await);
    assert_eq!(ask(&app, "/orders", 1).await.text(), "done");
    said.note(Slug::KeyReused, &send(&app, post("/orders", "k", "[]")).await);
    said.note(Slug::ResultUnavailable, &ask(&app, "/large", 2).await);
    said.note(Slug::Failed, &ask(&app, "/fails", 2).await);
    said.note(Slug::BackingOff, &ask(&app, "/backs-off", 2).await);
    said.note(Slug::Dead, &ask(&app, "/gives-up", 2).await);
    said.note(Slug::WorkFailed, &ask(&app, "/panics", 1).await);
    said.note(Slug::WorkTimeout, &ask(&app, "/slow", 1).await);
    said.note(Slug::Misconfigured, &ask(&app, "/wrong", 1).await);
    let never_was = format!("{OPERATIONS}{}", OperationId::generate());
    said.note(Slug::OperationUnknown, &send(&app, get(&never_was)).await);
}

/// Problems of callers that are unknown, or may not have the response.
async fn told_to_callers(said: &mut Said) {
    let header = |name| HeaderName::from_static(name);
    let layer = IdempotencyLayer::fenced(
        Executor::new(MemoryStore::new()),
        Tenant::header(header("x-tenant")),
        PrincipalFrom::header(header("x-user")),
    );
    let layer = layer.rules(Rules::new().replay_check(|_| async { false }));
    let app = failing().layer(layer);
    said.note(Slug::TenantUnknown, &send(&app, order()).await);
    let of_tenant = || with(order(), "x-tenant", "acme");
    said.note(Slug::PrincipalUnknown, &send(&app, of_tenant()).await);
    let known = || with(of_tenant(), "x-user", "ann");
    assert_eq!(send(&app, known()).await.text(), "done");
    said.note(Slug::ReplayRefused, &send(&app, known()).await);
    let broken = Request::post("/orders").header("idempotency-key", "other");
    let broken = broken.header("x-tenant", "acme").header("x-user", "ann");
    let cut: Result<http_body::Frame<bytes::Bytes>, _> = Err(std::io::Error::other("it broke off"));
    let body = http_body_util::StreamBody::new(futures_util::stream::iter([cut]));
    let body = Sent::new(body);
    said.note(Slug::BodyIncomplete, &send(&app, broken.body(body).expect("a request")).await);
}

/// The problem of a body that never comes.
async fn told_of_time(said: &mut Said) {
    let rules = Rules::new().body_timeout(Duration::from_millis(10));
    let app = failing().layer(layer(MemoryStore::new()).rules(rules));
    let silent =
        futures_util::stream::pending::<Result<http_body::Frame<bytes::Bytes>, std::io::Error>>();
    let body = Sent::new(http_body_util::StreamBody::new(silent));
    let late = Request::post("/orders").header("idempotency-key", "k").body(body);
    said.note(Slug::BodyTimeout, &send(&app, late.expect("a request")).await);
    assert_eq!(send(&app, order()).await.text(), "done", "nothing was claimed");
}

/// Problems of stores, and of requests that are under way.
async fn told_of_stores(said: &mut Said) {
    let (store, faults) = faulty(MemoryStore::new());
    let executor = Executor::new(store);
    let layer =
        IdempotencyLayer::fenced(executor.clone(), Tenant::fixed("acme"), PrincipalFrom::global());
    let gate = Gate::new();
    let waits = gate.clone();
    let handler = on_post(async move || waits.pass().await);
    let app = Router::new().route("/orders", handler).layer(layer);
    let first = sending(&app, order());
    gate.reached().await;
    said.note(Slug::InProgress, &send(&app, order()).await);
    gate.open();
    assert_eq!(first.await.expect("an answer").status, 200);
    faults.next(StoreCall::Open, Fault::Refuse);
    said.note(Slug::StoreUnavailable, &send(&app, post("/orders", "other", "{}")).await);
    executor.shutdown(Duration::from_secs(30)).await;
    said.note(Slug::ShuttingDown, &send(&app, post("/orders", "other", "{}")).await);
    let full = Memory::for_keys(1).store().await;
    let app = failing().layer(crate::stage::layer(full));
    assert_eq!(ask(&app, "/orders", 1).await.text(), "done");
    said.note(Slug::StoreFull, &send(&app, post("/orders", "other", "{}")).await);
}

/// Problems of what crashed, and of what could not be committed.
async fn told_of_endings(said: &mut Said) {
    let backend = Memory::open().await;
    let store = backend.store().await;
    abandoned(&store).await;
    backend.advance(Duration::from_secs(60)).await;
    let rules = Rules::new().command(|command| {
        command.verify(|_| async { semel_core::executor::Verification::Unknown })
    });
    let app = failing().layer(layer(store).rules(rules));
    said.note(Slug::Uncertain, &send(&app, order()).await);
    let backend = Sqlite::open().await;
    let executor = backend.executor().await;
    let atomic = IdempotencyLayer::atomic(executor, Tenant::fixed("acme"), PrincipalFrom::global());
    let app = failing().layer(atomic.rules(Rules::new().max_response(3)));
    said.note(Slug::ResultTooLarge, &ask(&app, "/wrong", 1).await);
}

#[test]
fn a_new_key_is_safe_only_where_the_old_one_was_never_claimed() {
    run(async {
        let mut said = Said::default();
        told_by_routes(&mut said).await;
        told_to_callers(&mut said).await;
        told_of_time(&mut said).await;
        told_of_stores(&mut said).await;
        told_of_endings(&mut said).await;
        let safe: Vec<_> =
            said.0.iter().filter(|(_, safe)| **safe).map(|(slug, _)| *slug).collect();
        assert_eq!(safe, ["body-too-large", "key-invalid", "key-missing"]);
        // What takes a lost race to be told is told in `tests/http`, what extractors tell in
        // `tests/ids`, and what a gateway tells in its own tests.
        let untold: Vec<_> =
            Slug::ALL.iter().filter(|slug| !said.0.contains_key(slug.as_str())).collect();
        let elsewhere = [
            Slug::ClaimLost,
            Slug::UpstreamUnreachable,
            Slug::UpstreamAmbiguous,
            Slug::Overloaded,
            Slug::PublicIdInvalid,
            Slug::PublicIdNotFound,
        ];
        assert_eq!(untold, elsewhere.iter().collect::<Vec<_>>());
    });
}
