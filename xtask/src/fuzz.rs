//! Fuzzing: builds the targets of `fuzz/`, runs them, and writes a report.
//!
//! Coverage comes from a pass of the compiler and needs neither a nightly toolchain nor
//! `cargo-fuzz`; the fuzzer's runtime is C++ and needs a C++ compiler. The checks of the targets
//! are in the tests of `semel-tower`.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::checks::cargo;
use crate::root;
use crate::step::{Failure, Steps};

const TARGETS: [&str; 4] = ["key", "fingerprint", "envelope", "request"];
const SECONDS: u64 = 60;
/// The limit of address space, in KiB. A few bytes of input never justify more.
const ADDRESS_SPACE: u64 = 2 << 20;

/// The compiler flags that count the edges that an input takes, and report comparisons to the
/// fuzzer.
const COVERAGE: [&str; 5] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// The parsed arguments.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    targets: Vec<&'static str>,
    seconds: u64,
    json: Option<PathBuf>,
}

/// The result of one target.
#[derive(Debug, Default, PartialEq, Eq)]
struct Report {
    target: String,
    seconds: u64,
    executions: u64,
    edges: u64,
    features: u64,
    inputs: u64,
    peak_mb: u64,
    crashes: Vec<String>,
}

/// Builds the targets and runs them one after another.
pub(crate) fn run(steps: &mut Steps, args: &[String]) -> Result<(), Failure> {
    let asked = Asked::read(args).map_err(Failure::new)?;
    let place = place();
    let host = host()?;
    build(steps, &place, &host)?;
    let programs = place.join(&host).join("release");
    let mut reports = Vec::new();
    for target in &asked.targets {
        let name = format!("fuzz {target}");
        reports.push(steps.run(&name, || fuzz(&place, &programs, target, asked.seconds))?);
    }
    if let Some(file) = &asked.json {
        fs::write(file, json(&reports))
            .map_err(|error| Failure::new(format!("fuzz: writing {}: {error}", file.display())))?;
    }
    let crashes: Vec<&str> =
        reports.iter().flat_map(|report| report.crashes.iter().map(String::as_str)).collect();
    match crashes.as_slice() {
        [] => Ok(()),
        found => Err(Failure::new(format!(
            "fuzz: {} found; copy the input to fuzz/corpus/TARGET so that the tests replay it:\n{}",
            found.len(),
            found.join("\n")
        ))),
    }
}

impl Asked {
    fn read(args: &[String]) -> Result<Self, String> {
        let mut asked = Self { targets: Vec::new(), seconds: SECONDS, json: None };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--seconds" => {
                    let seconds = args.next().and_then(|text| text.parse().ok());
                    asked.seconds = seconds.filter(|seconds| *seconds > 0).ok_or_else(|| {
                        "fuzz: --seconds takes how long each target runs, such as 600".to_owned()
                    })?;
                }
                "--json" => {
                    let file = args.next().ok_or("fuzz: --json takes a file to write")?;
                    asked.json = Some(PathBuf::from(file));
                }
                name => match TARGETS.iter().find(|target| **target == name) {
                    Some(target) => asked.targets.push(target),
                    None => {
                        let known = TARGETS.join(", ");
                        return Err(format!("fuzz: no target `{name}`; there are {known}"));
                    }
                },
            }
        }
        if asked.targets.is_empty() {
            asked.targets = TARGETS.to_vec();
        }
        Ok(asked)
    }
}

/// Returns the directory of the fuzzer's builds, inputs and crashes.
fn place() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.map_or_else(|| root().join("target"), |dir| root().join(dir)).join("fuzz")
}

/// Returns the machine's own target triple. With an explicit target, the flags do not apply to
/// build scripts and macros.
fn host() -> Result<String, Failure> {
    let output = Command::new("rustc").arg("-vV").output();
    let output = output.map_err(|error| Failure::new(format!("fuzz: running rustc: {error}")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| Failure::new("fuzz: `rustc -vV` names no host"))
}

fn build(steps: &mut Steps, place: &Path, host: &str) -> Result<(), Failure> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let probe = Command::new(&compiler).arg("--version").stdout(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        return Err(Failure::new(format!(
            "fuzz: `{compiler}` does not run, and libFuzzer is C++: install g++ or clang, or set CXX"
        )));
    }
    let mut command = cargo();
    command.args(["build", "--release", "--target", host]);
    command.arg("--manifest-path").arg(root().join("fuzz/Cargo.toml"));
    command.arg("--target-dir").arg(place);
    command.env("RUSTFLAGS", COVERAGE.join(" ")).env_remove("CARGO_ENCODED_RUSTFLAGS");
    steps.command("build", &mut command)
}

/// Runs one target for `seconds`, or until it finds a failure.
fn fuzz(place: &Path, programs: &Path, target: &str, seconds: u64) -> Result<Report, Failure> {
    let broken = |what: &str, error: std::io::Error| {
        Failure::new(format!("fuzz: {what} for {target}: {error}"))
    };
    let (found, crashes) = (place.join("found").join(target), place.join("crashes").join(target));
    for directory in [&found, &crashes] {
        fs::create_dir_all(directory).map_err(|error| broken("making a directory", error))?;
    }
    let mut child = Command::new("sh")
        .arg("-c")
        .arg(format!("ulimit -v {ADDRESS_SPACE} && exec \"$0\" \"$@\""))
        .arg(programs.join(target))
        // New inputs go to the first directory; the second has the corpus in the repository.
        .arg(&found)
        .arg(root().join("fuzz/corpus").join(target))
        .arg(format!("-artifact_prefix={}/", crashes.display()))
        .arg(format!("-max_total_time={seconds}"))
        .args(["-timeout=10", "-rss_limit_mb=1024", "-print_final_stats=1"])
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| broken("starting the fuzzer", error))?;
    let mut report = Report { target: target.to_owned(), ..Report::default() };
    let log = child.stderr.take().expect("it was asked for");
    for line in BufReader::new(log).split(b'\n') {
        let line = line.map_err(|error| broken("reading its log", error))?;
        let line = String::from_utf8_lossy(&line);
        if report.read_line(&line) {
            eprintln!("    {line}");
        }
    }
    let status = child.wait().map_err(|error| broken("waiting for the fuzzer", error))?;
    if !status.success() && report.crashes.is_empty() {
        return Err(Failure::new(format!("fuzz: {target} ended without a finding ({status})")));
    }
    Ok(report)
}

