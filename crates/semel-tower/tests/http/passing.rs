//! Tests of requests that pass through: streams, upgrades, and requests without a key.

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use bytes::Bytes;
use futures_util::stream::poll_fn;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use semel_tower::http::Rules;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::backend::{Backend, Sent, Server, in_memory, keyed, post, request};
use crate::support::{Runs, executor, layer, serve};

type Piece = Result<Frame<Bytes>, std::io::Error>;

fn piece(text: &'static str) -> Piece {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

async fn next(body: &mut Incoming) -> Bytes {
    body.frame().await.expect("a piece").expect("whole").into_data().expect("data")
}

/// Serves a handler that answers with the pieces that the test sends, with this content type.
async fn streaming<G: Backend>(
    backend: &G,
    rules: Rules,
    content_type: &'static str,
) -> (Server, Runs, mpsc::UnboundedSender<mpsc::Receiver<Piece>>) {
    let (give, given) = mpsc::unbounded_channel::<mpsc::Receiver<Piece>>();
    let given = std::sync::Arc::new(tokio::sync::Mutex::new(given));
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = any(move || {
        let (given, counted) = (given.clone(), counted.clone());
        async move {
            counted.next();
            let mut pieces = given.lock().await.recv().await.expect("an answer was prepared");
            let stream = StreamBody::new(poll_fn(move |cx| pieces.poll_recv(cx)));
            ([("content-type", content_type)], Response::new(Body::new(stream)))
        }
    });
    let layer = layer(executor(backend).await).rules(rules);
    let router = Router::new().route("/orders", handler).layer(layer);
    (Server::start(backend, router).await, runs, give)
}

/// Sends `request` and checks that the first piece of its response arrives before the second is
/// sent.
async fn arrives_in_pieces(
    server: &Server,
    give: &mpsc::UnboundedSender<mpsc::Receiver<Piece>>,
    request: http::Request<Sent>,
) {
    let (pieces, answer) = mpsc::channel(4);
    give.send(answer).expect("the handler waits for it");
    let mut client = server.client().await;
    pieces.send(piece("data: 1\n\n")).await.expect("taken");
    let response = client.begin(request).await.expect("a head");
    assert_eq!(response.status(), 200);
    let mut body = response.into_body();
    assert_eq!(next(&mut body).await, "data: 1\n\n");
    pieces.send(piece("data: 2\n\n")).await.expect("taken");
    assert_eq!(next(&mut body).await, "data: 2\n\n");
    drop(pieces);
    assert!(body.collect().await.expect("an end").to_bytes().is_empty());
}

async fn a_response_without_a_key_is_streamed<G: Backend>(backend: G) {
    let (server, runs, give) = streaming(&backend, Rules::new(), "application/octet-stream").await;
    arrives_in_pieces(&server, &give, request(Method::POST, "/orders", "{}")).await;
    arrives_in_pieces(&server, &give, keyed(Method::GET, "/orders", "k", "")).await;
    assert_eq!(runs.count(), 2);
}

async fn a_request_without_a_key_is_streamed<G: Backend>(backend: G) {
    let echo = any(async |request: Request| Response::new(request.into_body()));
    let layer = layer(executor(&backend).await).rules(Rules::new().max_request(3));
    let server = Server::start(&backend, Router::new().route("/orders", echo).layer(layer)).await;
    let (pieces, mut sent) = mpsc::channel::<Piece>(4);
    let mut unkeyed = request(Method::POST, "/orders", "");
    *unkeyed.body_mut() = StreamBody::new(poll_fn(move |cx| sent.poll_recv(cx))).boxed_unsync();
    let mut client = server.client().await;
    pieces.send(piece("first")).await.expect("taken");
    let mut body = client.begin(unkeyed).await.expect("a head").into_body();
    assert_eq!(next(&mut body).await, "first", "while the request is still being sent");
    pieces.send(piece("second")).await.expect("taken");
    assert_eq!(next(&mut body).await, "second");
    drop(pieces);
    assert!(body.collect().await.expect("an end").to_bytes().is_empty());
}

async fn an_event_stream_without_a_key_is_streamed<G: Backend>(backend: G) {
    let (server, _, give) = streaming(&backend, Rules::new(), "text/event-stream").await;
    arrives_in_pieces(&server, &give, request(Method::POST, "/orders", "{}")).await;
}

fn asking_for_events(key: &str) -> http::Request<Sent> {
    let mut request = post("/orders", key, "{}");
    request.headers_mut().insert("accept", "text/event-stream".parse().expect("a value"));
    request
}

async fn a_requested_event_stream_is_delivered_once<G: Backend>(backend: G) {
    let (server, runs, give) = streaming(&backend, Rules::new(), "text/event-stream").await;
    arrives_in_pieces(&server, &give, asking_for_events("k")).await;
    let again = server.send(asking_for_events("k")).await;
    assert_eq!(again.problem().as_deref(), Some("result-unavailable"));
    assert_eq!(runs.count(), 1, "its effect happens once");
}

async fn a_required_key_cannot_be_avoided_by_asking_for_an_event_stream<G: Backend>(backend: G) {
    let rules = Rules::new().required();
    let (server, runs, give) = streaming(&backend, rules, "text/event-stream").await;
    let mut without = asking_for_events("k");
    without.headers_mut().remove("idempotency-key");
    let refused = server.send(without).await;
    assert_eq!(refused.problem().as_deref(), Some("key-missing"));
    arrives_in_pieces(&server, &give, asking_for_events("k")).await;
    let again = server.send(asking_for_events("k")).await;
    assert_eq!(again.problem().as_deref(), Some("result-unavailable"));
    assert_eq!(runs.count(), 1);
}

async fn an_event_stream_that_was_not_requested_is_delivered_once<G: Backend>(backend: G) {
    let (server, runs, give) =
        streaming(&backend, Rules::new(), "Text/Event-Stream; charset=utf-8").await;
    arrives_in_pieces(&server, &give, post("/orders", "k", "{}")).await;
    let again = server.send(post("/orders", "k", "{}")).await;
    assert_eq!(again.problem().as_deref(), Some("result-unavailable"));
    assert_eq!(runs.count(), 1);
}

/// Answers 101 and then echoes the bytes of the connection.
async fn echo(mut request: Request) -> Response {
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut stream = TokioIo::new(upgrade.await.expect("upgraded"));
        let mut word = [0; 5];
        while stream.read_exact(&mut word).await.is_ok() {
            stream.write_all(&word).await.expect("written");
        }
    });
    let headers = [("connection", "upgrade"), ("upgrade", "websocket")];
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}

