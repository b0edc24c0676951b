//! Commands that run while the private servers run: tests, benchmarks, fault runs, any program.
//!
//! The servers run exactly as long as the call. If this process is interrupted or killed, the
//! kernel and the servers' janitors end them.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use semel_servers::{Error, Fleet, install};

use crate::busy::Load;
use crate::checks::cargo;
use crate::junit::Report;
use crate::step::{Failure, Steps};

/// A function that starts the servers that a command needs.
type Start = fn() -> Result<Fleet, Error>;

/// How to run the tests.
#[derive(Debug)]
pub(crate) struct Tests<'a> {
    /// Whether every processor is kept busy meanwhile.
    pub(crate) busy: bool,
    /// Arguments for the test runner.
    pub(crate) extra: &'a [String],
}

/// Runs all tests, then the doc tests, to the end, whatever fails.
pub(crate) fn tests(steps: &mut Steps, asked: &Tests<'_>) -> Result<(), Failure> {
    // Built before the load starts: a load beside the compiler would test nothing.
    let mut build = cargo();
    build.args(["test", "--no-run", "--workspace", "--all-features"]);
    thread::scope(|scope| {
        // Downloads and unpacking wait for the network and the disk, the compiler for processors.
        let installed = scope.spawn(install_servers);
        let built = steps.command("build", &mut build);
        let installed = installed.join().unwrap_or_else(|_| {
            Err(Failure::new("the thread that was installing the servers panicked"))
        });
        built.and(installed)
    })?;
    with_servers(steps, Fleet::start, |steps, fleet| {
        let load = asked.busy.then(Load::on_every_processor);
        if let Some(load) = &load {
            eprintln!("xtask: {} threads keep the processors busy", load.processors());
        }
        let tested = if has_nextest() {
            with_nextest(steps, fleet, asked.extra)
        } else {
            eprintln!("xtask: cargo-nextest is not installed, so `cargo test` runs the tests");
            if !asked.extra.is_empty() {
                eprintln!("xtask: it cannot take the arguments for nextest: {:?}", asked.extra);
            }
            with_cargo_test(steps, fleet)
        };
        let mut doc_tests = cargo();
        doc_tests.args(["test", "--doc", "--workspace", "--all-features", "--no-fail-fast"]);
        let documented = steps.command("doc tests", doc_tests.envs(fleet.environment()));
        drop(load);
        tested.and(documented)
    })
}

/// Runs the tests with nextest to the end, and adds its report to the summary.
fn with_nextest(steps: &mut Steps, fleet: &Fleet, extra: &[String]) -> Result<(), Failure> {
    let mut profiles =
        extra.iter().skip_while(|word| *word != "--profile" && *word != "-P").skip(1);
    let profile = profiles.next().map_or("default", String::as_str);
    let report = target().join("nextest").join(profile).join("junit.xml");
    // A report that another run left.
    let _ = std::fs::remove_file(&report);
    let mut command = cargo();
    command.args(["nextest", "run", "--workspace", "--all-features"]).args(extra);
    let outcome = steps.command("tests", command.envs(fleet.environment()));
    if let Some(report) = std::fs::read_to_string(report).ok().and_then(|xml| Report::read(&xml)) {
        steps.note(report.summary());
    }
    outcome
}

/// Runs the tests with `cargo test`, with the limits of `.config/nextest.toml`: six at a time,
/// because most of them wait, and fault tests one at a time, because they would disturb each other.
fn with_cargo_test(steps: &mut Steps, fleet: &Fleet) -> Result<(), Failure> {
    let (others, faults) = (["--skip", "faults_"].as_slice(), ["faults_"].as_slice());
    let mut outcome = Ok(());
    for (name, which, threads) in [("tests", others, "6"), ("fault tests", faults, "1")] {
        let mut command = cargo();
        command.args(["test", "--workspace", "--all-features", "--no-fail-fast"]);
        command.args(["--lib", "--bins", "--tests", "--"]).args(which);
        command.args(["--test-threads", threads]);
        outcome = outcome.and(steps.command(name, command.envs(fleet.environment())));
    }
    outcome
}

