//! Steps: what a task did, how long each part took and how it ended.

use std::fmt::Write as _;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// Why a task stopped, and its exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into() }
    }
}

impl From<semel_servers::Error> for Failure {
    fn from(error: semel_servers::Error) -> Self {
        Self::new(error.to_string())
    }
}

/// The steps taken so far.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    taken: Vec<(String, Duration, bool)>,
    notes: Vec<String>,
}

impl Steps {
    /// Runs one step: prints its name first and records its time, whether it succeeds or not.
    pub(crate) fn run<T>(
        &mut self,
        name: &str,
        step: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        eprintln!("==> {name}");
        let start = Instant::now();
        let outcome = step();
        let took = start.elapsed();
        self.taken.push((name.to_owned(), took, outcome.is_ok()));
        outcome
    }

    /// Runs a command as a step.
    pub(crate) fn command(&mut self, name: &str, command: &mut Command) -> Result<(), Failure> {
        self.run(name, || {
            let program = command.get_program().to_string_lossy().into_owned();
            without_our_package(command);
            match command.status() {
                Ok(status) if status.success() => Ok(()),
                Ok(status) => {
                    let message = format!("{name}: `{program}` failed ({status})");
                    Err(Failure { code: code(status), message })
                }
                Err(error) => Err(Failure::new(format!("{name}: cannot run `{program}`: {error}"))),
            }
        })
    }

    /// Adds lines to the summary.
    pub(crate) fn note(&mut self, lines: String) {
        self.notes.push(lines);
    }

    /// Prints the steps and their times.
    pub(crate) fn summarise(&self) {
        eprint!("{}", self.summary());
    }

    fn summary(&self) -> String {
        let width = self.taken.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
        let mut text = String::new();
        for (name, took, ok) in &self.taken {
            let mark = if *ok { "ok" } else { "FAILED" };
            let seconds = took.as_secs_f64();
            // Writing to a string never fails.
            let _ = writeln!(text, "    {name:width$}  {seconds:8.1} s  {mark}");
        }
        for note in &self.notes {
            let _ = writeln!(text, "{note}");
        }
        text
    }
}

/// Removes cargo's variables about this package from a command's environment. Build scripts read
/// some of them, so a cargo inside `cargo xtask` and one outside would rebuild each other's crates.
fn without_our_package(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let ours =
            |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(ours) {
            command.env_remove(name);
        }
    }
}

/// Returns the exit code of a command; if a signal ended it, the code that a shell would report.
fn code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_passes_its_exit_code_on_and_is_marked() {
        let mut steps = Steps::default();
        steps.command("good", Command::new("true").arg("x")).expect("true succeeds");
        let mut bad = Command::new("sh");
        let failure = steps.command("bad", bad.args(["-c", "exit 7"])).expect_err("it exits 7");
        assert_eq!(failure.code, 7);
        let mut killed = Command::new("sh");
        let failure = steps.command("killed", killed.args(["-c", "kill -s TERM $$"]));
        assert_eq!(failure.expect_err("it is killed").code, 128 + 15);
        steps.note("two of three".to_owned());
        let summary = steps.summary();
        let lines: Vec<&str> = summary.lines().collect();
        assert_eq!((lines.len(), lines[3]), (4, "two of three"), "{summary}");
        assert!(lines[0].ends_with("ok") && lines[1].ends_with("FAILED"), "{summary}");
    }
}
