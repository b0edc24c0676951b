//! Tests of the key that a caller sends: where it is read, and which values are valid.

use http::{HeaderName, Method, Request};
use semel_tower::http::Rules;

use crate::backend::{
    Answer, Backend, Sent, Server, in_memory, keyed, on_every_store, post, request,
};
use crate::support::{Runs, created, executor, layer, router, serve};

/// Creates the request `POST /orders` with these header lines.
fn with(lines: &[(&str, &str)]) -> Request<Sent> {
    let mut request = request(Method::POST, "/orders", "{}");
    for (name, value) in lines {
        let name: HeaderName = name.parse().expect("a header name");
        request.headers_mut().append(name, value.parse().expect("a header value"));
    }
    request
}

fn refused(answer: &Answer) -> (u16, Option<String>) {
    (answer.status.as_u16(), answer.problem())
}

async fn quoted_and_bare_keys_are_one_key<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new(), created).await;
    let spellings = ["8e03-978e", "\"8e03-978e\"", "\"8e03-978e\";v=1", " \"8e03-978e\" "];
    let first = server.send(with(&[("idempotency-key", spellings[0])])).await;
    assert_eq!(first.status, 201);
    for spelling in &spellings[1..] {
        let again = server.send(with(&[("idempotency-key", spelling)])).await;
        assert!(again.replayed(), "{spelling}");
        assert_eq!(again.body, first.body);
    }
    assert_eq!(runs.count(), 1);
}

async fn keys_that_differ_in_one_character_are_two_keys<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new(), created).await;
    let keys = ["abc", "Abc", "\"abc \"", "\" abc\"", "abc~", r#""a\"bc""#, r#""a\\bc""#, "a.bc"];
    for key in keys {
        assert!(!server.send(post("/orders", key, "{}")).await.replayed(), "{key}");
    }
    for key in keys {
        assert!(server.send(post("/orders", key, "{}")).await.replayed(), "{key}");
    }
    assert_eq!(runs.count(), 8);
}

async fn a_key_of_255_characters_is_the_longest<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new(), created).await;
    let longest = "x".repeat(255);
    let quoted = format!("\"{longest}\"");
    assert_eq!(server.send(post("/orders", &longest, "{}")).await.status, 201);
    assert!(server.send(post("/orders", &quoted, "{}")).await.replayed());
    for longer in [format!("{longest}x"), format!("\"{longest}x\"")] {
        let answer = server.send(post("/orders", &longer, "{}")).await;
        assert_eq!(refused(&answer), (400, Some("key-invalid".to_owned())));
    }
    assert_eq!(runs.count(), 1);
}

async fn either_header_carries_the_key<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new(), created).await;
    let first = server.send(with(&[("x-idempotency-key", "k")])).await;
    assert_eq!(first.status, 201);
    assert!(server.send(with(&[("idempotency-key", "\"k\"")])).await.replayed());
    assert_eq!(runs.count(), 1);
}

async fn two_headers_with_one_key_are_one_key<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new(), created).await;
    let both = [("idempotency-key", "\"k\""), ("x-idempotency-key", "k")];
    assert_eq!(server.send(with(&both)).await.status, 201);
    assert!(server.send(with(&both[..1])).await.replayed());
    assert_eq!(runs.count(), 1);
}

async fn two_headers_with_two_keys_are_refused<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new(), created).await;
    let answer = server.send(with(&[("idempotency-key", "a"), ("x-idempotency-key", "b")])).await;
    assert_eq!(refused(&answer), (400, Some("key-invalid".to_owned())));
    assert_eq!(runs.count(), 0);
}

async fn a_header_that_is_sent_twice_is_refused_even_with_one_key<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new(), created).await;
    for name in ["idempotency-key", "x-idempotency-key"] {
        for second in ["a", "b"] {
            let answer = server.send(with(&[(name, "a"), (name, second)])).await;
            assert_eq!(refused(&answer), (400, Some("key-invalid".to_owned())), "{name} {second}");
        }
    }
    assert_eq!(runs.count(), 0);
}

async fn values_that_are_not_one_key_are_refused_and_nothing_runs<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new(), created).await;
    let bad = [
        "",
        "\"\"",
        "\"  \"",
        "a,b",
        "a, b",
        "\"a\", \"b\"",
        "a b",
        "a;b",
        "a\"b",
        "\"a",
        "\"a\"b\"",
        "\"a\\x\"",
        "\"a\";",
        "a\tb",
    ];
    for key in bad {
        let answer = server.send(with(&[("idempotency-key", key)])).await;
        assert_eq!(refused(&answer), (400, Some("key-invalid".to_owned())), "{key:?}");
    }
    for bytes in [&b"caf\xc3\xa9"[..], b"\"caf\xc3\xa9\"", b"\xff"] {
        let mut request = with(&[]);
        let value = http::HeaderValue::from_bytes(bytes).expect("a header value");
        request.headers_mut().insert("idempotency-key", value);
        let answer = server.send(request).await;
        assert_eq!(refused(&answer), (400, Some("key-invalid".to_owned())), "{bytes:?}");
    }
    assert_eq!(runs.count(), 0);
}

