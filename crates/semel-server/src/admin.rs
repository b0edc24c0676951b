//! The listener for machines that look after this one: `/metrics`, `/healthz`, `/readyz`.
//!
//! A listener of its own, so that nobody outside can ask for it by a path.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use semel::Key;
use semel::store::{AnyStore, Store as _};
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;
use crate::serve::Listener;

/// Upper bounds of the histograms, in seconds: from a call inside the process to a slow upstream.
const BUCKETS: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];
/// How often the recorder tidies up.
const UPKEEP: Duration = Duration::from_secs(5);
/// How long the store may take to say that it is there.
const ASKED: Duration = Duration::from_secs(2);

/// A few words that nobody is to keep.
const PLAIN: [(HeaderName, &str); 2] =
    [(CONTENT_TYPE, "text/plain; charset=utf-8"), (CACHE_CONTROL, "no-store")];

/// Whether this process can serve.
#[derive(Clone, Debug)]
pub(crate) struct Readiness {
    store: AnyStore,
    stop: CancellationToken,
}

impl Readiness {
    /// Ready as long as `store` answers and nobody has asked to stop.
    pub(crate) fn new(store: AnyStore, stop: CancellationToken) -> Self {
        Self { store, stop }
    }

    async fn ask(&self) -> Result<(), String> {
        if self.stop.is_cancelled() {
            return Err("stopping".to_owned());
        }
        // A key that nobody uses: what counts is that the store answers.
        let key = Key::command("semel", "READY", "readyz").expect("a short key");
        match tokio::time::timeout(ASKED, self.store.peek(&key)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(format!("the store does not answer: {error}")),
            Err(_) => Err(format!("the store has not answered within {ASKED:?}")),
        }
    }
}

/// The listener, before there is anything to look after.
#[derive(Debug)]
pub(crate) struct Admin {
    listener: Listener,
    metrics: PrometheusHandle,
}

impl Admin {
    /// Listens on `address`, the value of `--admin-listen`, and starts counting in this process;
    /// `None` if it is `off`. Called once, before anything is counted.
    pub(crate) async fn bind(address: &str) -> Result<Option<Self>, Failure> {
        if address == "off" {
            return Ok(None);
        }
        let listener = Listener::bind("--admin-listen", address).await?;
        Ok(Some(Self { listener, metrics: count()? }))
    }

    /// Where it listens.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.listener.address())
    }

    /// Serves until `closed`, which comes after everything else has stopped: while calls finish,
    /// `/readyz` says no and `/healthz` still says yes.
    pub(crate) fn start(
        self,
        readiness: Readiness,
        closed: CancellationToken,
    ) -> tokio::task::JoinHandle<bool> {
        start(self.listener, self.metrics, readiness, closed)
    }
}

/// Starts counting in this process. Called once, before anything is counted.
pub(crate) fn count() -> Result<PrometheusHandle, Failure> {
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)
        .map_err(Failure::failed)?;
    let handle = builder.install_recorder().map_err(Failure::failed)?;
    let upkeep = handle.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            upkeep.run_upkeep();
        }
    });
    Ok(handle)
}

/// Serves until `closed`, which comes after everything else has stopped: while calls finish, `/readyz`
/// says no and `/healthz` still says yes.
pub(crate) fn start(
    listener: Listener,
    metrics: PrometheusHandle,
    readiness: Readiness,
    closed: CancellationToken,
) -> tokio::task::JoinHandle<bool> {
    let ready = |State(readiness): State<Arc<Readiness>>| async move {
        match readiness.ask().await {
            Ok(()) => (StatusCode::OK, PLAIN, "ready\n".to_owned()),
            Err(why) => (StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("{why}\n")),
        }
    };
    let router = Router::new()
        .route(
            "/metrics",
            get(move || async move {
                ([(CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.render())
            }),
        )
        .route("/healthz", get(|| async { (PLAIN, "ok\n") }))
        .route("/readyz", get(ready))
        .with_state(Arc::new(readiness));
    tokio::spawn(listener.serve(router, closed, Duration::from_secs(1)))
}
