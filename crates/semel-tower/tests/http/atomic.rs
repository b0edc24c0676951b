//! Tests of the atomic layer: a handler's rows and its response are one commit.

mod rivals;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::routing::{any, post as on_post};
use http::{Method, StatusCode};
use semel_core::executor::Unit;
use semel_core::store::TransactionalStore;
use semel_core::{Executor, OnFailure};
use semel_testkit::faulty::{Fault, FaultyStore, StoreCall};
use semel_tower::axum::{OperationContext, Tx};
use semel_tower::http::{IdempotencyLayer, Preset, Rules};
use semel_tower::{Atomic, PrincipalFrom, Tenant, Transaction};

use crate::backend::{AtomicBackend, Server, on_every_database, post, request};
use crate::support::Runs;

fn layer<S: TransactionalStore>(executor: Executor<S>) -> IdempotencyLayer<S, Atomic> {
    IdempotencyLayer::atomic(executor, Tenant::fixed("acme"), PrincipalFrom::global())
}

/// Serves a handler that writes its body as a row and then answers with `status`.
async fn writing<G: AtomicBackend>(backend: &G, rules: Rules, status: u16) -> (Server, Runs) {
    let layer = layer(backend.executor().await).rules(rules);
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = on_post(move |Tx(mut unit): Tx<G::Store>, note: String| {
        let runs = counted.clone();
        async move {
            G::insert(unit.conn(), &note).await;
            (StatusCode::from_u16(status).expect("a status"), format!("run {}", runs.next()))
        }
    });
    let server = Server::start(backend, Router::new().route("/orders", handler).layer(layer)).await;
    (server, runs)
}

async fn a_row_and_its_answer_commit_together<G: AtomicBackend>(backend: G) {
    let (here, runs) = writing(&backend, Rules::new().required(), 201).await;
    let (there, others) = writing(&backend, Rules::new().required(), 201).await;
    let first = here.send(post("/orders", "k", "[1]")).await;
    assert_eq!((first.status.as_u16(), first.text(), first.replayed()), (201, "run 1", false));
    assert_eq!(backend.rows().await, ["[1]"]);
    for server in [&here, &there] {
        let again = server.send(post("/orders", "k", "[1]")).await;
        assert_eq!((again.status.as_u16(), again.text(), again.replayed()), (201, "run 1", true));
        assert_eq!(server.send(post("/orders", "k", "[2]")).await.status, 422);
    }
    assert_eq!(backend.rows().await, ["[1]"]);
    assert_eq!((runs.count(), others.count()), (1, 0));
}

async fn a_refusal_rolls_its_rows_back_and_releases_the_key<G: AtomicBackend>(backend: G) {
    let (server, runs) = writing(&backend, Rules::new(), 422).await;
    for note in ["[1]", "[2]"] {
        let answer = server.send(post("/orders", "k", note)).await;
        assert_eq!(
            (answer.status.as_u16(), answer.problem(), answer.replayed()),
            (422, None, false)
        );
    }
    assert_eq!((runs.count(), backend.rows().await.len()), (2, 0));
    let (server, _) = writing(&backend, Rules::new(), 201).await;
    assert_eq!(server.send(post("/orders", "k", "[3]")).await.status, 201);
    assert_eq!(backend.rows().await, ["[3]"]);
}

async fn a_refusal_that_is_stored_rolls_its_rows_back_too<G: AtomicBackend>(backend: G) {
    let rules = Rules::new().preset(Preset::below_500());
    let (server, runs) = writing(&backend, rules, 422).await;
    for replayed in [false, true] {
        let answer = server.send(post("/orders", "k", "[1]")).await;
        assert_eq!(
            (answer.status.as_u16(), answer.text(), answer.replayed()),
            (422, "run 1", replayed)
        );
    }
    assert_eq!((runs.count(), backend.rows().await.len()), (1, 0));
}

