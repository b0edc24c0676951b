//! The built program, started as users start it.
//!
//! Included by every test target. A service prints one line for each of its listeners on stdout,
//! `NAME: URL`, and then `ready`. Tests let it listen on port 0, and read the ports from these
//! lines.
#![allow(dead_code, reason = "each test target uses its part")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The time limit for starting the program on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the command `semel` with these arguments, in `directory`, without the `SEMEL_*`
/// variables of this process.
pub(crate) fn semel<A: AsRef<OsStr>>(
    directory: &Path,
    arguments: impl IntoIterator<Item = A>,
) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(arguments).current_dir(directory).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SEMEL_") {
            command.env_remove(name);
        }
    }
    command
}

/// Wraps a command so that another program starts it: `nohup`, `sh -c …`.
pub(crate) fn under(runner: &[&str], command: &Command) -> Command {
    let mut outer = Command::new(runner[0]);
    outer.args(&runner[1..]).arg(command.get_program()).args(command.get_args());
    outer.stdin(Stdio::null());
    if let Some(directory) = command.get_current_dir() {
        outer.current_dir(directory);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer
}

/// Returns whether a process ignores a signal, and whether it has a handler for it.
pub(crate) fn disposition(process: u32, signal: u32) -> (bool, bool) {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let has = |name: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(name)).expect("a mask");
        let mask = u64::from_str_radix(mask.trim(), 16).expect("hex digits");
        mask & (1 << (signal - 1)) != 0
    };
    (has("SigIgn:"), has("SigCgt:"))
}

/// Runs a command to its end.
pub(crate) fn run<A: AsRef<OsStr>>(
    directory: &Path,
    arguments: impl IntoIterator<Item = A>,
) -> Ended {
    let output = semel(directory, arguments).output().expect("the program can be started");
    Ended::from(output)
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The exit code; `None` if a signal ended the command.
    pub(crate) code: Option<i32>,
    /// The text on stdout.
    pub(crate) stdout: String,
    /// The text on stderr.
    pub(crate) stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ended {
    /// Checks that the command succeeded, and returns its stdout.
    #[track_caller]
    pub(crate) fn well(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        self.stdout
    }

    /// Checks that the command failed with this code and one line on stderr, and returns that line.
    #[track_caller]
    pub(crate) fn badly(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}{}", self.stdout, self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        // Audit lines are separate from the line with the error.
        let lines = self.stderr.trim().lines().filter(|line| !line.contains("\"audit\":"));
        assert_eq!(lines.count(), 1, "one line, not {}", self.stderr);
        self.stderr
    }
}

/// A running service. It is killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Service {
    child: Child,
    urls: BTreeMap<String, String>,
}

impl Service {
    /// Starts a service and waits until it prints `ready`.
    #[track_caller]
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program can be started");
        let stdout = child.stdout.take().expect("stdout is piped");
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(stdout);
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|length| length > 0) {
                let _ = sender.send(std::mem::take(&mut line));
            }
            // A full pipe must not stop the program.
            let _ = lines.read_to_end(&mut Vec::new());
        });
        let (mut urls, end) = (BTreeMap::new(), Instant::now() + PATIENCE);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match receiver.recv_timeout(left) {
                Ok(line) if line.trim() == "ready" => return Self { child, urls },
                Ok(line) => {
                    if let Some((name, url)) = line.trim().split_once(": ") {
                        urls.insert(name.to_owned(), url.to_owned());
                    }
                }
                Err(error) => {
                    let _ = child.kill();
                    let status = child.wait();
                    panic!("the program did not become ready ({error}, {status:?}): {urls:?}");
                }
            }
        }
    }

    /// Returns the URL of one of the listeners.
    #[track_caller]
    pub(crate) fn url(&self, name: &str) -> &str {
        self.urls.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.urls))
    }

    /// Returns the id of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it is our child");
        let _ = self.child.wait();
    }

    /// Sends a signal by its name, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.id().to_string()).status();
        assert!(sent.expect("there is a kill command").success());
    }

    /// Waits until the process has ended.
    #[track_caller]
    pub(crate) fn ended(mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                return status;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the program did not end within {PATIENCE:?}");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
