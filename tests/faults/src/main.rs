//! The fault runs: `faults crash | zombie | events | backfill | sabotage`.
//!
//! `cargo xtask faults` starts the servers and then this program. The hidden commands `child`,
//! `event-child` and `backfill-child` are the processes that are killed.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use semel_faults::child::{self, Mode};
use semel_faults::report::Report;
use semel_faults::{BoxError, crash};
use semel_faults::{backfill, events, sabotage, zombie};
use semel_stores::Backend;
use semel_stores::{NAMES, PrivateStore};

const USAGE: &str = "\
usage: faults <command> [--store S]… [--json FILE]

  crash     [--kills N] [--mode transact|claim-first|run] [--lease MS]
                                                       processes die at failpoints and by kill -9
  zombie    [--stops N] [--mode run|claim-first] [--lease MS]
                                                       processes stop past their lease and wake up
  events    [--broker B]… [--events N] [--kills N]     relays, consumers and brokers die; B is bus,
                                                       nats, rabbitmq or streams
  backfill  [--rows N] [--batch N] [--kills N]         a table moves into the id map, and its movers
                                                       die
  sabotage                                             every guard is removed; its test must go red

S is memory, sqlite, postgres, mysql (MariaDB), mysql9, redis, redis-cluster or a URL; without it,
all that fit but mysql9.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("cannot start a runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let done = runtime.block_on(run(&arguments));
    // A child's open calls have no caller any more.
    runtime.shutdown_background();
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("faults: {error}");
            ExitCode::from(2)
        }
    }
}

async fn run(arguments: &[String]) -> Result<bool, BoxError> {
    let Some((command, rest)) = arguments.split_first() else {
        return Err(USAGE.into());
    };
    let options = Options::parse(rest)?;
    let report = match command.as_str() {
        "child" => {
            child::serve(options.child()?).await?;
            return Ok(true);
        }
        "event-child" => {
            events::serve(options.event_child()?).await?;
            return Ok(true);
        }
        "backfill-child" => {
            backfill::serve(options.backfill_child()?).await?;
            return Ok(true);
        }
        "events" => events(&options).await?,
        "backfill" => backfills(&options).await?,
        "crash" => crashes(&options).await?,
        "zombie" => zombies(&options).await?,
        "sabotage" => sabotage::run(!cfg!(debug_assertions)).await?,
        "help" | "--help" => {
            print!("{USAGE}");
            return Ok(true);
        }
        unknown => return Err(format!("no command {unknown:?}\n{USAGE}").into()),
    };
    print!("{report}");
    if let Some(path) = &options.json {
        report.write(path)?;
    }
    Ok(report.kept())
}

async fn crashes(options: &Options) -> Result<Report, BoxError> {
    let mut report = Report::new("crash");
    for store in options.stores(&NAMES[1..]) {
        let private = PrivateStore::named(store).await?;
        let modes: &[Mode] = match (options.mode, private.backend().is_atomic()) {
            (Some(mode), _) => &[mode],
            (None, true) => &[Mode::Transact, Mode::ClaimFirst, Mode::Run, Mode::Hold],
            (None, false) => &[Mode::Run, Mode::Hold],
        };
        private.remove().await;
        for mode in modes {
            eprintln!("{store} {mode} …");
            let private = PrivateStore::named(store).await?;
            let settings = crash::Settings {
                program: std::env::current_exe()?,
                mode: *mode,
                kills: options.kills.unwrap_or(500),
                lease: options.lease.unwrap_or(Duration::from_millis(500)),
            };
            report.lines.push(crash::run(&private, &settings).await?);
            private.remove().await;
        }
    }
    Ok(report)
}

async fn zombies(options: &Options) -> Result<Report, BoxError> {
    let mut report = Report::new("zombie");
    for store in options.stores(&NAMES[1..]) {
        let server = matches!(store, "postgres" | "mysql");
        let modes: &[Mode] = match (options.mode, server) {
            (Some(mode), _) => &[mode],
            // A SQLite file has one writer: a stopped transaction stops all others.
            (None, false) => &[Mode::Run],
            (None, true) => &[Mode::Run, Mode::ClaimFirst],
        };
        for mode in modes {
            eprintln!("{store} {mode} …");
            let private = PrivateStore::named(store).await?;
            let settings = zombie::Settings {
                program: std::env::current_exe()?,
                mode: *mode,
                stops: options.stops.unwrap_or(125),
                lease: options.lease.unwrap_or(Duration::from_millis(300)),
            };
            report.lines.push(zombie::run(&private, &settings).await?);
            private.remove().await;
        }
    }
    Ok(report)
}

/// The default pairs of store and broker.
const CHAINS: [(&str, &str); 3] = [("sqlite", "bus"), ("postgres", "nats"), ("mysql", "rabbitmq")];

