//! Starts the service, runs the demo, and prints what happened.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    match tonic_payments::demo::run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
