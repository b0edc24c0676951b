//! Tests of routes that fail open: which requests run without the store, and which do not.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::post as on_post;
use http::StatusCode;
use semel_core::executor::Verification;
use semel_core::store::memory::MemoryStore;
use semel_core::{Outcome, Wait};
use semel_sql::sqlx;
use semel_testkit::Fixture as _;
use semel_testkit::faulty::{Fault, StoreCall};
use semel_tower::StoredResponse;
use semel_tower::axum::OperationContext;
use semel_tower::http::Rules;
use tokio::sync::oneshot;

use crate::backend::{Backend as _, Memory, Sqlite, run, until};
use crate::support::{Gate, Runs, abandoned, faulty, layer, order, send, sending};

/// Returns a router whose handler counts its runs.
fn counting(runs: &Runs) -> Router {
    let runs = runs.clone();
    Router::new().route("/orders", on_post(async move || format!("run {}", runs.next())))
}

fn was_done() -> Outcome {
    let answer = StoredResponse {
        status: StatusCode::CREATED,
        headers: http::HeaderMap::new(),
        trailers: http::HeaderMap::new(),
        body: "was done".into(),
    };
    Outcome::new(StoredResponse::HTTP, answer.encode())
}

#[test]
fn work_that_a_verifier_found_done_does_not_run_again_if_it_cannot_be_recorded() {
    run(async {
        let backend = Memory::open().await;
        let (store, faults) = faulty(backend.store().await);
        abandoned(&store).await;
        backend.advance(Duration::from_secs(60)).await;
        faults.always(StoreCall::Settle, Fault::Refuse);
        let runs = Runs::default();
        let rules = Rules::new().fail_open().command(|command| {
            // A lease for as long as recording is tried.
            let command = command.lease(Duration::from_secs(6));
            command.verify(|_| async { Verification::Done(was_done()) })
        });
        let app = counting(&runs).layer(layer(store).rules(rules));
        let answer = send(&app, order()).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (201, "was done"));
        assert_ne!(faults.happened(StoreCall::Settle), 0);
        assert_eq!(runs.count(), 0);
    });
}

#[test]
fn work_that_a_verifier_cannot_decide_does_not_run_if_it_cannot_be_recorded() {
    run(async {
        let backend = Memory::open().await;
        let (store, faults) = faulty(backend.store().await);
        abandoned(&store).await;
        backend.advance(Duration::from_secs(60)).await;
        faults.always(StoreCall::Settle, Fault::Refuse);
        let runs = Runs::default();
        let rules = Rules::new().fail_open().command(|command| {
            let command = command.lease(Duration::from_secs(6));
            command.verify(|_| async { Verification::Unknown })
        });
        let app = counting(&runs).layer(layer(store).rules(rules));
        assert_eq!(send(&app, order()).await.problem().as_deref(), Some("uncertain"));
        assert_eq!(runs.count(), 0);
    });
}

#[test]
fn a_record_that_cannot_be_read_may_be_a_success_and_does_not_fail_open() {
    run(async {
        let backend = Sqlite::open().await;
        let runs = Runs::default();
        let open = async || layer(backend.store().await).rules(Rules::new().fail_open());
        let app = counting(&runs).layer(open().await);
        assert_eq!(send(&app, order()).await.text(), "run 1");
        sqlx::raw_sql("update semel_record set state = 99")
            .execute(&mut backend.connection().await)
            .await
            .expect("damaged");
        // In another process, which has no local copy of the outcome.
        let app = counting(&runs).layer(open().await);
        let answer = send(&app, order()).await;
        assert_eq!(
            (answer.status.as_u16(), answer.problem().as_deref()),
            (503, Some("store-unavailable"))
        );
        assert_eq!(runs.count(), 1);
    });
}

