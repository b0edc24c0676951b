//! `serve` serves until it gets a signal; `demo` runs the demo.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use axum_orders::demo;
use axum_orders::server::{Failure, Server};

const USAGE: &str = "usage: axum-orders demo
       axum-orders serve [--addr 127.0.0.1:8080] [--db orders.db]";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["demo"] => demo::run().await,
        ["serve", settings @ ..] => serve(settings).await,
        _ => Err(USAGE.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(settings: &[&str]) -> Result<(), Failure> {
    let mut addr: SocketAddr = ([127, 0, 0, 1], 8080).into();
    let mut db = PathBuf::from("orders.db");
    for setting in settings.chunks(2) {
        match setting {
            ["--addr", value] => addr = value.parse()?,
            ["--db", value] => db = value.into(),
            _ => return Err(USAGE.into()),
        }
    }
    let server = Server::start(addr, &db).await?;
    println!("orders in {}, on http://{}", db.display(), server.addr());
    stop_signal().await?;
    println!("stopping");
    server.stop().await
}

/// Completes with Ctrl-C or SIGTERM.
#[cfg(unix)]
async fn stop_signal() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed,
        _ = terminate.recv() => Ok(()),
    }
}

/// Completes with Ctrl-C.
#[cfg(not(unix))]
async fn stop_signal() -> std::io::Result<()> {
    tokio::signal::ctrl_c().await
}
