//! Tests of the lifetime of a gateway: kill, stop, reload.

use std::time::Duration;

use http::Method;
use http_body_util::BodyExt as _;
use tokio::net::TcpStream;

use crate::caller::{Caller, full, get};
use crate::fixture::{Fixture, PATIENCE};
use crate::program::disposition;
use crate::raw::Raw;
use crate::shop::Shop;

/// Repeats a request until the response is not `in-progress`, because the lease of the dead gateway
/// has lapsed.
async fn settled(caller: &Caller, target: &str, key: &str) -> crate::caller::Answer {
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        let answer = caller.post(target, key, "{}").await;
        if answer.status != 409 || answer.problem().1 != "in-progress" {
            return answer;
        }
        assert!(std::time::Instant::now() < end, "the lease never lapses");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_killed_during_a_call_loses_and_doubles_nothing() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let config = "[ledger]\nlock_ttl = \"9s\"\n[[route]]\npath = \"/pay\"\n\
                  [[route]]\npath = \"/slow\"\non_crash = \"hold\"";
    let gateway = fixture.configured(&shop.url(), config);
    let caller = Caller::new(&gateway);
    let done = caller.post("/orders", "done", "{}").await;
    let cut = tokio::spawn(async move { caller.try_send(caller.keyed("/slow", "k", "{}")).await });
    shop.arrived(2).await;
    gateway.kill();
    assert!(cut.await.unwrap().is_err());

    let gateway = fixture.gateway(&shop.url(), &["--config", "semel.toml"]);
    let caller = Caller::new(&gateway);
    let again = caller.post("/orders", "done", "{}").await;
    assert_eq!((again.replayed(), again.body), (true, done.body), "the recorded response stays");
    let held = settled(&caller, "/slow", "k").await;
    assert_eq!(held.problem(), (409, "uncertain".to_owned()));
    assert_eq!(
        shop.seen("/slow").len(),
        1,
        "a request that may have taken effect is not sent again"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_a_killed_gateway_is_taken_over_when_its_lease_is_over() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let config = "[ledger]\nlock_ttl = \"9s\"";
    let gateway = fixture.configured(&shop.url(), config);
    let caller = Caller::new(&gateway);
    let cut = tokio::spawn(async move { caller.try_send(caller.keyed("/slow", "k", "{}")).await });
    shop.arrived(1).await;
    gateway.kill();
    assert!(cut.await.unwrap().is_err());
    // The first request is answered too, but its response is lost.
    shop.let_go(2);
    let gateway = fixture.gateway(&shop.url(), &["--config", "semel.toml"]);
    let taken = settled(&Caller::new(&gateway), "/slow", "k").await;
    assert_eq!((taken.status.as_u16(), taken.replayed()), (201, false));
    let seen = shop.seen("/slow");
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].headers["semel-operation-id"], seen[1].headers["semel-operation-id"]);
    assert_eq!(seen[1].headers["semel-attempt"], "2", "the upstream gets the attempt");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_stop_calls_under_way_finish_and_new_ones_are_refused() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &[]);
    let caller = Caller::new(&gateway);
    let under_way = tokio::spawn({
        let caller = caller.clone();
        async move { caller.post("/slow", "k", "{}").await }
    });
    let without_key = tokio::spawn(async move {
        let request = caller.request(Method::POST, "/slow").body(full("")).unwrap();
        caller.send(request).await
    });
    shop.arrived(2).await;
    let (url, admin) = (gateway.url("gateway").to_owned(), gateway.url("admin").to_owned());
    gateway.signal("TERM");
    let address = url.trim_start_matches("http://").to_owned();
    let end = std::time::Instant::now() + PATIENCE;
    while TcpStream::connect(&address).await.is_ok() {
        assert!(std::time::Instant::now() < end, "the gateway still listens");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let ready = get(&format!("{admin}/readyz")).await;
    assert_eq!((ready.status.as_u16(), ready.text()), (503, "stopping\n"));
    assert_eq!(get(&format!("{admin}/healthz")).await.status, 200);
    shop.let_go(2);
    assert_eq!(under_way.await.unwrap().status, 201);
    assert_eq!(without_key.await.unwrap().status, 201);
    assert_eq!(gateway.ended().code(), Some(0));

    let gateway = fixture.gateway(&shop.url(), &[]);
    assert!(Caller::new(&gateway).post("/slow", "k", "{}").await.replayed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_caller_left_is_finished_too() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &[]);
    let caller = Caller::new(&gateway);
    let leaving =
        tokio::spawn(async move { caller.try_send(caller.keyed("/slow", "k", "{}")).await });
    shop.arrived(1).await;
    leaving.abort();
    assert!(leaving.await.is_err());
    fixture.logged("the caller disconnected", 1).await;
    gateway.signal("TERM");
    fixture.logged("stopping", 1).await;
    shop.let_go(1);
    assert_eq!(gateway.ended().code(), Some(0));
    let gateway = fixture.gateway(&shop.url(), &[]);
    assert!(Caller::new(&gateway).post("/slow", "k", "{}").await.replayed());
    assert_eq!(shop.seen("/slow").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_outlast_the_grace_are_cut_and_the_exit_code_is_1() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &["--drain", "100ms"]);
    let caller = Caller::new(&gateway);
    let cut = tokio::spawn(async move { caller.try_send(caller.keyed("/slow", "k", "{}")).await });
    shop.arrived(1).await;
    gateway.signal("TERM");
    assert_eq!(gateway.ended().code(), Some(1));
    // The caller gets a response if there is time to send it.
    if let Ok(reply) = cut.await.unwrap() {
        assert_eq!(reply.problem(), (503, "shutting-down".to_owned()));
    }
    assert!(fixture.log().contains("semel: calls were still under way"), "{}", fixture.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn on_stop_waiting_duplicates_are_answered_and_running_calls_finish() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let config = "[gateway]\ndrain = \"50s\"\n[[route]]\npath = \"/slow\"\nwait = \"60s\"";
    let gateway = fixture.configured(&shop.url(), config);
    let caller = Caller::new(&gateway);
    let first = tokio::spawn(async move { caller.post("/slow", "k", "{}").await });
    shop.arrived(1).await;
    // A request that was accepted before the signal may finish; later ones are refused.
    let mut waiting = Raw::connect(&gateway).await;
    let head = "POST /slow HTTP/1.1\r\nhost: a\r\nauthorization: Bearer ann\r\n\
                content-type: application/json\r\nidempotency-key: k\r\n\
                expect: 100-continue\r\ncontent-length: 2\r\n\r\n";
    waiting.send(head).await;
    assert!(waiting.read_until("\r\n\r\n").await.starts_with("HTTP/1.1 100"));
    waiting.send("{}").await;
    gateway.signal("TERM");
    let reply = waiting.read_until("in-progress").await;
    assert!(reply.starts_with("HTTP/1.1 409"), "{reply}");
    assert!(!first.is_finished(), "the call under way continues");
    shop.let_go(1);
    assert_eq!(first.await.unwrap().status, 201);
    assert_eq!(gateway.ended().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_stream_that_outlasts_the_grace_ends_like_an_upgraded_connection() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    for caller in [Caller::new, Caller::http2] {
        let gateway = fixture.gateway(&shop.url(), &["--drain", "300ms"]);
        let caller = caller(&gateway);
        let request = caller.request(Method::GET, "/events").body(full("")).unwrap();
        let mut body = caller.begin(request).await.unwrap().into_body();
        // The grace period does not include the time until the first frame.
        let first = tokio::time::timeout(PATIENCE, body.frame()).await.unwrap().unwrap().unwrap();
        assert_eq!(first.into_data().unwrap(), "data: hello\n\n");
        gateway.signal("TERM");
        let read = tokio::time::timeout(PATIENCE, body.collect()).await.unwrap();
        assert_eq!(read.unwrap().to_bytes(), "", "the stream ends without an error");
        assert_eq!(gateway.ended().code(), Some(0), "the stream would never have ended by itself");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgraded_connection_has_the_grace_to_end() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &["--drain", "1h"]);
    let mut socket = Raw::upgraded(&gateway).await;
    gateway.signal("TERM");
    fixture.logged("stopping", 1).await;
    for word in ["still", "here"] {
        socket.send(word).await;
        assert_eq!(socket.read_until(word).await, word);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(socket);
    assert_eq!(gateway.ended().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgraded_connection_that_outlasts_the_grace_is_closed() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &["--drain", "300ms"]);
    let mut socket = Raw::upgraded(&gateway).await;
    gateway.signal("TERM");
    socket.closed().await;
    assert_eq!(gateway.ended().code(), Some(0), "the connection may never have ended by itself");
    assert!(fixture.log().contains("upgraded connections are closed"), "{}", fixture.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_are_reloaded_on_sighup_and_a_bad_file_changes_nothing() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.configured(&shop.url(), "[[route]]\npath = \"/old\"\nrequired = true");
    let caller = Caller::new(&gateway);
    let wants_key = async |target: &str| {
        let request = caller.request(Method::POST, target).body(full("{}")).unwrap();
        caller.send(request).await.status == 400
    };
    assert_eq!((wants_key("/old").await, wants_key("/new").await), (true, false));
    assert_eq!(caller.post("/new", "k", "{}").await.status, 201);

    fixture.write("semel.toml", "[[route]]\npath = \"/new\"\nrequired = true");
    gateway.signal("HUP");
    fixture.logged("settings reloaded", 1).await;
    assert_eq!((wants_key("/old").await, wants_key("/new").await), (false, true));
    assert!(caller.post("/new", "k", "{}").await.replayed(), "the stored response is still there");

    for (n, bad) in ["[[route]]\npath = \"old\"", "[[rout", "[ledger]\nlock_ttl = \"x\""]
        .into_iter()
        .enumerate()
    {
        fixture.write("semel.toml", bad);
        gateway.signal("HUP");
        fixture.logged("the old settings stay", n + 1).await;
        assert_eq!((wants_key("/old").await, wants_key("/new").await), (false, true), "{bad}");
    }
    fixture.write("semel.toml", "[gateway]\ntrust_forwarded = true");
    gateway.signal("HUP");
    fixture.logged("need a restart", 1).await;
    assert!(!wants_key("/new").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_warns_about_settings_without_effect_and_new_patterns() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let route = "[[route]]\npath = \"/orders/{id}\"\nmethods = \"POST\"\n";
    let gateway = fixture.configured(&shop.url(), route);
    fixture.write("semel.toml", format!("[ledger]\ndefault_ttl = \"1h\"\n{route}keep = \"2h\""));
    gateway.signal("HUP");
    fixture.logged("these settings of [ledger] need a restart", 1).await;
    assert!(fixture.log().contains("keep") && !fixture.log().contains("patterns"));
    fixture.write("semel.toml", route.replace("{id}", "{*rest}"));
    gateway.signal("HUP");
    fixture.logged("patterns have changed", 1).await;
    let log = fixture.log();
    assert!(log.contains("POST /orders/{id}") && log.contains("POST /orders/{*rest}"), "{log}");
    // The reload compares with the current settings, not with those at start.
    gateway.signal("HUP");
    fixture.logged("settings reloaded", 3).await;
    gateway.signal("TERM");
    assert_eq!(gateway.ended().code(), Some(0));
    assert_eq!(fixture.log().matches("patterns have changed").count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn under_nohup_a_hangup_of_the_terminal_changes_nothing() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let route = "[[route]]\npath = \"/old\"\n";
    let gateway = fixture.configured_under(&["nohup"], &shop.url(), route);
    assert_eq!(disposition(gateway.id(), 1), (true, false), "SIGHUP is ignored as before");
    fixture.logged("SIGHUP is ignored", 1).await;
    gateway.signal("HUP");
    assert_eq!(Caller::new(&gateway).post("/old", "k", "{}").await.status, 201);
    gateway.signal("TERM");
    assert_eq!(gateway.ended().code(), Some(0));
    assert!(!fixture.log().contains("settings reloaded"), "{}", fixture.log());
    let gateway = fixture.configured(&shop.url(), route);
    assert_eq!(disposition(gateway.id(), 1), (false, true), "otherwise the process has a handler");
}