async fn a_failure_rolls_its_rows_back_and_is_recorded<G: AtomicBackend>(backend: G) {
    let rules = Rules::new().command(|command| {
        let hour = Duration::from_secs(3_600);
        command.on_failure(OnFailure::Backoff { base: hour, cap: hour })
    });
    let (server, runs) = writing(&backend, rules, 503).await;
    assert_eq!(server.send(post("/orders", "k", "[1]")).await.text(), "run 1");
    assert_eq!(backend.rows().await.len(), 0);
    let repeat = server.send(post("/orders", "k", "[1]")).await;
    assert_eq!(repeat.problem().as_deref(), Some("backing-off"));
    assert_eq!(runs.count(), 1);
    backend.advance(Duration::from_secs(3_601)).await;
    let (server, _) = writing(&backend, Rules::new(), 201).await;
    assert_eq!(server.send(post("/orders", "k", "[1]")).await.status, 201);
    assert_eq!(backend.rows().await, ["[1]"]);
}

async fn a_panic_rolls_its_rows_back<G: AtomicBackend>(backend: G) {
    let handler = on_post(|Tx(mut unit): Tx<G::Store>, note: String| async move {
        G::insert(unit.conn(), &note).await;
        assert!(note == "never", "this handler panics on purpose");
    });
    let layer = layer(backend.executor().await);
    let server =
        Server::start(&backend, Router::new().route("/orders", handler).layer(layer)).await;
    let answer = server.send(post("/orders", "k", "[1]")).await;
    assert_eq!((answer.status.as_u16(), answer.problem().as_deref()), (500, Some("work-failed")));
    assert_eq!(backend.rows().await.len(), 0);
    let (server, _) = writing(&backend, Rules::new(), 201).await;
    assert_eq!(server.send(post("/orders", "k", "[1]")).await.status, 201);
    assert_eq!(backend.rows().await, ["[1]"]);
}

async fn a_handler_that_takes_too_long_rolls_its_rows_back<G: AtomicBackend>(backend: G) {
    let limit = Duration::from_millis(100);
    let rules = Rules::new().required().command(move |command| command.work_timeout(limit));
    let layer = layer(backend.executor().await).rules(rules);
    let handler = on_post(|Tx(mut unit): Tx<G::Store>, note: String| async move {
        G::insert(unit.conn(), &note).await;
        std::future::pending::<()>().await;
    });
    let server =
        Server::start(&backend, Router::new().route("/orders", handler).layer(layer)).await;
    let answer = server.send(post("/orders", "k", "[1]")).await;
    assert_eq!((answer.status.as_u16(), answer.problem().as_deref()), (504, Some("work-timeout")));
    assert_eq!(backend.rows().await.len(), 0);
}

async fn an_answer_too_large_to_keep_commits_nothing<G: AtomicBackend>(backend: G) {
    let rules = Rules::new().max_response(3);
    let (server, runs) = writing(&backend, rules, 201).await;
    for n in 1..=2 {
        let answer = server.send(post("/orders", "k", "[1]")).await;
        assert_eq!(
            (answer.status.as_u16(), answer.problem().as_deref()),
            (500, Some("result-too-large"))
        );
        assert_eq!(runs.count(), n);
    }
    assert_eq!(backend.rows().await.len(), 0);
}

async fn a_handler_that_keeps_its_transaction_commits_nothing<G: AtomicBackend>(backend: G) {
    type Kept<S> = Arc<Mutex<Option<Unit<S>>>>;
    let kept: Kept<G::Store> = Kept::default();
    let keeps = Arc::clone(&kept);
    let handler = on_post(move |Tx(mut unit): Tx<G::Store>, note: String| {
        let keeps = Arc::clone(&keeps);
        async move {
            G::insert(unit.conn(), &note).await;
            *keeps.lock().unwrap_or_else(PoisonError::into_inner) = Some(unit);
            "done, I say"
        }
    });
    let layer = layer(backend.executor().await);
    let server =
        Server::start(&backend, Router::new().route("/orders", handler).layer(layer)).await;
    let answer = server.send(post("/orders", "k", "[1]")).await;
    assert_eq!((answer.status.as_u16(), answer.problem().as_deref()), (500, Some("work-failed")));
    assert!(answer.text().contains("escaped"), "{answer:?}");
    drop(kept.lock().unwrap_or_else(PoisonError::into_inner).take());
    assert_eq!(backend.rows().await.len(), 0);
}

