//! Which answers are kept, by preset: told apart from outside.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use semel_tower::http::{Preset, Rules, SettleAs};

use crate::backend::{Backend, Server, in_memory, on_every_store, post};
use crate::stage::{Visit, serve};

/// Answers with the status that the path names.
fn named(visit: &Visit) -> (StatusCode, String) {
    let status = visit.parts.uri.path().trim_start_matches('/').parse().expect("a status");
    let (attempt, operation) = visit.operation();
    (StatusCode::from_u16(status).expect("a status"), format!("{attempt} {operation}"))
}

/// What became of a claim whose handler answered with `status`, as its caller can see it.
async fn fate(server: &Server, status: u16) -> SettleAs {
    let path = format!("/{status}");
    let first = server.send(post(&path, "k", "{}")).await;
    assert_eq!(first.status, status);
    assert!(!first.replayed(), "{status}");
    let again = server.send(post(&path, "k", "{}")).await;
    assert_eq!(again.status, status);
    if again.replayed() {
        assert_eq!(again.body, first.body, "{status}");
        return SettleAs::Keep;
    }
    // A failure keeps its operation and its fingerprint; a released key has nothing to keep.
    let other = server.send(post(&path, "k", "[]")).await;
    if other.problem().as_deref() == Some("key-reused") {
        if !first.body.is_empty() {
            let operation = first.text().strip_prefix("1 ").expect("the first attempt");
            assert_eq!(again.text(), format!("2 {operation}"), "{status}");
        }
        SettleAs::Fail
    } else {
        assert_eq!(other.status, status);
        assert!(again.text().starts_with("1 ") && other.text().starts_with("1 "), "{status}");
        assert_ne!(again.body, first.body, "{status}: a fresh operation");
        SettleAs::Release
    }
}

async fn follows<G: Backend>(backend: &G, preset: Preset, expected: &[(SettleAs, &[u16])]) {
    let rules = Rules::new().preset(preset);
    let (server, _) = serve(backend, rules, |visit| std::future::ready(named(&visit))).await;
    for (expected, statuses) in expected {
        for status in *statuses {
            assert_eq!(fate(&server, *status).await, *expected, "{status}");
        }
    }
}

const SUCCESSES: &[u16] = &[200, 201, 202, 204, 303, 307];
const FAILURES: &[u16] = &[500, 501, 502, 503, 504];
/// Say nothing about the request itself, and may be the word of a service behind the handler.
const PASSING: &[u16] = &[401, 403, 429];
/// Say nothing about the request itself, and are said before anything was done.
const EARLY: &[u16] = &[413, 425];
/// Look like refusals, and say that the work broke off.
const BROKEN_OFF: &[u16] = &[408, 424, 499];

async fn success_only_keeps_successes<G: Backend>(backend: G) {
    let expected: [(SettleAs, &[u16]); 7] = [
        (SettleAs::Keep, SUCCESSES),
        (SettleAs::Release, &[400, 405, 406, 411, 414, 415, 416, 417, 421, 422, 426, 428, 431]),
        (SettleAs::Release, EARLY),
        (SettleAs::Fail, &[402, 404, 409, 410, 412, 418, 423, 451]),
        (SettleAs::Fail, PASSING),
        (SettleAs::Fail, BROKEN_OFF),
        (SettleAs::Fail, FAILURES),
    ];
    follows(&backend, Preset::success_only(), &expected).await;
}

async fn below_500_keeps_refusals_but_not_passing_ones<G: Backend>(backend: G) {
    let expected: [(SettleAs, &[u16]); 6] = [
        (SettleAs::Keep, SUCCESSES),
        (SettleAs::Keep, &[400, 404, 405, 409, 410, 412, 415, 422, 423, 428, 451, 499]),
        (SettleAs::Release, EARLY),
        (SettleAs::Fail, PASSING),
        (SettleAs::Fail, &[408]),
        (SettleAs::Fail, FAILURES),
    ];
    follows(&backend, Preset::below_500(), &expected).await;
}

async fn terminal_keeps_refusals_that_no_repeat_can_change<G: Backend>(backend: G) {
    let expected: [(SettleAs, &[u16]); 8] = [
        (SettleAs::Keep, SUCCESSES),
        (SettleAs::Keep, &[400, 405, 410, 415, 422, 451]),
        (SettleAs::Release, &[421, 426, 428]),
        (SettleAs::Release, EARLY),
        (SettleAs::Fail, &[404, 409, 412, 423]),
        (SettleAs::Fail, PASSING),
        (SettleAs::Fail, &[408, 424]),
        (SettleAs::Fail, FAILURES),
    ];
    follows(&backend, Preset::terminal(), &expected).await;
}

async fn stripe_v1_keeps_everything_once_it_ran<G: Backend>(backend: G) {
    let expected: [(SettleAs, &[u16]); 5] = [
        (SettleAs::Keep, SUCCESSES),
        (SettleAs::Keep, &[400, 404, 409, 422]),
        (SettleAs::Keep, PASSING),
        (SettleAs::Keep, BROKEN_OFF),
        (SettleAs::Keep, FAILURES),
    ];
    follows(&backend, Preset::stripe_v1(), &expected).await;
}

async fn a_preset_of_ones_own_decides_by_the_whole_answer<G: Backend>(backend: G) {
    let preset = Preset::by(|answer| match answer.status.as_u16() {
        409 => SettleAs::Keep,
        418 => SettleAs::Fail,
        _ => SettleAs::Release,
    });
    let expected: [(SettleAs, &[u16]); 3] =
        [(SettleAs::Keep, &[409]), (SettleAs::Fail, &[418]), (SettleAs::Release, &[200, 500])];
    follows(&backend, preset, &expected).await;
}

async fn a_handler_may_say_itself_what_becomes_of_its_answer<G: Backend>(backend: G) {
    let says = |fate: SettleAs| {
        move |visit: Visit| {
            let mut response: Response = named(&visit).into_response();
            response.extensions_mut().insert(fate);
            std::future::ready(response)
        }
    };
    for said in [SettleAs::Keep, SettleAs::Release, SettleAs::Fail] {
        let (server, _) = serve(&backend, Rules::new(), says(said)).await;
        for status in [200 + said as u16, 400 + said as u16, 500 + said as u16] {
            assert_eq!(fate(&server, status).await, said, "{status}");
        }
    }
}

async fn a_status_of_each_fate_meets_it<G: Backend>(backend: G) {
    let expected: [(SettleAs, &[u16]); 3] =
        [(SettleAs::Keep, &[201]), (SettleAs::Release, &[422]), (SettleAs::Fail, &[503])];
    follows(&backend, Preset::success_only(), &expected).await;
    follows(&backend, Preset::stripe_v1(), &[(SettleAs::Keep, &[202, 400, 500])]).await;
}

on_every_store! {
    a_status_of_each_fate_meets_it,
}

in_memory! {
    success_only_keeps_successes,
    below_500_keeps_refusals_but_not_passing_ones,
    terminal_keeps_refusals_that_no_repeat_can_change,
    stripe_v1_keeps_everything_once_it_ran,
    a_preset_of_ones_own_decides_by_the_whole_answer,
    a_handler_may_say_itself_what_becomes_of_its_answer,
}