/// Runs one command with the servers running.
pub(crate) fn command(steps: &mut Steps, program: &str, args: &[String]) -> Result<(), Failure> {
    with_servers(steps, Fleet::start, |steps, fleet| {
        steps.command(program, Command::new(program).args(args).envs(fleet.environment()))
    })
}

/// Runs the benchmarks.
pub(crate) fn bench(steps: &mut Steps, args: &[String]) -> Result<(), Failure> {
    if args.first().is_some_and(|what| what == "plot") {
        let mut plot = cargo();
        plot.args(["run", "--release", "-p", "semel-bench", "--bin", "bench", "--"]).args(args);
        return steps.command("plot", &mut plot);
    }
    let measures = |this: &str| args.first().is_some_and(|what| what == this || what == "all");
    let peers = if measures("http") { peers(steps) } else { None };
    let start = if measures("events") { Fleet::start } else { Fleet::start_without_brokers };
    let gateway = if measures("gateway") { Some(shipped(steps)?) } else { None };
    let named = [
        peers.map(|path| ("SEMEL_BENCH_PEERS", path)),
        gateway.map(|path| ("SEMEL_BENCH_GATEWAY", path)),
    ];
    let named: Vec<_> = named.into_iter().flatten().collect();
    program(steps, start, ("semel-bench", "bench"), &[], args, &named)
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| crate::root().join("target"), PathBuf::from)
}

/// Builds the program `semel` in a build of its own, as it is shipped: built together with the
/// benchmarks it would have their test features.
fn shipped(steps: &mut Steps) -> Result<PathBuf, Failure> {
    let mut build = cargo();
    build.args(["build", "--profile", "dist", "-p", "semel-server", "--bin", "semel"]);
    steps.command("build gateway", &mut build)?;
    Ok(target().join("dist").join("semel"))
}

/// Builds the servers of the other libraries. If that fails, the benchmarks run without them.
fn peers(steps: &mut Steps) -> Option<PathBuf> {
    let manifest = crate::root().join("tests").join("bench").join("peers").join("Cargo.toml");
    let target = target().join("peers");
    let mut build = cargo();
    build.args(["build", "--release", "--locked", "--ignore-rust-version", "--manifest-path"]);
    build.arg(manifest).arg("--target-dir").arg(&target);
    match steps.command("build peers", &mut build) {
        Ok(()) => Some(target.join("release").join("semel-peers")),
        Err(failure) => {
            eprintln!("xtask: no peers in this measurement: {}", failure.message);
            None
        }
    }
}

/// Runs the fault runs, with failpoints and guard switches compiled in.
pub(crate) fn faults(steps: &mut Steps, args: &[String]) -> Result<(), Failure> {
    let features = ["--features", "testing"];
    program(steps, Fleet::start, ("semel-faults", "faults"), &features, args, &[])
}

fn program(
    steps: &mut Steps,
    start: Start,
    (package, name): (&str, &str),
    features: &[&str],
    args: &[String],
    named: &[(&str, PathBuf)],
) -> Result<(), Failure> {
    // Built before the servers start: they would take processors from the release build.
    let mut build = cargo();
    build.args(["build", "--release", "-p", package, "--bin", name]).args(features);
    steps.command("build", &mut build)?;
    with_servers(steps, start, |steps, fleet| {
        // Not `cargo run`, which would build the program again with other features.
        let mut command = Command::new(target().join("release").join(name));
        command.args(args);
        let named = named.iter().map(|(name, path)| (name, path));
        steps.command(name, command.envs(fleet.environment()).envs(named))
    })
}

fn with_servers(
    steps: &mut Steps,
    start: Start,
    task: impl FnOnce(&mut Steps, &Fleet) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let fleet = steps.run("servers", || {
        install_servers()?;
        Ok(start()?)
    })?;
    for (name, value) in fleet.environment() {
        eprintln!("    {name}={value}");
    }
    let outcome = task(steps, &fleet);
    steps.run("stop servers", || {
        drop(fleet);
        Ok(())
    })?;
    outcome
}

/// Installs the servers that are missing.
fn install_servers() -> Result<(), Failure> {
    Ok(install::ensure(|news| eprintln!("xtask: {news}"))?)
}

fn has_nextest() -> bool {
    cargo()
        .args(["nextest", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
