//! Tests how long responses are stored, where they are cached, and the check before a replay.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use http::request::Parts;
use semel_core::Executor;
use semel_core::executor::LocalReplay;
use semel_testkit::faulty::{Fault, FaultyStore, StoreCall};
use semel_tower::http::Rules;

use crate::backend::{Backend, Server, in_memory, on_every_store, post};
use crate::support::{Runs, created, forgetful_executor, layer, router, serve};

const HOUR: Duration = Duration::from_secs(3_600);

/// Starts a service that reads the store for every repeat.
async fn forgetful<G: Backend>(backend: &G, rules: Rules) -> (Server, Runs) {
    let executor = forgetful_executor(backend).await;
    let runs = Runs::default();
    let router = router(&runs, created).layer(layer(executor).rules(rules));
    (Server::start(backend, router).await, runs)
}

async fn an_answer_is_kept_for_its_time_and_no_longer<G: Backend>(backend: G) {
    let (server, runs) = forgetful(&backend, Rules::new().keep(2 * HOUR)).await;
    assert_eq!(server.send(post("/orders", "k", "{}")).await.text(), "run 1");
    backend.advance(HOUR).await;
    assert!(server.send(post("/orders", "k", "{}")).await.replayed());
    backend.advance(HOUR + Duration::from_secs(1)).await;
    let anew = server.send(post("/orders", "k", "{}")).await;
    assert_eq!((anew.text(), anew.replayed()), ("run 2", false));
    assert_eq!(runs.count(), 2);
}

async fn a_response_is_kept_for_a_day_by_default<G: Backend>(backend: G) {
    let (server, runs) = forgetful(&backend, Rules::new()).await;
    server.send(post("/orders", "k", "{}")).await;
    backend.advance(23 * HOUR).await;
    assert!(server.send(post("/orders", "k", "{}")).await.replayed());
    backend.advance(2 * HOUR).await;
    assert!(!server.send(post("/orders", "k", "{}")).await.replayed());
    assert_eq!(runs.count(), 2);
}

async fn an_expired_key_is_free_for_another_request<G: Backend>(backend: G) {
    let (server, runs) = forgetful(&backend, Rules::new().keep(HOUR)).await;
    server.send(post("/orders", "k", "[1]")).await;
    assert_eq!(server.send(post("/orders", "k", "[2]")).await.status, 422);
    backend.advance(2 * HOUR).await;
    assert_eq!(server.send(post("/orders", "k", "[2]")).await.text(), "run 2");
    assert_eq!(server.send(post("/orders", "k", "[1]")).await.status, 422);
    assert_eq!(runs.count(), 2);
}

async fn repeats_are_the_same_with_and_without_a_local_cache<G: Backend>(backend: G) {
    let (forgetful, never) = forgetful(&backend, Rules::new()).await;
    let (remembering, once) = serve(&backend, Rules::new(), created).await;
    let first = remembering.send(post("/orders", "k", "{}")).await;
    for server in [&remembering, &forgetful, &remembering, &forgetful] {
        let again = server.send(post("/orders", "k", "{}")).await;
        assert!(again.replayed());
        assert_eq!((again.status, &again.body), (first.status, &first.body));
        assert_eq!(server.send(post("/orders", "k", "[]")).await.status, 422);
    }
    assert_eq!((once.count(), never.count()), (1, 0));
}

async fn a_cached_response_needs_no_store<G: Backend>(backend: G) {
    let store = FaultyStore::new(backend.any_store().await);
    let faults = store.faults().clone();
    let runs = Runs::default();
    let router = router(&runs, created).layer(layer(Executor::new(store)));
    let server = Server::start(&backend, router).await;
    server.send(post("/orders", "k", "{}")).await;
    for verb in StoreCall::ALL {
        faults.always(verb, Fault::Refuse);
    }
    assert!(server.send(post("/orders", "k", "{}")).await.replayed());
    assert_eq!(faults.total(), 0);
    assert_eq!(server.send(post("/orders", "other", "{}")).await.status, 503);
    assert_eq!(runs.count(), 1);
}

async fn a_service_without_a_cache_reads_the_store_every_time<G: Backend>(backend: G) {
    let store = FaultyStore::new(backend.any_store().await);
    let faults = store.faults().clone();
    let executor = Executor::builder(store).local_replay(LocalReplay::OFF).build();
    let runs = Runs::default();
    let layer = layer(executor.expect("settings that work"));
    let server = Server::start(&backend, router(&runs, created).layer(layer)).await;
    for n in 1..=3 {
        server.send(post("/orders", "k", "{}")).await;
        assert_eq!(faults.calls(StoreCall::Open), n);
    }
    assert_eq!(runs.count(), 1);
}

async fn a_replay_is_refused_if_the_check_refuses<G: Backend>(backend: G) {
    let (allowed, checks) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU32::new(0)));
    let (switch, count) = (Arc::clone(&allowed), Arc::clone(&checks));
    let rules = Rules::new().replay_check(move |parts: &Parts| {
        assert_eq!(parts.uri.path(), "/orders");
        count.fetch_add(1, Ordering::SeqCst);
        let allowed = switch.load(Ordering::SeqCst);
        async move { allowed }
    });
    let (server, runs) = serve(&backend, rules, created).await;
    let first = server.send(post("/orders", "k", "{}")).await;
    assert_eq!((first.status.as_u16(), checks.load(Ordering::SeqCst)), (201, 0), "not a replay");
    assert!(server.send(post("/orders", "k", "{}")).await.replayed());
    allowed.store(false, Ordering::SeqCst);
    let refused = server.send(post("/orders", "k", "{}")).await;
    assert_eq!(
        (refused.status.as_u16(), refused.problem().as_deref()),
        (403, Some("replay-refused"))
    );
    assert!(!refused.text().contains("run 1"));
    assert_eq!((runs.count(), checks.load(Ordering::SeqCst)), (1, 2));
    allowed.store(true, Ordering::SeqCst);
    assert_eq!(server.send(post("/orders", "k", "{}")).await.text(), "run 1");
}

on_every_store! {
    an_answer_is_kept_for_its_time_and_no_longer,
    a_response_is_kept_for_a_day_by_default,
    an_expired_key_is_free_for_another_request,
    repeats_are_the_same_with_and_without_a_local_cache,
}

in_memory! {
    a_cached_response_needs_no_store,
    a_service_without_a_cache_reads_the_store_every_time,
    a_replay_is_refused_if_the_check_refuses,
}
