//! Tests of an upstream that is down, slow, or breaks off: the response, and how the claim is
//! settled.

use std::time::Duration;

use http::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::caller::{Caller, full, get};
use crate::fixture::{Fixture, PATIENCE, nowhere};
use crate::program::Service;
use crate::raw::Raw;
use crate::shop::Shop;

fn is(slug: &str, status: u16) -> (u16, String) {
    (status, slug.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_is_down_leaves_the_key_free() {
    let fixture = Fixture::new();
    let (_kept, address) = nowhere();
    let config = "[[route]]\npath = \"/pay\"\non_crash = \"hold\"\npreset = \"stripe_v1\"";
    let gateway = fixture.configured(&format!("http://{address}"), config);
    let caller = Caller::new(&gateway);
    for target in ["/orders", "/pay"] {
        let refused = caller.post(target, "k", "{\"a\":1}").await;
        assert_eq!(refused.problem(), is("upstream-unreachable", 502));
        assert_eq!(refused.json()["retryable"], true);
        assert_eq!(refused.json()["instance"], target);
        // Another body is accepted, because nothing is left of the first request.
        let again = caller.post(target, "k", "{\"a\":2}").await;
        assert_eq!(
            again.problem(),
            is("upstream-unreachable", 502),
            "released, not failed or held"
        );
    }
    let free = caller.request(Method::POST, "/orders").body(full("")).unwrap();
    let free = caller.send(free).await;
    assert_eq!(free.problem(), is("upstream-unreachable", 502));
    assert_eq!(free.json()["retryable"], true, "nothing was sent");
    assert!(!free.json()["detail"].as_str().unwrap().contains("key"), "{free:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_response_is_in_doubt_and_runs_again_only_with_a_repeat() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &[]);
    let caller = Caller::new(&gateway);
    let cut = caller.post("/hang-up-once", "k", "{}").await;
    assert_eq!(cut.problem(), is("upstream-ambiguous", 504));
    assert_eq!(shop.seen("/hang-up-once").len(), 1, "the gateway did not send it again by itself");
    let other = caller.post("/hang-up-once", "k", "{\"a\":1}").await;
    assert_eq!(other.problem(), is("key-reused", 422), "the failure keeps its request");
    let again = caller.post("/hang-up-once", "k", "{}").await;
    assert_eq!((again.status.as_u16(), again.replayed()), (201, false));
    let seen = shop.seen("/hang-up-once");
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].headers["semel-operation-id"], seen[1].headers["semel-operation-id"]);
    assert_eq!(seen[1].headers["semel-attempt"], "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_response_is_held_if_the_route_is_hold() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let config = "[[route]]\npath = \"/hang-up\"\non_crash = \"hold\"";
    let gateway = fixture.configured(&shop.url(), config);
    let caller = Caller::new(&gateway);
    assert_eq!(caller.post("/hang-up", "k", "{}").await.problem(), is("upstream-ambiguous", 504));
    for _ in 0..2 {
        assert_eq!(caller.post("/hang-up", "k", "{}").await.problem(), is("uncertain", 409));
    }
    assert_eq!(shop.seen("/hang-up").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_5xx_of_the_upstream_may_be_held() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let config = "[[route]]\npath = \"/fail\"\non_crash = \"hold\"\ndoubt_5xx = true\n\
                  [[route]]\npath = \"/fail-once\"\non_crash = \"hold\"";
    let gateway = fixture.configured(&shop.url(), config);
    let caller = Caller::new(&gateway);
    // Without this setting, a 5xx means that the upstream failed.
    assert_eq!(caller.post("/fail-once", "k", "{}").await.status, 503);
    assert_eq!(caller.post("/fail-once", "k", "{}").await.status, 201);
    assert_eq!(caller.post("/fail", "k", "{}").await.status, 500, "the upstream's own answer");
    for _ in 0..2 {
        assert_eq!(caller.post("/fail", "k", "{}").await.problem(), is("uncertain", 409));
    }
    assert_eq!(shop.seen("/fail").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_that_waited_for_a_broken_call_runs_next_or_gets_uncertain() {
    for (on_crash, sent) in [("rerun", 2), ("hold", 1)] {
        let (fixture, shop) = (Fixture::new(), Shop::open().await);
        let config = format!(
            "[[route]]\npath = \"/hang-up-slowly-once\"\nwait = \"60s\"\non_crash = \"{on_crash}\""
        );
        let gateway = fixture.configured(&shop.url(), &config);
        let asks = |caller: &Caller| {
            let caller = caller.clone();
            tokio::spawn(async move { caller.post("/hang-up-slowly-once", "k", "{}").await })
        };
        let caller = Caller::new(&gateway);
        let first = asks(&caller);
        shop.arrived(1).await;
        let waiting = asks(&caller);
        // Gives the duplicate time to begin to wait; a later duplicate gets the same response.
        tokio::time::sleep(Duration::from_millis(200)).await;
        shop.let_go(1);
        assert_eq!(first.await.unwrap().problem(), is("upstream-ambiguous", 504));
        let waited = waiting.await.unwrap();
        match on_crash {
            "rerun" => assert_eq!((waited.status.as_u16(), waited.replayed()), (201, false)),
            _ => assert_eq!(waited.problem(), is("uncertain", 409)),
        }
        let seen = shop.seen("/hang-up-slowly-once");
        assert_eq!(seen.len(), sent, "{on_crash}");
        let operation = |seen: &crate::shop::Seen| seen.headers["semel-operation-id"].clone();
        assert!(seen.iter().all(|one| operation(one) == operation(&seen[0])));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_takes_too_long_is_in_doubt() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    // Long enough to connect on a busy machine: a request that was not sent is not in doubt.
    let config = "[gateway]\nupstream_timeout = \"3s\"\n[[route]]\npath = \"/slow\"\n\
                  upstream_timeout = \"3s\"\non_crash = \"hold\"";
    let gateway = fixture.configured(&shop.url(), config);
    let caller = Caller::new(&gateway);
    let free = caller.request(Method::POST, "/slow").body(full("")).unwrap();
    let put = caller.request(Method::PUT, "/slow").body(full("")).unwrap();
    let (claimed, free, put) =
        tokio::join!(caller.post("/slow", "k", "{}"), caller.send(free), caller.send(put));
    for (answer, retryable, key) in
        [(&claimed, true, true), (&free, false, false), (&put, true, false)]
    {
        assert_eq!(answer.problem(), is("upstream-ambiguous", 504));
        let json = answer.json();
        assert_eq!(json["retryable"], retryable, "{json}");
        assert_eq!(json["detail"].as_str().unwrap().contains("the same key"), key, "{json}");
    }
    assert_eq!(caller.post("/slow", "k", "{}").await.problem(), is("uncertain", 409));
    shop.arrived(3).await;
    assert_eq!(shop.seen("/slow").len(), 3);
}

/// Returns the value of a header in the text of a request.
fn header_in<'t>(text: &'t str, name: &str) -> &'t str {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("no {name} in {text}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_breaks_off_in_its_body_is_in_doubt() {
    for answer in [
        "HTTP/1.1 201 Created\r\ncontent-length: 9\r\n\r\nok",
        "HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel",
        "HTTP/1.1 422 Unprocessable\r\ncontent-length: 9\r\n\r\nno",
    ] {
        let fixture = Fixture::new();
        let (url, received) = closing(answer).await;
        let config =
            "[[route]]\npath = \"/held\"\non_crash = \"hold\"\n[ledger]\nstore = \"memory:\"";
        let gateway = fixture.configured(&url, config);
        let caller = Caller::new(&gateway);
        for attempt in ["1", "2"] {
            let cut = caller.post("/cut", "k", "{}").await;
            assert_eq!(cut.problem(), is("upstream-ambiguous", 504), "{answer}");
            let text = received.borrow().last().unwrap().clone();
            assert_eq!(
                header_in(&text, "semel-attempt"),
                attempt,
                "failed, and run again when asked"
            );
            let operation = header_in(&text, "semel-operation-id");
            assert_eq!(cut.json()["operation_id"], operation, "the operation can be looked up");
        }
        let other = caller.post("/cut", "k", "[{}").await;
        assert_eq!(other.problem(), is("key-reused", 422), "the failure keeps its request");
        assert_eq!(caller.post("/held", "k", "{}").await.problem(), is("upstream-ambiguous", 504));
        assert_eq!(caller.post("/held", "k", "{}").await.problem(), is("uncertain", 409));
        assert_eq!(received.borrow().len(), 3, "{answer}");
    }
}

/// Returns the number of calls with this `result` in the metrics.
async fn counted(gateway: &Service, result: &str) -> Option<String> {
    let metrics = get(&format!("{}/metrics", gateway.url("admin"))).await;
    let name = format!("semel_gateway_upstream_requests_total{{result=\"{result}\"}} ");
    metrics.text().lines().find_map(|line| line.strip_prefix(&name)).map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_its_caller_breaks_off_is_the_callers_mistake() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &["--store", "memory:"]);
    let mut raw = Raw::connect(&gateway).await;
    raw.send("POST /orders HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n")
        .await;
    // The upstream has received the beginning of the body.
    raw.send("what is this\r\n").await;
    let reply = raw.read_until("}").await;
    assert!(reply.starts_with("HTTP/1.1 400") && reply.contains("body-incomplete"), "{reply}");
    assert!(reply.contains("\"retryable\":false"), "{reply}");
    raw.closed().await;

    let mut raw = Raw::connect(&gateway).await;
    raw.send("PUT /orders HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{").await;
    raw.finish().await;
    let counted_calls = async {
        while counted(&gateway, "incomplete").await.as_deref() != Some("2") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, counted_calls).await.expect("both are counted");
    assert_eq!(counted(&gateway, "ambiguous").await, None);
    assert_eq!(shop.seen("/orders").len(), 0, "the upstream never got a whole request");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_without_progress_is_a_body_timeout() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &["--upstream-timeout", "2s"]);
    let mut raw = Raw::connect(&gateway).await;
    raw.send("POST /orders HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{").await;
    let reply = raw.read_until("}").await;
    assert!(reply.starts_with("HTTP/1.1 408") && reply.contains("body-timeout"), "{reply}");
    assert!(reply.contains("connection: close"), "{reply}");
    raw.closed().await;
    assert_eq!(counted(&gateway, "incomplete").await.as_deref(), Some("1"));
    assert_eq!(counted(&gateway, "ambiguous").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_breaks_off_in_its_head_is_in_doubt() {
    for head in ["", "HTTP/1.1 20", "HTTP/1.1 201 Created\r\ncontent-le", "nonsense\r\n\r\n"] {
        let fixture = Fixture::new();
        let (url, received) = closing(head).await;
        let gateway = fixture.gateway(&url, &["--store", "memory:"]);
        let caller = Caller::new(&gateway);
        let cut = caller.post("/cut", "k", "{}").await;
        assert_eq!(cut.problem(), is("upstream-ambiguous", 504), "{head:?}");
        assert_eq!(received.borrow().len(), 1, "{head:?}");
    }
}

/// Starts an upstream that closes each connection after one response, without announcing it.
async fn closing(answer: &'static str) -> (String, tokio::sync::watch::Receiver<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (received, receiver) = tokio::sync::watch::channel(Vec::new());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let received = received.clone();
            tokio::spawn(async move {
                let mut text = String::new();
                while !text.ends_with("{}") {
                    let mut bytes = [0; 4096];
                    match stream.read(&mut bytes).await {
                        Ok(read) if read > 0 => {
                            text.push_str(&String::from_utf8_lossy(&bytes[..read]));
                        }
                        Ok(_) | Err(_) => return,
                    }
                }
                received.send_modify(|all: &mut Vec<String>| all.push(text));
                stream.write_all(answer.as_bytes()).await.unwrap();
            });
        }
    });
    (url, receiver)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_died_in_the_pool_sends_no_request_twice() {
    let fixture = Fixture::new();
    let (url, received) = closing("HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\nok").await;
    let gateway = fixture.gateway(&url, &["--store", "memory:"]);
    let caller = Caller::new(&gateway);
    // Each connection is closed when it returns to the pool, while the next request arrives: the
    // gateway notices it in time or not.
    for n in 0..40 {
        let key = format!("k-{n}");
        loop {
            let answer = caller.post("/orders", &key, "{}").await;
            match answer.status.as_u16() {
                201 => break,
                502 => assert_eq!(answer.problem(), is("upstream-unreachable", 502)),
                _ => assert_eq!(answer.problem(), is("upstream-ambiguous", 504)),
            }
        }
    }
    let received = received.borrow().clone();
    for n in 0..40 {
        let key = format!("idempotency-key: k-{n}\r\n");
        let times = received.iter().filter(|text| text.contains(&key)).count();
        assert_eq!(times, 1, "{key:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_never_reads_times_out() {
    let fixture = Fixture::new();
    // The system completes connections that are not accepted.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // Long enough to connect on a busy machine: a request that was not sent is not in doubt.
    let gateway = fixture.gateway(&url, &["--upstream-timeout", "3s"]);
    let caller = Caller::new(&gateway);
    let since = std::time::Instant::now();
    assert_eq!(caller.post("/orders", "k", "{}").await.problem(), is("upstream-ambiguous", 504));
    assert!(since.elapsed() >= Duration::from_secs(3));
}

/// The time limit of the upstream in the tests of responses that pause, long enough to begin a
/// response on a busy machine.
const LIMIT: Duration = Duration::from_secs(3);

/// Starts an upstream that begins its response with one text and continues with the other after the
/// limit; without another text it sends no more.
async fn pausing(begins: &'static str, goes_on: Option<&'static str>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut request_text = Vec::new();
                while !request_text.ends_with(b"{}") {
                    assert_ne!(stream.read_buf(&mut request_text).await.unwrap(), 0);
                }
                stream.write_all(begins.as_bytes()).await.unwrap();
                if let Some(goes_on) = goes_on {
                    tokio::time::sleep(LIMIT + LIMIT / 4).await;
                    let _ = stream.write_all(goes_on.as_bytes()).await;
                }
                let _ = stream.read(&mut [0; 1]).await;
            });
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_is_waited_for_only_as_far_as_it_is_stored() {
    let config = format!(
        "[gateway]\nupstream_timeout = \"{}s\"\n[[route]]\npath = \"/{{*rest}}\"\n\
         max_response = 4",
        LIMIT.as_secs()
    );
    // Returns the response to a request and to its repeat.
    let both_responses = async |url: String| {
        let fixture = Fixture::new();
        let gateway = fixture.configured(&url, &config);
        let caller = Caller::new(&gateway);
        let first = caller.post("/a", "k", "{}").await;
        (first, caller.post("/a", "k", "{}").await)
    };
    let more_than_is_kept =
        pausing("HTTP/1.1 201 Created\r\ncontent-length: 12\r\n\r\n0123456789", Some("ab"));
    let endless = pausing(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 12\r\n\r\n",
        Some("data: hello\n"),
    );
    let stalled = pausing("HTTP/1.1 201 Created\r\ncontent-length: 4\r\n\r\n01", None);
    let (more, endless, stalled) = tokio::join!(
        both_responses(more_than_is_kept.await),
        both_responses(endless.await),
        both_responses(stalled.await)
    );
    for (whole, again) in [more, endless] {
        assert_eq!(whole.body.len(), 12, "however long it takes: {whole:?}");
        assert_eq!(again.problem(), is("result-unavailable", 409));
    }
    let (cut, again) = stalled;
    assert_eq!(cut.problem(), is("upstream-ambiguous", 504), "the claim is not held for ever");
    assert_eq!(again.problem(), is("upstream-ambiguous", 504), "and is run again");
}
