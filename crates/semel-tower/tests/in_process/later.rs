//! Tests of asynchronous responses: a detached caller finds every outcome, and only for a detached
//! caller a refusal is stored.

use std::time::Duration;

use axum::Router;
use axum::routing::{MethodRouter, post as on_post};
use http::StatusCode;
use semel_core::Wait;
use semel_core::store::memory::MemoryStore;
use semel_testkit::faulty::{Fault, StoreCall};
use semel_tower::http::{OPERATIONS, Rules};

use crate::backend::{Answer, get, post, run, until};
use crate::support::{Gate, Runs, faulty, final_answer, layer, order, send, sending, url, with};

/// Returns a handler that refuses its first request and accepts later ones.
fn refusing(status: u16, runs: &Runs, gate: Option<&Gate>) -> MethodRouter {
    let (runs, gate) = (runs.clone(), gate.cloned());
    on_post(async move || {
        let n = runs.next();
        if let Some(gate) = gate {
            gate.pass().await;
        }
        let refused = StatusCode::from_u16(status).expect("a status");
        (if n == 1 { refused } else { StatusCode::CREATED }, format!("run {n}"))
    })
}

fn routed(handler: MethodRouter, rules: Rules) -> Router {
    Router::new().route("/orders", handler).layer(layer(MemoryStore::new()).rules(rules))
}

/// Returns whether the response asks the caller to send its request again.
fn must_send_again(answer: &Answer) -> bool {
    answer.problem().as_deref() == Some("failed") && answer.json()["retryable"] == true
}

#[test]
fn an_attended_attempt_continues_while_its_pointer_is_written() {
    run(async {
        let (store, faults) = faulty(MemoryStore::new());
        let (gate, runs) = (Gate::new(), Runs::default());
        let handler = {
            let (gate, runs) = (gate.clone(), runs.clone());
            on_post(async move || {
                gate.pass().await;
                format!("run {}", runs.next())
            })
        };
        let rules = Rules::new().command(semel_core::Command::attended);
        let app = Router::new().route("/orders", handler).layer(layer(store).rules(rules));
        // The claim comes first, then the pointer.
        faults.spare(StoreCall::Open, 1);
        faults.next(StoreCall::Open, Fault::Hang);
        let asking = sending(&app, with(order(), "prefer", "respond-async"));
        faults.hung(1).await;
        gate.open();
        until(async || runs.count() == 1).await;
        faults.release();
        let place = url(&asking.await.expect("an answer"));
        assert_eq!(final_answer(&app, &place).await.text(), "run 1");
    });
}

