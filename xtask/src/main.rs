//! The workspace's tasks, run as `cargo xtask`.
//!
//! Uses the standard library only, so that it builds in seconds. Tests, benchmarks and fault runs
//! are in other crates; this program starts the servers that they need and runs them.
#![forbid(unsafe_code)]

mod beside;
mod busy;
mod checks;
mod fuzz;
mod junit;
mod scratch;
mod step;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

use beside::Tests;
use step::{Failure, Steps};

const USAGE: &str = "\
usage: cargo xtask <command>

  test [--busy] [-- ARGS]
                         all tests and doc tests, with private PostgreSQL, MariaDB, MySQL, Redis, Redis Cluster,
                         NATS and RabbitMQ, to the end whatever fails; ARGS go to `cargo nextest run`.
                         --busy keeps every processor busy meanwhile: no test may depend on the
                         machine's speed
  ci                     fmt, clippy, doc, package and tidy, then test
  tidy                   the project's own checks of its sources and documents
  servers -- CMD…        run one command beside the servers, for example
                         cargo xtask servers -- cargo nextest run -p semel-sql
  bench WHAT [ARGS]      benchmarks beside the servers: ledger, http, gateway, events, ids, all [--quick] [--json FILE]
                         [--plot DIRECTORY]; bench plot RESULTS.json DIRECTORY draws an earlier run
  faults WHAT [ARGS]     fault runs beside the servers: crash, zombie, events, sabotage, …
  fuzz [TARGET…] [ARGS]  fuzz targets, one after another: key, fingerprint, envelope, request
                         [--seconds N] each, 60 by default [--json FILE]
  help                   this text

Servers that are missing are installed with apt-get where that is possible (root on Debian or Ubuntu).
Tests find the running ones through SEMEL_TEST_SERVERS=1 and
SEMEL_TEST_{POSTGRES,MYSQL,MYSQL9,REDIS,REDIS_CLUSTER,NATS,AMQP}_URL.
`test`, `ci` and `servers` keep temporary files in memory where it has room; TMPDIR chooses another place.
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = args.split_first() else {
        return usage("no command given");
    };
    let rest = rest.to_vec();
    if matches!(command.as_str(), "test" | "ci" | "servers") {
        scratch::in_memory(&args);
    }
    let mut steps = Steps::default();
    let outcome = match command.as_str() {
        "test" => match tests(&rest) {
            Some(asked) => beside::tests(&mut steps, &asked),
            None => return usage("`test` takes --busy; arguments for the tests follow a `--`"),
        },
        "ci" if rest.is_empty() => ci(&mut steps),
        "tidy" if rest.is_empty() => steps.run("tidy", || tidy::run(&root())),
        "servers" => match after_dashes(&rest) {
            Some([program, args @ ..]) => beside::command(&mut steps, program, args),
            _ => return usage("a command to run beside the servers follows a `--`"),
        },
        "bench" => beside::bench(&mut steps, &rest),
        "faults" => beside::faults(&mut steps, &rest),
        "fuzz" => fuzz::run(&mut steps, &rest),
        "ci" | "tidy" => return usage(&format!("`{command}` takes no arguments")),
        "help" | "--help" | "-h" => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        unknown => return usage(&format!("there is no command `{unknown}`")),
    };
    scratch::clear();
    steps.summarise();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}

fn ci(steps: &mut Steps) -> Result<(), Failure> {
    checks::fmt(steps)?;
    checks::clippy(steps)?;
    checks::doc(steps)?;
    checks::package(steps)?;
    steps.run("tidy", || tidy::run(&root()))?;
    let profile = ["--profile", "ci"].map(str::to_owned);
    beside::tests(steps, &Tests { busy: false, extra: &profile })
}

fn tests(args: &[String]) -> Option<Tests<'_>> {
    let (busy, rest) = match args {
        [flag, rest @ ..] if flag == "--busy" => (true, rest),
        rest => (false, rest),
    };
    after_dashes(rest).map(|extra| Tests { busy, extra })
}

fn after_dashes(args: &[String]) -> Option<&[String]> {
    match args {
        [] => Some(&[]),
        [dashes, rest @ ..] if dashes == "--" => Some(rest),
        _ => None,
    }
}

fn usage(complaint: &str) -> ExitCode {
    eprint!("xtask: {complaint}\n\n{USAGE}");
    ExitCode::from(2)
}

/// Returns the root of the workspace, whatever the current directory is.
fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().map_or(here.clone(), PathBuf::from)
}
