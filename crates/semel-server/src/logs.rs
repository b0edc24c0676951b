//! Logs on stderr, as text or as one JSON object per line; with the feature `otlp`, traces too.
//!
//! `RUST_LOG` filters them, `info` by default. No log line carries an idempotency key, only its digest. Traces
//! go to `OTEL_EXPORTER_OTLP_ENDPOINT`, if it is set.

use std::io::IsTerminal as _;

use clap::ValueEnum;
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, fmt};

use crate::exit::ExitError;

/// The filter of a process whose failures are an operator's business.
pub(crate) const INFO: &str = "info";

/// The environment variables with the address of the trace collector.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];

/// The format of the logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Text for people
    Text,
    /// One JSON object per line
    Json,
}

/// A guard that flushes the traces when it is dropped.
#[derive(Debug)]
pub(crate) struct Logs {
    #[cfg(feature = "otlp")]
    traces: Option<opentelemetry_sdk::trace::SdkTracerProvider>,
}

/// The layer that exports traces.
type Traces = Box<dyn Layer<Registry> + Send + Sync>;

/// Starts logging in this process. `filter` applies unless `RUST_LOG` is set.
pub(crate) fn start(format: Format, filter: &str) -> Result<Logs, ExitError> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) => text
            .parse::<EnvFilter>()
            .map_err(|error| ExitError::usage(format_args!("RUST_LOG={text}: {error}")))?,
        Err(_) => EnvFilter::new(filter),
    };
    // Colours are only for terminals, not for files and collectors.
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(false).with_ansi(colours);
    let lines = match format {
        Format::Text => lines.boxed(),
        Format::Json => lines.json().flatten_event(true).with_span_list(false).boxed(),
    };
    let (traces, logs) = traces()?;
    let registry = tracing_subscriber::registry().with(traces).with(lines.with_filter(filter));
    registry.try_init().map_err(ExitError::failed)?;
    if cfg!(not(feature = "otlp")) && ENDPOINTS.iter().any(|name| std::env::var_os(name).is_some())
    {
        tracing::warn!(
            "OTEL_EXPORTER_OTLP_ENDPOINT is ignored: this program was built without the feature otlp"
        );
    }
    Ok(logs)
}

#[cfg(not(feature = "otlp"))]
fn traces() -> Result<(Option<Traces>, Logs), ExitError> {
    Ok((None, Logs {}))
}

#[cfg(feature = "otlp")]
fn traces() -> Result<(Option<Traces>, Logs), ExitError> {
    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_sdk::Resource;
    use opentelemetry_sdk::propagation::TraceContextPropagator;
    use opentelemetry_sdk::trace::SdkTracerProvider;

    if ENDPOINTS.iter().all(|name| std::env::var_os(name).is_none()) {
        return Ok((None, Logs { traces: None }));
    }
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .build()
        .map_err(|error| ExitError::usage(format_args!("OTEL_EXPORTER_OTLP_ENDPOINT: {error}")))?;
    let provider = SdkTracerProvider::builder()
        .with_resource(Resource::builder().with_service_name("semel").build())
        .with_batch_exporter(exporter)
        .build();
    opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
    // Exports only the spans of requests; events of libraries go to the log.
    let ours = tracing_subscriber::filter::Targets::new()
        .with_target("semel::request", tracing::Level::INFO)
        // The layer's span of a request with a key is the innermost one, and becomes the parent of
        // the upstream's span.
        .with_target("semel_tower::span", tracing::Level::INFO);
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("semel"));
    Ok((Some(layer.with_filter(ours).boxed()), Logs { traces: Some(provider) }))
}

#[cfg(feature = "otlp")]
impl Drop for Logs {
    fn drop(&mut self) {
        if let Some(traces) = &self.traces {
            // The shutdown has its own timeout.
            let _ = traces.shutdown();
        }
    }
}
