//! Tests that keys of different tenants, principals, routes and methods are separate.

use http::{HeaderName, Method, Request};
use semel_core::{Command, Key, Outcome, Principal};
use semel_tower::http::{IdempotencyLayer, Rules};
use semel_tower::{PrincipalFrom, Tenant};

use crate::backend::{Backend, Sent, Server, in_memory, keyed, on_every_store, post, request};
use crate::support::{Runs, created, executor, router, serve};

const TENANT: HeaderName = HeaderName::from_static("x-tenant-id");
const USER: HeaderName = HeaderName::from_static("x-user");

/// Starts a service with tenants and users.
async fn shared<G: Backend>(backend: &G, rules: Rules) -> (Server, Runs) {
    let executor = executor(backend).await;
    let layer =
        IdempotencyLayer::fenced(executor, Tenant::header(TENANT), PrincipalFrom::header(USER));
    let runs = Runs::default();
    (Server::start(backend, router(&runs, created).layer(layer.rules(rules))).await, runs)
}

fn from(tenant: &str, user: &str, mut request: Request<Sent>) -> Request<Sent> {
    for (name, value) in [(TENANT, tenant), (USER, user)] {
        request.headers_mut().insert(name, value.parse().expect("a header value"));
    }
    request
}

async fn keys_of_tenants_principals_routes_and_methods_are_separate<G: Backend>(backend: G) {
    let (server, runs) = shared(&backend, Rules::new()).await;
    let mut places = Vec::new();
    for tenant in ["acme", "globex"] {
        for user in ["ann", "bob"] {
            for path in ["/orders", "/refunds"] {
                for method in [Method::POST, Method::PATCH] {
                    places.push((tenant, user, method, path));
                }
            }
        }
    }
    let mut client = server.client().await;
    let mut answers = Vec::new();
    for (tenant, user, method, path) in &places {
        let request = from(tenant, user, keyed(method.clone(), path, "k", "{}"));
        let answer = client.send(request).await;
        assert!(!answer.replayed(), "{tenant} {user} {method} {path} got another's answer");
        answers.push(answer.body);
    }
    assert_eq!(runs.count(), 16);
    for ((tenant, user, method, path), first) in places.into_iter().zip(answers) {
        let again = client.send(from(tenant, user, keyed(method, path, "k", "{}"))).await;
        assert!(again.replayed());
        assert_eq!(again.body, first);
    }
    assert_eq!(runs.count(), 16);
}

async fn where_one_name_ends_and_the_next_begins_matters<G: Backend>(backend: G) {
    let (server, runs) = shared(&backend, Rules::new()).await;
    for (tenant, user, key) in
        [("ab", "c", "d"), ("a", "bc", "d"), ("a", "b", "cd"), ("abc", "d", "d")]
    {
        let answer = server.send(from(tenant, user, post("/orders", key, "{}"))).await;
        assert!(!answer.replayed(), "{tenant} {user} {key}");
    }
    assert_eq!(runs.count(), 4);
}

async fn another_request_of_another_caller_is_no_mismatch<G: Backend>(backend: G) {
    let (server, runs) = shared(&backend, Rules::new()).await;
    for (n, user) in ["ann", "bob"].into_iter().enumerate() {
        let answer = server.send(from("acme", user, post("/orders", "k", &format!("[{n}]")))).await;
        assert_eq!(answer.status, 201);
    }
    let reused = server.send(from("acme", "bob", post("/orders", "k", "[0]"))).await;
    assert_eq!(reused.problem().as_deref(), Some("key-reused"));
    assert_eq!(runs.count(), 2);
}

async fn a_command_of_the_same_name_is_another_operation<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new(), created).await;
    let command = Command::new(Key::command("acme", "POST /orders", "k").expect("a key"));
    let executor = executor(&backend).await;
    let made = executor.run_outcome(command, |_| async {
        Ok::<_, std::io::Error>(Outcome::new("text/plain", "a function's result"))
    });
    assert!(made.await.is_ok());
    let answer = server.send(post("/orders", "k", "{}")).await;
    assert_eq!((answer.replayed(), answer.text()), (false, "run 1"));
    assert_eq!(runs.count(), 1);
}

