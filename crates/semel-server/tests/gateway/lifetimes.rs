//! A gateway's own life: killed, stopped, told to read its routes again.

use std::time::Duration;

use http::Method;
use http_body_util::BodyExt as _;
use tokio::net::TcpStream;

use crate::caller::{Caller, full, get};
use crate::ground::{Ground, PATIENCE};
use crate::program::disposition;
use crate::raw::Raw;
use crate::shop::Shop;

/// Asks until the answer is no "in progress": the lease of a dead gateway lapses.
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
async fn a_gateway_killed_in_mid_call_loses_and_doubles_nothing_that_it_promised() {
    let (ground, shop) = (Ground::new(), Shop::open().await);
    let config = "[ledger]\nlock_ttl = \"9s\"\n[[route]]\npath = \"/pay\"\n\
                  [[route]]\npath = \"/slow\"\non_crash = \"hold\"";
    let gateway = ground.configured(&shop.url(), config);
    let caller = Caller::new(&gateway);
    let done = caller.post("/orders", "done", "{}").await;
    let cut = tokio::spawn(async move { caller.try_send(caller.keyed("/slow", "k", "{}")).await });
    shop.arrived(2).await;
    gateway.kill();
    assert!(cut.await.unwrap().is_err());

    let gateway = ground.gateway(&shop.url(), &["--config", "semel.toml"]);
    let caller = Caller::new(&gateway);
    let again = caller.post("/orders", "done", "{}").await;
    assert_eq!((again.replayed(), again.body), (true, done.body), "what was answered stays");
    let held = settled(&caller, "/slow", "k").await;
    assert_eq!(held.problem(), (409, "uncertain".to_owned()));
    assert_eq!(shop.seen("/slow").len(), 1, "what may have happened is not sent again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_a_killed_gateway_is_taken_over_when_its_lease_is_over() {
    let (ground, shop) = (Ground::new(), Shop::open().await);
    let config = "[ledger]\nlock_ttl = \"9s\"";
    let gateway = ground.configured(&shop.url(), config);
    let caller = Caller::new(&gateway);
    let cut = tokio::spawn(async move { caller.try_send(caller.keyed("/slow", "k", "{}")).await });
    shop.arrived(1).await;
    gateway.kill();
    assert!(cut.await.unwrap().is_err());
    // The first is released too: the upstream did it, and its response was lost.
    shop.let_go(2);
    let gateway = ground.gateway(&shop.url(), &["--config", "semel.toml"]);
    let taken = settled(&Caller::new(&gateway), "/slow", "k").await;
    assert_eq!((taken.status.as_u16(), taken.replayed()), (201, false));
    let seen = shop.seen("/slow");
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].headers["semel-operation-id"], seen[1].headers["semel-operation-id"]);
    assert_eq!(seen[1].headers["semel-attempt"], "2", "the upstream can tell");
}