async fn events(options: &Options) -> Result<Report, BoxError> {
    let mut report = Report::new("events");
    let chosen: Vec<(String, String)> = match (&options.stores[..], &options.brokers[..]) {
        ([], []) => CHAINS.map(|(store, broker)| (store.into(), broker.into())).into(),
        (stores, brokers) if stores.len() == brokers.len() => {
            stores.iter().cloned().zip(brokers.iter().cloned()).collect()
        }
        _ => return Err("give as many --store as --broker".into()),
    };
    for (store, broker) in chosen {
        eprintln!("{store} and {broker} …");
        let private = PrivateStore::named(&store).await?;
        let settings = events::Settings {
            program: std::env::current_exe()?,
            events: options.events.unwrap_or(20_000),
            kills: options.kills.unwrap_or(100),
            broker_lives: Some(Duration::from_secs(20)),
        };
        let broker = events::Broker::named(&broker)?;
        report.lines.push(events::run(&private, broker, &settings).await?);
        private.remove().await;
    }
    Ok(report)
}

async fn backfills(options: &Options) -> Result<Report, BoxError> {
    let mut report = Report::new("backfill");
    for store in options.stores(&["sqlite", "postgres", "mysql"]) {
        eprintln!("{store} …");
        let private = PrivateStore::named(store).await?;
        let settings = backfill::Settings {
            program: std::env::current_exe()?,
            rows: options.rows.unwrap_or(1_000_000),
            batch: options.batch.unwrap_or(1_000),
            kills: options.kills.unwrap_or(12),
        };
        report.lines.push(backfill::run(&private, &settings).await?);
        private.remove().await;
    }
    Ok(report)
}

/// The options of the command line.
#[derive(Debug, Default)]
struct Options {
    stores: Vec<String>,
    brokers: Vec<String>,
    role: Option<events::Role>,
    events: Option<u64>,
    rows: Option<u64>,
    batch: Option<u32>,
    json: Option<PathBuf>,
    kills: Option<u32>,
    stops: Option<u32>,
    mode: Option<Mode>,
    lease: Option<Duration>,
    file: Option<PathBuf>,
    fails_one_in: u32,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, BoxError> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(name) = rest.next() {
            let value = rest.next().ok_or_else(|| format!("{name} needs a value\n{USAGE}"))?;
            match name.as_str() {
                "--store" => options.stores.push(value.clone()),
                "--broker" => options.brokers.push(value.clone()),
                "--role" => options.role = events::Role::named(value),
                "--events" => options.events = Some(number(name, value)?),
                "--rows" => options.rows = Some(number(name, value)?),
                "--batch" => options.batch = Some(number(name, value)?),
                "--json" => options.json = Some(value.into()),
                "--kills" => options.kills = Some(number(name, value)?),
                "--stops" => options.stops = Some(number(name, value)?),
                "--mode" => options.mode = Some(value.parse()?),
                "--lease" => options.lease = Some(Duration::from_millis(number(name, value)?)),
                "--file" => options.file = Some(value.into()),
                "--fails-one-in" => options.fails_one_in = number(name, value)?,
                unknown => return Err(format!("no option {unknown:?}\n{USAGE}").into()),
            }
        }
        Ok(options)
    }

    fn stores<'a>(&'a self, all: &'a [&'static str]) -> Vec<&'a str> {
        match self.stores.as_slice() {
            [] => all.to_vec(),
            chosen => chosen.iter().map(String::as_str).collect(),
        }
    }

    fn event_child(&self) -> Result<events::ChildSettings, BoxError> {
        let url = self.stores.first().ok_or("a child needs --store")?;
        let broker = self.brokers.first().ok_or("a child needs --broker")?;
        Ok(events::ChildSettings {
            backend: Backend::parse(url)?,
            broker: events::Broker::named(broker)?,
            role: self.role.ok_or("a child needs --role")?,
            fails_one_in: self.fails_one_in,
        })
    }

    fn backfill_child(&self) -> Result<backfill::ChildSettings, BoxError> {
        let url = self.stores.first().ok_or("a child needs --store")?;
        Ok(backfill::ChildSettings {
            backend: Backend::parse(url)?,
            checkpoint: self.file.clone().ok_or("a child needs --file")?,
            batch: self.batch.ok_or("a child needs --batch")?,
        })
    }

    fn child(&self) -> Result<child::Settings, BoxError> {
        let url = self.stores.first().ok_or("a child needs --store")?;
        Ok(child::Settings {
            backend: Backend::parse(url)?,
            mode: self.mode.ok_or("a child needs --mode")?,
            lease: self.lease.ok_or("a child needs --lease")?,
            ledger: self.file.clone().ok_or("a child needs --file")?,
            fails_one_in: self.fails_one_in,
        })
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, BoxError> {
    value.parse().map_err(|_| format!("{name} needs a number, not {value:?}").into())
}
