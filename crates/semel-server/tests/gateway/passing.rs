//! Tests of requests and responses that the gateway must pass on unchanged: streams, upgrades,
//! trailers, headers, targets.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::mpsc;

use crate::caller::{BoxError, Caller, Sending, full};
use crate::fixture::{Fixture, PATIENCE};
use crate::raw::Raw;
use crate::shop::Shop;

/// Returns a body that the test writes while it is sent.
fn written() -> (mpsc::UnboundedSender<&'static str>, Sending) {
    let (writer, mut texts) = mpsc::unbounded_channel::<&'static str>();
    let frames = futures_util::stream::poll_fn(move |cx| {
        texts.poll_recv(cx).map(|text| {
            text.map(|text| Ok::<_, BoxError>(Frame::data(Bytes::from_static(text.as_bytes()))))
        })
    });
    (writer, BodyExt::boxed(StreamBody::new(frames)))
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_key_are_streamed_in_both_directions() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &[]);
    for caller in [Caller::new(&gateway), Caller::http2(&gateway)] {
        let (writer, body) = written();
        writer.send("one").unwrap();
        let request = caller.request(Method::POST, "/echo").body(body).unwrap();
        let mut answer = caller.begin(request).await.unwrap().into_body();
        for next in ["two", "three"] {
            let echo = tokio::time::timeout(PATIENCE, answer.frame()).await.unwrap();
            let echo = echo.unwrap().unwrap().into_data().unwrap();
            assert!(!echo.is_empty(), "the echo arrives before more is sent");
            writer.send(next).unwrap();
        }
        drop(writer);
        let rest = answer.collect().await.unwrap().to_bytes();
        assert!(rest.ends_with(b"three"), "{rest:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_may_take_longer_than_the_upstream_timeout() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &["--upstream-timeout", "5s"]);
    let caller = Caller::new(&gateway);
    let (writer, body) = written();
    let request = caller.request(Method::POST, "/orders").body(body).unwrap();
    let sending = tokio::spawn(async move { caller.send(request).await });
    // The upload takes longer than the limit in total, but never pauses that long.
    for _ in 0..12 {
        writer.send("more").unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    drop(writer);
    assert_eq!(sending.await.unwrap().status, 201);
    assert_eq!(shop.seen("/orders")[0].body.len(), 48);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgraded_connection_passes_in_both_directions() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &[]);
    let mut raw = Raw::upgraded(&gateway).await;
    raw.send("hello").await;
    assert_eq!(raw.read_until("hello").await, "hello");
    raw.send("again").await;
    assert_eq!(raw.read_until("again").await, "again");
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_come_through_in_both_directions() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &["--upstream-http2"]);
    let caller = Caller::http2(&gateway);
    let trailers = HeaderMap::from_iter([("x-check".parse().unwrap(), "9".parse().unwrap())]);
    let frames = [Ok(Frame::data(Bytes::from_static(b"sum"))), Ok(Frame::trailers(trailers))];
    let body = BodyExt::boxed(StreamBody::new(futures_util::stream::iter(frames)));
    let request = caller.request(Method::POST, "/trailers").header("te", "trailers");
    let answer = caller.send(request.body(body).unwrap()).await;
    assert_eq!(answer.text(), "3 + 4");
    assert_eq!(answer.trailers.unwrap()["x-sum"], "7");
    let seen = &shop.seen("/trailers")[0];
    assert_eq!(seen.trailers.as_ref().unwrap()["x-check"], "9");
    assert_eq!(seen.version, http::Version::HTTP_2);
}