async fn an_unknown_tenant_is_refused<G: Backend>(backend: G) {
    let (server, runs) = shared(&backend, Rules::new()).await;
    let mut unidentified = post("/orders", "k", "{}");
    unidentified.headers_mut().insert(USER, "ann".parse().expect("a header value"));
    let mut two = from("acme", "ann", post("/orders", "k", "{}"));
    two.headers_mut().append(TENANT, "globex".parse().expect("a header value"));
    let blank = from("", "ann", post("/orders", "k", "{}"));
    let long = from(&"t".repeat(2_000), "ann", post("/orders", "k", "{}"));
    for request in [unidentified, two, blank, long] {
        let answer = server.send(request).await;
        assert_eq!(
            (answer.status.as_u16(), answer.problem().as_deref()),
            (401, Some("tenant-unknown"))
        );
    }
    assert_eq!(runs.count(), 0);
}

async fn an_unknown_principal_is_refused<G: Backend>(backend: G) {
    let (server, runs) = shared(&backend, Rules::new()).await;
    let mut unidentified = post("/orders", "k", "{}");
    unidentified.headers_mut().insert(TENANT, "acme".parse().expect("a header value"));
    let mut two = from("acme", "ann", post("/orders", "k", "{}"));
    two.headers_mut().append(USER, "bob".parse().expect("a header value"));
    let blank = from("acme", "", post("/orders", "k", "{}"));
    for request in [unidentified, two, blank] {
        let answer = server.send(request).await;
        assert_eq!(
            (answer.status.as_u16(), answer.problem().as_deref()),
            (401, Some("principal-unknown"))
        );
    }
    assert_eq!(runs.count(), 0);
}

async fn a_request_without_a_key_needs_no_identity<G: Backend>(backend: G) {
    let (server, runs) = shared(&backend, Rules::new()).await;
    assert_eq!(server.send(request(Method::POST, "/orders", "{}")).await.status, 201);
    assert_eq!(server.send(keyed(Method::GET, "/orders", "k", "")).await.status, 201);
    assert_eq!(runs.count(), 2);
}

async fn callers_share_keys_only_if_the_layer_allows_it<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new(), created).await;
    assert!(!server.send(from("acme", "ann", post("/orders", "k", "{}"))).await.replayed());
    assert!(server.send(from("acme", "bob", post("/orders", "k", "{}"))).await.replayed());
    assert_eq!(runs.count(), 1);
}

async fn an_identity_may_come_from_an_outer_layer<G: Backend>(backend: G) {
    #[derive(Clone)]
    struct User(String);
    let principal = PrincipalFrom::by(|parts| {
        parts.extensions.get::<User>().map(|user| Principal::of(&user.0))
    });
    let executor = executor(&backend).await;
    let layer = IdempotencyLayer::fenced(executor, Tenant::fixed("acme"), principal);
    // Two tokens of one user.
    let signed_in = axum::middleware::map_request(async |mut request: axum::extract::Request| {
        let token = request.headers().get("authorization").and_then(|token| token.to_str().ok());
        let user =
            token.and_then(|token| token.split('.').next()).map(|user| User(user.to_owned()));
        if let Some(user) = user {
            request.extensions_mut().insert(user);
        }
        request
    });
    let runs = Runs::default();
    let router = router(&runs, created).layer(layer).layer(signed_in);
    let server = Server::start(&backend, router).await;
    let by = |token: &str| {
        let mut request = post("/orders", "k", "{}");
        request.headers_mut().insert("authorization", token.parse().expect("a header value"));
        request
    };
    assert!(!server.send(by("ann.token-1")).await.replayed());
    assert!(server.send(by("ann.token-2")).await.replayed());
    assert!(!server.send(by("bob.token-1")).await.replayed());
    assert_eq!(server.send(post("/orders", "k", "{}")).await.status, 401);
    assert_eq!(runs.count(), 2);
}

on_every_store! {
    keys_of_tenants_principals_routes_and_methods_are_separate,
    where_one_name_ends_and_the_next_begins_matters,
    another_request_of_another_caller_is_no_mismatch,
    a_command_of_the_same_name_is_another_operation,
}

in_memory! {
    an_unknown_tenant_is_refused,
    an_unknown_principal_is_refused,
    a_request_without_a_key_needs_no_identity,
    callers_share_keys_only_if_the_layer_allows_it,
    an_identity_may_come_from_an_outer_layer,
}