async fn a_handler_that_never_takes_its_transaction_is_refused<G: AtomicBackend>(backend: G) {
    let runs = Runs::default();
    let layer = layer(backend.executor().await);
    let handler = runs.handler(crate::support::created);
    let server =
        Server::start(&backend, Router::new().route("/orders", handler).layer(layer)).await;
    for _ in 0..2 {
        let answer = server.send(post("/orders", "k", "{}")).await;
        let result = (answer.status.as_u16(), answer.problem());
        assert_eq!(result, (500, Some("misconfigured".to_owned())));
    }
    assert_eq!(runs.count(), 2);
}

async fn a_transaction_that_was_stored_and_never_taken_is_over<G: AtomicBackend>(backend: G) {
    let noted: Arc<Mutex<Option<Transaction<G::Store>>>> = Arc::default();
    let notes = Arc::clone(&noted);
    let handler = any(move |request: axum::extract::Request| {
        let notes = Arc::clone(&notes);
        async move {
            let found = request.extensions().get::<Transaction<G::Store>>().cloned();
            *notes.lock().unwrap_or_else(PoisonError::into_inner) = found;
            "done"
        }
    });
    let layer = layer(backend.executor().await);
    let server =
        Server::start(&backend, Router::new().route("/orders", handler).layer(layer)).await;
    for _ in 0..2 {
        let answer = server.send(post("/orders", "k", "{}")).await;
        assert_eq!(answer.problem().as_deref(), Some("misconfigured"));
    }
    let late = noted.lock().unwrap_or_else(PoisonError::into_inner).take();
    assert!(late.expect("noted").take().is_none(), "the transaction is over");
}

async fn a_transaction_is_taken_once<G: AtomicBackend>(backend: G) {
    let layer = layer(backend.executor().await);
    let handler = any(async |request: axum::extract::Request| {
        let found = request.extensions().get::<Transaction<G::Store>>().cloned();
        let transaction = found.expect("a request with a key");
        let first = transaction.take();
        let taken = (first.is_some(), transaction.take().is_some());
        drop(first);
        format!("{taken:?}")
    });
    let server =
        Server::start(&backend, Router::new().route("/orders", handler).layer(layer)).await;
    assert_eq!(server.send(post("/orders", "k", "{}")).await.text(), "(true, false)");
}

async fn a_request_without_a_key_is_refused<G: AtomicBackend>(backend: G) {
    // The layer refuses the request or, if its rules are changed, the extractor does.
    let handler = on_post(|Tx(mut unit): Tx<G::Store>, note: String| async move {
        G::insert(unit.conn(), &note).await;
    });
    let executor = backend.executor().await;
    for layer in [layer(executor.clone()), layer(executor).rules(Rules::new())] {
        let router = Router::new().route("/orders", handler.clone()).layer(layer);
        let server = Server::start(&backend, router).await;
        let answer = server.send(request(Method::POST, "/orders", "[1]")).await;
        assert_eq!(
            (answer.status.as_u16(), answer.problem().as_deref()),
            (400, Some("key-missing"))
        );
    }
    assert_eq!(backend.rows().await.len(), 0);
}

async fn a_handler_gets_its_claim<G: AtomicBackend>(backend: G) {
    let telling =
        on_post(|OperationContext(claim): OperationContext, _: Tx<G::Store>| async move {
            format!("{} {}", claim.attempt(), claim.downstream_key("charge").is_ok())
        });
    for (rules, expected) in [
        (Rules::new(), "1 false"),
        (Rules::new().command(semel_core::Command::claim_first), "1 true"),
    ] {
        let layer = layer(backend.executor().await).rules(rules);
        let router = Router::new().route("/orders", telling.clone()).layer(layer);
        let server = Server::start(&backend, router).await;
        let key = expected.replace(' ', "-");
        assert_eq!(server.send(post("/orders", &key, "{}")).await.text(), expected);
    }
}

