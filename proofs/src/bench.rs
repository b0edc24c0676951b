//! Measuring the ledger beside the raw limit of each store, the HTTP layer and the gateway beside none, events beside
//! bare brokers and bare transactions, and ids beside bare caches and queries.
//!
//! A figure is worth something only beside its reference, so both run in turns (the ledger's in one
//! process, HTTP servers each in its own), and every operation checks its own answer: a measured
//! error path is a failed run. No threshold fails anything here; a missed target is printed, and
//! whoever reads decides.

mod arguments;
mod business;
mod counted;
mod events;
mod gateway;
mod http;
mod ids;
mod large;
mod memory;
mod mysql;
mod ours;
mod postgres;
mod redis;
mod report;
mod round;
mod seats;
mod sqlite;
mod waiters;

use std::error::Error;
use std::time::Duration;

use arguments::{Arguments, What, Which};
use report::Report;

/// Why a run is worth nothing.
pub type Trouble = Box<dyn Error + Send + Sync>;

/// How many tasks ask at the same time.
const TASKS: [usize; 3] = [1, 16, 64];

/// How long and how often is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Turns of each contender.
    rounds: usize,
    /// Length of a turn.
    turn: Duration,
    /// Before the first turn.
    warm_up: Duration,
    /// Times a waiter is kept waiting.
    waits: usize,
}

impl Pace {
    const QUICK: Self = Self {
        rounds: 5,
        turn: Duration::from_millis(120),
        warm_up: Duration::from_millis(80),
        waits: 40,
    };
    const FULL: Self = Self {
        rounds: 7,
        turn: Duration::from_millis(700),
        warm_up: Duration::from_millis(300),
        waits: 200,
    };
}

/// Runs the benchmark that the arguments name and prints what it found.
///
/// # Errors
/// Arguments that mean nothing, a store that cannot be reached, an operation that gave another
/// answer than it should.
pub async fn run(arguments: &[String]) -> Result<(), Trouble> {
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
    if arguments.wants(What::Ledger) {
        ledger(&arguments, &mut report).await?;
    }
    if arguments.wants(What::Http) {
        eprintln!("http …");
        http::bench(&arguments, &mut report).await.map_err(|trouble| format!("http: {trouble}"))?;
    }
    if arguments.wants(What::Gateway) {
        eprintln!("gateway …");
        let done = gateway::bench(&arguments, &mut report).await;
        done.map_err(|trouble| format!("gateway: {trouble}"))?;
    }
    if arguments.wants(What::Events) {
        events::bench(&arguments, &mut report).await?;
    }
    if arguments.wants(What::Ids) {
        ids::bench(&arguments, &mut report).await.map_err(|trouble| format!("ids: {trouble}"))?;
    }
    if let Some(path) = &arguments.json {
        std::fs::write(path, report.json()?)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    print!("{}", report.table());
    Ok(())
}

async fn ledger(arguments: &Arguments, report: &mut Report) -> Result<(), Trouble> {
    for which in &arguments.stores {
        eprintln!("{} …", which.name());
        let done = match which {
            Which::Memory => memory::bench(arguments, report).await,
            Which::Sqlite => sqlite::bench(arguments, report).await,
            Which::Postgres => postgres::bench(arguments, report).await,
            Which::MySql => mysql::bench(arguments, report).await,
            Which::Redis => redis::bench(arguments, report).await,
        };
        done.map_err(|trouble| format!("{}: {trouble}", which.name()))?;
    }
    Ok(())
}
