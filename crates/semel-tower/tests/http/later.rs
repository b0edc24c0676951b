//! Tests of asynchronous responses: `Prefer: respond-async`.

mod ends;

use std::time::Duration;

use axum::Router;
use http::{HeaderName, Request};
use semel_core::{Executor, OperationId, Store as _};
use semel_testkit::faulty::{Fault, FaultyStore, StoreCall};
use semel_tower::http::{IdempotencyLayer, OPERATIONS, Rules};
use semel_tower::{PrincipalFrom, Tenant};

use crate::backend::{Answer, Backend, Sent, Server, get, in_memory, on_every_store, post};
use crate::support::{Gate, Runs, created, executor, layer, order_key, router, serve};

fn later(key: &str, preference: &str) -> Request<Sent> {
    let mut request = post("/orders", key, "{}");
    request.headers_mut().insert("prefer", preference.parse().expect("a header value"));
    request
}

/// Returns the URL of the outcome from a 202.
fn url(accepted: &Answer) -> String {
    assert_eq!((accepted.status.as_u16(), accepted.body.len()), (202, 0), "{accepted:?}");
    assert_eq!(accepted.header("cache-control"), Some("no-store"));
    assert_eq!(accepted.header("retry-after"), Some("1"));
    assert_eq!(accepted.header("preference-applied"), Some("respond-async"));
    assert!(!accepted.replayed());
    let url = accepted.header("location").expect("where to ask").to_owned();
    assert!(url.starts_with(OPERATIONS), "{url}");
    url
}

