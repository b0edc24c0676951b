//! The benchmarks: `bench ledger|http|gateway|events|ids|all [--quick] [--json FILE] [--store S]…
//! [--large] [--full]`. `cargo xtask bench` starts the servers and then this program.
//!
//! It measures the ledger beside the raw limit of each store, the HTTP layer and the gateway beside a
//! service without them, events beside bare brokers and bare transactions, and ids beside bare caches
//! and queries. Ours and its reference run in turns (HTTP servers each in its own process), and every
//! operation checks its own result: a measured error path is a failed run. A missed target is
//! printed and fails nothing.

mod arguments;
mod business;
mod contest;
mod counted;
mod events;
mod gateway;
mod http;
mod ids;
mod large;
mod memory;
mod mysql;
mod ours;
mod pool;
mod postgres;
mod redis;
mod report;
mod sqlite;
mod waiters;

use std::process::ExitCode;

use arguments::{Arguments, StoreName, Suite};
use report::Report;
use semel_bench::BoxError;
use semel_bench::turns::Pace;

/// How many tasks call at the same time.
const TASKS: [usize; 3] = [1, 16, 64];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("cannot start a runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the benchmark that the arguments name and prints what it found.
///
/// # Errors
/// Arguments that mean nothing, a store that cannot be reached, an operation that gave another
/// answer than it should.
async fn run(arguments: &[String]) -> Result<(), BoxError> {
    if let [word, server @ ..] = arguments
        && word == "serve"
    {
        return http::serve(server).await;
    }
    if let [word, loop_] = arguments
        && word == "count"
    {
        return ids::count(loop_).await;
    }
    let arguments = Arguments::parse(arguments)?;
    let mut report = Report::default();
    if arguments.wants(Suite::Ledger) {
        ledger(&arguments, &mut report).await?;
    }
    if arguments.wants(Suite::Http) {
        eprintln!("http …");
        http::bench(&arguments, &mut report).await.map_err(|error| format!("http: {error}"))?;
    }
    if arguments.wants(Suite::Gateway) {
        eprintln!("gateway …");
        let done = gateway::bench(&arguments, &mut report).await;
        done.map_err(|error| format!("gateway: {error}"))?;
    }
    if arguments.wants(Suite::Events) {
        events::bench(&arguments, &mut report).await?;
    }
    if arguments.wants(Suite::Ids) {
        ids::bench(&arguments, &mut report).await.map_err(|error| format!("ids: {error}"))?;
    }
    if let Some(path) = &arguments.json {
        std::fs::write(path, report.json()?)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    print!("{}", report.table());
    Ok(())
}

async fn ledger(arguments: &Arguments, report: &mut Report) -> Result<(), BoxError> {
    for which in &arguments.stores {
        eprintln!("{} …", which.name());
        let done = match which {
            StoreName::Memory => memory::bench(arguments, report).await,
            StoreName::Sqlite => sqlite::bench(arguments, report).await,
            StoreName::Postgres => postgres::bench(arguments, report).await,
            StoreName::MySql => mysql::bench(arguments, report).await,
            StoreName::Redis => redis::bench(arguments, report).await,
        };
        done.map_err(|error| format!("{}: {error}", which.name()))?;
    }
    Ok(())
}