#[test]
fn a_refusal_that_the_caller_waited_for_is_not_kept() {
    run(async {
        for status in [422, 413] {
            let runs = Runs::default();
            let app = routed(refusing(status, &runs, None), Rules::new());
            let patient = with(order(), "prefer", "respond-async, wait=60");
            assert_eq!(send(&app, patient).await.status, status);
            let corrected = send(&app, post("/orders", "k", r#"{"corrected":true}"#)).await;
            assert_eq!(
                (corrected.status.as_u16(), corrected.text(), corrected.replayed()),
                (201, "run 2", false)
            );
        }
    });
}

#[test]
fn a_refusal_for_a_detached_caller_is_stored_and_found() {
    run(async {
        let (gate, runs) = (Gate::new(), Runs::default());
        let app = routed(refusing(422, &runs, Some(&gate)), Rules::new());
        let place = url(&send(&app, with(order(), "prefer", "respond-async, wait=0")).await);
        gate.open();
        for _ in 0..2 {
            let answer = final_answer(&app, &place).await;
            assert_eq!(
                (answer.status.as_u16(), answer.text(), answer.replayed()),
                (422, "run 1", true)
            );
        }
        assert!(send(&app, order()).await.replayed());
        assert_eq!(runs.count(), 1);
    });
}

#[test]
fn a_transient_refusal_is_a_failure_for_a_detached_caller() {
    run(async {
        for status in [401, 403, 413, 425, 429] {
            let (gate, runs) = (Gate::new(), Runs::default());
            let app = routed(refusing(status, &runs, Some(&gate)), Rules::new());
            let place = url(&send(&app, with(order(), "prefer", "respond-async")).await);
            gate.open();
            let answer = final_answer(&app, &place).await;
            assert!(must_send_again(&answer), "{status}: {answer:?}");
            gate.open();
            assert_eq!(send(&app, order()).await.text(), "run 2");
            // The operation is the same, so its URL has the final response.
            assert_eq!(final_answer(&app, &place).await.text(), "run 2");
        }
    });
}

#[test]
fn a_refused_holder_is_a_failure_for_a_detached_duplicate() {
    run(async {
        let (gate, runs) = (Gate::new(), Runs::default());
        let app = routed(refusing(422, &runs, Some(&gate)), Rules::new());
        let holder = sending(&app, order());
        gate.reached().await;
        let place = url(&send(&app, with(order(), "prefer", "respond-async")).await);
        gate.open();
        // The holder's own caller got the refusal, so nothing is stored.
        assert_eq!(holder.await.expect("an answer").status, 422);
        let answer = final_answer(&app, &place).await;
        assert!(must_send_again(&answer), "{answer:?}");
        gate.open();
        assert_eq!(send(&app, post("/orders", "k", "[]")).await.text(), "run 2");
        // That is another operation, whose response is not for this URL.
        assert!(must_send_again(&final_answer(&app, &place).await));
    });
}

#[test]
fn an_asynchronous_caller_does_not_wait_as_its_route_does() {
    run(async {
        let (gate, runs) = (Gate::new(), Runs::default());
        let rules = Rules::new().wait(Wait::UpTo(Duration::from_secs(3_600)));
        let app = routed(refusing(201, &runs, Some(&gate)), rules);
        let holder = sending(&app, order());
        gate.reached().await;
        let place = url(&send(&app, with(order(), "prefer", "respond-async")).await);
        gate.open();
        assert_eq!(holder.await.expect("an answer").text(), "run 1");
        assert_eq!(final_answer(&app, &place).await.text(), "run 1");
        assert_eq!(runs.count(), 1);
    });
}

#[test]
fn nothing_at_the_url_may_be_cached() {
    run(async {
        let (gate, runs) = (Gate::new(), Runs::default());
        let (waits, counted) = (gate.clone(), runs.clone());
        let handler = on_post(async move || {
            waits.pass().await;
            let status = match counted.next() {
                1 => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::CREATED,
            };
            // A cache may store a response with this header and no `Cache-Control`.
            (status, [("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT")], "secret")
        });
        let app = routed(handler, Rules::new());
        let uncached = async |url: &str, status: u16| {
            let answer = send(&app, get(url)).await;
            assert_eq!(
                (answer.status.as_u16(), answer.header("cache-control")),
                (status, Some("no-store"))
            );
        };
        let place = url(&send(&app, with(order(), "prefer", "respond-async")).await);
        uncached(&place, 202).await;
        gate.open();
        final_answer(&app, &place).await;
        uncached(&place, 409).await;
        gate.open();
        assert_eq!(send(&app, order()).await.status, 201);
        uncached(&place, 201).await;
        uncached(OPERATIONS, 404).await;
        uncached(&format!("{OPERATIONS}01ARZ3NDEKTSV4RRFFQ69G5FAV"), 404).await;
    });
}

#[test]
fn a_replay_check_of_a_long_route_runs_at_the_url_too() {
    run(async {
        let path = format!("/{}", "a-long-name/".repeat(20));
        let path = path.trim_end_matches('/');
        let operation = format!("POST {path}");
        assert!(operation.len() > semel_core::key::MAX_SCOPE);
        let gate = Gate::new();
        let waits = gate.clone();
        let handler = on_post(async move || {
            waits.pass().await;
            "secret"
        });
        let rules = Rules::new().replay_check(|parts| {
            let allowed = parts.headers.contains_key("x-may");
            async move { allowed }
        });
        let layer = layer(MemoryStore::new()).route(&operation, rules);
        let app = Router::new().route(path, handler).layer(layer);
        let request = with(post(path, "k", "{}"), "prefer", "respond-async");
        let place = url(&send(&app, request).await);
        gate.open();
        assert_eq!(final_answer(&app, &place).await.problem().as_deref(), Some("replay-refused"));
        let allowed = send(&app, with(get(&place), "x-may", "yes")).await;
        assert_eq!(allowed.text(), "secret");
    });
}
