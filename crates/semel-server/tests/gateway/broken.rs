//! An upstream that is away, slow, or breaks off: what is told, and what becomes of the claim.

use std::time::Duration;

use http::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::caller::{Caller, full, get};
use crate::ground::{Ground, PATIENCE, nowhere};
use crate::program::Service;
use crate::raw::Raw;
use crate::shop::Shop;

fn is(slug: &str, status: u16) -> (u16, String) {
    (status, slug.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_is_away_leaves_the_key_free() {
    let ground = Ground::new();
    let (_kept, address) = nowhere();
    let config = "[[route]]\npath = \"/pay\"\non_crash = \"hold\"\npreset = \"stripe_v1\"";
    let gateway = ground.configured(&format!("http://{address}"), config);
    let caller = Caller::new(&gateway);
    for target in ["/orders", "/pay"] {
        let refused = caller.post(target, "k", "{\"a\":1}").await;
        assert_eq!(refused.problem(), is("upstream-unreachable", 502));
        assert_eq!(refused.json()["retryable"], true);
        assert_eq!(refused.json()["instance"], target);
        // Another body: nothing is left of the first.
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
async fn a_request_without_an_answer_is_in_doubt_and_run_again_only_when_asked() {
    let (ground, shop) = (Ground::new(), Shop::open().await);
    let gateway = ground.gateway(&shop.url(), &[]);
    let caller = Caller::new(&gateway);
    let cut = caller.post("/hang-up-once", "k", "{}").await;
    assert_eq!(cut.problem(), is("upstream-ambiguous", 504));
    assert_eq!(shop.seen("/hang-up-once").len(), 1, "it was not sent again by itself");
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
async fn a_request_without_an_answer_is_held_where_the_route_says_so() {
    let (ground, shop) = (Ground::new(), Shop::open().await);
    let config = "[[route]]\npath = \"/hang-up\"\non_crash = \"hold\"";
    let gateway = ground.configured(&shop.url(), config);
    let caller = Caller::new(&gateway);
    assert_eq!(caller.post("/hang-up", "k", "{}").await.problem(), is("upstream-ambiguous", 504));
    for _ in 0..2 {
        assert_eq!(caller.post("/hang-up", "k", "{}").await.problem(), is("uncertain", 409));
    }
    assert_eq!(shop.seen("/hang-up").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_5xx_of_the_upstream_may_be_held() {
    let (ground, shop) = (Ground::new(), Shop::open().await);
    let config = "[[route]]\npath = \"/fail\"\non_crash = \"hold\"\ndoubt_5xx = true\n\
                  [[route]]\npath = \"/fail-once\"\non_crash = \"hold\"";
    let gateway = ground.configured(&shop.url(), config);
    let caller = Caller::new(&gateway);
    // Where the route does not say so, a 5xx is the upstream's word that it failed.
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
        let (ground, shop) = (Ground::new(), Shop::open().await);
        let config = format!(
            "[[route]]\npath = \"/hang-up-slowly-once\"\nwait = \"60s\"\non_crash = \"{on_crash}\""
        );
        let gateway = ground.configured(&shop.url(), &config);
        let asks = |caller: &Caller| {
            let caller = caller.clone();
            tokio::spawn(async move { caller.post("/hang-up-slowly-once", "k", "{}").await })
        };
        let caller = Caller::new(&gateway);
        let first = asks(&caller);
        shop.arrived(1).await;
        let waiting = asks(&caller);
        // Time to begin to wait; a later duplicate gets the same.
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
    let (ground, shop) = (Ground::new(), Shop::open().await);
    // Long enough to connect on a busy machine: before that nothing is in doubt.
    let config = "[gateway]\nupstream_timeout = \"3s\"\n[[route]]\npath = \"/slow\"\n\
                  upstream_timeout = \"3s\"\non_crash = \"hold\"";
    let gateway = ground.configured(&shop.url(), config);
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

/// The value of a header in the text of a request.
fn said<'t>(text: &'t str, name: &str) -> &'t str {
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
        let ground = Ground::new();
        let (url, heard) = closing(answer).await;
        let config =
            "[[route]]\npath = \"/held\"\non_crash = \"hold\"\n[ledger]\nstore = \"memory:\"";
        let gateway = ground.configured(&url, config);
        let caller = Caller::new(&gateway);
        for attempt in ["1", "2"] {
            let cut = caller.post("/cut", "k", "{}").await;
            assert_eq!(cut.problem(), is("upstream-ambiguous", 504), "{answer}");
            let text = heard.borrow().last().unwrap().clone();
            assert_eq!(said(&text, "semel-attempt"), attempt, "failed, and run again when asked");
            let operation = said(&text, "semel-operation-id");
            assert_eq!(cut.json()["operation_id"], operation, "which one it is can be looked up");
        }
        let other = caller.post("/cut", "k", "[{}").await;
        assert_eq!(other.problem(), is("key-reused", 422), "the failure keeps its request");
        assert_eq!(caller.post("/held", "k", "{}").await.problem(), is("upstream-ambiguous", 504));
        assert_eq!(caller.post("/held", "k", "{}").await.problem(), is("uncertain", 409));
        assert_eq!(heard.borrow().len(), 3, "{answer}");
    }
}

/// The number of calls that came to `result`.
async fn counted(gateway: &Service, result: &str) -> Option<String> {
    let metrics = get(&format!("{}/metrics", gateway.url("admin"))).await;
    let name = format!("semel_gateway_upstream_requests_total{{result=\"{result}\"}} ");
    metrics.text().lines().find_map(|line| line.strip_prefix(&name)).map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_its_caller_breaks_off_is_the_callers_mistake() {
    let (ground, shop) = (Ground::new(), Shop::open().await);
    let gateway = ground.gateway(&shop.url(), &["--store", "memory:"]);
    let mut raw = Raw::connect(&gateway).await;
    raw.say("POST /orders HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n")
        .await;
    // The upstream has the beginning of it.
    raw.say("what is this\r\n").await;
    let told = raw.hear("}").await;
    assert!(told.starts_with("HTTP/1.1 400") && told.contains("body-incomplete"), "{told}");
    assert!(told.contains("\"retryable\":false"), "{told}");
    raw.closed().await;

    let mut raw = Raw::connect(&gateway).await;
    raw.say("PUT /orders HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{").await;
    raw.finish().await;
    let told = async {
        while counted(&gateway, "incomplete").await.as_deref() != Some("2") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, told).await.expect("both are counted");
    assert_eq!(counted(&gateway, "ambiguous").await, None);
    assert_eq!(shop.seen("/orders").len(), 0, "it never got a whole one");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_stands_still_is_the_callers_to_finish() {
    let (ground, shop) = (Ground::new(), Shop::open().await);
    let gateway = ground.gateway(&shop.url(), &["--upstream-timeout", "2s"]);
    let mut raw = Raw::connect(&gateway).await;
    raw.say("POST /orders HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{").await;
    let told = raw.hear("}").await;
    assert!(told.starts_with("HTTP/1.1 408") && told.contains("body-timeout"), "{told}");
    assert!(told.contains("connection: close"), "{told}");
    raw.closed().await;
    assert_eq!(counted(&gateway, "incomplete").await.as_deref(), Some("1"));
    assert_eq!(counted(&gateway, "ambiguous").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_breaks_off_before_it_says_anything_is_in_doubt() {
    for head in ["", "HTTP/1.1 20", "HTTP/1.1 201 Created\r\ncontent-le", "nonsense\r\n\r\n"] {
        let ground = Ground::new();
        let (url, heard) = closing(head).await;
        let gateway = ground.gateway(&url, &["--store", "memory:"]);
        let caller = Caller::new(&gateway);
        let cut = caller.post("/cut", "k", "{}").await;
        assert_eq!(cut.problem(), is("upstream-ambiguous", 504), "{head:?}");
        assert_eq!(heard.borrow().len(), 1, "{head:?}");
    }
}

/// An upstream that closes each connection after one answer, without having said so.
async fn closing(answer: &'static str) -> (String, tokio::sync::watch::Receiver<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (heard, hear) = tokio::sync::watch::channel(Vec::new());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let heard = heard.clone();
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
                heard.send_modify(|all: &mut Vec<String>| all.push(text));
                stream.write_all(answer.as_bytes()).await.unwrap();
            });
        }
    });
    (url, hear)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_died_in_the_pool_costs_no_request_twice() {
    let ground = Ground::new();
    let (url, heard) = closing("HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\nok").await;
    let gateway = ground.gateway(&url, &["--store", "memory:"]);
    let caller = Caller::new(&gateway);
    // Each connection is closed the moment it goes back to the pool, while the next request is taken
    // from the caller: sometimes it is noticed in time, sometimes not.
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
    let heard = heard.borrow().clone();
    for n in 0..40 {
        let key = format!("idempotency-key: k-{n}\r\n");
        let times = heard.iter().filter(|text| text.contains(&key)).count();
        assert_eq!(times, 1, "{key:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_never_reads_is_no_reason_to_wait_for_ever() {
    let ground = Ground::new();
    // The system completes connections that are not accepted.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // Long enough to connect on a busy machine: before that nothing is in doubt.
    let gateway = ground.gateway(&url, &["--upstream-timeout", "3s"]);
    let caller = Caller::new(&gateway);
    let since = std::time::Instant::now();
    assert_eq!(caller.post("/orders", "k", "{}").await.problem(), is("upstream-ambiguous", 504));
    assert!(since.elapsed() >= Duration::from_secs(3));
}

/// How long an upstream may take in the tests of answers that pause: time enough to begin one on a busy
/// machine.
const LIMIT: Duration = Duration::from_secs(3);

/// An upstream that begins its answer with one text and goes on with the other when the limit is over;
/// without another it says no more.
async fn pausing(begins: &'static str, goes_on: Option<&'static str>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut asked = Vec::new();
                while !asked.ends_with(b"{}") {
                    assert_ne!(stream.read_buf(&mut asked).await.unwrap(), 0);
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
async fn an_answer_is_waited_for_only_as_far_as_it_is_kept() {
    let config = format!(
        "[gateway]\nupstream_timeout = \"{}s\"\n[[route]]\npath = \"/{{*rest}}\"\n\
         max_response = 4",
        LIMIT.as_secs()
    );
    // Its answer, and that it was kept no further than it had to be.
    let asked = async |url: String| {
        let ground = Ground::new();
        let gateway = ground.configured(&url, &config);
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
    let (more, endless, stalled) =
        tokio::join!(asked(more_than_is_kept.await), asked(endless.await), asked(stalled.await));
    for (whole, again) in [more, endless] {
        assert_eq!(whole.body.len(), 12, "however long it takes: {whole:?}");
        assert_eq!(again.problem(), is("result-unavailable", 409));
    }
    let (cut, again) = stalled;
    assert_eq!(cut.problem(), is("upstream-ambiguous", 504), "its claim is not held for ever");
    assert_eq!(again.problem(), is("upstream-ambiguous", 504), "and is run again");
}
