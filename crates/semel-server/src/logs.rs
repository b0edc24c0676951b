//! Logs, on stderr: for people, or a JSON object a line.
//!
//! `RUST_LOG` chooses what is written, `info` by default. Nothing that is logged carries a key: a
//! digest names it.

use clap::ValueEnum;
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, fmt};

use crate::failure::Failure;

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// For machines: a JSON object a line.
    Json,
}

/// Ends what logging began, when it is dropped.
#[derive(Debug)]
pub(crate) struct Logs;

/// Starts logging in this process.
pub(crate) fn start(format: Format) -> Result<Logs, Failure> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) => text
            .parse::<EnvFilter>()
            .map_err(|error| Failure::usage(format_args!("RUST_LOG={text}: {error}")))?,
        Err(_) => EnvFilter::new("info"),
    };
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(false);
    let lines = match format {
        Format::Text => lines.boxed(),
        Format::Json => lines.json().flatten_event(true).boxed(),
    };
    let started = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
    started.map_err(Failure::failed)?;
    Ok(Logs)
}
