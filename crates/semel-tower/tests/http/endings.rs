//! Tests how a run of a handler may end, and what its repeats get.

use std::future::{pending, ready};
use std::time::Duration;

use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use semel_core::{OnCrash, OnFailure, Store as _};
use semel_testkit::Fixture as _;
use semel_tower::http::{Preset, Rules, SettleAs};

use crate::backend::{Backend, Memory, Server, in_memory, on_every_store, post, run};
use crate::support::{Gate, HandlerCall, Runs, created, executor, layer, order_key, router, serve};

const HOUR: Duration = Duration::from_secs(3_600);

fn failing() -> StatusCode {
    StatusCode::INTERNAL_SERVER_ERROR
}

async fn another_request_under_the_same_key_is_refused<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new(), created).await;
    server.send(post("/orders", "k", r#"{"amount":1}"#)).await;
    let other = server.send(post("/orders", "k", r#"{"amount":2}"#)).await;
    assert_eq!((other.status.as_u16(), other.problem().as_deref()), (422, Some("key-reused")));
    assert_eq!(other.header("retry-after"), None);
    assert_eq!(runs.count(), 1);
    assert!(server.send(post("/orders", "k", r#"{"amount":1}"#)).await.replayed());
}

async fn a_reused_key_may_be_answered_with_409<G: Backend>(backend: G) {
    let rules = Rules::new().mismatch_status(StatusCode::CONFLICT);
    let (server, runs) = serve(&backend, rules, created).await;
    server.send(post("/orders", "k", r#"{"amount":1}"#)).await;
    let other = server.send(post("/orders", "k", r#"{"amount":2}"#)).await;
    assert_eq!((other.status.as_u16(), other.problem().as_deref()), (409, Some("key-reused")));
    assert_eq!(other.json()["status"], 409);
    assert_eq!(runs.count(), 1);
}

async fn a_repeat_of_a_running_request_gets_in_progress_and_a_delay<G: Backend>(backend: G) {
    let gate = Gate::new();
    let (server, runs) = serve(&backend, Rules::new(), gate.handler()).await;
    let first = server.sending(post("/orders", "k", "{}"));
    gate.reached().await;
    let repeat = server.send(post("/orders", "k", "{}")).await;
    assert_eq!((repeat.status.as_u16(), repeat.problem().as_deref()), (409, Some("in-progress")));
    assert_eq!(repeat.header("retry-after"), Some("1"));
    let store = backend.store().await;
    let found = store.peek(&order_key("k")).await.expect("the store answers").expect("a record");
    assert_eq!(repeat.json()["operation_id"], found.record.operation_id.to_string());
    gate.open();
    assert_eq!(first.await.expect("an answer").status, 201);
    assert_eq!(runs.count(), 1);
}

async fn the_delay_before_a_retry_is_a_setting<G: Backend>(backend: G) {
    let gate = Gate::new();
    let rules = Rules::new().retry_after(Duration::from_millis(6_001));
    let (server, _) = serve(&backend, rules, gate.handler()).await;
    let first = server.sending(post("/orders", "k", "{}"));
    gate.reached().await;
    assert_eq!(server.send(post("/orders", "k", "{}")).await.header("retry-after"), Some("7"));
    gate.open();
    first.await.expect("an answer");
}

async fn a_mismatch_is_reported_before_in_progress<G: Backend>(backend: G) {
    let gate = Gate::new();
    let (server, runs) = serve(&backend, Rules::new(), gate.handler()).await;
    let first = server.sending(post("/orders", "k", "[1]"));
    gate.reached().await;
    let other = server.send(post("/orders", "k", "[2]")).await;
    assert_eq!((other.status.as_u16(), other.problem().as_deref()), (422, Some("key-reused")));
    gate.open();
    assert_eq!(first.await.expect("an answer").status, 201);
    assert_eq!(runs.count(), 1);
}

async fn a_failure_that_backs_off_has_the_delay_until_it_is_due<G: Backend>(backend: G) {
    let rules = Rules::new()
        .command(|command| command.on_failure(OnFailure::Backoff { base: HOUR / 36, cap: HOUR }));
    let (server, runs) =
        serve(&backend, rules, |call| ready((failing(), call.operation().0.to_string()))).await;
    assert_eq!(server.send(post("/orders", "k", "{}")).await.status, 500);
    let repeat = server.send(post("/orders", "k", "{}")).await;
    assert_eq!((repeat.status.as_u16(), repeat.problem().as_deref()), (409, Some("backing-off")));
    let after: u64 = repeat.header("retry-after").expect("told").parse().expect("seconds");
    // On a store with a real clock, a part of the time may have passed.
    assert!((10..=100).contains(&after), "{after}");
    assert_eq!(runs.count(), 1);
    backend.advance(Duration::from_secs(after)).await;
    let due = server.send(post("/orders", "k", "{}")).await;
    assert_eq!((due.status, due.text()), (failing(), "2"));
}

async fn the_delay_before_a_retry_is_never_too_short<G: Backend>(backend: G) {
    let rules = Rules::new().command(|command| {
        let base = Duration::from_millis(1_001);
        command.on_failure(OnFailure::Backoff { base, cap: HOUR })
    });
    let (server, _) = serve(&backend, rules, |_| ready(failing())).await;
    server.send(post("/orders", "k", "{}")).await;
    let repeat = server.send(post("/orders", "k", "{}")).await;
    assert_eq!(repeat.header("retry-after"), Some("2"));
}

async fn a_failure_that_is_kept_is_reported_and_not_run_again<G: Backend>(backend: G) {
    let rules = Rules::new().keep(HOUR).command(|command| command.on_failure(OnFailure::Keep));
    let (server, runs) = serve(&backend, rules, |_| ready(failing())).await;
    assert_eq!(server.send(post("/orders", "k", "{}")).await.status, 500);
    for _ in 0..2 {
        let repeat = server.send(post("/orders", "k", "{}")).await;
        assert_eq!((repeat.status.as_u16(), repeat.problem().as_deref()), (409, Some("failed")));
        assert_eq!(repeat.header("retry-after"), None);
    }
    assert_eq!(runs.count(), 1);
    backend.advance(2 * HOUR).await;
    assert_eq!(server.send(post("/orders", "k", "{}")).await.status, 500);
    assert_eq!(runs.count(), 2);
}

async fn an_operation_that_used_up_its_attempts_is_dead<G: Backend>(backend: G) {
    let rules = Rules::new().command(|command| command.max_attempts(2));
    let (server, runs) = serve(&backend, rules, |_| ready(failing())).await;
    for _ in 0..2 {
        assert_eq!(server.send(post("/orders", "k", "{}")).await.status, 500);
    }
    for _ in 0..2 {
        let repeat = server.send(post("/orders", "k", "{}")).await;
        assert_eq!((repeat.status.as_u16(), repeat.problem().as_deref()), (409, Some("dead")));
    }
    assert_eq!(runs.count(), 2);
}

async fn a_handler_that_panics_is_a_failure_and_its_repeat_runs<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new(), |call| async move {
        assert!(call.n > 1, "the first run of this handler panics on purpose");
        let (attempt, operation) = call.operation();
        format!("{attempt} {operation}")
    })
    .await;
    let first = server.send(post("/orders", "k", "{}")).await;
    assert_eq!((first.status.as_u16(), first.problem().as_deref()), (500, Some("work-failed")));
    assert!(!first.text().contains("on purpose"), "the message of a panic is not for callers");
    let again = server.send(post("/orders", "k", "{}")).await;
    assert_eq!(again.status, 200);
    assert!(again.text().starts_with("2 "), "{again:?}");
    assert_eq!(runs.count(), 2);
}

async fn a_handler_that_panics_under_hold_is_not_run_again<G: Backend>(backend: G) {
    let rules = Rules::new().command(|command| command.on_crash(OnCrash::Hold));
    let (server, runs) = serve(&backend, rules, |call| async move {
        assert!(call.n > 1, "the first run of this handler panics on purpose, after its effect");
        "again"
    })
    .await;
    let first = server.send(post("/orders", "k", "{}")).await;
    assert_eq!((first.status.as_u16(), first.problem().as_deref()), (500, Some("work-failed")));
    for _ in 0..2 {
        let repeat = server.send(post("/orders", "k", "{}")).await;
        assert_eq!((repeat.status.as_u16(), repeat.problem().as_deref()), (409, Some("uncertain")));
    }
    assert_eq!(runs.count(), 1, "one effect");
}

async fn a_server_error_is_a_failure_or_in_doubt<G: Backend>(backend: G) {
    for (preset, runs_in_all) in
        [(Preset::success_only(), 2), (Preset::success_only().doubt_5xx(), 1)]
    {
        let held = |command: semel_core::Command| command.on_crash(OnCrash::Hold);
        let rules = Rules::new().preset(preset).command(held);
        let (server, runs) = serve(&backend, rules, |_| ready(failing())).await;
        let key = format!("k-{runs_in_all}");
        assert_eq!(server.send(post("/orders", &key, "{}")).await.status, 500);
        let repeat = server.send(post("/orders", &key, "{}")).await;
        let result = (repeat.status.as_u16(), repeat.problem());
        match runs_in_all {
            1 => assert_eq!(result, (409, Some("uncertain".to_owned()))),
            _ => assert_eq!(result, (500, None)),
        }
        assert_eq!(runs.count(), runs_in_all);
    }
}

async fn a_handler_that_takes_too_long_is_cancelled_and_its_repeat_runs<G: Backend>(backend: G) {
    let limit = Duration::from_millis(50);
    let rules = Rules::new().command(move |command| command.work_timeout(limit));
    let (server, runs) = serve(&backend, rules, |call| async move {
        match call.n {
            1 => pending().await,
            _ => call.operation().0.to_string(),
        }
    })
    .await;
    let first = server.send(post("/orders", "k", "{}")).await;
    assert_eq!((first.status.as_u16(), first.problem().as_deref()), (504, Some("work-timeout")));
    assert_eq!(server.send(post("/orders", "k", "{}")).await.text(), "2");
    assert_eq!(runs.count(), 2);
}

/// Returns a response that settles the claim as doubt.
fn doubtful(status: StatusCode) -> Response {
    let mut answer = status.into_response();
    answer.extensions_mut().insert(SettleAs::Doubt);
    answer
}

async fn a_handler_in_doubt_is_run_again_or_held<G: Backend>(backend: G) {
    let first_in_doubt = |call: HandlerCall| async move {
        match call.n {
            1 => doubtful(StatusCode::GATEWAY_TIMEOUT),
            _ => call.operation().0.to_string().into_response(),
        }
    };
    let (server, _) = serve(&backend, Rules::new(), first_in_doubt).await;
    assert_eq!(server.send(post("/orders", "k", "{}")).await.status, 504);
    assert_eq!(server.send(post("/orders", "k", "{}")).await.text(), "2");

    let held = Rules::new().command(|command| command.on_crash(OnCrash::Hold));
    let (server, runs) = serve(&backend, held, first_in_doubt).await;
    assert_eq!(server.send(post("/held", "k", "{}")).await.status, 504);
    let repeat = server.send(post("/held", "k", "{}")).await;
    assert_eq!((repeat.status.as_u16(), repeat.problem().as_deref()), (409, Some("uncertain")));
    assert_eq!(runs.count(), 1);
}

async fn a_handler_that_took_too_long_may_be_held<G: Backend>(backend: G) {
    let limit = Duration::from_millis(50);
    let rules =
        Rules::new().command(move |command| command.work_timeout(limit).on_crash(OnCrash::Hold));
    let (server, runs) = serve(&backend, rules, |_| pending::<StatusCode>()).await;
    assert_eq!(
        server.send(post("/orders", "k", "{}")).await.problem().as_deref(),
        Some("work-timeout")
    );
    let repeat = server.send(post("/orders", "k", "{}")).await;
    assert_eq!((repeat.status.as_u16(), repeat.problem().as_deref()), (409, Some("uncertain")));
    assert_eq!(runs.count(), 1);
}

async fn settings_that_cannot_work_are_reported_and_nothing_runs<G: Backend>(backend: G) {
    let rules = Rules::new().command(|command| command.lease(Duration::from_millis(1)));
    let (server, runs) = serve(&backend, rules, created).await;
    let answer = server.send(post("/orders", "k", "{}")).await;
    assert_eq!((answer.status.as_u16(), answer.problem().as_deref()), (500, Some("misconfigured")));
    assert!(answer.text().contains("100ms"), "{answer:?}");
    assert_eq!(runs.count(), 0);
}

async fn a_service_that_shuts_down_accepts_no_new_keys<G: Backend>(backend: G) {
    let executor = executor(&backend).await;
    let runs = Runs::default();
    let router = router(&runs, created).layer(layer(executor.clone()));
    let server = Server::start(&backend, router).await;
    executor.shutdown(Duration::ZERO).await;
    let answer = server.send(post("/orders", "k", "{}")).await;
    assert_eq!((answer.status.as_u16(), answer.problem().as_deref()), (503, Some("shutting-down")));
    assert!(answer.header("retry-after").is_some());
    assert_eq!(runs.count(), 0);
}

#[test]
fn a_full_store_refuses_new_keys_before_anything_runs_and_serves_the_held_ones() {
    run(async {
        let backend = Memory::for_keys(1);
        let (server, runs) = serve(&backend, Rules::new(), created).await;
        let first = server.send(post("/orders", "held", "{}")).await;
        let refused = server.send(post("/orders", "new", "{}")).await;
        assert_eq!(
            (refused.status.as_u16(), refused.problem().as_deref()),
            (503, Some("store-full"))
        );
        assert_eq!(refused.header("retry-after"), Some("1"));
        assert_eq!(runs.count(), 1);
        let again = server.send(post("/orders", "held", "{}")).await;
        assert!(again.replayed());
        assert_eq!(again.body, first.body);
    });
}

#[test]
fn a_full_store_has_room_again_when_a_record_expires() {
    run(async {
        let backend = Memory::for_keys(1);
        let (server, _) = serve(&backend, Rules::new().keep(HOUR), created).await;
        server.send(post("/orders", "old", "{}")).await;
        assert_eq!(server.send(post("/orders", "new", "{}")).await.status, 503);
        backend.advance(2 * HOUR).await;
        assert_eq!(server.send(post("/orders", "new", "{}")).await.status, 201);
    });
}

on_every_store! {
    another_request_under_the_same_key_is_refused,
    a_reused_key_may_be_answered_with_409,
    a_repeat_of_a_running_request_gets_in_progress_and_a_delay,
    a_mismatch_is_reported_before_in_progress,
    a_failure_that_backs_off_has_the_delay_until_it_is_due,
    a_failure_that_is_kept_is_reported_and_not_run_again,
    an_operation_that_used_up_its_attempts_is_dead,
    a_handler_that_panics_is_a_failure_and_its_repeat_runs,
    a_handler_that_panics_under_hold_is_not_run_again,
    a_server_error_is_a_failure_or_in_doubt,
    a_handler_that_takes_too_long_is_cancelled_and_its_repeat_runs,
    a_handler_that_took_too_long_may_be_held,
    a_handler_in_doubt_is_run_again_or_held,
    a_service_that_shuts_down_accepts_no_new_keys,
}

in_memory! {
    the_delay_before_a_retry_is_a_setting,
    the_delay_before_a_retry_is_never_too_short,
    settings_that_cannot_work_are_reported_and_nothing_runs,
}
