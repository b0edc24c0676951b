//! Tests the order of checks: route, key, tenant, principal, body, store.

use http::{HeaderName, Method, Request};
use semel_core::{Executor, Principal};
use semel_testkit::faulty::{Fault, FaultyStore, StoreCall};
use semel_tower::http::{IdempotencyLayer, Rules};
use semel_tower::{PrincipalFrom, Tenant};

use crate::backend::{Backend, Sent, Server, in_memory, request};
use crate::support::{Runs, created, router};

type Lines<'l> = &'l [(&'l str, &'l str)];

/// Creates a request to `/orders` with ten bytes and these header lines.
fn with(method: Method, lines: Lines<'_>) -> Request<Sent> {
    let mut request = request(method, "/orders", r#"["12345"]"#);
    for (name, value) in lines {
        let name: HeaderName = name.parse().expect("a header name");
        request.headers_mut().append(name, value.parse().expect("a header value"));
    }
    request
}

async fn the_first_check_that_fails_is_reported<G: Backend>(backend: G) {
    let store = FaultyStore::new(backend.any_store().await);
    store.faults().always(StoreCall::Open, Fault::Refuse);
    let faults = store.faults().clone();
    let named = |name: &'static str| {
        move |parts: &http::request::Parts| {
            parts.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        }
    };
    let who = named("x-user");
    let principal = PrincipalFrom::by(move |parts| who(parts).map(Principal::of));
    let layer =
        IdempotencyLayer::fenced(Executor::new(store), Tenant::by(named("x-tenant")), principal)
            .rules(Rules::new().required().max_request(8));
    let runs = Runs::default();
    let server = Server::start(&backend, router(&runs, created).layer(layer)).await;

    let (tenant, user, key) = (("x-tenant", "t"), ("x-user", "u"), ("idempotency-key", "k"));
    let table: [(Lines<'_>, u16, &str); 6] = [
        (&[], 400, "key-missing"),
        (&[("idempotency-key", "a,b")], 400, "key-invalid"),
        (&[key], 401, "tenant-unknown"),
        (&[key, user], 401, "tenant-unknown"),
        (&[key, tenant], 401, "principal-unknown"),
        (&[key, tenant, user], 413, "body-too-large"),
    ];
    for (lines, status, slug) in table {
        let answer = server.send(with(Method::POST, lines)).await;
        assert_eq!((answer.status.as_u16(), answer.problem().as_deref()), (status, Some(slug)));
    }
    assert_eq!(faults.happened(StoreCall::Open), 0, "the store is used last");

    let mut small = with(Method::POST, &[key, tenant, user]);
    *small.body_mut() = crate::backend::body("[1]");
    let answer = server.send(small).await;
    assert_eq!(
        (answer.status.as_u16(), answer.problem().as_deref()),
        (503, Some("store-unavailable"))
    );
    assert_ne!(faults.happened(StoreCall::Open), 0);
    assert_eq!(runs.count(), 0);

    // The route comes first: a request that passes through may be wrong in every way.
    let answer = server.send(with(Method::PUT, &[("idempotency-key", "a,b")])).await;
    assert_eq!((answer.status.as_u16(), runs.count()), (201, 1));
}

in_memory! {
    the_first_check_that_fails_is_reported,
}
