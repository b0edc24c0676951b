//! Tests what a repeat gets: the first response, its stored headers, and a mark.

use axum::response::{AppendHeaders, IntoResponse};
use bytes::Bytes;
use http::{HeaderName, StatusCode};
use semel_tower::http::{REPLAYED, Rules};

use crate::backend::{Backend, Server, in_memory, on_every_store, post};
use crate::support::{Runs, created, executor, layer, router, serve};

async fn a_repeat_gets_the_first_answer<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new(), created).await;
    let first = server.send(post("/orders", "k", "{}")).await;
    assert_eq!((first.status.as_u16(), first.text()), (201, "run 1"));
    assert_eq!(first.header("idempotent-replayed"), None);
    for _ in 0..3 {
        let again = server.send(post("/orders", "k", "{}")).await;
        assert_eq!((again.status, &again.body), (first.status, &first.body));
        assert_eq!(again.header("content-type"), first.header("content-type"));
        assert_eq!(again.header("idempotent-replayed"), Some("true"));
    }
    assert_eq!(runs.count(), 1);
    assert_eq!(server.send(post("/orders", "another", "{}")).await.text(), "run 2");
}

async fn a_repeat_at_another_process_gets_the_first_answer<G: Backend>(backend: G) {
    let (here, _) = serve(&backend, Rules::new(), created).await;
    let first = here.send(post("/orders", "k", "{}")).await;
    let (there, runs) = serve(&backend, Rules::new(), created).await;
    let again = there.send(post("/orders", "k", "{}")).await;
    assert!(again.replayed());
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    assert_eq!(runs.count(), 0);
}

async fn a_body_is_replayed_byte_for_byte<G: Backend>(backend: G) {
    let every: Vec<u8> = (0..=255u8).cycle().take(70_000).collect();
    let bodies = [Bytes::new(), Bytes::from_static(b"\0"), Bytes::from(every)];
    let answers = bodies.clone();
    let (server, _) = serve(&backend, Rules::new(), move |call| {
        let n: usize = call.parts.uri.path().trim_start_matches('/').parse().expect("a number");
        let answer = answers[n].clone();
        async move { ([("content-type", "application/octet-stream")], answer) }
    })
    .await;
    for (n, body) in bodies.iter().enumerate() {
        let path = format!("/{n}");
        for replayed in [false, true] {
            let answer = server.send(post(&path, "k", "{}")).await;
            assert_eq!(answer.replayed(), replayed);
            assert_eq!(&answer.body, body);
            assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
            // HTTP/2 may omit a length of 0.
            let length = answer.header("content-length").unwrap_or("0");
            assert_eq!(length, body.len().to_string(), "{n} {replayed}");
        }
    }
}

async fn an_answer_without_content_is_replayed_without_content<G: Backend>(backend: G) {
    let (server, _) =
        serve(&backend, Rules::new(), |_| std::future::ready(StatusCode::NO_CONTENT)).await;
    for replayed in [false, true] {
        let answer = server.send(post("/orders", "k", "")).await;
        assert_eq!((answer.status.as_u16(), answer.replayed()), (204, replayed));
        assert!(answer.body.is_empty());
        assert_eq!(answer.header("content-type"), None);
    }
}

async fn a_compressed_body_is_replayed_with_its_content_encoding<G: Backend>(backend: G) {
    let compressed = Bytes::from_static(b"\x1f\x8b\x08 what a layer inside made of it");
    let answer = compressed.clone();
    let (server, _) = serve(&backend, Rules::new(), move |_| {
        std::future::ready(([("content-encoding", "gzip")], answer.clone()))
    })
    .await;
    for replayed in [false, true] {
        let answer = server.send(post("/orders", "k", "{}")).await;
        assert_eq!(
            (answer.replayed(), answer.header("content-encoding")),
            (replayed, Some("gzip"))
        );
        assert_eq!(answer.body, compressed);
    }
}

/// Returns headers that a replay has. Some differ between runs, to show from which run they come.
fn headers(n: u32) -> AppendHeaders<Vec<(&'static str, String)>> {
    AppendHeaders(vec![
        ("location", format!("/orders/{n}")),
        ("content-location", format!("/orders/{n}")),
        ("content-language", "en".to_owned()),
        ("etag", format!("\"{n}\"")),
        ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT".to_owned()),
        ("link", "</1>; rel=self".to_owned()),
        ("link", "</2>; rel=next".to_owned()),
        ("link", "</0>; rel=prev".to_owned()),
        ("x-ours", "b".to_owned()),
        ("x-ours", "a".to_owned()),
        ("x-not-ours", "1".to_owned()),
    ])
}

async fn chosen_headers_are_replayed_in_order<G: Backend>(backend: G) {
    let rules = Rules::new().kept_headers([HeaderName::from_static("x-ours")]);
    let (server, _) =
        serve(&backend, rules, |call| async move { (StatusCode::CREATED, headers(call.n), "") })
            .await;
    let first = server.send(post("/orders", "k", "{}")).await;
    let again = server.send(post("/orders", "k", "{}")).await;
    assert!(again.replayed());
    let names = ["location", "content-location", "content-language", "etag", "last-modified"];
    for name in names.into_iter().chain(["content-type", "link", "x-ours"]) {
        let values = |answer: &crate::backend::Answer| {
            answer.headers.get_all(name).iter().cloned().collect::<Vec<_>>()
        };
        assert_eq!(values(&again), values(&first), "{name}");
        assert!(!values(&again).is_empty(), "{name}");
    }
    assert_eq!(again.headers.get_all("x-ours").iter().collect::<Vec<_>>(), ["b", "a"]);
    assert_eq!(first.header("x-not-ours"), Some("1"));
    assert_eq!(again.header("x-not-ours"), None);
}

