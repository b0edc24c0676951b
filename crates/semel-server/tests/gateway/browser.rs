//! Tests with a page of another origin in a real browser: which responses of the gateway it may
//! read.

use std::convert::Infallible;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use semel_servers::install;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::caller::{Answer, Caller};
use crate::fixture::{Fixture, PATIENCE};
use crate::program::Service;
use crate::shop::Shop;

/// An origin that serves one page, which a test sets later.
struct Origin {
    url: String,
    page: Arc<Mutex<String>>,
}

impl Origin {
    async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let page = Arc::new(Mutex::new(String::new()));
        let shown = Arc::clone(&page);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let page = shown.lock().unwrap().clone();
                tokio::spawn(async move {
                    let service = service_fn(move |_: Request<Incoming>| {
                        let answer = Response::builder().header("content-type", "text/html");
                        let answer = answer.body(Full::new(Bytes::from(page.clone()))).unwrap();
                        async { Ok::<_, Infallible>(answer) }
                    });
                    let server = auto::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { url, page }
    }

    /// Sends these requests from a page of this origin, and returns what the page could read.
    async fn reads(&self, fixture: &Fixture, gateway: &Service, requests: &Value) -> Vec<Value> {
        *self.page.lock().unwrap() = page(gateway, requests);
        visited(fixture, &self.url).await
    }
}

/// Returns a page that sends these requests one after the other and records what it could read of
/// each response.
fn page(gateway: &Service, requests: &Value) -> String {
    let script = r#"
        (async () => {
            const told = [];
            let place = "";
            for (const { path, method, key, body, headers } of REQUESTS) {
                try {
                    const target = path === "$place" ? place : path;
                    const answer = await fetch(GATEWAY + target, {
                        method: method ?? "POST",
                        headers: { "Idempotency-Key": key, "X-User": "ann", ...headers },
                        body,
                    });
                    const seen = (name) => answer.headers.get(name);
                    place = seen("Location") ?? place;
                    told.push({
                        status: answer.status,
                        replayed: seen("Idempotent-Replayed"),
                        after: seen("Retry-After"),
                        place: seen("Location"),
                        body: await answer.text(),
                    });
                } catch (error) {
                    told.push({ error: String(error) });
                }
            }
            document.body.textContent = JSON.stringify(told);
        })();
    "#;
    let script = script.replace("REQUESTS", &requests.to_string());
    let script = script.replace("GATEWAY", &Value::from(gateway.url("gateway")).to_string());
    format!("<!doctype html><body><script>{script}</script></body>")
}

/// A browser that is killed with its test.
struct Browser(Child);

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// Opens a page in a browser, and returns the results that the page has written into its document.
async fn visited(fixture: &Fixture, url: &str) -> Vec<Value> {
    let browser = install::chromium().unwrap();
    let profile = fixture.path().join("profile");
    let mut command = Command::new(browser);
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update"])
        .args(["--disable-sync", "--disable-dev-shm-usage"])
        .arg(format!("--user-data-dir={}", profile.display()))
        // The virtual time of the page, which does not advance while it waits for a response.
        .args(["--virtual-time-budget=600000", "--dump-dom", url])
        .env("HOME", fixture.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut browser = Browser(command.spawn().unwrap());
    let stdout = browser.0.stdout.take().unwrap();
    let dumped = tokio::task::spawn_blocking(move || std::io::read_to_string(stdout));
    let ended = tokio::time::timeout(2 * PATIENCE, dumped).await;
    let shown = ended.expect("the browser ends").unwrap().unwrap();
    let (_, text) = shown.split_once("<body>").unwrap_or_else(|| panic!("no page: {shown}"));
    let text = text.split("</body>").next().unwrap().replace("&quot;", "\"");
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {shown}"))
}

fn order(path: &str, key: &str, body: &str) -> Value {
    json!({"path": path, "key": key, "body": body})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_reads_a_replay_as_it_reads_the_first_answer() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    // Without settings: the cross-origin headers of the upstream are stored with the response.
    let gateway = fixture.gateway(&shop.url(), &["--principal", "header:x-user"]);
    let origin = Origin::open().await;
    let requests = json!([order("/cors/orders", "k", "tea"), order("/cors/orders", "k", "tea")]);
    let reply = origin.reads(&fixture, &gateway, &requests).await;
    let seen = |n: usize| (reply[n]["status"].clone(), reply[n]["replayed"].clone());
    assert_eq!(seen(0), (json!(201), json!(null)), "{reply:?}");
    assert_eq!(seen(1), (json!(201), json!("true")), "{reply:?}");
    assert_eq!(reply[1]["body"], reply[0]["body"]);
    assert_eq!(shop.seen("/cors/orders").len(), 1);
    // A page of an origin that the upstream does not allow cannot read the response.
    let other = Origin::open().await;
    let reply = other.reads(&fixture, &gateway, &json!([order("/cors/orders", "k", "tea")])).await;
    assert_eq!(reply[0]["error"], "TypeError: Failed to fetch", "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_an_allowed_origin_reads_problems_and_later_responses() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let (origin, other) = (Origin::open().await, Origin::open().await);
    let config = format!("[gateway]\nprincipal = \"header:x-user\"\ncors = [\"{}\"]\n", origin.url);
    let gateway = fixture.configured(&shop.url(), &config);
    let mut later = order("/cors/slow", "later", "tea");
    later["headers"] = json!({"Prefer": "respond-async"});
    let requests = json!([
        order("/cors/orders", "k", "tea"),
        order("/cors/orders", "k", "milk"),
        later,
        order("/cors/slow", "later", "tea"),
        {"path": "$place", "key": "none", "method": "GET"},
    ]);
    let reply = origin.reads(&fixture, &gateway, &requests).await;
    assert_eq!(reply[0]["status"], 201, "{reply:?}");
    assert_eq!(reply[1]["status"], 422, "{reply:?}");
    assert!(reply[1]["body"].as_str().unwrap().contains("key-reused"), "{reply:?}");
    assert_eq!(reply[2]["status"], 202, "{reply:?}");
    assert_eq!((&reply[3]["status"], &reply[3]["after"]), (&json!(409), &json!("1")), "{reply:?}");
    assert_eq!(reply[4]["status"], 202, "the operation is under way: {reply:?}");
    let reply = other.reads(&fixture, &gateway, &requests).await;
    assert_eq!(reply[0]["error"], "TypeError: Failed to fetch", "{reply:?}");
    assert_eq!(reply[1]["error"], "TypeError: Failed to fetch", "{reply:?}");
    shop.let_go(1);
}

/// Two origins: one that the upstream allows, and one that only the gateway's setting allows.
const ORIGINS: [&str; 2] = ["https://shop.example", "https://other.example"];

/// Sends an order under this key with this origin.
async fn ordered(caller: &Caller, target: &str, key: &str, body: &str, origin: &str) -> Answer {
    let mut request = caller.keyed(target, key, body);
    request.headers_mut().insert("origin", HeaderValue::from_str(origin).unwrap());
    caller.send(request).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_setting_exposes_no_response_of_the_upstream() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    for origins in [format!("{ORIGINS:?}"), "\"*\"".to_owned()] {
        let gateway = fixture.configured(&shop.url(), &format!("[gateway]\ncors = {origins}\n"));
        let caller = Caller::new(&gateway);
        let allowed = |answer: &Answer| answer.headers.get("access-control-allow-origin").cloned();
        // The upstream allows the first origin, and sends no cross-origin headers at the other
        // path.
        let key = format!("k-{}", origins.len());
        let first = ordered(&caller, "/cors/orders", &key, "1", ORIGINS[0]).await;
        assert_eq!(allowed(&first).unwrap(), ORIGINS[0], "{first:?}");
        let silent = ordered(&caller, "/orders", &key, "1", ORIGINS[0]).await;
        assert_eq!(allowed(&silent), None, "{silent:?}");
        let again = ordered(&caller, "/cors/orders", &key, "1", ORIGINS[0]).await;
        assert!(again.replayed());
        assert_eq!(allowed(&again).unwrap(), ORIGINS[0], "{again:?}");
        for (target, origin) in
            [("/cors/orders", ORIGINS[1]), ("/orders", ORIGINS[0]), ("/orders", ORIGINS[1])]
        {
            let replay = ordered(&caller, target, &key, "1", origin).await;
            assert!(replay.replayed());
            let is_cors = |name: &&http::HeaderName| name.as_str().starts_with("access-control-");
            assert_eq!(replay.headers.keys().find(is_cors), None, "{origins} {origin}: {replay:?}");
        }
        // A problem comes from the gateway, and every origin in the setting may read it.
        for origin in ORIGINS {
            let problem = ordered(&caller, "/cors/orders", &key, "2", origin).await;
            assert_eq!(problem.problem(), (422, "key-reused".to_owned()));
            let (all, named) = (origins.contains('*'), allowed(&problem).unwrap());
            assert_eq!(named, if all { "*" } else { origin }, "{problem:?}");
            assert_eq!(problem.headers.contains_key("vary"), !all, "{problem:?}");
            let credentials = problem.headers.contains_key("access-control-allow-credentials");
            assert_eq!(credentials, !all, "{problem:?}");
        }
    }
}
