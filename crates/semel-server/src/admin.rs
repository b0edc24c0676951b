//! The admin listener: `/metrics`, `/healthz`, `/readyz`.
//!
//! The listener has a separate address, so that these paths cannot be reached through the public
//! listener.

pub(crate) mod help;
pub(crate) mod readiness;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use semel_core::Executor;
use semel_core::store::Inspect;
use tokio_util::sync::CancellationToken;

use self::readiness::{LedgerReadiness, Readiness};
use crate::exit::ExitError;
use crate::serve::Listener;
use crate::store::StoreKind;

/// Upper bounds of the histograms, in seconds: from a call inside the process to a slow upstream.
const BUCKETS: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];
/// The interval of the recorder's upkeep.
const UPKEEP: Duration = Duration::from_secs(5);
/// The interval at which gauges are sampled.
const SAMPLE: Duration = Duration::from_secs(15);

/// Counters without labels that are normally zero. They are created at start, because Prometheus does
/// not see the first value of a new counter as an increase. Alerts on counters with labels say
/// `unless … offset` instead.
const RARE: [&str; 7] = [
    "semel_lease_lost_total",
    "semel_renew_failures_total",
    "semel_unrecorded_outcomes_total",
    "semel_fail_open_requests_total",
    "semel_sweep_deleted_total",
    "semel_sweep_refused_total",
    "semel_idresolve_mismatch_total",
];

/// The headers of a plain text response that must not be cached.
const PLAIN: [(HeaderName, &str); 2] =
    [(CONTENT_TYPE, "text/plain; charset=utf-8"), (CACHE_CONTROL, "no-store")];

/// The bound listener, before it serves.
#[derive(Debug)]
pub(crate) struct Admin {
    listener: Listener,
    metrics: PrometheusHandle,
}

impl Admin {
    /// Listens on `address`, the value of `--admin-listen`, and starts counting in this process.
    /// Returns `None` if the address is `off`. Called once, before anything is counted.
    pub(crate) async fn bind(address: &str) -> Result<Option<Self>, ExitError> {
        if address == "off" {
            return Ok(None);
        }
        let listener = Listener::bind("--admin-listen", address).await?;
        Ok(Some(Self { listener, metrics: count()? }))
    }

    /// Returns the URL of the listener.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.listener.address())
    }

    /// Serves until `closed` is cancelled, which happens after everything else has stopped. Once
    /// `stop` is cancelled, while calls finish, `/readyz` fails and `/healthz` still succeeds.
    pub(crate) fn start<S: Inspect>(
        self,
        executor: Executor<S>,
        kind: StoreKind,
        stop: CancellationToken,
        closed: CancellationToken,
    ) -> tokio::task::JoinHandle<bool> {
        tokio::spawn(sample(executor.clone(), kind, closed.clone()));
        self.serve(LedgerReadiness { executor, stop }, closed)
    }

    /// Serves until `closed` is cancelled; `/readyz` answers what `readiness` says. For processes without a
    /// ledger.
    pub(crate) fn serve<R: Readiness>(
        self,
        readiness: R,
        closed: CancellationToken,
    ) -> tokio::task::JoinHandle<bool> {
        let Self { listener, metrics } = self;
        let ready = |State(readiness): State<Arc<R>>| async move {
            match readiness.check().await {
                Ok(text) => (StatusCode::OK, PLAIN, format!("{text}\n")),
                Err(why) => (StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("{why}\n")),
            }
        };
        let shown = move || async move {
            ([(CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.render())
        };
        let router = Router::new()
            .route("/metrics", get(shown))
            .route("/healthz", get(|| async { (PLAIN, "ok\n") }))
            .route("/readyz", get(ready))
            .with_state(Arc::new(readiness));
        tokio::spawn(listener.serve(router, closed, Duration::from_secs(1)))
    }
}

/// Installs the metrics recorder of this process.
fn count() -> Result<PrometheusHandle, ExitError> {
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)
        .map_err(ExitError::failed)?;
    let handle = builder.install_recorder().map_err(ExitError::failed)?;
    help::describe();
    for name in RARE {
        metrics::counter!(name).absolute(0);
    }
    let upkeep = handle.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            upkeep.run_upkeep();
        }
    });
    Ok(handle)
}

/// Samples the ledger's gauges every [`SAMPLE`].
async fn sample<S: Inspect>(executor: Executor<S>, kind: StoreKind, closed: CancellationToken) {
    loop {
        executor.sample_held();
        // Redis has no index for this: it would scan all records each time.
        if kind != StoreKind::Redis
            && let Err(error) = executor.sample_waiting().await
        {
            tracing::debug!(%error, "the ledger's gauges could not be sampled");
        }
        tokio::select! {
            () = tokio::time::sleep(SAMPLE) => {}
            () = closed.cancelled() => return,
        }
    }
}