async fn a_request_without_a_key_runs_every_time<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new(), |call| async move {
        assert!(call.claim.is_none());
        call.created()
    })
    .await;
    for n in 1..=3 {
        let answer = server.send(with(&[])).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (201, &*format!("run {n}")));
        assert!(!answer.replayed());
    }
    assert_eq!(runs.count(), 3);
}

async fn a_route_that_requires_a_key_refuses_a_request_without_one<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new().required(), created).await;
    let answer = server.send(with(&[])).await;
    assert_eq!(refused(&answer), (400, Some("key-missing".to_owned())));
    assert!(answer.text().contains("idempotency-key"), "{answer:?}");
    assert_eq!(runs.count(), 0);
    assert_eq!(server.send(post("/orders", "k", "{}")).await.status, 201);
    assert_eq!(server.send(request(Method::PUT, "/orders", "{}")).await.status, 201);
    assert_eq!(server.send(request(Method::GET, "/orders", "")).await.status, 201);
}

async fn only_the_methods_of_the_rules_are_covered<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new(), created).await;
    for method in [Method::POST, Method::PATCH] {
        assert!(!server.send(keyed(method.clone(), "/orders", "k", "{}")).await.replayed());
        assert!(server.send(keyed(method, "/orders", "k", "{}")).await.replayed());
    }
    assert_eq!(runs.count(), 2);
    // An invalid key does not matter on methods without keys.
    for method in [Method::GET, Method::PUT, Method::DELETE, Method::OPTIONS] {
        for key in ["k", "k", "a,b"] {
            let answer = server.send(keyed(method.clone(), "/orders", key, "")).await;
            assert_eq!((answer.status.as_u16(), answer.replayed()), (201, false), "{method} {key}");
        }
    }
    assert_eq!(runs.count(), 14);
}

async fn other_methods_are_covered_if_the_rules_list_them<G: Backend>(backend: G) {
    let rules = Rules::new().methods([Method::PUT, Method::DELETE, Method::HEAD]);
    let (server, runs) = serve(&backend, rules, created).await;
    for method in [Method::PUT, Method::DELETE] {
        assert!(!server.send(keyed(method.clone(), "/orders", "k", "")).await.replayed());
        assert!(server.send(keyed(method, "/orders", "k", "")).await.replayed());
    }
    for method in [Method::POST, Method::HEAD] {
        assert!(!server.send(keyed(method.clone(), "/orders", "k", "")).await.replayed());
        assert!(!server.send(keyed(method, "/orders", "k", "")).await.replayed());
    }
    assert_eq!(runs.count(), 6);
}

async fn the_header_is_a_setting<G: Backend>(backend: G) {
    let name = HeaderName::from_static("paypal-request-id");
    let layer = layer(executor(&backend).await).key_headers([name]).rules(Rules::new().required());
    let runs = Runs::default();
    let server = Server::start(&backend, router(&runs, created).layer(layer)).await;
    assert_eq!(server.send(with(&[("paypal-request-id", "k")])).await.status, 201);
    assert!(server.send(with(&[("paypal-request-id", "k")])).await.replayed());
    let answer = server.send(with(&[("idempotency-key", "k")])).await;
    assert_eq!(refused(&answer), (400, Some("key-missing".to_owned())));
    assert!(answer.text().contains("paypal-request-id"), "{answer:?}");
    assert_eq!(runs.count(), 1);
}

on_every_store! {
    quoted_and_bare_keys_are_one_key,
    keys_that_differ_in_one_character_are_two_keys,
    a_key_of_255_characters_is_the_longest,
}

in_memory! {
    either_header_carries_the_key,
    two_headers_with_one_key_are_one_key,
    two_headers_with_two_keys_are_refused,
    a_header_that_is_sent_twice_is_refused_even_with_one_key,
    values_that_are_not_one_key_are_refused_and_nothing_runs,
    a_request_without_a_key_runs_every_time,
    a_route_that_requires_a_key_refuses_a_request_without_one,
    only_the_methods_of_the_rules_are_covered,
    other_methods_are_covered_if_the_rules_list_them,
    the_header_is_a_setting,
}
