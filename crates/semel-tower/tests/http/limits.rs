//! Tests of bodies that are too long, break off, or have no end.

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::routing::any;
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use semel_tower::http::Rules;
use tokio::sync::mpsc;

use crate::backend::{
    Backend, Sent, Server, body, chunked, in_memory, keyed, on_every_store, post, request, until,
};
use crate::support::{Runs, created, executor, layer, serve};

fn sent(key: Option<&str>, sent: Sent) -> Request<Sent> {
    let mut request = match key {
        Some(key) => keyed(Method::POST, "/orders", key, ""),
        None => request(Method::POST, "/orders", ""),
    };
    *request.body_mut() = sent;
    request
}

async fn a_request_at_the_limit_runs_and_one_byte_more_does_not<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new().max_request(100), |call| async move {
        call.body.len().to_string()
    })
    .await;
    let text = |length: usize| "x".repeat(length);
    assert_eq!(server.send(sent(Some("a"), body(text(100)))).await.text(), "100");
    assert_eq!(server.send(sent(Some("b"), chunked([text(60), text(40)]))).await.text(), "100");
    for too_long in [body(text(101)), chunked([text(60), text(41)])] {
        let answer = server.send(sent(Some("c"), too_long)).await;
        assert_eq!(
            (answer.status.as_u16(), answer.problem().as_deref()),
            (413, Some("body-too-large"))
        );
    }
    assert_eq!(runs.count(), 2);
    // Nothing was claimed, so a shorter request may use the key.
    assert_eq!(server.send(sent(Some("c"), body(text(1)))).await.text(), "1");
}

async fn a_request_without_a_key_is_not_limited<G: Backend>(backend: G) {
    let (server, _) =
        serve(
            &backend,
            Rules::new().max_request(10),
            |call| async move { call.body.len().to_string() },
        )
        .await;
    let large = Bytes::from(vec![7; 2 << 20]);
    assert_eq!(server.send(sent(None, body(large.clone()))).await.text(), "2097152");
    assert_eq!(server.send(sent(None, chunked([large]))).await.text(), "2097152");
}

async fn the_limit_of_a_keyed_request_is_a_mebibyte<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new(), created).await;
    assert_eq!(server.send(sent(Some("a"), body(vec![0; 1 << 20]))).await.status, 201);
    assert_eq!(runs.count(), 1);
    // Over HTTP/1.1 a client that is still writing may lose the response to a broken pipe.
    let mut client = server.h2().await;
    let answer = client.send(sent(Some("b"), body(vec![0; (1 << 20) + 1]))).await;
    assert_eq!(answer.status, 413);
    assert_eq!(runs.count(), 1);
}

async fn a_request_that_breaks_off_does_not_run<G: Backend>(backend: G) {
    let (server, runs) =
        serve(&backend, Rules::new(), |call| async move { call.operation().0.to_string() }).await;
    let frames = vec![
        Ok(Frame::data(Bytes::from_static(b"{\"amount\":"))),
        Err(std::io::Error::other("the client gives up")),
    ];
    let broken = StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync();
    let mut client = server.client().await;
    assert!(client.begin(sent(Some("k"), broken)).await.is_err());
    // However the server interpreted the request, the key is free and nothing ran.
    assert_eq!(server.send(post("/orders", "k", r#"{"amount":1}"#)).await.text(), "1");
    assert_eq!(runs.count(), 1);
}

/// Returns a response in these pieces, without announcing its length.
fn pieces(pieces: Vec<Result<Bytes, std::io::Error>>) -> Response {
    let frames = pieces.into_iter().map(|piece| piece.map(Frame::data));
    Response::new(Body::new(StreamBody::new(futures_util::stream::iter(
        frames.collect::<Vec<_>>(),
    ))))
}

async fn an_answer_at_the_limit_is_kept_and_one_byte_more_is_not<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new().max_response(100), |call| async move {
        let length: usize =
            call.parts.uri.path().trim_start_matches('/').parse().expect("a length");
        "x".repeat(length)
    })
    .await;
    assert_eq!(server.send(post("/100", "k", "{}")).await.body.len(), 100);
    assert!(server.send(post("/100", "k", "{}")).await.replayed());
    let long = server.send(post("/101", "k", "{}")).await;
    assert_eq!((long.status.as_u16(), long.body.len()), (200, 101), "delivered once, whole");
    assert_eq!(long.header("content-length"), Some("101"));
    for _ in 0..2 {
        let again = server.send(post("/101", "k", "{}")).await;
        assert_eq!(
            (again.status.as_u16(), again.problem().as_deref()),
            (409, Some("result-unavailable"))
        );
        assert_eq!(again.header("retry-after"), None);
    }
    assert_eq!(runs.count(), 2);
    let other = server.send(post("/101", "k", "[]")).await;
    assert_eq!(other.problem().as_deref(), Some("key-reused"));
}

async fn a_long_answer_in_pieces_is_delivered_whole<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new().max_response(1_000), |_| async {
        pieces((0..=255u8).map(|n| Ok(Bytes::from(vec![n; 300]))).collect())
    })
    .await;
    let whole: Vec<u8> = (0..=255u8).flat_map(|n| vec![n; 300]).collect();
    assert_eq!(server.send(post("/orders", "k", "{}")).await.body, whole);
    let again = server.send(post("/orders", "k", "{}")).await;
    assert_eq!(again.problem().as_deref(), Some("result-unavailable"));
    assert_eq!(runs.count(), 1);
}

