//! The program `semel`.
//!
//! [`gateway`] puts the HTTP layer in front of any service, [`demo`] shows every part of Semel on
//! one screen, `relay` publishes events of an outbox, `command` has the operators' verbs. The libraries decide about claims, events and
//! ids; this program opens their store and broker by URL.

mod admin;
pub mod broker;
mod cli;
mod command;
pub mod demo;
mod exit;
pub mod gateway;
mod logs;
mod redact;
#[cfg(test)]
mod reference;
mod relay;
mod serve;
pub mod settings;
mod signals;
pub mod store;

use std::io::Write as _;
use std::process::ExitCode;

pub use exit::{Code, ExitError};

/// Runs the program with this process's arguments and environment.
pub fn main() -> ExitCode {
    let arguments = cli::parse();
    // Installs one provider for every TLS connection. This fails only if a provider is already
    // installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return end(&ExitError::failed(format_args!(
                "cannot start the runtime's threads: {error}"
            )));
        }
    };
    let outcome = runtime.block_on(arguments.run());
    // Work that hangs must not keep the process alive.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => end(&failure),
    }
}

fn end(failure: &ExitError) -> ExitCode {
    // Stderr may be closed; the exit code remains.
    let _ = writeln!(std::io::stderr(), "semel: {failure}");
    failure.code().into()
}