async fn rows_under_a_claim_that_comes_first_commit_with_their_answer<G: AtomicBackend>(
    backend: G,
) {
    let rules = Rules::new().command(semel_core::Command::claim_first);
    let (server, runs) = writing(&backend, rules.clone(), 503).await;
    assert_eq!(server.send(post("/orders", "k", "[1]")).await.status, 503);
    assert_eq!(backend.rows().await.len(), 0);
    let (other, _) = writing(&backend, rules, 201).await;
    for replayed in [false, true] {
        assert_eq!(other.send(post("/orders", "k", "[1]")).await.replayed(), replayed);
    }
    assert_eq!((runs.count(), backend.rows().await), (1, vec!["[1]".to_owned()]));
}

/// Serves a handler on a store that fails according to a script. The handler at `/elsewhere` takes
/// no transaction.
async fn faulty<G: AtomicBackend>(
    backend: &G,
    rules: Rules,
) -> (Server, semel_testkit::faulty::Faults, Runs) {
    let store = FaultyStore::new(backend.store().await);
    let faults = store.faults().clone();
    let layer = layer(Executor::new(store)).rules(rules);
    let handler = on_post(|Tx(mut unit): Tx<FaultyStore<G::Store>>, note: String| async move {
        G::insert(unit.conn(), &note).await;
        "done"
    });
    let runs = Runs::default();
    let router = Router::new()
        .route("/orders", handler)
        .route("/elsewhere", runs.handler(crate::support::created))
        .layer(layer);
    (Server::start(backend, router).await, faults, runs)
}

async fn a_handler_never_runs_without_its_store<G: AtomicBackend>(backend: G) {
    // A handler cannot write without its transaction, so `fail_open` does not apply.
    let (server, faults, runs) = faulty(&backend, Rules::new().fail_open()).await;
    for path in ["/orders", "/elsewhere"] {
        faults.next(StoreCall::Begin, Fault::Refuse);
        let answer = server.send(post(path, "k", "[1]")).await;
        assert_eq!(
            (answer.status.as_u16(), answer.problem().as_deref()),
            (503, Some("store-unavailable"))
        );
    }
    assert_eq!((faults.happened(StoreCall::Begin), backend.rows().await.len()), (2, 0));
    assert_eq!(runs.count(), 0);
    assert_eq!(server.send(post("/orders", "k", "[1]")).await.text(), "done");
    assert_eq!(backend.rows().await, ["[1]"]);
}

async fn a_commit_whose_reply_was_lost_is_found_again<G: AtomicBackend>(backend: G) {
    let (server, faults, _) = faulty(&backend, Rules::new()).await;
    faults.next(StoreCall::Commit, Fault::LoseReply);
    let answer = server.send(post("/orders", "k", "[1]")).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "done"));
    assert_eq!(faults.happened(StoreCall::Commit), 1);
    let (other, ..) = faulty(&backend, Rules::new()).await;
    assert!(other.send(post("/orders", "k", "[1]")).await.replayed());
    assert_eq!(backend.rows().await, ["[1]"]);
}

on_every_database! {
    a_row_and_its_answer_commit_together,
    a_refusal_rolls_its_rows_back_and_releases_the_key,
    a_refusal_that_is_stored_rolls_its_rows_back_too,
    a_failure_rolls_its_rows_back_and_is_recorded,
    a_panic_rolls_its_rows_back,
    a_handler_that_takes_too_long_rolls_its_rows_back,
    an_answer_too_large_to_keep_commits_nothing,
    a_handler_that_keeps_its_transaction_commits_nothing,
    a_handler_that_never_takes_its_transaction_is_refused,
    a_transaction_that_was_stored_and_never_taken_is_over,
    a_transaction_is_taken_once,
    a_request_without_a_key_is_refused,
    a_handler_gets_its_claim,
    rows_under_a_claim_that_comes_first_commit_with_their_answer,
    a_handler_never_runs_without_its_store,
    a_commit_whose_reply_was_lost_is_found_again,
}