async fn a_response_that_breaks_off_does_not_run_again<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new(), |_| async {
        pieces(vec![
            Ok(Bytes::from_static(b"the first half")),
            Err(std::io::Error::other("broken")),
        ])
    })
    .await;
    let response = server.client().await.begin(post("/orders", "k", "{}")).await;
    // It depends on the transport whether the head was sent before the body broke off.
    if let Ok(response) = response {
        assert_eq!(response.status(), 200);
        assert!(response.into_body().collect().await.is_err());
    }
    let again = server.send(post("/orders", "k", "{}")).await;
    assert_eq!(again.problem().as_deref(), Some("result-unavailable"));
    assert_eq!(runs.count(), 1);
}

async fn the_part_beyond_the_limit_is_streamed<G: Backend>(backend: G) {
    let (give, given) = mpsc::channel::<Result<Frame<Bytes>, std::io::Error>>(4);
    let given = std::sync::Arc::new(tokio::sync::Mutex::new(Some(given)));
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = any(move || async move {
        counted.next();
        let mut given = given.lock().await.take().expect("asked once");
        let stream = futures_util::stream::poll_fn(move |cx| given.poll_recv(cx));
        Response::new(Body::new(StreamBody::new(stream)))
    });
    let layer = layer(executor(&backend).await).rules(Rules::new().max_response(10));
    let router = Router::new().route("/orders", handler).layer(layer);
    let server = Server::start(&backend, router).await;
    give.send(Ok(Frame::data(Bytes::from_static(b"more than ten bytes")))).await.expect("taken");
    let mut client = server.client().await;
    let response = client.begin(post("/orders", "k", "{}")).await.expect("a head");
    let mut body = response.into_body();
    let first = body.frame().await.expect("a piece").expect("whole").into_data().expect("data");
    assert_eq!(first, "more than ten bytes");
    // The claim is settled while the response is still being produced.
    let again = server.send(post("/orders", "k", "{}")).await;
    assert_eq!(again.problem().as_deref(), Some("result-unavailable"));
    give.send(Ok(Frame::data(Bytes::from_static(b", and the end")))).await.expect("taken");
    drop(give);
    assert_eq!(body.collect().await.expect("the rest").to_bytes(), ", and the end");
    assert_eq!(runs.count(), 1);
}

async fn a_caller_that_leaves_a_long_response_does_not_make_it_run_again<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new().max_response(10), |_| async {
        let endless = futures_util::stream::repeat_with(|| {
            Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(&[7; 4_096])))
        });
        Response::new(Body::new(StreamBody::new(endless)))
    })
    .await;
    let mut client = server.client().await;
    let response = client.begin(post("/orders", "k", "{}")).await.expect("a head");
    drop((response, client));
    until(async || {
        let again = server.send(post("/orders", "k", "{}")).await;
        again.problem().as_deref() == Some("result-unavailable")
    })
    .await;
    assert_eq!(runs.count(), 1);
}

on_every_store! {
    an_answer_at_the_limit_is_kept_and_one_byte_more_is_not,
    a_long_answer_in_pieces_is_delivered_whole,
    a_response_that_breaks_off_does_not_run_again,
    the_part_beyond_the_limit_is_streamed,
    a_caller_that_leaves_a_long_response_does_not_make_it_run_again,
}

in_memory! {
    a_request_at_the_limit_runs_and_one_byte_more_does_not,
    a_request_without_a_key_is_not_limited,
    the_limit_of_a_keyed_request_is_a_mebibyte,
    a_request_that_breaks_off_does_not_run,
}
