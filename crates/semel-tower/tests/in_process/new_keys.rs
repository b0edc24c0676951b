//! Tests which problems declare a new key as safe: those of requests whose key was never claimed.

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
use crate::support::{Gate, abandoned, faulty, layer, order, send, sending, with};

/// Whether each kind of problem declared a new key as safe.
#[derive(Default)]
struct SafeNewKeys(BTreeMap<&'static str, bool>);

impl SafeNewKeys {
    fn note(&mut self, slug: Slug, answer: &Answer) {
        assert_eq!(answer.problem().as_deref(), Some(slug.as_str()), "{answer:?}");
        let safe = answer.json()["safe_new_key"].as_bool().expect("a boolean");
        self.0.insert(slug.as_str(), safe);
    }
}

/// Returns a router at `/orders` with routes that fail in different ways.
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

/// Collects the problems of single requests, and of repeats.
async fn collect_from_routes(safe_new_keys: &mut SafeNewKeys) {
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
    safe_new_keys.note(Slug::KeyMissing, &send(&app, request(Method::POST, "/orders", "{}")).await);
    let unreadable = with(request(Method::POST, "/orders", "{}"), "idempotency-key", "\"open");
    safe_new_keys.note(Slug::KeyInvalid, &send(&app, unreadable).await);
    let long = post("/orders", "k", r#"{"amount":1}"#);
    safe_new_keys.note(Slug::BodyTooLarge, &send(&app, long).await);
    assert_eq!(ask(&app, "/orders", 1).await.text(), "done");
    safe_new_keys.note(Slug::KeyReused, &send(&app, post("/orders", "k", "[]")).await);
    safe_new_keys.note(Slug::ResultUnavailable, &ask(&app, "/large", 2).await);
    safe_new_keys.note(Slug::Failed, &ask(&app, "/fails", 2).await);
    safe_new_keys.note(Slug::BackingOff, &ask(&app, "/backs-off", 2).await);
    safe_new_keys.note(Slug::Dead, &ask(&app, "/gives-up", 2).await);
    safe_new_keys.note(Slug::WorkFailed, &ask(&app, "/panics", 1).await);
    safe_new_keys.note(Slug::WorkTimeout, &ask(&app, "/slow", 1).await);
    safe_new_keys.note(Slug::Misconfigured, &ask(&app, "/wrong", 1).await);
    let never_was = format!("{OPERATIONS}{}", OperationId::generate());
    safe_new_keys.note(Slug::OperationUnknown, &send(&app, get(&never_was)).await);
}

/// Collects the problems of callers that are unknown, or may not get the response.
async fn collect_from_callers(safe_new_keys: &mut SafeNewKeys) {
    let header = |name| HeaderName::from_static(name);
    let layer = IdempotencyLayer::fenced(
        Executor::new(MemoryStore::new()),
        Tenant::header(header("x-tenant")),
        PrincipalFrom::header(header("x-user")),
    );
    let layer = layer.rules(Rules::new().replay_check(|_| async { false }));
    let app = failing().layer(layer);
    safe_new_keys.note(Slug::TenantUnknown, &send(&app, order()).await);
    let of_tenant = || with(order(), "x-tenant", "acme");
    safe_new_keys.note(Slug::PrincipalUnknown, &send(&app, of_tenant()).await);
    let known = || with(of_tenant(), "x-user", "ann");
    assert_eq!(send(&app, known()).await.text(), "done");
    safe_new_keys.note(Slug::ReplayRefused, &send(&app, known()).await);
    let broken = Request::post("/orders").header("idempotency-key", "other");
    let broken = broken.header("x-tenant", "acme").header("x-user", "ann");
    let cut: Result<http_body::Frame<bytes::Bytes>, _> =
        Err(std::io::Error::other("the body broke off"));
    let body = http_body_util::StreamBody::new(futures_util::stream::iter([cut]));
    let body = Sent::new(body);
    safe_new_keys
        .note(Slug::BodyIncomplete, &send(&app, broken.body(body).expect("a request")).await);
}

/// Collects the problem of a body that never arrives.
async fn collect_from_slow_bodies(safe_new_keys: &mut SafeNewKeys) {
    let rules = Rules::new().body_timeout(Duration::from_millis(10));
    let app = failing().layer(layer(MemoryStore::new()).rules(rules));
    let silent =
        futures_util::stream::pending::<Result<http_body::Frame<bytes::Bytes>, std::io::Error>>();
    let body = Sent::new(http_body_util::StreamBody::new(silent));
    let late = Request::post("/orders").header("idempotency-key", "k").body(body);
    safe_new_keys.note(Slug::BodyTimeout, &send(&app, late.expect("a request")).await);
    assert_eq!(send(&app, order()).await.text(), "done", "nothing was claimed");
}

/// Collects the problems of stores, and of requests under way.
async fn collect_from_stores(safe_new_keys: &mut SafeNewKeys) {
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
    safe_new_keys.note(Slug::InProgress, &send(&app, order()).await);
    gate.open();
    assert_eq!(first.await.expect("an answer").status, 200);
    faults.next(StoreCall::Open, Fault::Refuse);
    safe_new_keys.note(Slug::StoreUnavailable, &send(&app, post("/orders", "other", "{}")).await);
    executor.shutdown(Duration::from_secs(30)).await;
    safe_new_keys.note(Slug::ShuttingDown, &send(&app, post("/orders", "other", "{}")).await);
    let full = Memory::for_keys(1).store().await;
    let app = failing().layer(crate::support::layer(full));
    assert_eq!(ask(&app, "/orders", 1).await.text(), "done");
    safe_new_keys.note(Slug::StoreFull, &send(&app, post("/orders", "other", "{}")).await);
}

/// Collects the problems of crashed attempts, and of results that could not be committed.
async fn collect_from_endings(safe_new_keys: &mut SafeNewKeys) {
    let backend = Memory::open().await;
    let store = backend.store().await;
    abandoned(&store).await;
    backend.advance(Duration::from_secs(60)).await;
    let rules = Rules::new().command(|command| {
        command.verify(|_| async { semel_core::executor::Verification::Unknown })
    });
    let app = failing().layer(layer(store).rules(rules));
    safe_new_keys.note(Slug::Uncertain, &send(&app, order()).await);
    let backend = Sqlite::open().await;
    let executor = backend.executor().await;
    let atomic = IdempotencyLayer::atomic(executor, Tenant::fixed("acme"), PrincipalFrom::global());
    let app = failing().layer(atomic.rules(Rules::new().max_response(3)));
    safe_new_keys.note(Slug::ResultTooLarge, &ask(&app, "/wrong", 1).await);
}

#[test]
fn a_new_key_is_safe_only_where_the_old_one_was_never_claimed() {
    run(async {
        let mut safe_new_keys = SafeNewKeys::default();
        collect_from_routes(&mut safe_new_keys).await;
        collect_from_callers(&mut safe_new_keys).await;
        collect_from_slow_bodies(&mut safe_new_keys).await;
        collect_from_stores(&mut safe_new_keys).await;
        collect_from_endings(&mut safe_new_keys).await;
        let safe: Vec<_> =
            safe_new_keys.0.iter().filter(|(_, safe)| **safe).map(|(slug, _)| *slug).collect();
        assert_eq!(safe, ["body-too-large", "key-invalid", "key-missing"]);
        // Problems that need a lost race are tested in `tests/http`, those of extractors in
        // `tests/ids`, and those of a gateway in its own tests.
        let missing: Vec<_> =
            Slug::ALL.iter().filter(|slug| !safe_new_keys.0.contains_key(slug.as_str())).collect();
        let elsewhere = [
            Slug::ClaimLost,
            Slug::UpstreamUnreachable,
            Slug::UpstreamAmbiguous,
            Slug::Overloaded,
            Slug::PublicIdInvalid,
            Slug::PublicIdNotFound,
        ];
        assert_eq!(missing, elsewhere.iter().collect::<Vec<_>>());
    });
}
