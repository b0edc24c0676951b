//! A service behind the layer that records the requests that reach it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::middleware::{self, Next};
use axum::response::Response;
use http::{HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::BodyExt as _;
use semel_core::{Context, Executor, Store, Wait};
use semel_tower::http::{IdempotencyLayer, Rules};
use semel_tower::{PrincipalFrom, Tenant};
use tokio::sync::watch;

use crate::backend::{Answer, Backend, Client, Memory, Protocol, Server, post};
use crate::raw::Wire;

/// A time that is longer than any test.
const LONG: Duration = Duration::from_secs(80);

/// A request that reached a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reached {
    /// The method and the path, such as `POST /orders`.
    pub(crate) line: String,
    /// The key of the claim, if there is one.
    pub(crate) key: Option<String>,
    pub(crate) body: Vec<u8>,
}

/// The requests that reached the handlers, in order.
#[derive(Clone, Default)]
pub(crate) struct Journal(Arc<Mutex<Vec<Reached>>>);

impl Journal {
    fn lock(&self) -> MutexGuard<'_, Vec<Reached>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, reached: Reached) {
        self.lock().push(reached);
    }

    pub(crate) fn entries(&self) -> Vec<Reached> {
        self.lock().clone()
    }

    /// Returns the request lines with their bodies.
    pub(crate) fn lines(&self) -> Vec<String> {
        let line = |reached: Reached| {
            format!("{} {}", reached.line, String::from_utf8_lossy(&reached.body))
        };
        self.entries().into_iter().map(line).collect()
    }

    /// Returns how often a request under `key` reached a handler.
    pub(crate) fn times(&self, key: &str) -> usize {
        self.lock().iter().filter(|reached| reached.key.as_deref() == Some(key)).count()
    }
}

/// A service that echoes each request, with special behaviour at these paths:
///
/// | `POST` | |
/// |---|---|
/// | `/held` | is answered when the gate is opened |
/// | `/waiting` | the same, and repeats wait for the answer |
/// | `/patient` | repeats wait for the answer |
/// | `/small` | accepts bodies of up to 16 bytes |
/// | `/long` | as `/waiting`, and stores no response |
/// | `/required` | requires a key |
/// | `/panics` | panics at the first attempt |
/// | `/burns` | the same, when the gate is opened |
/// | `/cookies` | sets headers that must not be stored |
pub(crate) struct Shop {
    pub(crate) server: Server,
    pub(crate) journal: Journal,
    /// The requests that were handled to the end.
    pub(crate) done: Journal,
    gate: watch::Sender<bool>,
    passage: Passage,
}

/// The numbers of requests that arrived, and of requests that were dropped before their response.
#[derive(Clone)]
struct Passage {
    came: Arc<watch::Sender<usize>>,
    left: Arc<watch::Sender<usize>>,
}

#[derive(Clone)]
struct Counter {
    journal: Journal,
    done: Journal,
    gate: watch::Receiver<bool>,
}

impl Shop {
    /// Starts a shop with a store in memory.
    pub(crate) async fn open() -> Self {
        Self::with(Memory::open().await.executor().await).await
    }

    /// Starts a shop with this executor. Callers are distinguished by `X-User`.
    pub(crate) async fn with<S: Store>(executor: Executor<S>) -> Self {
        let principal = PrincipalFrom::header(HeaderName::from_static("x-user"));
        let patient = Rules::new().wait(Wait::UpTo(LONG));
        let layer = IdempotencyLayer::fenced(executor, Tenant::fixed("acme"), principal)
            .route("POST /waiting", patient.clone())
            .route("POST /patient", patient.clone())
            .route("POST /small", Rules::new().max_request(16))
            .route("POST /long", patient.max_response(4))
            .route("POST /required", Rules::new().required());
        let (gate, opened) = watch::channel(false);
        let passage = Passage { came: Arc::default(), left: Arc::default() };
        let (journal, done) = (Journal::default(), Journal::default());
        let counter = Counter { journal: journal.clone(), done: done.clone(), gate: opened };
        let watched = middleware::from_fn_with_state(passage.clone(), pass);
        let router = Router::new().fallback(serve).layer(layer).layer(watched).with_state(counter);
        Self { server: Server::speaking(Protocol::H1, router).await, journal, done, gate, passage }
    }

