//! Tests of bodies in pieces, and of trailers.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::post as on_post;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use semel_core::store::memory::MemoryStore;

use crate::backend::{Protocol, Server, chunked, run};
use crate::support::{layer, order, send, with};

const PIECES: usize = 100_000;

/// Returns a body that repeats after a prime number of bytes, so that swapped pieces would show.
fn bytes() -> Vec<u8> {
    (0..PIECES).map(|n| u8::try_from(n % 251).expect("below 256")).collect()
}

fn pieces() -> Vec<Bytes> {
    bytes().into_iter().map(|byte| Bytes::copy_from_slice(&[byte])).collect()
}

#[test]
fn a_body_of_single_bytes_is_read_whole_and_replayed_equal() {
    run(async {
        let handler = on_post(async |body: Bytes| {
            assert_eq!(body, bytes(), "all of the request");
            let frames =
                pieces().into_iter().map(|piece| Ok::<_, std::io::Error>(Frame::data(piece)));
            Response::new(Body::new(StreamBody::new(futures_util::stream::iter(frames))))
        });
        let app = Router::new().route("/orders", handler).layer(layer(MemoryStore::new()));
        for replayed in [false, true] {
            let request = Request::post("/orders").header("idempotency-key", "k");
            let answer = send(&app, request.body(chunked(pieces())).expect("a request")).await;
            assert_eq!((answer.status.as_u16(), answer.replayed()), (200, replayed));
            assert_eq!(answer.body, bytes());
        }
    });
}

#[test]
fn trailers_arrive_over_both_protocols_if_they_are_requested() {
    run(async {
        let handler = on_post(async || {
            let sum = HeaderName::from_static("x-sum");
            let trailers = HeaderMap::from_iter([(sum, HeaderValue::from_static("42"))]);
            let frames = [Frame::data(Bytes::from("{}")), Frame::trailers(trailers)];
            let frames = frames.map(Ok::<_, std::io::Error>);
            let body = Body::new(StreamBody::new(futures_util::stream::iter(frames)));
            ([("trailer", "x-sum")], body)
        });
        let app = Router::new().route("/orders", handler).layer(layer(MemoryStore::new()));
        let server = Server::speaking(Protocol::H1, app).await;
        let over_h1 = server.send(with(order(), "te", "trailers")).await;
        assert_eq!((over_h1.text(), over_h1.trailers.len()), ("{}", 1), "{over_h1:?}");
        let mut other = with(order(), "te", "trailers");
        other.headers_mut().insert("idempotency-key", HeaderValue::from_static("other"));
        let over_h2 = server.h2().await.send(other).await;
        assert_eq!((over_h2.text(), &over_h2.trailers), ("{}", &over_h1.trailers));
    });
}