async fn an_upgraded_connection_belongs_to_the_handler<G: Backend>(backend: G) {
    let layer = layer(executor(&backend).await);
    let router = Router::new().route("/echo", any(echo)).layer(layer);
    let server = Server::start(&backend, router).await;
    for method in [Method::GET, Method::POST] {
        let mut request = keyed(method, "/echo", "k", "");
        for (name, value) in [("connection", "upgrade"), ("upgrade", "websocket")] {
            request.headers_mut().insert(name, value.parse().expect("a value"));
        }
        request.headers_mut().remove("content-type");
        // HTTP/2 has no upgrades.
        let response = server.h1().await.begin(request).await.expect("a head");
        assert_eq!(response.status(), 101);
        let mut stream = TokioIo::new(hyper::upgrade::on(response).await.expect("upgraded"));
        for word in [b"hello", b"again"] {
            stream.write_all(word).await.expect("written");
            let mut received = [0; 5];
            stream.read_exact(&mut received).await.expect("read");
            assert_eq!(&received, word);
        }
    }
}

async fn an_offer_of_http_2_does_not_disable_the_layer<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new(), crate::support::created).await;
    // curl and the HTTP client of Java's library send this with every first request.
    for replayed in [false, true] {
        let mut request = post("/orders", "k", "{}");
        let offer = [
            ("connection", "Upgrade, HTTP2-Settings"),
            ("upgrade", "h2c"),
            ("http2-settings", "AAMAAABk"),
        ];
        for (name, value) in offer {
            request.headers_mut().insert(name, value.parse().expect("a value"));
        }
        let answer = server.h1().await.send(request).await;
        assert_eq!((answer.status.as_u16(), answer.replayed()), (201, replayed));
    }
    assert_eq!(runs.count(), 1);
}

async fn trailers_come_with_the_first_answer<G: Backend>(backend: G) {
    let handler = any(async || {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-checksum", "1".parse().expect("a value"));
        let frames = vec![piece("done"), Ok(Frame::trailers(trailers))];
        Response::new(Body::new(StreamBody::new(futures_util::stream::iter(frames))))
    });
    let layer = layer(executor(&backend).await);
    let server =
        Server::start(&backend, Router::new().route("/orders", handler).layer(layer)).await;
    let mut client = server.h2().await;
    for request in [request(Method::POST, "/orders", "{}"), post("/orders", "k", "{}")] {
        let answer = client.send(request).await;
        assert_eq!(
            (answer.text(), &answer.trailers["x-checksum"]),
            ("done", &"1".parse().expect("a value"))
        );
    }
    let again = client.send(post("/orders", "k", "{}")).await;
    assert_eq!((again.text(), again.replayed(), again.trailers.is_empty()), ("done", true, true));
}

in_memory! {
    a_response_without_a_key_is_streamed,
    a_request_without_a_key_is_streamed,
    an_event_stream_without_a_key_is_streamed,
    a_requested_event_stream_is_delivered_once,
    a_required_key_cannot_be_avoided_by_asking_for_an_event_stream,
    an_event_stream_that_was_not_requested_is_delivered_once,
    an_upgraded_connection_belongs_to_the_handler,
    an_offer_of_http_2_does_not_disable_the_layer,
    trailers_come_with_the_first_answer,
}