#[test]
fn a_duplicate_that_waited_while_the_store_died_does_not_run_beside_the_holder() {
    run(async {
        let backend = Memory::open().await;
        let (store, faults) = faulty(backend.store().await);
        let (gate, runs) = (Gate::new(), Runs::default());
        let (waits, counted) = (gate.clone(), runs.clone());
        let handler = on_post(async move || {
            let n = counted.next();
            if n == 1 {
                waits.pass().await;
            }
            format!("run {n}")
        });
        let rules = Rules::new().fail_open().wait(Wait::UpTo(Duration::from_secs(3_600)));
        let app = Router::new().route("/orders", handler).layer(layer(store).rules(rules));
        let holder = sending(&app, order());
        gate.reached().await;
        let duplicate = sending(&app, order());
        // The record is only read when a duplicate waits for it.
        until(async || faults.calls(StoreCall::Peek) > 0).await;
        for verb in [StoreCall::Open, StoreCall::Renew] {
            faults.always(verb, Fault::Refuse);
        }
        // The holder cannot renew its lease, which lapses: at this point the duplicate could run.
        backend.advance(Duration::from_secs(3_600)).await;
        let answer = duplicate.await.expect("an answer");
        assert_eq!(
            (answer.status.as_u16(), answer.problem().as_deref()),
            (409, Some("in-progress"))
        );
        assert_ne!(faults.happened(StoreCall::Open), 0);
        assert_eq!(runs.count(), 1);
        gate.open();
        assert_eq!(holder.await.expect("an answer").text(), "run 1");
    });
}

#[test]
fn a_handler_that_needs_its_claim_gets_store_unavailable_and_not_key_missing() {
    run(async {
        let (store, faults) = faulty(MemoryStore::new());
        let handler =
            on_post(async |OperationContext(claim): OperationContext| claim.attempt().to_string());
        let rules = Rules::new().fail_open();
        let app = Router::new().route("/orders", handler).layer(layer(store).rules(rules));
        faults.next(StoreCall::Open, Fault::Refuse);
        let answer = send(&app, order()).await;
        assert_eq!(
            (answer.status.as_u16(), answer.problem().as_deref()),
            (503, Some("store-unavailable"))
        );
        assert_eq!(
            (&answer.json()["retryable"], &answer.json()["safe_new_key"]),
            (&true.into(), &false.into())
        );
        let keyless = crate::backend::request(http::Method::POST, "/orders", "{}");
        assert_eq!(send(&app, keyless).await.problem().as_deref(), Some("key-missing"));
        assert_eq!(send(&app, order()).await.text(), "1");
    });
}

#[test]
fn a_handler_without_a_claim_may_go_without_it_too() {
    run(async {
        let (store, faults) = faulty(MemoryStore::new());
        let handler = on_post(async |claim: Option<OperationContext>| claim.is_some().to_string());
        let rules = Rules::new().fail_open();
        let app = Router::new().route("/orders", handler).layer(layer(store).rules(rules));
        faults.next(StoreCall::Open, Fault::Refuse);
        assert_eq!(send(&app, order()).await.text(), "false");
        assert_eq!(send(&app, order()).await.text(), "true");
    });
}

#[test]
fn a_handler_that_runs_without_a_claim_outlives_its_caller() {
    run(async {
        let (store, faults) = faulty(MemoryStore::new());
        faults.always(StoreCall::Open, Fault::Refuse);
        let gate = Gate::new();
        let waits = gate.clone();
        let (finished, done) = oneshot::channel::<()>();
        let finished = Arc::new(Mutex::new(Some(finished)));
        let handler = on_post(async move || {
            let finished = finished.lock().expect("not poisoned").take();
            let finished = finished.expect("the handler runs once");
            waits.pass().await;
            finished.send(()).expect("the test listens");
        });
        let rules = Rules::new().fail_open();
        let app = Router::new().route("/orders", handler).layer(layer(store).rules(rules));
        let caller = sending(&app, order());
        gate.reached().await;
        caller.abort();
        assert!(caller.await.expect_err("it left").is_cancelled());
        gate.open();
        done.await.expect("the handler goes on to its end");
    });
}
