//! A payment provider for tests: a real HTTP server with a real ledger, which records the requests
//! that it gets.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use semel_core::store::memory::MemoryStore;
use semel_core::{Command, Error, Execution, Executor, Fingerprint, Key};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// A response that the provider sends once instead of charging.
pub(crate) type Refusal = (u16, &'static [(&'static str, &'static str)]);

pub(crate) struct Ledger {
    header: HeaderName,
    executor: Executor<MemoryStore>,
    executed: AtomicU32,
    seen: Mutex<Vec<Option<String>>>,
    refusals: Mutex<VecDeque<Refusal>>,
    refuse_every_first: bool,
    /// The signal that a charge waits for, if a second request is to find it running.
    gate: Option<Notify>,
}

pub(crate) struct Provider {
    pub(crate) addr: SocketAddr,
    ledger: Arc<Ledger>,
    serving: JoinHandle<()>,
}

#[derive(Default)]
pub(crate) struct Manners {
    pub(crate) refusals: Vec<Refusal>,
    pub(crate) refuse_every_first: bool,
    pub(crate) gated: bool,
}

impl Provider {
    /// Starts a provider that reads keys from `header` and accepts every charge.
    pub(crate) async fn start(header: &HeaderName) -> Self {
        Self::with(header, Manners::default()).await
    }

    pub(crate) async fn with(header: &HeaderName, manners: Manners) -> Self {
        let ledger = Arc::new(Ledger {
            header: header.clone(),
            executor: Executor::new(MemoryStore::new()),
            executed: AtomicU32::new(0),
            seen: Mutex::default(),
            refusals: Mutex::new(manners.refusals.into()),
            refuse_every_first: manners.refuse_every_first,
            gate: manners.gated.then(Notify::new),
        });
        let app = Router::new().route("/charges", post(charge)).with_state(Arc::clone(&ledger));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { addr, ledger, serving }
    }

    /// Returns the number of charges that were made.
    pub(crate) fn executed(&self) -> u32 {
        self.ledger.executed.load(Ordering::SeqCst)
    }

    /// Returns the key of every request so far, as it was written in the header.
    pub(crate) fn seen(&self) -> Vec<Option<String>> {
        self.ledger.seen.lock().unwrap().clone()
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn charge(State(ledger): State<Arc<Ledger>>, headers: HeaderMap, body: Bytes) -> Response {
    let lines: Vec<_> = headers.get_all(&ledger.header).iter().collect();
    assert!(lines.len() <= 1, "two keys for one call: {lines:?}");
    let key = lines.first().map(|value| value.to_str().unwrap().to_owned());
    let first = {
        let mut seen = ledger.seen.lock().unwrap();
        seen.push(key.clone());
        seen.iter().filter(|seen| **seen == key).count() == 1
    };
    let refusal = ledger.refusals.lock().unwrap().pop_front();
    if let Some((status, headers)) = refusal {
        // The body is too long for a client to have read it whole before it drops the response.
        let mut response = Response::new(Body::from("try again".repeat(4096)));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        for (name, value) in headers {
            response.headers_mut().insert(*name, value.parse().unwrap());
        }
        return response;
    }
    if first && ledger.refuse_every_first {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let Some(key) = key else { return StatusCode::BAD_REQUEST.into_response() };
    let command = Command::new(Key::command("acme", "CHARGE", &key).unwrap())
        .fingerprint(Fingerprint::of_body(&body));
    let here = Arc::clone(&ledger);
    let charged = ledger.executor.run(command, move |_| async move {
        if let Some(gate) = &here.gate {
            gate.notified().await;
        }
        Ok::<_, std::io::Error>(here.executed.fetch_add(1, Ordering::SeqCst) + 1)
    });
    match charged.await {
        Ok(Execution::InProgress { .. }) => {
            // The second request ends the first, so that the test needs no clock.
            ledger.gate.as_ref().unwrap().notify_one();
            (StatusCode::CONFLICT, [("retry-after", "0")]).into_response()
        }
        Ok(charged) => {
            let replayed = [("idempotent-replayed", charged.replayed().to_string())];
            let charge = format!(r#"{{"charge":"ch_{}"}}"#, charged.value().unwrap());
            (StatusCode::CREATED, replayed, charge).into_response()
        }
        Err(Error::Mismatch) => StatusCode::UNPROCESSABLE_ENTITY.into_response(),
        Err(error) => panic!("{error}"),
    }
}
