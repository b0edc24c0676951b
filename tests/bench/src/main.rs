//! The benchmarks: `bench ledger|http|gateway|events|ids|all [--quick] [--json FILE] [--store S]…
//! [--large] [--full] [--plot DIRECTORY]`, or `bench plot RESULTS DIRECTORY` for charts of an earlier run.
//! `cargo xtask bench` starts the servers and then this program.
//!
//! It measures the ledger beside the raw limit of each store, the HTTP layer and the gateway beside a
//! service without them, events beside bare brokers and bare transactions, and ids beside bare caches
//! and queries. Each contender and its reference run in turns (HTTP servers in processes of their own).
//! Every operation checks its own result: an operation with a wrong result fails the run. A missed
//! target is printed and fails nothing.

mod arguments;
mod business;
mod contest;
mod counted;
mod database;
mod events;
mod gateway;
mod http;
mod ids;
mod large;
mod memory;
mod mysql;
mod ours;
mod plot;
mod pool;
mod postgres;
mod redis;
mod report;
mod sqlite;
mod waiters;

use std::path::Path;
use std::process::ExitCode;

use arguments::{Arguments, StoreName, Suite};
use report::Report;
use semel_bench::BoxError;
use semel_bench::turns::Pace;

/// The numbers of concurrent tasks.
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

/// Runs the benchmark that the arguments select and prints its results.
///
/// # Errors
/// Invalid arguments, a store that cannot be reached, an operation with a wrong result.
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
    if let [word, results, directory] = arguments
        && word == "plot"
    {
        return plotted(Path::new(results), Path::new(directory));
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
    if let Some(directory) = &arguments.plot {
        plot::write(&report.json()?, directory, arguments.what.name())?;
    }
    print!("{}", report.table());
    Ok(())
}

/// Draws charts of the results of an earlier run, named after the results' file.
fn plotted(results: &Path, directory: &Path) -> Result<(), BoxError> {
    let json = std::fs::read_to_string(results)
        .map_err(|error| format!("cannot read {}: {error}", results.display()))?;
    let name = results.file_stem().and_then(|name| name.to_str()).unwrap_or("bench");
    for path in plot::write(&json, directory, name.trim_start_matches("bench-"))? {
        println!("{}", path.display());
    }
    Ok(())
}

async fn ledger(arguments: &Arguments, report: &mut Report) -> Result<(), BoxError> {
    for which in &arguments.stores {
        eprintln!("{} …", which.name());
        let done = match which {
            StoreName::Memory => memory::bench(arguments, report).await,
            StoreName::Sqlite => sqlite::bench(arguments, report).await,
            StoreName::Postgres => database::bench::<postgres::PgDatabase>(arguments, report).await,
            StoreName::MySql => database::bench::<mysql::MySqlDatabase>(arguments, report).await,
            StoreName::Redis => redis::bench(arguments, report).await,
        };
        done.map_err(|error| format!("{}: {error}", which.name()))?;
    }
    Ok(())
}