    pub(crate) async fn connect(&self) -> Wire {
        Wire::connect(self.server.address()).await
    }

    /// Sends a request as `ann`, on a new connection.
    pub(crate) async fn ask(&self, protocol: Protocol, path: &str, key: &str) -> Answer {
        let mut client = Client::connect(self.server.address(), protocol).await;
        client.send(of_ann(path, key)).await
    }

    /// Returns the gate, for use after the shop is dropped.
    pub(crate) fn gate(&self) -> watch::Sender<bool> {
        self.gate.clone()
    }

    /// Opens the gate, so that held requests are answered.
    pub(crate) fn release(&self) {
        self.gate.send_replace(true);
    }

    /// Waits until `count` requests have reached the handlers.
    pub(crate) async fn reached(&self, count: usize) {
        crate::backend::until(async || self.journal.entries().len() >= count).await;
    }

    /// Waits until `count` requests have arrived, handled or not.
    pub(crate) async fn came(&self, count: usize) {
        let mut came = self.passage.came.subscribe();
        came.wait_for(|came| *came >= count).await.expect("we hold the sender");
    }

    /// Waits until `count` requests were dropped without an answer.
    pub(crate) async fn left(&self, count: usize) {
        let mut left = self.passage.left.subscribe();
        left.wait_for(|left| *left >= count).await.expect("we hold the sender");
    }
}

/// Creates the request `POST path` of `ann` under `key`.
pub(crate) fn of_ann(path: &str, key: &str) -> http::Request<crate::backend::Sent> {
    let mut request = post(path, key, "{}");
    request.headers_mut().insert("x-user", HeaderValue::from_static("ann"));
    request
}

async fn serve(State(mut counter): State<Counter>, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let answer = |status: StatusCode, body: Vec<u8>| {
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        response
    };
    // A request whose body breaks off is not counted.
    let Ok(body) = body.collect().await else { return answer(StatusCode::BAD_REQUEST, vec![]) };
    let line = format!("{} {}", parts.method, parts.uri.path());
    let claim = parts.extensions.get::<Context>();
    let key = claim.map(|claim| claim.key().id().to_owned());
    let body = body.to_bytes().to_vec();
    let reached = Reached { line: line.clone(), key, body: body.clone() };
    counter.journal.note(reached.clone());
    if matches!(line.as_str(), "POST /held" | "POST /waiting" | "POST /long" | "POST /burns") {
        let _ = counter.gate.wait_for(|open| *open).await;
    }
    if matches!(line.as_str(), "POST /panics" | "POST /burns")
        && claim.is_none_or(|claim| claim.attempt() == 1)
    {
        panic!("the till is on fire");
    }
    counter.done.note(reached);
    let mut response = answer(StatusCode::OK, [line.as_bytes(), b" ", &body].concat());
    if line == "POST /cookies" {
        for (name, value) in COOKIES {
            response.headers_mut().append(name, HeaderValue::from_static(value));
        }
    }
    response
}

/// The headers that `/cookies` sets.
pub(crate) const COOKIES: [(&str, &str); 8] = [
    ("set-cookie", "session=1"),
    ("set-cookie", "theme=dark"),
    ("date", "Mon, 01 Jan 2001 00:00:00 GMT"),
    ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ("x-request-id", "4711"),
    ("keep-alive", "timeout=5"),
    ("location", "/orders/1"),
    ("etag", "\"1\""),
];

/// A layer around the layer under test, which counts requests and marks every response.
async fn pass(
    State(passage): State<Passage>,
    request: http::Request<Body>,
    next: Next,
) -> Response {
    struct Leaving(Option<Passage>);
    impl Drop for Leaving {
        fn drop(&mut self) {
            if let Some(passage) = &self.0 {
                passage.left.send_modify(|left| *left += 1);
            }
        }
    }
    passage.came.send_modify(|came| *came += 1);
    let mut leaving = Leaving(Some(passage));
    let mut response = next.run(request).await;
    leaving.0 = None;
    response.headers_mut().insert("x-outer", HeaderValue::from_static("1"));
    response
}
