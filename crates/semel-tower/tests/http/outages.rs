//! Tests of stores that fail: a request that could not be recorded does not run, unless its route
//! fails open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use semel_core::{Executor, OnCrash, Store};
use semel_redis::RedisStore;
use semel_servers::{self as servers, Options};
use semel_sql::postgres::PgStore;
use semel_testkit::faulty::{Fault, Faults, FaultyStore, StoreCall};
use semel_tower::axum::OperationContext;
use semel_tower::http::Rules;

use crate::backend::{Backend, Memory, Protocol, Server, in_memory, on_every_store, post, run};
use crate::support::{Runs, created, layer, router};

/// Serves a handler on a store that fails according to a script.
async fn faulty<G: Backend>(backend: &G, rules: Rules) -> (Server, Runs, Faults) {
    let store = FaultyStore::new(backend.any_store().await);
    let faults = store.faults().clone();
    let layer = layer(Executor::new(store)).rules(rules);
    let runs = Runs::default();
    (Server::start(backend, router(&runs, created).layer(layer)).await, runs, faults)
}

async fn a_request_is_refused_before_it_runs_while_the_store_is_down<G: Backend>(backend: G) {
    let (server, runs, faults) = faulty(&backend, Rules::new()).await;
    faults.always(StoreCall::Open, Fault::Refuse);
    for _ in 0..3 {
        let answer = server.send(post("/orders", "k", "{}")).await;
        assert_eq!(
            (answer.status.as_u16(), answer.problem().as_deref()),
            (503, Some("store-unavailable"))
        );
        assert_eq!(answer.header("retry-after"), Some("1"));
        let json = answer.json();
        // An earlier request with this key may have run, so a new key is not safe.
        assert_eq!((&json["retryable"], &json["safe_new_key"]), (&true.into(), &false.into()));
    }
    assert_eq!(runs.count(), 0);
    assert_ne!(faults.happened(StoreCall::Open), 0);
    faults.heal();
    assert_eq!(server.send(post("/orders", "k", "{}")).await.text(), "run 1");
}

async fn a_request_without_a_key_needs_no_store<G: Backend>(backend: G) {
    let (server, runs, faults) = faulty(&backend, Rules::new()).await;
    faults.always(StoreCall::Open, Fault::Refuse);
    let unkeyed = crate::backend::request(http::Method::POST, "/orders", "{}");
    assert_eq!(server.send(unkeyed).await.status, 201);
    assert_eq!((runs.count(), faults.calls(StoreCall::Open)), (1, 0));
}

async fn a_claim_whose_reply_was_lost_is_found_again_and_runs_once<G: Backend>(backend: G) {
    let (server, runs, faults) = faulty(&backend, Rules::new()).await;
    faults.next(StoreCall::Open, Fault::LoseReply);
    assert_eq!(server.send(post("/orders", "k", "{}")).await.text(), "run 1");
    assert_eq!(faults.happened(StoreCall::Open), 1);
    assert!(server.send(post("/orders", "k", "{}")).await.replayed());
    assert_eq!(runs.count(), 1);
}

async fn a_response_whose_record_was_not_confirmed_is_kept<G: Backend>(backend: G) {
    for fault in [Fault::LoseReply, Fault::LoseRequest, Fault::Refuse] {
        let (server, runs, faults) = faulty(&backend, Rules::new()).await;
        faults.next(StoreCall::Settle, fault);
        let key = format!("{fault:?}");
        assert_eq!(server.send(post("/orders", &key, "{}")).await.text(), "run 1");
        assert_eq!(faults.happened(StoreCall::Settle), 1);
        // In another process, which has no local copy of the outcome.
        let (other, _, _) = faulty(&backend, Rules::new()).await;
        assert!(other.send(post("/orders", &key, "{}")).await.replayed());
        assert_eq!(runs.count(), 1);
    }
}

async fn a_response_that_could_not_be_recorded_is_delivered_and_does_not_run_again<G: Backend>(
    backend: G,
) {
    // A lease for as long as recording is tried.
    let lease = Duration::from_secs(6);
    let rules = Rules::new().command(move |command| command.lease(lease).on_crash(OnCrash::Hold));
    let (server, runs, faults) = faulty(&backend, rules).await;
    for verb in [StoreCall::Settle, StoreCall::Renew] {
        faults.always(verb, Fault::Refuse);
    }
    let first = server.send(post("/orders", "k", "{}")).await;
    assert_eq!((first.status.as_u16(), first.text()), (201, "run 1"));
    assert_ne!(faults.happened(StoreCall::Settle), 0);
    faults.heal();
    backend.advance(2 * lease).await;
    let again = server.send(post("/orders", "k", "{}")).await;
    assert_eq!(again.problem().as_deref(), Some("uncertain"));
    assert_eq!(runs.count(), 1);
}

