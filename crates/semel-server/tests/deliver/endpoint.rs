//! An HTTP server that receives events. It can be killed and started again on its port.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::IntoResponse as _;
use http::{HeaderMap, HeaderName, StatusCode, Uri};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// A request that an endpoint has received.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Status(u16),
    With(u16, &'static str, String),
    Body(u16, String),
    /// No answer, for as long as the client waits.
    Silence,
}

type Decide = Arc<dyn Fn(&Received) -> Answer + Send + Sync>;

#[derive(Clone)]
struct Shared {
    received: Arc<Mutex<Vec<Received>>>,
    decide: Decide,
}

/// A running endpoint.
pub(crate) struct Endpoint {
    shared: Shared,
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Endpoint {
    pub(crate) fn start(decide: impl Fn(&Received) -> Answer + Send + Sync + 'static) -> Self {
        let shared = Shared { received: Arc::default(), decide: Arc::new(decide) };
        let mut endpoint =
            Self { shared, address: SocketAddr::from(([127, 0, 0, 1], 0)), runtime: None };
        endpoint.revive();
        endpoint
    }

    /// Starts the server again, on the same port.
    pub(crate) fn revive(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(1).enable_all().build().unwrap();
        let (address, shared) = (self.address, self.shared.clone());
        let (sender, bound) = std::sync::mpsc::channel();
        runtime.spawn(async move {
            let listener = loop {
                match TcpListener::bind(address).await {
                    Ok(listener) => break listener,
                    // Connections of the killed server may still be closing.
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            };
            sender.send(listener.local_addr().unwrap()).unwrap();
            let router = Router::new().fallback(answer).with_state(shared);
            axum::serve(listener, router).await.unwrap();
        });
        self.address = bound.recv_timeout(Duration::from_secs(120)).unwrap();
        self.runtime = Some(runtime);
    }

    /// Ends the server with all its connections.
    pub(crate) fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns what was received on this path.
    pub(crate) fn received(&self, path: &str) -> Vec<Received> {
        let all = self.shared.received.lock().unwrap();
        all.iter().filter(|one| one.path == path).cloned().collect()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn answer(
    State(shared): State<Shared>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> axum::response::Response {
    let headers = headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap_or_default().to_owned()));
    let received = Received {
        path: uri.path().to_owned(),
        headers: headers.collect(),
        body: String::from_utf8_lossy(&body).into_owned(),
    };
    let answer = (shared.decide)(&received);
    shared.received.lock().unwrap().push(received);
    let status = |code| StatusCode::from_u16(code).unwrap();
    match answer {
        Answer::Status(code) => status(code).into_response(),
        Answer::With(code, name, value) => {
            (status(code), [(HeaderName::from_static(name), value)]).into_response()
        }
        Answer::Body(code, body) => (status(code), body).into_response(),
        Answer::Silence => std::future::pending().await,
    }
}
