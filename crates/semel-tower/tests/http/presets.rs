//! Tests which responses each preset stores, as far as a caller can observe it.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use semel_tower::http::{Preset, Rules, SettleAs};

use crate::backend::{Backend, Server, in_memory, on_every_store, post};
use crate::support::{HandlerCall, serve};

/// Returns a response with the status in the path.
fn named(call: &HandlerCall) -> (StatusCode, String) {
    let status = call.parts.uri.path().trim_start_matches('/').parse().expect("a status");
    let (attempt, operation) = call.operation();
    (StatusCode::from_u16(status).expect("a status"), format!("{attempt} {operation}"))
}

/// Returns how the claim of a response with `status` was settled, as far as a caller can observe
/// it.
async fn settlement_of(server: &Server, status: u16) -> SettleAs {
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
    // A failure keeps its operation and its fingerprint; a released key keeps nothing.
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
    let (server, _) = serve(backend, rules, |call| std::future::ready(named(&call))).await;
    for (expected, statuses) in expected {
        for status in *statuses {
            assert_eq!(settlement_of(&server, *status).await, *expected, "{status}");
        }
    }
}

const SUCCESSES: &[u16] = &[200, 201, 202, 204, 303, 307];
const FAILURES: &[u16] = &[500, 501, 502, 503, 504];
/// Statuses that do not depend on the request, and may come from a service behind the handler.
const TRANSIENT: &[u16] = &[401, 403, 429];
/// Statuses that do not depend on the request, and are sent before an effect.
const EARLY: &[u16] = &[413, 425];
/// Statuses that look like refusals but mean that the work broke off.
const BROKEN_OFF: &[u16] = &[408, 424, 499];

async fn success_only_keeps_successes<G: Backend>(backend: G) {
    let expected: [(SettleAs, &[u16]); 7] = [
        (SettleAs::Keep, SUCCESSES),
        (SettleAs::Release, &[400, 405, 406, 411, 414, 415, 416, 417, 421, 422, 426, 428, 431]),
        (SettleAs::Release, EARLY),
        (SettleAs::Fail, &[402, 404, 409, 410, 412, 418, 423, 451]),
        (SettleAs::Fail, TRANSIENT),
        (SettleAs::Fail, BROKEN_OFF),
        (SettleAs::Fail, FAILURES),
    ];
    follows(&backend, Preset::success_only(), &expected).await;
}

async fn below_500_keeps_refusals_but_not_transient_ones<G: Backend>(backend: G) {
    let expected: [(SettleAs, &[u16]); 6] = [
        (SettleAs::Keep, SUCCESSES),
        (SettleAs::Keep, &[400, 404, 405, 409, 410, 412, 415, 422, 423, 428, 451, 499]),
        (SettleAs::Release, EARLY),
        (SettleAs::Fail, TRANSIENT),
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
        (SettleAs::Fail, TRANSIENT),
        (SettleAs::Fail, &[408, 424]),
        (SettleAs::Fail, FAILURES),
    ];
    follows(&backend, Preset::terminal(), &expected).await;
}

async fn stripe_v1_keeps_everything_once_it_ran<G: Backend>(backend: G) {
    let expected: [(SettleAs, &[u16]); 5] = [
        (SettleAs::Keep, SUCCESSES),
        (SettleAs::Keep, &[400, 404, 409, 422]),
        (SettleAs::Keep, TRANSIENT),
        (SettleAs::Keep, BROKEN_OFF),
        (SettleAs::Keep, FAILURES),
    ];
    follows(&backend, Preset::stripe_v1(), &expected).await;
}

async fn a_custom_preset_decides_by_the_whole_response<G: Backend>(backend: G) {
    let preset = Preset::by(|answer| match answer.status.as_u16() {
        409 => SettleAs::Keep,
        418 => SettleAs::Fail,
        _ => SettleAs::Release,
    });
    let expected: [(SettleAs, &[u16]); 3] =
        [(SettleAs::Keep, &[409]), (SettleAs::Fail, &[418]), (SettleAs::Release, &[200, 500])];
    follows(&backend, preset, &expected).await;
}

async fn a_handler_may_choose_the_settlement<G: Backend>(backend: G) {
    let choosing = |chosen: SettleAs| {
        move |call: HandlerCall| {
            let mut response: Response = named(&call).into_response();
            response.extensions_mut().insert(chosen);
            std::future::ready(response)
        }
    };
    for chosen in [SettleAs::Keep, SettleAs::Release, SettleAs::Fail] {
        let (server, _) = serve(&backend, Rules::new(), choosing(chosen)).await;
        for status in [200 + chosen as u16, 400 + chosen as u16, 500 + chosen as u16] {
            assert_eq!(settlement_of(&server, status).await, chosen, "{status}");
        }
    }
}

async fn a_status_of_each_settlement_is_settled_so<G: Backend>(backend: G) {
    let expected: [(SettleAs, &[u16]); 3] =
        [(SettleAs::Keep, &[201]), (SettleAs::Release, &[422]), (SettleAs::Fail, &[503])];
    follows(&backend, Preset::success_only(), &expected).await;
    follows(&backend, Preset::stripe_v1(), &[(SettleAs::Keep, &[202, 400, 500])]).await;
}

on_every_store! {
    a_status_of_each_settlement_is_settled_so,
}

in_memory! {
    success_only_keeps_successes,
    below_500_keeps_refusals_but_not_transient_ones,
    terminal_keeps_refusals_that_no_repeat_can_change,
    stripe_v1_keeps_everything_once_it_ran,
    a_custom_preset_decides_by_the_whole_response,
    a_handler_may_choose_the_settlement,
}