#[tokio::test(flavor = "multi_thread")]
async fn asked_to_stop_it_finishes_what_is_under_way_and_takes_nothing_new() {
    let (ground, shop) = (Ground::new(), Shop::open().await);
    let gateway = ground.gateway(&shop.url(), &[]);
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
        assert!(std::time::Instant::now() < end, "it still listens");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let ready = get(&format!("{admin}/readyz")).await;
    assert_eq!((ready.status.as_u16(), ready.text()), (503, "stopping\n"));
    assert_eq!(get(&format!("{admin}/healthz")).await.status, 200);
    shop.let_go(2);
    assert_eq!(under_way.await.unwrap().status, 201);
    assert_eq!(without_key.await.unwrap().status, 201);
    assert_eq!(gateway.ended().code(), Some(0));

    let gateway = ground.gateway(&shop.url(), &[]);
    assert!(Caller::new(&gateway).post("/slow", "k", "{}").await.replayed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_caller_left_is_finished_too() {
    let (ground, shop) = (Ground::new(), Shop::open().await);
    let gateway = ground.gateway(&shop.url(), &[]);
    let caller = Caller::new(&gateway);
    let leaving =
        tokio::spawn(async move { caller.try_send(caller.keyed("/slow", "k", "{}")).await });
    shop.arrived(1).await;
    leaving.abort();
    assert!(leaving.await.is_err());
    ground.logged("the caller disconnected", 1).await;
    gateway.signal("TERM");
    ground.logged("stopping", 1).await;
    shop.let_go(1);
    assert_eq!(gateway.ended().code(), Some(0));
    let gateway = ground.gateway(&shop.url(), &[]);
    assert!(Caller::new(&gateway).post("/slow", "k", "{}").await.replayed());
    assert_eq!(shop.seen("/slow").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_outlast_the_grace_are_cut_and_the_exit_says_so() {
    let (ground, shop) = (Ground::new(), Shop::open().await);
    let gateway = ground.gateway(&shop.url(), &["--drain", "100ms"]);
    let caller = Caller::new(&gateway);
    let cut = tokio::spawn(async move { caller.try_send(caller.keyed("/slow", "k", "{}")).await });
    shop.arrived(1).await;
    gateway.signal("TERM");
    assert_eq!(gateway.ended().code(), Some(1));
    // It is told if there is time to tell it.
    if let Ok(told) = cut.await.unwrap() {
        assert_eq!(told.problem(), (503, "shutting-down".to_owned()));
    }
    assert!(ground.log().contains("semel: calls were still under way"), "{}", ground.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn on_stop_waiting_duplicates_are_answered_and_running_calls_finish() {
    let (ground, shop) = (Ground::new(), Shop::open().await);
    let config = "[gateway]\ndrain = \"50s\"\n[[route]]\npath = \"/slow\"\nwait = \"60s\"";
    let gateway = ground.configured(&shop.url(), config);
    let caller = Caller::new(&gateway);
    let first = tokio::spawn(async move { caller.post("/slow", "k", "{}").await });
    shop.arrived(1).await;
    // A request that was accepted before the signal may finish; later ones are refused.
    let mut waiting = Raw::connect(&gateway).await;
    let head = "POST /slow HTTP/1.1\r\nhost: a\r\nauthorization: Bearer ann\r\n\
                content-type: application/json\r\nidempotency-key: k\r\n\
                expect: 100-continue\r\ncontent-length: 2\r\n\r\n";
    waiting.say(head).await;
    assert!(waiting.hear("\r\n\r\n").await.starts_with("HTTP/1.1 100"));
    waiting.say("{}").await;
    gateway.signal("TERM");
    let told = waiting.hear("in-progress").await;
    assert!(told.starts_with("HTTP/1.1 409"), "{told}");
    assert!(!first.is_finished(), "what is under way goes on");
    shop.let_go(1);
    assert_eq!(first.await.unwrap().status, 201);
    assert_eq!(gateway.ended().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_events_that_outlasts_the_grace_ends_like_an_upgraded_connection() {
    let (ground, shop) = (Ground::new(), Shop::open().await);
    for caller in [Caller::new, Caller::http2] {
        let gateway = ground.gateway(&shop.url(), &["--drain", "300ms"]);
        let caller = caller(&gateway);
        let request = caller.request(Method::GET, "/events").body(full("")).unwrap();
        let mut body = caller.begin(request).await.unwrap().into_body();
        // How long the first one takes is not part of the grace.
        let first = tokio::time::timeout(PATIENCE, body.frame()).await.unwrap().unwrap().unwrap();
        assert_eq!(first.into_data().unwrap(), "data: hello\n\n");
        gateway.signal("TERM");
        let read = tokio::time::timeout(PATIENCE, body.collect()).await.unwrap();
        assert_eq!(read.unwrap().to_bytes(), "", "it is over, not cut");
        assert_eq!(gateway.ended().code(), Some(0), "it would never have ended by itself");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgraded_connection_has_the_grace_to_end() {
    let (ground, shop) = (Ground::new(), Shop::open().await);
    let gateway = ground.gateway(&shop.url(), &["--drain", "1h"]);
    let mut socket = Raw::upgraded(&gateway).await;
    gateway.signal("TERM");
    ground.logged("stopping", 1).await;
    for word in ["still", "here"] {
        socket.say(word).await;
        assert_eq!(socket.hear(word).await, word);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(socket);
    assert_eq!(gateway.ended().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgraded_connection_that_outlasts_the_grace_is_closed() {
    let (ground, shop) = (Ground::new(), Shop::open().await);
    let gateway = ground.gateway(&shop.url(), &["--drain", "300ms"]);
    let mut socket = Raw::upgraded(&gateway).await;
    gateway.signal("TERM");
    socket.closed().await;
    assert_eq!(gateway.ended().code(), Some(0), "it may never have ended by itself");
    assert!(ground.log().contains("upgraded connections are closed"), "{}", ground.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_are_read_again_when_asked_and_a_bad_file_changes_nothing() {
    let (ground, shop) = (Ground::new(), Shop::open().await);
    let gateway = ground.configured(&shop.url(), "[[route]]\npath = \"/old\"\nrequired = true");
    let caller = Caller::new(&gateway);
    let wants_key = async |target: &str| {
        let request = caller.request(Method::POST, target).body(full("{}")).unwrap();
        caller.send(request).await.status == 400
    };
    assert_eq!((wants_key("/old").await, wants_key("/new").await), (true, false));
    assert_eq!(caller.post("/new", "k", "{}").await.status, 201);

    ground.write("semel.toml", "[[route]]\npath = \"/new\"\nrequired = true");
    gateway.signal("HUP");
    ground.logged("settings reloaded", 1).await;
    assert_eq!((wants_key("/old").await, wants_key("/new").await), (false, true));
    assert!(caller.post("/new", "k", "{}").await.replayed(), "what was kept is still there");

    for (n, bad) in ["[[route]]\npath = \"old\"", "[[rout", "[ledger]\nlock_ttl = \"x\""]
        .into_iter()
        .enumerate()
    {
        ground.write("semel.toml", bad);
        gateway.signal("HUP");
        ground.logged("the old settings stay", n + 1).await;
        assert_eq!((wants_key("/old").await, wants_key("/new").await), (false, true), "{bad}");
    }
    ground.write("semel.toml", "[gateway]\ntrust_forwarded = true");
    gateway.signal("HUP");
    ground.logged("need a restart", 1).await;
    assert!(!wants_key("/new").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_again_and_has_no_effect_is_said_and_what_new_patterns_mean() {
    let (ground, shop) = (Ground::new(), Shop::open().await);
    let route = "[[route]]\npath = \"/orders/{id}\"\nmethods = \"POST\"\n";
    let gateway = ground.configured(&shop.url(), route);
    ground.write("semel.toml", format!("[ledger]\ndefault_ttl = \"1h\"\n{route}keep = \"2h\""));
    gateway.signal("HUP");
    ground.logged("these settings of [ledger] need a restart", 1).await;
    assert!(ground.log().contains("keep") && !ground.log().contains("patterns"));
    ground.write("semel.toml", route.replace("{id}", "{*rest}"));
    gateway.signal("HUP");
    ground.logged("patterns have changed", 1).await;
    let log = ground.log();
    assert!(log.contains("POST /orders/{id}") && log.contains("POST /orders/{*rest}"), "{log}");
    // Compared with what counts now, not with what once was.
    gateway.signal("HUP");
    ground.logged("settings reloaded", 3).await;
    gateway.signal("TERM");
    assert_eq!(gateway.ended().code(), Some(0));
    assert_eq!(ground.log().matches("patterns have changed").count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn under_nohup_a_hangup_of_the_terminal_changes_nothing() {
    let (ground, shop) = (Ground::new(), Shop::open().await);
    let route = "[[route]]\npath = \"/old\"\n";
    let gateway = ground.configured_under(&["nohup"], &shop.url(), route);
    assert_eq!(disposition(gateway.id(), 1), (true, false), "SIGHUP is ignored as before");
    ground.logged("SIGHUP is ignored", 1).await;
    gateway.signal("HUP");
    assert_eq!(Caller::new(&gateway).post("/old", "k", "{}").await.status, 201);
    gateway.signal("TERM");
    assert_eq!(gateway.ended().code(), Some(0));
    assert!(!ground.log().contains("settings reloaded"), "{}", ground.log());
    let gateway = ground.configured(&shop.url(), route);
    assert_eq!(disposition(gateway.id(), 1), (false, true), "otherwise it has a handler");
}