async fn a_route_may_run_unprotected_while_the_store_is_down<G: Backend>(backend: G) {
    let (server, runs, faults) = faulty(&backend, Rules::new().fail_open()).await;
    assert_eq!(server.send(post("/orders", "before", "{}")).await.text(), "run 1");
    faults.always(StoreCall::Open, Fault::Refuse);
    for n in 2..=3 {
        let answer = server.send(post("/orders", "k", r#"{"amount":1}"#)).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (201, &*format!("run {n}")));
    }
    faults.heal();
    assert_eq!(server.send(post("/orders", "k", r#"{"amount":1}"#)).await.text(), "run 4");
    assert!(server.send(post("/orders", "k", r#"{"amount":1}"#)).await.replayed());
    assert_eq!(runs.count(), 4);
}

async fn a_request_that_runs_unprotected_is_whole<G: Backend>(backend: G) {
    let store = FaultyStore::new(backend.any_store().await);
    store.faults().always(StoreCall::Open, Fault::Refuse);
    let layer = layer(Executor::new(store)).rules(Rules::new().fail_open());
    let handler = axum::routing::any(async |request: axum::extract::Request| {
        let read = request.into_body().collect().await.expect("a whole body");
        let sum = read.trailers().and_then(|trailers| trailers.get("x-sum")).cloned();
        (StatusCode::CREATED, sum.map(|sum| sum.as_bytes().to_vec()).unwrap_or_default())
    });
    let router = Router::new().route("/orders", handler).layer(layer);
    let server = Server::speaking(Protocol::H2, router).await;
    let trailers = HeaderMap::from_iter([("x-sum".parse().expect("a name"), 7.into())]);
    let data = Frame::data(Bytes::from_static(b"{}"));
    let frames = futures_util::stream::iter([Ok(data), Ok(Frame::trailers(trailers))]);
    let body = StreamBody::new(frames).boxed_unsync();
    let answer = server.send(post("/orders", "k", "{}").map(|_| body)).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (201, "7"));
}

async fn a_handler_that_needs_its_claim_does_not_run_unprotected<G: Backend>(backend: G) {
    let store = FaultyStore::new(backend.any_store().await);
    store.faults().next(StoreCall::Open, Fault::Refuse);
    let layer = layer(Executor::new(store)).rules(Rules::new().fail_open());
    let handler = axum::routing::any(async |_: OperationContext| "done");
    let server =
        Server::start(&backend, Router::new().route("/orders", handler).layer(layer)).await;
    let answer = server.send(post("/orders", "k", "{}")).await;
    assert_eq!(
        (answer.status.as_u16(), answer.problem().as_deref()),
        (503, Some("store-unavailable"))
    );
    assert_eq!(server.send(post("/orders", "k", "{}")).await.text(), "done");
}

/// A recorder that counts only `semel_fail_open_requests_total`.
struct FailOpen(Arc<AtomicU64>);

impl Recorder for FailOpen {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match key.name() {
            "semel_fail_open_requests_total" => Counter::from_arc(Arc::clone(&self.0)),
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn requests_that_ran_unprotected_are_counted() {
    run(async {
        let counted = Arc::new(AtomicU64::new(0));
        metrics::set_global_recorder(FailOpen(Arc::clone(&counted))).expect("the only recorder");
        let backend = Memory::for_keys(1);
        let (server, runs, _) = faulty(&backend, Rules::new().fail_open()).await;
        let before = counted.load(Ordering::SeqCst);
        for n in 1..=3 {
            let answer = server.send(post("/orders", &format!("k-{n}"), "{}")).await;
            assert_eq!(answer.status, 201);
        }
        // The count may be higher, because other tests of this process may run unprotected at the
        // same time.
        assert!(counted.load(Ordering::SeqCst) >= before + 2, "the store has room for one key");
        assert_eq!(runs.count(), 3);
    });
}

/// Checks that the handler is called while `server` is up, and never while it is down.
async fn survives<S: Store>(store: S, mut server: servers::Server) {
    let runs = Runs::default();
    let layer = layer(Executor::new(store));
    let service = Server::speaking(Protocol::H1, router(&runs, created).layer(layer)).await;
    assert_eq!(service.send(post("/orders", "before", "{}")).await.text(), "run 1");
    server.stop().expect("stopped");
    for n in 0..3 {
        let answer = service.send(post("/orders", &format!("during-{n}"), "{}")).await;
        assert_eq!(
            (answer.status.as_u16(), answer.problem().as_deref()),
            (503, Some("store-unavailable"))
        );
        assert!(answer.header("retry-after").is_some());
    }
    assert_eq!(runs.count(), 1);
    server.restart().expect("restarted");
    assert_eq!(service.send(post("/orders", "after", "{}")).await.text(), "run 2");
}

#[test]
fn faults_nothing_runs_while_postgresql_is_down() {
    run(async {
        let server = servers::Postgres::start(Options::new()).expect("a private server");
        let store = PgStore::connect(server.url()).await.expect("connected");
        store.migrate().await.expect("migrated");
        survives(store, server).await;
    });
}

#[test]
fn faults_nothing_runs_while_redis_is_down() {
    run(async {
        let server = servers::Redis::start(Options::new()).expect("a private server");
        let store = RedisStore::connect(server.url()).await.expect("connected");
        survives(store, server).await;
    });
}

on_every_store! {
    a_request_is_refused_before_it_runs_while_the_store_is_down,
    a_claim_whose_reply_was_lost_is_found_again_and_runs_once,
    a_response_whose_record_was_not_confirmed_is_kept,
}

in_memory! {
    a_response_that_could_not_be_recorded_is_delivered_and_does_not_run_again,
    a_request_without_a_key_needs_no_store,
    a_route_may_run_unprotected_while_the_store_is_down,
    a_request_that_runs_unprotected_is_whole,
    a_handler_that_needs_its_claim_does_not_run_unprotected,
}
