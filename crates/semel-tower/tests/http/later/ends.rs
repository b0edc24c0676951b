//! Tests the response at an operation's URL after the operation has ended.

use std::time::Duration;

use http::StatusCode;
use semel_core::{OnCrash, OnFailure};
use semel_tower::http::Rules;

use super::{final_answer, later, url};
use crate::backend::{Backend, Server, get, in_memory, on_every_store, post};
use crate::support::{Gate, Runs, forgetful_executor, layer, router, serve};

async fn a_refusal_is_found_at_its_url<G: Backend>(backend: G) {
    let gate = Gate::new();
    let here = gate.clone();
    let (server, runs) = serve(&backend, Rules::new(), move |_| {
        let gate = here.clone();
        async move {
            gate.pass().await;
            (StatusCode::UNPROCESSABLE_ENTITY, "no such account")
        }
    })
    .await;
    let place = url(&server.send(later("k", "respond-async")).await);
    gate.open();
    let answer = final_answer(&server, &place).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (422, "no such account"));
    assert_eq!(server.send(get(&place)).await.status, 422);
    assert_eq!(server.send(post("/orders", "k", "{}")).await.text(), "no such account");
    assert_eq!(runs.count(), 1);
}

async fn a_refusal_that_the_caller_waited_for_releases_the_key<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new(), |call| async move {
        match call.n {
            1 => (StatusCode::UNPROCESSABLE_ENTITY, "no such account"),
            _ => (StatusCode::CREATED, "done"),
        }
    })
    .await;
    let refused = server.send(later("k", "respond-async, wait=60")).await;
    assert_eq!((refused.status.as_u16(), refused.text()), (422, "no such account"));
    let corrected = server.send(post("/orders", "k", "[]")).await;
    assert_eq!((corrected.status.as_u16(), corrected.text()), (201, "done"));
    assert_eq!(runs.count(), 2);
}

async fn a_failure_is_found_at_its_url_and_may_be_run_again<G: Backend>(backend: G) {
    let gate = Gate::new();
    let here = gate.clone();
    let (server, runs) = serve(&backend, Rules::new(), move |call| {
        let gate = here.clone();
        async move {
            gate.pass().await;
            match call.operation().0 {
                1 => StatusCode::BAD_GATEWAY,
                _ => StatusCode::CREATED,
            }
        }
    })
    .await;
    let place = url(&server.send(later("k", "respond-async")).await);
    gate.open();
    let failed = final_answer(&server, &place).await;
    assert_eq!((failed.status.as_u16(), failed.problem().as_deref()), (409, Some("failed")));
    assert!(place.ends_with(failed.json()["operation_id"].as_str().expect("an id")));
    assert_eq!(failed.json()["retryable"], true);
    // The operation is the same, and so is its URL.
    gate.open();
    assert_eq!(server.send(post("/orders", "k", "{}")).await.status, 201);
    assert_eq!(server.send(get(&place)).await.status, 201);
    assert_eq!(runs.count(), 2);
}

async fn the_end_of_an_operation_is_found_at_its_url<G: Backend>(backend: G) {
    let gate = Gate::new();
    let here = gate.clone();
    let limit = Duration::from_millis(50);
    let rules = Rules::new().max_response(10).command(move |command| {
        command.max_attempts(1).work_timeout(limit).on_crash(OnCrash::Hold)
    });
    let (server, _) = serve(&backend, rules, move |call| {
        let gate = here.clone();
        async move {
            match call.claim.expect("a key").key().id() {
                "dead" => (StatusCode::INTERNAL_SERVER_ERROR, ""),
                "long" => (StatusCode::OK, "more than ten bytes"),
                _ => {
                    gate.pass().await;
                    (StatusCode::OK, "")
                }
            }
        }
    })
    .await;
    for (key, slug) in [("dead", "dead"), ("long", "result-unavailable"), ("lost", "uncertain")] {
        let first = server.send(later(key, "respond-async")).await;
        // A quick handler may be done before a 202 was sent.
        if first.status == 202 {
            let answer = final_answer(&server, &url(&first)).await;
            assert_eq!((answer.status.as_u16(), answer.problem().as_deref()), (409, Some(slug)));
        }
        let again = server.send(later(key, "respond-async")).await;
        assert_eq!((again.status.as_u16(), again.problem().as_deref()), (409, Some(slug)), "{key}");
    }
}

async fn an_expired_answer_is_gone_from_its_url<G: Backend>(backend: G) {
    let executor = forgetful_executor(&backend).await;
    let rules = Rules::new().keep(Duration::from_secs(3_600));
    let (gate, runs) = (Gate::new(), Runs::default());
    let layer = layer(executor).rules(rules);
    let server = Server::start(&backend, router(&runs, gate.handler()).layer(layer)).await;
    let place = url(&server.send(later("k", "respond-async")).await);
    gate.open();
    assert_eq!(final_answer(&server, &place).await.status, 201);
    backend.advance(Duration::from_secs(3_601)).await;
    let gone = server.send(get(&place)).await;
    assert_eq!((gone.status.as_u16(), gone.problem().as_deref()), (409, Some("failed")));
    assert_eq!(gone.json()["retryable"], true, "the operation may be run again under its key");
    // The key is used again by another operation; the old URL does not lead to it.
    gate.open();
    assert_eq!(server.send(post("/orders", "k", "{}")).await.text(), "run 2");
    assert_eq!(server.send(get(&place)).await.problem().as_deref(), Some("failed"));
}

async fn an_attempt_that_broke_off_is_found_at_its_url<G: Backend>(backend: G) {
    let lease = Duration::from_secs(600);
    for (on_crash, slug, retryable) in
        [(OnCrash::Rerun, "failed", true), (OnCrash::Hold, "uncertain", false)]
    {
        let rules = Rules::new().command(move |command| command.lease(lease).on_crash(on_crash));
        let gate = Gate::new();
        let (server, _) = serve(&backend, rules, gate.handler()).await;
        let place = url(&server.send(later(slug, "respond-async")).await);
        assert_eq!(server.send(get(&place)).await.status, 202);
        // The process of the attempt hangs.
        backend.advance(lease + Duration::from_secs(1)).await;
        let answer = server.send(get(&place)).await;
        assert_eq!((answer.status.as_u16(), answer.problem().as_deref()), (409, Some(slug)));
        assert_eq!(answer.json()["retryable"], retryable);
    }
}

async fn a_failure_that_is_kept_is_found_at_its_url<G: Backend>(backend: G) {
    let gate = Gate::new();
    let here = gate.clone();
    let rules = Rules::new().command(|command| command.on_failure(OnFailure::Keep));
    let (server, _) = serve(&backend, rules, move |_| {
        let gate = here.clone();
        async move {
            gate.pass().await;
            StatusCode::BAD_GATEWAY
        }
    })
    .await;
    let place = url(&server.send(later("k", "respond-async")).await);
    gate.open();
    let failed = final_answer(&server, &place).await;
    assert_eq!((failed.status.as_u16(), failed.problem().as_deref()), (409, Some("failed")));
    assert_eq!(failed.json()["retryable"], false);
}

on_every_store! {
    a_refusal_is_found_at_its_url,
    a_refusal_that_the_caller_waited_for_releases_the_key,
    a_failure_is_found_at_its_url_and_may_be_run_again,
    the_end_of_an_operation_is_found_at_its_url,
    an_expired_answer_is_gone_from_its_url,
    an_attempt_that_broke_off_is_found_at_its_url,
}

in_memory! {
    a_failure_that_is_kept_is_found_at_its_url,
}
