//! Serves the shop: `shop [--listen ADDR] [--store sqlite:PATH | postgres://…] [--broker bus | nats://…]`.

use std::process::ExitCode;

use semel::postgres::PgStore;
use semel::sqlite::SqliteStore;
use shop::BoxError;
use shop::service::{Broker, Shop};
use shop::tables::Tables;
use tokio::net::TcpListener;

const USAGE: &str = "usage: shop [--listen 127.0.0.1:8080] [--store sqlite:PATH | postgres://…] \
                     [--broker bus | nats://…]";

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shop: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), BoxError> {
    let mut listen = "127.0.0.1:8080".to_owned();
    let (mut store, mut broker) = ("sqlite:shop.db".to_owned(), "bus".to_owned());
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(USAGE)?;
        match name.as_str() {
            "--listen" => listen = value,
            "--store" => store = value,
            "--broker" => broker = value,
            _ => return Err(USAGE.into()),
        }
    }
    let broker = match broker.as_str() {
        "bus" => Broker::Bus,
        url if url.starts_with("nats://") => {
            Broker::Nats { url: url.to_owned(), stream: "SHOP".to_owned() }
        }
        _ => return Err(USAGE.into()),
    };
    match store.split_once(':') {
        Some(("sqlite", path)) => serve(SqliteStore::open(path).await?, &broker, &listen).await,
        Some(("postgres" | "postgresql", _)) => {
            let store = PgStore::connect(&store).await?;
            store.migrate().await?;
            serve(store, &broker, &listen).await
        }
        _ => Err(USAGE.into()),
    }
}

async fn serve<S: Tables>(store: S, broker: &Broker, listen: &str) -> Result<(), BoxError> {
    let shop = Shop::start(store, broker).await?;
    let listener = TcpListener::bind(listen).await?;
    println!("the shop is on http://{}", listener.local_addr()?);
    shop.serve(listener, stop_signal()).await
}

/// Completes with Ctrl-C or, on Unix, with SIGTERM.
async fn stop_signal() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};

        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    let _ = tokio::signal::ctrl_c().await;
}