#[tokio::test(flavor = "multi_thread")]
async fn cookies_that_came_a_line_each_reach_the_upstream_in_one() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &[]);
    let caller = Caller::http2(&gateway);
    for (target, key) in [("/free", None), ("/keyed", Some("k"))] {
        let mut request = caller.request(Method::POST, target);
        for crumb in ["a=1", "b=2", "c=3"] {
            request = request.header("cookie", crumb);
        }
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        assert_eq!(caller.send(request.body(full("")).unwrap()).await.status, 201);
        let seen = &shop.seen(target)[0];
        assert_eq!(seen.version, http::Version::HTTP_11);
        let lines: Vec<_> = seen.headers.get_all("cookie").iter().collect();
        assert_eq!(lines, ["a=1; b=2; c=3"], "{target}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_unknown_length_comes_through_whatever_the_method() {
    for flags in [&[][..], &["--upstream-http2"]] {
        let (fixture, shop) = (Fixture::new(), Shop::open().await);
        let gateway = fixture.gateway(&shop.url(), flags);
        for caller in [Caller::new(&gateway), Caller::http2(&gateway)] {
            for method in [Method::GET, Method::DELETE, Method::OPTIONS] {
                let (writer, body) = written();
                writer.send("find").unwrap();
                writer.send(" this").unwrap();
                drop(writer);
                // The header makes the HTTP/1.1 client send the body.
                let request = caller.request(method.clone(), "/search");
                let mut request = request.body(body).unwrap();
                if !caller.speaks_http2() {
                    let chunked = "chunked".parse().unwrap();
                    request.headers_mut().insert("transfer-encoding", chunked);
                }
                assert_eq!(caller.send(request).await.status, 201);
                let seen = shop.seen("/search").pop().unwrap();
                assert_eq!(seen.body, "find this", "{method} {flags:?}");
                let http2 = seen.version == http::Version::HTTP_2;
                assert_eq!(http2, !flags.is_empty());
                assert_eq!(seen.headers.contains_key("transfer-encoding"), !http2);
            }
            let seen = caller.get("/empty").await;
            assert_eq!(seen.status, 201);
            let seen = shop.seen("/empty").pop().unwrap();
            assert!(!seen.headers.contains_key("transfer-encoding"), "there is no body");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_upstream_gets_the_origin_of_a_request_and_no_hop_by_hop_headers() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &[]);
    let mut raw = Raw::connect(&gateway).await;
    raw.send(
        "GET /a?b=c HTTP/1.1\r\nhost: shop.example\r\nconnection: keep-alive, x-mine\r\nx-mine: 1\r\n\
         x-forwarded-for: 192.0.2.1\r\nx-forwarded-proto: https\r\nvia: 1.0 fred\r\n\
         semel-operation-id: mine\r\nproxy-authorization: x\r\nx-theirs: 2\r\n\r\n",
    )
    .await;
    let answer = raw.read_until("\"order\":1}").await;
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    let seen = &shop.seen("/a?b=c")[0].headers;
    let port = shop.address.port();
    for (name, value) in [
        ("host", format!("localhost:{port}").as_str()),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-host", "shop.example"),
        ("via", "1.0 fred, 1.1 semel"),
        ("x-theirs", "2"),
    ] {
        assert_eq!(seen[name], value, "{name}");
    }
    for gone in ["x-mine", "connection", "semel-operation-id", "proxy-authorization"] {
        assert!(!seen.contains_key(gone), "{gone}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_chooses_its_upstream() {
    let (fixture, shop, elsewhere) = (Fixture::new(), Shop::open().await, Shop::open().await);
    let gateway = fixture.gateway(&format!("{}/api", shop.url()), &[]);
    let evil = elsewhere.address;
    for (target, status) in [
        (format!("GET http://{evil}/x"), "201"),
        (format!("GET //{evil}/x"), "201"),
        (format!("GET /@{evil}/x"), "201"),
        ("GET /../x".to_owned(), "400"),
        ("GET /%2e%2e/x".to_owned(), "400"),
        (format!("CONNECT {evil}"), "4"),
        ("OPTIONS *".to_owned(), "4"),
    ] {
        let mut raw = Raw::connect(&gateway).await;
        raw.send(&format!("{target} HTTP/1.1\r\nhost: {evil}\r\n\r\n")).await;
        let answer = raw.read_until("\r\n\r\n").await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{target}: {answer}");
    }
    assert_eq!(shop.seen("/api/x").len(), 1);
    let plain = Caller::new(&gateway).get("/%2e%2e/x").await;
    assert_eq!(plain.headers["content-type"], "text/plain; charset=utf-8");
    let strange = [format!("/api//{evil}/x"), format!("/api/@{evil}/x")];
    assert_eq!(strange.map(|target| shop.seen(&target).len()), [1, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_passed_on_and_a_head_has_no_body() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &[]);
    let caller = Caller::new(&gateway);
    let moved = caller.post("/moved", "k", "{}").await;
    assert_eq!(
        (moved.status.as_u16(), &moved.headers["location"]),
        (303, &"/orders/1".parse().unwrap())
    );
    assert!(caller.post("/moved", "k", "{}").await.replayed());
    let head = caller.request(Method::HEAD, "/orders").body(full("")).unwrap();
    let head = caller.send(head).await;
    assert_eq!((head.status.as_u16(), head.body.len()), (201, 0));
    assert_eq!(head.headers["content-length"], "11");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_expects_100_continue_gets_it_or_a_refusal() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &[]);
    let head = "POST /orders HTTP/1.1\r\nhost: a\r\nauthorization: x\r\ncontent-length: 2\r\n\
                expect: 100-continue\r\n";
    let mut raw = Raw::connect(&gateway).await;
    raw.send(&format!("{head}idempotency-key: k\r\n\r\n")).await;
    assert!(raw.read_until("\r\n\r\n").await.starts_with("HTTP/1.1 100"));
    raw.send("{}").await;
    assert!(raw.read_until("\"order\":1}").await.starts_with("HTTP/1.1 201"));
    let mut raw = Raw::connect(&gateway).await;
    raw.send(&format!("{head}idempotency-key: a, b\r\n\r\n")).await;
    let refused = raw.read_until("\r\n\r\n").await;
    assert!(refused.starts_with("HTTP/1.1 400"), "{refused}");
    assert_eq!(shop.seen("/orders").len(), 1);
    assert!(!shop.seen("/orders")[0].headers.contains_key("expect"));
}
