//! The program `semel`: what a newcomer runs first and an operator runs daily.
//!
//! [`gateway`] puts the HTTP layer in front of any service, [`demo`] shows the whole mission on one
//! screen, `command` is what operators do by hand. Nothing here decides anything about claims, events
//! or ids: the libraries do, and this program chooses their store and broker by URL.

mod admin;
pub mod broker;
mod cli;
mod command;
pub mod demo;
mod exit;
pub mod gateway;
mod logs;
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
    // One provider for every TLS connection, chosen here and nowhere else. The only way to fail is
    // that it is chosen already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return end(&ExitError::failed(format_args!("cannot start threads: {error}")));
        }
    };
    let outcome = runtime.block_on(arguments.run());
    // Work that hangs must not keep the process.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => end(&failure),
    }
}

fn end(failure: &ExitError) -> ExitCode {
    // Nobody may be there to read it; the code says it too.
    let _ = writeln!(std::io::stderr(), "semel: {failure}");
    failure.code().into()
}
