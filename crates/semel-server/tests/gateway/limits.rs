//! Tests of callers and upstreams that take too long, or are too many at once.

use std::time::Duration;

use http::Method;

use crate::caller::{Caller, full, get};
use crate::fixture::{Fixture, PATIENCE};
use crate::raw::Raw;
use crate::shop::Shop;

const KEYED: &str = "POST /orders HTTP/1.1\r\nhost: a\r\nauthorization: Bearer ann\r\n\
                     idempotency-key: k\r\ncontent-length: 2\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_arrive_times_out_and_nothing_is_claimed() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let config = "[gateway]\nbody_timeout = \"1h\"\n[[route]]\npath = \"/orders\"\n\
                  body_timeout = \"2s\"";
    let gateway = fixture.configured(&shop.url(), config);
    let mut raw = Raw::connect(&gateway).await;
    raw.send(&format!("{KEYED}{{")).await;
    let answer = raw.read_until("}").await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("connection: close") && answer.contains("body-timeout"), "{answer}");
    raw.closed().await;
    let caller = Caller::new(&gateway);
    assert_eq!(caller.post("/orders", "k", "[1]").await.status, 201, "the key is free");
    assert_eq!(shop.seen("/orders").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_without_a_key_has_no_time_limit() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.configured(&shop.url(), "[gateway]\nbody_timeout = \"100ms\"");
    let mut raw = Raw::connect(&gateway).await;
    raw.send("POST /orders HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    raw.send("}").await;
    assert!(raw.read_until("\"order\":1}").await.starts_with("HTTP/1.1 201"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_sends_no_request_times_out() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.configured(&shop.url(), "[gateway]\nheader_timeout = \"2s\"");
    let begun = ["", "PRI * HT", "GET / HT", "GET /a HTTP/1.1\r\nhost: a\r\nx-slow: "];
    let mut all = Vec::new();
    for words in begun {
        let mut raw = Raw::connect(&gateway).await;
        raw.send(words).await;
        all.push(raw);
    }
    for raw in &mut all {
        raw.closed().await;
    }
    assert_eq!(shop.seen("/a").len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_has_sent_its_request_may_wait_for_the_response() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    // Long enough to send the request on a busy machine.
    let gateway = fixture.configured(&shop.url(), "[gateway]\nheader_timeout = \"3s\"");
    let asking = [Caller::new(&gateway), Caller::http2(&gateway)]
        .map(|caller| tokio::spawn(async move { caller.get("/slow").await }));
    shop.arrived(2).await;
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    shop.let_go(2);
    for call in asking {
        assert_eq!(call.await.unwrap().status, 201);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_above_the_limit_is_refused_unsent_and_its_key_stays_free() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.configured(&shop.url(), "[gateway]\nmax_calls = 1");
    let caller = Caller::new(&gateway);
    let under_way = tokio::spawn({
        let caller = caller.clone();
        async move { caller.post("/slow", "one", "{}").await }
    });
    shop.arrived(1).await;
    let free = caller.request(Method::POST, "/orders").body(full("")).unwrap();
    let (keyed, free) = (caller.post("/orders", "two", "{}").await, caller.send(free).await);
    for (refused, keyed) in [(keyed, true), (free, false)] {
        assert_eq!(refused.problem(), (503, "overloaded".to_owned()));
        assert_eq!(refused.headers["retry-after"], "1");
        assert_eq!(refused.json()["detail"].as_str().unwrap().contains("key"), keyed);
    }
    assert_eq!(shop.seen("/orders").len(), 0);
    shop.let_go(1);
    assert_eq!(under_way.await.unwrap().status, 201);
    let other = caller.post("/orders", "two", "[1]").await;
    assert_eq!(
        (other.status.as_u16(), other.replayed()),
        (201, false),
        "the refused request left nothing"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_without_a_key_leave_permits_for_those_with_one() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.configured(&shop.url(), "[gateway]\nmax_calls = 4");
    let caller = Caller::new(&gateway);
    for n in 1..=3 {
        let caller = caller.clone();
        tokio::spawn(async move { caller.get("/slow").await });
        shop.arrived(n).await;
    }
    assert_eq!(caller.get("/a").await.status, 503);
    assert_eq!(caller.post("/orders", "k", "{}").await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_that_never_end_leave_permits_for_complete_requests() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.configured(&shop.url(), "[gateway]\nmax_calls = 4");
    let mut uploads = Vec::new();
    for _ in 0..3 {
        let mut upload = Raw::connect(&gateway).await;
        upload.send("POST /orders HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{").await;
        uploads.push(upload);
    }
    // Two of them get a permit, and the third is refused.
    let caller = Caller::new(&gateway);
    let metrics = format!("{}/metrics", gateway.url("admin"));
    let refused = "semel_gateway_upstream_requests_total{result=\"refused\"} 1";
    let refusal = async {
        while !get(&metrics).await.text().contains(refused) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, refusal).await.expect("one of them is refused");
    assert_eq!(caller.get("/a").await.status, 201);
    assert_eq!(caller.post("/orders", "k", "{}").await.status, 201);
    let upload = caller.request(Method::POST, "/orders").body(full("{}")).unwrap();
    assert_eq!(caller.send(upload).await.status, 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_with_a_key_are_held_up_to_the_memory_budget() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let config = "[gateway]\nmax_buffered = 1000\n[[route]]\npath = \"/slow\"\nmax_request = 900";
    let gateway = fixture.configured(&shop.url(), config);
    for caller in [Caller::new(&gateway), Caller::http2(&gateway)] {
        let (seen, arrived) = (shop.seen("/orders").len(), shop.all());
        let under_way = tokio::spawn({
            let caller = caller.clone();
            let body = format!("\"{}\"", "x".repeat(800));
            let key = if caller.speaks_http2() { "http2" } else { "http1" };
            async move { caller.post("/slow", key, &body).await }
        });
        shop.arrived(arrived + 1).await;
        let body = format!("\"{}\"", "y".repeat(600));
        let key = if caller.speaks_http2() { "two" } else { "one" };
        let refused = caller.post("/orders", key, &body).await;
        assert_eq!(refused.problem(), (503, "overloaded".to_owned()));
        assert_eq!(refused.headers["retry-after"], "1");
        assert_eq!(shop.seen("/orders").len(), seen, "nothing was sent");
        let free = caller.request(Method::POST, "/free").body(full(&body)).unwrap();
        assert_eq!(caller.send(free).await.status, 201, "a streamed body takes no memory");
        assert_eq!(caller.post("/orders", "small", "{}").await.status, 201);
        shop.let_go(1);
        under_way.await.unwrap();
        let again = caller.post("/orders", key, &body).await;
        assert_eq!(again.status, 201, "the key and the memory are free");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_with_a_key_counts_until_its_response_is_complete() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.configured(&shop.url(), "[gateway]\nmax_calls = 1");
    let caller = Caller::new(&gateway);
    let under_way = tokio::spawn({
        let caller = caller.clone();
        async move { caller.post("/begun", "one", "{}").await }
    });
    shop.arrived(1).await;
    assert_eq!(caller.post("/orders", "two", "{}").await.status, 503);
    shop.let_go(1);
    assert_eq!(under_way.await.unwrap().text(), "begun");
    assert_eq!(caller.post("/orders", "two", "{}").await.status, 201);
}

/// Returns whether TCP keepalive is active on the connection with these ports; `None` stands for
/// any port.
#[cfg(target_os = "linux")]
fn is_watched(local: Option<u16>, remote: u16) -> bool {
    const ESTABLISHED: &str = "01";
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table.lines().skip(1).any(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let port = |n: usize| words[n].rsplit(':').next().map(|hex| u16::from_str_radix(hex, 16));
        let is = |n, wanted| port(n) == Some(Ok(wanted));
        // Timer 02 of a socket is that of keepalive.
        let keepalive = words[5].starts_with("02:");
        local.is_none_or(|local| is(1, local))
            && is(2, remote)
            && words[3] == ESTABLISHED
            && keepalive
    })
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_vanished_end_of_an_upgraded_connection_is_detected() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &[]);
    let socket = Raw::upgraded(&gateway).await;
    let (caller, listener) = socket.ports();
    let waiting = async {
        // While bytes are in flight another timer is shown.
        while !(is_watched(Some(listener), caller) && is_watched(None, shop.address.port())) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("both ends are watched");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgraded_connection_keeps_its_permit_until_it_ends() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.configured(&shop.url(), "[gateway]\nmax_connections = 1");
    let socket = Raw::upgraded(&gateway).await;
    let mut next = Raw::connect(&gateway).await;
    next.send("GET /a HTTP/1.1\r\nhost: a\r\n\r\n").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(shop.seen("/a").len(), 0, "no other connection is accepted");
    drop(socket);
    assert!(next.read_until("\"order\":1}").await.starts_with("HTTP/1.1 201"));
}
