//! Answers asked for later: who was sent away hears everything, and who was not is no reason to keep
//! anything.

use std::time::Duration;

use axum::Router;
use axum::routing::{MethodRouter, post as on_post};
use http::StatusCode;
use semel_core::Wait;
use semel_core::store::memory::MemoryStore;
use semel_testkit::faulty::{Fault, StoreCall};
use semel_tower::http::{OPERATIONS, Rules};

use crate::backend::{Answer, get, post, run, until};
use crate::stage::{Gate, Runs, faulty, heard, layer, order, send, sending, url, with};

/// A handler that refuses its first request and then creates.
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

/// Whether this tells a caller to send its request once more.
fn told_to_send_again(answer: &Answer) -> bool {
    answer.problem().as_deref() == Some("failed") && answer.json()["retryable"] == true
}

#[test]
fn an_attempt_that_is_its_callers_goes_on_while_the_way_to_it_is_written() {
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
        assert_eq!(heard(&app, &place).await.text(), "run 1");
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
fn a_refusal_of_who_was_sent_away_is_kept_and_heard() {
    run(async {
        let (gate, runs) = (Gate::new(), Runs::default());
        let app = routed(refusing(422, &runs, Some(&gate)), Rules::new());
        let place = url(&send(&app, with(order(), "prefer", "respond-async, wait=0")).await);
        gate.open();
        for _ in 0..2 {
            let answer = heard(&app, &place).await;
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
fn a_refusal_that_passes_is_told_as_a_failure_to_who_was_sent_away() {
    run(async {
        for status in [401, 403, 413, 425, 429] {
            let (gate, runs) = (Gate::new(), Runs::default());
            let app = routed(refusing(status, &runs, Some(&gate)), Rules::new());
            let place = url(&send(&app, with(order(), "prefer", "respond-async")).await);
            gate.open();
            let told = heard(&app, &place).await;
            assert!(told_to_send_again(&told), "{status}: {told:?}");
            gate.open();
            assert_eq!(send(&app, order()).await.text(), "run 2");
            // It is the same operation, so its URL tells the end of it.
            assert_eq!(heard(&app, &place).await.text(), "run 2");
        }
    });
}

#[test]
fn a_holder_that_is_refused_is_a_failure_to_who_was_told_to_come_again() {
    run(async {
        let (gate, runs) = (Gate::new(), Runs::default());
        let app = routed(refusing(422, &runs, Some(&gate)), Rules::new());
        let holder = sending(&app, order());
        gate.reached().await;
        let place = url(&send(&app, with(order(), "prefer", "respond-async")).await);
        gate.open();
        // Its own caller heard it: nothing is kept.
        assert_eq!(holder.await.expect("an answer").status, 422);
        let told = heard(&app, &place).await;
        assert!(told_to_send_again(&told), "{told:?}");
        gate.open();
        assert_eq!(send(&app, post("/orders", "k", "[]")).await.text(), "run 2");
        // That is another operation, and no answer to this one.
        assert!(told_to_send_again(&heard(&app, &place).await));
    });
}

#[test]
fn who_would_rather_come_again_does_not_wait_as_the_route_does() {
    run(async {
        let (gate, runs) = (Gate::new(), Runs::default());
        let rules = Rules::new().wait(Wait::UpTo(Duration::from_secs(3_600)));
        let app = routed(refusing(201, &runs, Some(&gate)), rules);
        let holder = sending(&app, order());
        gate.reached().await;
        let place = url(&send(&app, with(order(), "prefer", "respond-async")).await);
        gate.open();
        assert_eq!(holder.await.expect("an answer").text(), "run 1");
        assert_eq!(heard(&app, &place).await.text(), "run 1");
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
            // A cache may keep what says this and nothing else about it.
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
        heard(&app, &place).await;
        uncached(&place, 409).await;
        gate.open();
        assert_eq!(send(&app, order()).await.status, 201);
        uncached(&place, 201).await;
        uncached(OPERATIONS, 404).await;
        uncached(&format!("{OPERATIONS}01ARZ3NDEKTSV4RRFFQ69G5FAV"), 404).await;
    });
}

#[test]
fn a_replay_check_of_a_long_route_is_asked_at_the_url_too() {
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
        let asked = with(post(path, "k", "{}"), "prefer", "respond-async");
        let place = url(&send(&app, asked).await);
        gate.open();
        assert_eq!(heard(&app, &place).await.problem().as_deref(), Some("replay-refused"));
        let allowed = send(&app, with(get(&place), "x-may", "yes")).await;
        assert_eq!(allowed.text(), "secret");
    });
}