impl Report {
    /// Reads a line of the fuzzer's log; returns whether it is worth printing.
    fn read_line(&mut self, line: &str) -> bool {
        let number = |text: &str| text.split_whitespace().next().and_then(|n| n.parse().ok());
        let after = |name: &str| line.split_once(name).and_then(|(_, rest)| number(rest));
        if let Some(crash) = line.split_once("Test unit written to ").map(|(_, file)| file) {
            self.crashes.push(crash.trim().to_owned());
            return true;
        }
        if let Some(executions) = after("stat::number_of_executed_units:") {
            self.executions = executions;
        } else if let Some(peak) = after("stat::peak_rss_mb:") {
            self.peak_mb = peak;
        } else if line.starts_with("Done ") {
            self.seconds = after(" runs in ").unwrap_or(self.seconds);
            return true;
        } else if line.starts_with('#') && line.contains(" cov: ") {
            self.edges = after(" cov: ").unwrap_or(self.edges);
            self.features = after(" ft: ").unwrap_or(self.features);
            let inputs = line.split_once(" corp: ").map(|(_, rest)| rest.split('/').next());
            self.inputs = inputs.flatten().and_then(number).unwrap_or(self.inputs);
            return ["INITED", "DONE", "pulse"].iter().any(|news| line.contains(news));
        } else {
            // Guessed words, and warnings about missing sanitizers.
            return !["\"", "#", "\tNEW_FUNC", "INFO:", "WARNING: Failed to find", "stat::"]
                .iter()
                .any(|start| line.starts_with(start));
        }
        false
    }
}

fn json(reports: &[Report]) -> String {
    let lines: Vec<String> = reports.iter().map(Report::json).collect();
    format!("{{\n  \"test\": \"fuzz\",\n  \"lines\": [\n{}\n  ]\n}}\n", lines.join(",\n"))
}

impl Report {
    fn json(&self) -> String {
        let Self { target, seconds, executions, edges, features, inputs, peak_mb, crashes } = self;
        let columns = [
            ("seconds", seconds),
            ("executions", executions),
            ("edges", edges),
            ("features", features),
            ("inputs kept", inputs),
            ("peak MB", peak_mb),
            ("crashes", &(crashes.len() as u64)),
        ];
        let mut text = format!("    {{\n      \"target\": \"{target}\"");
        for (name, value) in columns {
            // Writing to a string never fails.
            let _ = write!(text, ",\n      \"{name}\": {value}");
        }
        text.push_str("\n    }");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(args: &[&str]) -> Result<Asked, String> {
        Asked::read(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn every_target_runs_unless_some_are_named() {
        let all = asked(&[]).expect("no arguments");
        assert_eq!((all.targets.as_slice(), all.seconds), (&TARGETS[..], SECONDS));
        let one = asked(&["key", "--seconds", "600", "--json", "f"]).expect("arguments");
        assert_eq!((one.targets, one.seconds, one.json), (vec!["key"], 600, Some("f".into())));
        for wrong in [&["keys"][..], &["--seconds"], &["--seconds", "0"], &["--json"]] {
            assert!(asked(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_target_has_a_program_and_a_corpus() {
        let manifest = fs::read_to_string(root().join("fuzz/Cargo.toml")).expect("a manifest");
        assert_eq!(manifest.matches("[[bin]]").count(), TARGETS.len());
        for target in TARGETS {
            assert!(root().join(format!("fuzz/targets/{target}.rs")).is_file(), "{target}");
            assert!(root().join(format!("fuzz/corpus/{target}")).is_dir(), "{target}");
        }
    }

    #[test]
    fn the_fuzzers_log_becomes_a_report() {
        let mut report = Report { target: "key".to_owned(), ..Report::default() };
        let heard: Vec<bool> = [
            "#2\tINITED cov: 66 ft: 66 corp: 1/1b exec/s: 0 rss: 27Mb",
            "#90\tNEW    cov: 70 ft: 81 corp: 5/1b lim: 4 exec/s: 0 rss: 27Mb L: 1/1 MS: 1",
            "\"\\000\\001\" # Uses: 3",
            "#1116742\tDONE   cov: 607 ft: 2949 corp: 1484/193Kb lim: 1012 exec/s: 53178 rss: 29Mb",
            "Done 1116742 runs in 21 second(s)",
            "stat::number_of_executed_units: 1116742",
            "stat::peak_rss_mb:              29",
            "thread 'main' panicked at a.rs:1:1:",
            "artifact_prefix='c/'; Test unit written to c/crash-1",
        ]
        .map(|line| report.read_line(line))
        .to_vec();
        assert_eq!(heard, [true, false, false, true, true, false, false, true, true]);
        let expected = Report {
            target: "key".to_owned(),
            seconds: 21,
            executions: 1_116_742,
            edges: 607,
            features: 2_949,
            inputs: 1_484,
            peak_mb: 29,
            crashes: vec!["c/crash-1".to_owned()],
        };
        assert_eq!(report, expected);
        assert!(json(&[report]).contains("\"executions\": 1116742,\n"));
    }
}
