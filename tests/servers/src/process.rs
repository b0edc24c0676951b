//! Processes: starts one that ends with this process, signals a process tree, waits with a limit.
//!
//! The crate has no `unsafe`, so system calls that the standard library lacks go through small
//! programs that every Unix has: `sh` for signals, `setpriv` for accounts and the parent-death
//! signal.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::account::Account;
use super::error::{Error, ErrorKind};
use super::install;

/// The interval at which a bounded wait polls.
const POLL: Duration = Duration::from_millis(10);

/// A command line whose process is the server that listens, never a wrapper.
#[derive(Debug, Clone)]
pub(super) struct Launch {
    pub(super) program: PathBuf,
    pub(super) args: Vec<OsString>,
    /// Variables added to the environment of this process.
    pub(super) env: Vec<(&'static str, OsString)>,
    pub(super) account: Option<Account>,
    /// The signal that the kernel sends to the server when this process ends.
    pub(super) on_our_death: &'static str,
}

impl Launch {
    /// Starts the server; its output is appended to `log`.
    pub(super) fn spawn(&self, directory: &Path, log: &Path) -> Result<Child, Error> {
        let out = OpenOptions::new().create(true).append(true).open(log);
        let out =
            out.map_err(|error| Error::system(format!("opening {}", log.display()), error))?;
        let copy = out.try_clone().map_err(|error| Error::system("sharing the log file", error))?;
        let mut command = self.command(Some(self.on_our_death))?;
        command
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(copy)
            // A process group of its own: an interrupt from the terminal must not stop servers
            // during a test.
            .process_group(0);
        on_launcher(command)
            .map_err(|error| Error::system(format!("starting {}", self.program.display()), error))
    }

    /// Runs the program to its end and fails unless it succeeds; for set-up tools such as `initdb`.
    pub(super) fn complete(&self, directory: &Path) -> Result<(), Error> {
        let name = self.program.display();
        let output = self
            .command(None)?
            .current_dir(directory)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| Error::system(format!("running {name}"), error))?;
        if output.status.success() {
            return Ok(());
        }
        let said =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        Err(Error::new(
            ErrorKind::Exited,
            format!("{name} failed ({}); its output:\n{}", output.status, last_lines(&said)),
        ))
    }

    fn command(&self, on_our_death: Option<&str>) -> Result<Command, Error> {
        let mut command = match (setpriv(), &self.account) {
            (Some(setpriv), account) => {
                let mut command = Command::new(setpriv);
                if let Some(account) = account {
                    command
                        .arg(format!("--reuid={}", account.uid))
                        .arg(format!("--regid={}", account.gid))
                        .arg("--clear-groups");
                }
                if let Some(signal) = on_our_death {
                    command.args(["--pdeathsig", signal]);
                }
                command.arg("--").arg(&self.program);
                command
            }
            (None, None) => Command::new(&self.program),
            (None, Some(_)) => {
                return Err(Error::new(
                    ErrorKind::Missing,
                    "running as root needs `setpriv` of util-linux (2.33 or newer) to start a \
                     server under another account: install it, or run as an ordinary user",
                ));
            }
        };
        command.args(&self.args).env("LC_ALL", "C").envs(self.env.iter().cloned());
        Ok(command)
    }
}

/// Returns `setpriv`, if it exists and knows the parent-death signal. Otherwise, and for paused
/// servers, the janitor of the scratch directory ends processes that are left.
fn setpriv() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOUND
        .get_or_init(|| {
            install::program("setpriv").filter(|setpriv| {
                let probe = Command::new(setpriv)
                    .args(["--pdeathsig", "KILL", "--", "true"])
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .status();
                probe.is_ok_and(|status| status.success())
            })
        })
        .as_deref()
}

type Job = (Command, SyncSender<io::Result<Child>>);

/// Spawns a process from a thread that lives as long as this process.
///
/// The kernel sends the parent-death signal when the *thread* that forked ends, so a server that
/// was started on a test's thread or on a thread of an async runtime's blocking pool would be
/// killed when that thread ends.
fn on_launcher(command: Command) -> io::Result<Child> {
    static LAUNCHER: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();
    let launcher = LAUNCHER.get_or_init(|| {
        let (jobs, inbox) = channel::<Job>();
        thread::spawn(move || {
            for (mut command, answer) in inbox {
                // Cannot fail: the caller waits for this result.
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(jobs)
    });
    let (answer, reply) = sync_channel(1);
    let gone = || io::Error::other("the thread that starts servers has ended");
    let jobs = launcher.lock().unwrap_or_else(PoisonError::into_inner);
    jobs.send((command, answer)).map_err(|_| gone())?;
    drop(jobs);
    reply.recv().map_err(|_| gone())?
}

/// Sends a signal to processes; processes that are already gone are not an error.
pub(super) fn signal(name: &str, pids: &[u32]) -> Result<(), Error> {
    if pids.is_empty() {
        return Ok(());
    }
    // Uses the shell's builtin: a minimal system has `sh` but may not have the program `kill`. One
    // process at a time, because the builtin stops at the first process that is gone.
    Command::new("sh")
        .args(["-c", r#"sig=$1; shift; for pid; do kill -s "$sig" "$pid"; done"#, "sh", name])
        .args(pids.iter().map(u32::to_string))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map(|_| ())
        .map_err(|error| Error::system(format!("sending {name} to {pids:?}"), error))
}

/// Stops a process and all its descendants with `SIGSTOP`, and returns their ids.
///
/// The root is stopped first, then its children, until no new ones are found: a stopped process
/// cannot fork, so the tree cannot grow meanwhile. A process group would not do, because every
/// PostgreSQL backend leads a session of its own.
pub(super) fn freeze(root: u32) -> Result<Vec<u32>, Error> {
    let mut frozen = BTreeSet::new();
    loop {
        let fresh: Vec<u32> =
            family(root).into_iter().filter(|pid| !frozen.contains(pid)).collect();
        if fresh.is_empty() {
            return Ok(frozen.into_iter().collect());
        }
        signal("STOP", &fresh)?;
        wait_until(Duration::from_secs(60), "processes did not stop", || {
            fresh.iter().all(|pid| matches!(state(*pid), None | Some('T' | 'Z')))
        })?;
        frozen.extend(fresh);
    }
}

/// Returns whether a process is gone. A zombie counts as gone: it does not run, and its sockets are
/// closed.
pub(super) fn is_gone(pid: u32) -> bool {
    matches!(state(pid), None | Some('Z'))
}

/// Returns a process and its descendants, from `/proc`; only the process itself if there is no
/// `/proc`.
pub(super) fn family(root: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, stat(pid)?.1)))
        .collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found
}

fn state(pid: u32) -> Option<char> {
    stat(pid).map(|(state, _)| state)
}

/// Returns state and parent of a process. The name before them may contain spaces and parentheses,
/// hence the search from the right.
fn stat(pid: u32) -> Option<(char, u32)> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = line.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}

/// Polls until the condition holds; after `limit`, returns an error with the message of `failure`.
pub(super) fn wait_until(
    limit: Duration,
    failure: &str,
    mut condition: impl FnMut() -> bool,
) -> Result<(), Error> {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() >= limit {
            let message = format!("{failure} within {} s", limit.as_secs());
            return Err(Error::new(ErrorKind::TimedOut, message));
        }
        thread::sleep(POLL);
    }
    Ok(())
}

/// Returns the last lines of a log, short enough for an error message.
pub(super) fn last_lines(text: &str) -> String {
    const KEPT: usize = 20;
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(KEPT)..].join("\n")
}