/// Polls the URL until the operation is over, and returns the last response.
async fn final_answer(server: &Server, url: &str) -> Answer {
    loop {
        let answer = server.send(get(url)).await;
        if answer.status != 202 {
            assert_eq!(answer.header("cache-control"), Some("no-store"), "one URL, many callers");
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn unknown(answer: &Answer) -> bool {
    (answer.status.as_u16(), answer.problem().as_deref()) == (404, Some("operation-unknown"))
}

async fn an_asynchronous_response_is_found_at_its_url<G: Backend>(backend: G) {
    let gate = Gate::new();
    let (here, runs) = serve(&backend, Rules::new(), gate.handler()).await;
    let (there, _) = serve(&backend, Rules::new(), created).await;
    let place = url(&here.send(later("k", "respond-async")).await);
    gate.reached().await;
    for server in [&here, &there] {
        assert_eq!(url(&server.send(get(&place)).await), place, "while it runs");
    }
    gate.open();
    let answer = final_answer(&here, &place).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (201, "run 1"));
    assert!(answer.replayed());
    for server in [&there, &here] {
        assert_eq!(server.send(get(&place)).await.text(), "run 1", "for every request");
        assert_eq!(server.send(post("/orders", "k", "{}")).await.text(), "run 1");
    }
    assert_eq!(runs.count(), 1);
}

async fn a_repeat_of_a_running_operation_gets_the_same_url<G: Backend>(backend: G) {
    let gate = Gate::new();
    let (server, runs) = serve(&backend, Rules::new(), gate.handler()).await;
    // The first request is synchronous, the repeat asynchronous.
    let first = server.sending(post("/orders", "k", "{}"));
    gate.reached().await;
    let place = url(&server.send(later("k", "respond-async")).await);
    assert_eq!(url(&server.send(later("k", "respond-async")).await), place);
    gate.open();
    let answer = final_answer(&server, &place).await;
    assert_eq!(answer.body, first.await.expect("an answer").body);
    // A response that already exists is returned at once.
    let repeat = server.send(later("k", "respond-async")).await;
    assert_eq!((repeat.status.as_u16(), repeat.replayed()), (201, true));
    assert_eq!(runs.count(), 1);
}

async fn an_operation_is_known_to_its_own_caller_only<G: Backend>(backend: G) {
    let (tenant, user) =
        (HeaderName::from_static("x-tenant-id"), HeaderName::from_static("x-user"));
    let executor = executor(&backend).await;
    let layer =
        IdempotencyLayer::fenced(executor, Tenant::header(tenant), PrincipalFrom::header(user));
    let (gate, runs) = (Gate::new(), Runs::default());
    let server = Server::start(&backend, router(&runs, gate.handler()).layer(layer)).await;
    let by = |tenant: &str, user: &str, mut request: Request<Sent>| {
        request.headers_mut().insert("x-tenant-id", tenant.parse().expect("a header value"));
        request.headers_mut().insert("x-user", user.parse().expect("a header value"));
        request
    };
    let accepted = server.send(by("acme", "ann", later("k", "respond-async"))).await;
    let place = url(&accepted);
    for finished in [false, true] {
        for (tenant, user) in [("acme", "bob"), ("globex", "ann"), ("globex", "bob")] {
            let answer = server.send(by(tenant, user, get(&place))).await;
            assert!(unknown(&answer), "{tenant} {user}: {answer:?}");
        }
        let nobody = server.send(get(&place)).await;
        assert_eq!(nobody.problem().as_deref(), Some("tenant-unknown"));
        let own = server.send(by("acme", "ann", get(&place))).await;
        assert_eq!(own.status, if finished { 201 } else { 202 });
        if !finished {
            gate.open();
            while server.send(by("acme", "ann", get(&place))).await.status == 202 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

async fn operations_that_never_existed_are_unknown<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new(), created).await;
    // The operation ran synchronously, so no caller got its URL.
    server.send(post("/orders", "k", "{}")).await;
    let store = backend.store().await;
    let found = store.peek(&order_key("k")).await.expect("the store answers").expect("a record");
    let ids = [
        found.record.operation_id.to_string(),
        OperationId::generate().to_string(),
        String::new(),
        "garbage".to_owned(),
        "01ARZ3NDEKTSV4RRFFQ69G5FA".to_owned(),
        "01ARZ3NDEKTSV4RRFFQ69G5FAV0".to_owned(),
        "8ZZZZZZZZZZZZZZZZZZZZZZZZZ".to_owned(),
        "01ARZ3NDEKTSV4RRFFQ69G5FAV/".to_owned(),
        "../../../orders".to_owned(),
        "%00".to_owned(),
        "x".repeat(3_000),
    ];
    for id in ids {
        let answer = server.send(get(&format!("{OPERATIONS}{id}"))).await;
        assert!(unknown(&answer), "{id}: {answer:?}");
    }
    assert_eq!(runs.count(), 1);
}

async fn a_caller_may_wait_a_while_before_it_gets_a_202<G: Backend>(backend: G) {
    let gate = Gate::new();
    let (server, _) = serve(&backend, Rules::new(), gate.handler()).await;
    let mut waiting = server.sending(later("k", "respond-async, wait=60"));
    gate.reached().await;
    let early = tokio::time::timeout(Duration::from_millis(30), &mut waiting).await;
    assert!(early.is_err(), "got a 202 at once: {early:?}");
    gate.open();
    let answer = waiting.await.expect("an answer");
    assert_eq!((answer.status.as_u16(), answer.text(), answer.replayed()), (201, "run 1", false));
}

async fn a_wait_that_is_over_ends_in_a_url<G: Backend>(backend: G) {
    let gate = Gate::new();
    let (server, _) = serve(&backend, Rules::new(), gate.handler()).await;
    let place = url(&server.send(later("k", "wait=1, respond-async")).await);
    gate.open();
    assert_eq!(final_answer(&server, &place).await.status, 201);
}

async fn other_preferences_change_nothing<G: Backend>(backend: G) {
    let (server, _) = serve(&backend, Rules::new(), created).await;
    for preference in ["return=minimal", "wait=10", "respond-asynchronously", "x=respond-async"] {
        let key = preference.replace(['=', '-'], ".");
        assert_eq!(server.send(later(&key, preference)).await.status, 201, "{preference}");
    }
}

async fn a_route_may_ignore_respond_async<G: Backend>(backend: G) {
    let gate = Gate::new();
    let rules = Rules::new().respond_async(false);
    let (server, _) = serve(&backend, rules, gate.handler()).await;
    let first = server.sending(later("k", "respond-async"));
    gate.reached().await;
    let repeat = server.send(later("k", "respond-async")).await;
    assert_eq!(repeat.problem().as_deref(), Some("in-progress"));
    gate.open();
    assert_eq!(first.await.expect("an answer").status, 201);
}

async fn the_url_works_although_no_route_matches_it<G: Backend>(backend: G) {
    let (gate, runs) = (Gate::new(), Runs::default());
    let layer = layer(executor(&backend).await);
    let router = Router::new().route("/orders", runs.handler(gate.handler())).layer(layer);
    let server = Server::start(&backend, router).await;
    let place = url(&server.send(later("k", "respond-async")).await);
    gate.open();
    assert_eq!(final_answer(&server, &place).await.text(), "run 1");
    let other = server.send(get("/.well-known/semel/other")).await;
    assert_eq!((other.status.as_u16(), other.problem()), (404, None), "the router's own");
}

async fn without_a_pointer_the_caller_waits_for_the_response<G: Backend>(backend: G) {
    let store = FaultyStore::new(backend.any_store().await);
    let faults = store.faults().clone();
    let (gate, runs) = (Gate::new(), Runs::default());
    let layer = layer(Executor::new(store));
    let server = Server::start(&backend, router(&runs, gate.handler()).layer(layer)).await;
    faults.spare(StoreCall::Open, 1);
    faults.next(StoreCall::Open, Fault::Refuse);
    let first = server.sending(later("k", "respond-async"));
    gate.reached().await;
    // A repeat finds the operation running, and gets no URL either.
    faults.spare(StoreCall::Open, 1);
    faults.next(StoreCall::Open, Fault::Refuse);
    while faults.happened(StoreCall::Open) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let repeat = server.send(later("k", "respond-async")).await;
    assert_eq!(repeat.problem().as_deref(), Some("in-progress"));
    gate.open();
    let answer = first.await.expect("an answer");
    assert_eq!((answer.status.as_u16(), answer.text()), (201, "run 1"));
    assert_eq!((runs.count(), faults.happened(StoreCall::Open)), (1, 2));
}

async fn a_url_is_sent_only_when_it_works<G: Backend>(backend: G) {
    let store = FaultyStore::new(backend.any_store().await);
    let faults = store.faults().clone();
    let (gate, runs) = (Gate::new(), Runs::default());
    let layer = layer(Executor::new(store));
    let server = Server::start(&backend, router(&runs, gate.handler()).layer(layer)).await;
    // While the handler runs, only the pointer record is settled.
    faults.next(StoreCall::Settle, Fault::Hang);
    let first = server.sending(later("k", "respond-async"));
    faults.hung(1).await;
    let mut second = server.sending(later("k", "respond-async"));
    let early = tokio::time::timeout(Duration::from_millis(30), &mut second).await;
    assert!(early.is_err(), "got a URL that does not work yet: {early:?}");
    faults.release();
    for accepted in [first, second] {
        let place = url(&accepted.await.expect("an answer"));
        assert_eq!(server.send(get(&place)).await.status, 202);
    }
    gate.open();
}

async fn a_replay_check_runs_at_the_url_too<G: Backend>(backend: G) {
    let gate = Gate::new();
    let rules = Rules::new().replay_check(|parts| {
        let allowed = parts.headers.get("x-may").is_some();
        async move { allowed }
    });
    let (server, _) = serve(&backend, rules, gate.handler()).await;
    let place = url(&server.send(later("k", "respond-async")).await);
    gate.open();
    let refused = final_answer(&server, &place).await;
    assert_eq!(
        (refused.status.as_u16(), refused.problem().as_deref()),
        (403, Some("replay-refused"))
    );
    let mut allowed = get(&place);
    allowed.headers_mut().insert("x-may", "yes".parse().expect("a header value"));
    assert_eq!(server.send(allowed).await.text(), "run 1");
}

async fn many_concurrent_requests_all_get_a_url_that_works<G: Backend>(backend: G) {
    let gate = Gate::new();
    let (server, runs) = serve(&backend, Rules::new(), gate.handler()).await;
    let sending: Vec<_> = (0..16).map(|_| server.sending(later("k", "respond-async"))).collect();
    let mut with_url = 0;
    for sent in sending {
        let answer = sent.await.expect("an answer");
        // A concurrent duplicate may not know the operation id yet, and then gets no URL.
        if answer.problem().as_deref() != Some("in-progress") {
            let place = url(&answer);
            assert_eq!(server.send(get(&place)).await.status, 202);
            with_url += 1;
        }
    }
    assert_ne!(with_url, 0);
    gate.open();
    assert_eq!(runs.count(), 1);
}

async fn a_request_for_an_outcome_is_refused_while_the_store_is_down<G: Backend>(backend: G) {
    let store = FaultyStore::new(backend.any_store().await);
    let faults = store.faults().clone();
    let (gate, runs) = (Gate::new(), Runs::default());
    let layer = layer(Executor::new(store));
    let server = Server::start(&backend, router(&runs, gate.handler()).layer(layer)).await;
    let place = url(&server.send(later("k", "respond-async")).await);
    gate.open();
    assert_eq!(final_answer(&server, &place).await.status, 201);
    faults.always(StoreCall::Peek, Fault::Refuse);
    let answer = server.send(get(&place)).await;
    assert_eq!(
        (answer.status.as_u16(), answer.problem().as_deref()),
        (503, Some("store-unavailable"))
    );
}

on_every_store! {
    an_asynchronous_response_is_found_at_its_url,
    a_repeat_of_a_running_operation_gets_the_same_url,
    an_operation_is_known_to_its_own_caller_only,
    many_concurrent_requests_all_get_a_url_that_works,
}

in_memory! {
    operations_that_never_existed_are_unknown,
    a_caller_may_wait_a_while_before_it_gets_a_202,
    a_wait_that_is_over_ends_in_a_url,
    other_preferences_change_nothing,
    a_route_may_ignore_respond_async,
    the_url_works_although_no_route_matches_it,
    without_a_pointer_the_caller_waits_for_the_response,
    a_url_is_sent_only_when_it_works,
    a_replay_check_runs_at_the_url_too,
    a_request_for_an_outcome_is_refused_while_the_store_is_down,
}