const NEVER: [(&str, &str); 19] = [
    ("set-cookie", "session=ann"),
    ("set-cookie2", "session=ann"),
    ("authorization", "Bearer ann"),
    ("proxy-authorization", "Basic ann"),
    ("proxy-authenticate", "Basic"),
    ("www-authenticate", "Basic"),
    ("authentication-info", "nextnonce=1"),
    ("proxy-authentication-info", "nextnonce=1"),
    ("keep-alive", "timeout=5"),
    ("proxy-connection", "close"),
    ("te", "trailers"),
    ("trailer", "x-checksum"),
    ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
    ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("tracestate", "a=1"),
    ("b3", "1-2-3"),
    ("x-b3-traceid", "1"),
    ("x-request-id", "request-1"),
    ("x-correlation-id", "correlation-1"),
];

async fn headers_of_one_caller_or_moment_are_never_replayed<G: Backend>(backend: G) {
    let named = NEVER.map(|(name, _)| HeaderName::from_static(name));
    let rules = Rules::new().kept_headers(named);
    let (server, _) = serve(&backend, rules, |_| async { (AppendHeaders(NEVER), "done") }).await;
    let first = server.send(post("/orders", "k", "{}")).await;
    for name in ["set-cookie", "traceparent", "x-request-id"] {
        assert!(first.headers.contains_key(name), "{name} is in the first response");
    }
    let again = server.send(post("/orders", "k", "{}")).await;
    assert!(again.replayed());
    for (name, value) in NEVER {
        let kept = again.headers.get_all(name).iter().any(|kept| kept == value);
        assert!(!kept, "{name} was replayed");
    }
}

async fn a_header_listed_in_connection_is_not_replayed<G: Backend>(backend: G) {
    let rules = Rules::new().kept_headers([HeaderName::from_static("x-hop")]);
    let router_of = |runs: &Runs| {
        router(runs, |_| async {
            ([("x-hop", "this connection's")], [("connection", "x-hop")], "done")
        })
    };
    // HTTP/2 has no such header, so the test uses HTTP/1.1.
    let runs = Runs::default();
    let layer = layer(executor(&backend).await).rules(rules);
    let server = Server::start(&backend, router_of(&runs).layer(layer)).await;
    let mut client = server.h1().await;
    assert!(client.send(post("/orders", "k", "{}")).await.headers.contains_key("x-hop"));
    let mut client = server.h1().await;
    let again = client.send(post("/orders", "k", "{}")).await;
    assert!(again.replayed());
    assert!(!again.headers.contains_key("x-hop"));
}

async fn outer_layers_add_their_own_headers_once<G: Backend>(backend: G) {
    let stamp = axum::middleware::map_response(async |response: axum::response::Response| {
        ([("x-stamp", "now"), ("content-language", "de")], response).into_response()
    });
    let layer = layer(executor(&backend).await);
    let runs = Runs::default();
    let router = router(&runs, created).layer(layer).layer(stamp);
    let server = Server::start(&backend, router).await;
    for _ in 0..2 {
        let answer = server.send(post("/orders", "k", "{}")).await;
        assert_eq!(
            (answer.header("x-stamp"), answer.header("content-language")),
            (Some("now"), Some("de"))
        );
    }
    assert_eq!(runs.count(), 1);
}

async fn a_receipt_goes_with_every_kept_answer<G: Backend>(backend: G) {
    let shown = axum::middleware::map_response(async |response: axum::response::Response| {
        let receipt = response.extensions().get::<semel_core::Receipt>().copied();
        let shown = receipt.map(|receipt| format!("{} {}", receipt.operation_id, receipt.attempt));
        ([("x-receipt", shown.unwrap_or_default())], response)
    });
    let layer = layer(executor(&backend).await);
    let runs = Runs::default();
    let router = router(&runs, |call| async move { call.operation().1.to_string() });
    let server = Server::start(&backend, router.layer(layer).layer(shown)).await;
    for replayed in [false, true] {
        let answer = server.send(post("/orders", "k", "{}")).await;
        assert_eq!(answer.replayed(), replayed);
        assert_eq!(
            answer.header("x-receipt").map(str::to_owned),
            Some(format!("{} 1", answer.text()))
        );
    }
    assert_eq!(REPLAYED.as_str(), "idempotent-replayed");
}

on_every_store! {
    a_repeat_gets_the_first_answer,
    a_repeat_at_another_process_gets_the_first_answer,
    a_body_is_replayed_byte_for_byte,
    an_answer_without_content_is_replayed_without_content,
    chosen_headers_are_replayed_in_order,
    headers_of_one_caller_or_moment_are_never_replayed,
}

in_memory! {
    a_compressed_body_is_replayed_with_its_content_encoding,
    a_header_listed_in_connection_is_not_replayed,
    outer_layers_add_their_own_headers_once,
    a_receipt_goes_with_every_kept_answer,
}
