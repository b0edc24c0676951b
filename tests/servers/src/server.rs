//! A running private server and the methods that a fault test needs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use super::error::{Error, ErrorKind};
use super::port::{self, Port};
use super::process::{self, Launch};
use super::scratch::Scratch;

/// How long a start may take. Crash recovery on a busy two-core machine takes seconds, and RabbitMQ
/// alone needs five seconds of processor time; a healthy server never takes this long.
const START_LIMIT: Duration = Duration::from_secs(120);
/// The time after which a server that was asked to stop is killed.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// How long a killed process may take to vanish and to free its port.
const DEATH_LIMIT: Duration = Duration::from_secs(60);
/// How many ports are tried when other processes take them.
const PORT_ATTEMPTS: u32 = 8;
/// Texts in lower case with which servers report that their port is taken.
const PORT_TAKEN: [&str; 2] = ["address already in use", "could not bind to distribution port"];

/// One private server: a process, a port and a directory with a common lifetime.
///
/// Made by [`Postgres::start`](super::Postgres::start), [`MariaDb::start`](super::MariaDb::start),
/// [`MySql::start`](super::MySql::start), [`Redis::start`](super::Redis::start),
/// [`Nats::start`](super::Nats::start) and [`RabbitMq::start`](super::RabbitMq::start). Dropping it
/// ends the server, paused or not, and removes its data.
#[derive(Debug)]
pub struct Server {
    recipe: Recipe,
    /// Reserved while this value lives, even while nothing listens on it.
    port: Port,
    child: Option<Child>,
    /// A second process that runs exactly while the server does. Kill and pause do not affect it.
    companion: Option<Child>,
    /// The processes that [`Server::pause`] stopped, so that resuming continues exactly those.
    paused: Vec<u32>,
    // The last field, so that the directory outlives the process when fields are dropped in order.
    scratch: Scratch,
}

/// The properties in which the kinds of server differ once one is prepared.
#[derive(Debug)]
pub(super) struct Recipe {
    /// The name of the program in messages.
    pub(super) name: &'static str,
    pub(super) launch: Launch,
    pub(super) companion: Option<Companion>,
    pub(super) url: String,
    /// The signal that asks for a clean shutdown.
    pub(super) polite: &'static str,
    /// The signal that ends the server fastest without leaving anything outside its directory.
    pub(super) abrupt: &'static str,
    pub(super) ready: fn(&Vitals<'_>) -> bool,
    pub(super) answers: fn(u16, Duration) -> bool,
}

/// A second process that the server needs to start.
#[derive(Debug)]
pub(super) struct Companion {
    pub(super) launch: Launch,
    pub(super) port: Port,
}

/// The values that a readiness check uses.
pub(super) struct Vitals<'a> {
    pub(super) port: u16,
    pub(super) pid: u32,
    pub(super) data: &'a Path,
    /// The log of the server since this start.
    pub(super) log: &'a str,
}

impl Server {
    /// Starts a server on a free port; tries another port if that was taken meanwhile.
    pub(super) fn start(
        scratch: Scratch,
        mut recipe: impl FnMut(u16) -> Result<Recipe, Error>,
    ) -> Result<Self, Error> {
        let first = port::free()?;
        let mut server = Self {
            recipe: recipe(first.number())?,
            port: first,
            child: None,
            companion: None,
            paused: Vec::new(),
            scratch,
        };
        let mut attempts = 1;
        loop {
            match server.launch() {
                Err(error) if error.kind() == ErrorKind::PortTaken && attempts < PORT_ATTEMPTS => {
                    attempts += 1;
                    server.port = port::free()?;
                    server.recipe = recipe(server.port())?;
                }
                Err(error) => return Err(error),
                Ok(()) => return Ok(server),
            }
        }
    }

    /// Returns the URL to connect to; the same after a restart.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.recipe.url
    }

    /// Returns the loopback port; the same after a restart.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns the id of the process that listens, or `None` while the server is stopped or killed.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Returns the directory with the server's data and log; removed on drop.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.scratch.path()
    }

    /// Returns whether the server answers a new connection in its own protocol within the limit.
    ///
    /// An accepted connection is not enough: the kernel accepts for a paused server too.
    #[must_use]
    pub fn answers(&self, within: Duration) -> bool {
        (self.recipe.answers)(self.port(), within)
    }

    /// Kills the server and every process it forked with `SIGKILL`, and returns when they are gone
    /// and the port is free.
    pub fn kill9(&mut self) -> Result<(), Error> {
        let root = self.running("kill")?;
        // Stopped first, so that no child can be forked between the listing and the kill.
        let family = process::freeze(root)?;
        process::signal("KILL", &family)?;
        self.reap(&family)
    }

    /// Stops every process of the server with `SIGSTOP`: connections stay open, and the server
    /// answers nothing.
    pub fn pause(&mut self) -> Result<(), Error> {
        let root = self.running("pause")?;
        let family = process::freeze(root)?;
        self.paused = family;
        self.list()
    }

    /// Continues a paused server; does nothing if it is not paused.
    pub fn resume(&mut self) -> Result<(), Error> {
        // Children before the parent, which might act on their delay.
        let mut family = std::mem::take(&mut self.paused);
        family.reverse();
        process::signal("CONT", &family)?;
        self.list()
    }

    /// Starts the server again with its data and port, after a clean stop if it still runs.
    pub fn restart(&mut self) -> Result<(), Error> {
        self.stop()?;
        self.launch()
    }

    /// Shuts the server down cleanly and keeps its data; does nothing if it is not running.
    ///
    /// A server that takes longer than ten seconds is killed.
    pub fn stop(&mut self) -> Result<(), Error> {
        if self.child.is_none() {
            return Ok(());
        }
        self.resume()?;
        self.end(self.recipe.polite, STOP_LIMIT)
    }

    fn end(&mut self, signal: &str, limit: Duration) -> Result<(), Error> {
        let Some(child) = &mut self.child else {
            return Ok(());
        };
        // The server's other processes end by themselves when it does, but not at the same moment.
        let family = process::family(child.id());
        process::signal(signal, &[child.id()])?;
        let ended = process::wait_until(limit, "", || !matches!(child.try_wait(), Ok(None)));
        if ended.is_err() {
            return self.kill9();
        }
        self.reap(&family)
    }

    fn running(&mut self, verb: &str) -> Result<u32, Error> {
        let name = self.recipe.name;
        if let Some(child) = &mut self.child
            && matches!(child.try_wait(), Ok(None))
        {
            return Ok(child.id());
        }
        Err(Error::new(
            ErrorKind::NotRunning,
            format!("cannot {verb} {name}: it is not running; its log:\n{}", self.tail(0)),
        ))
    }

    fn launch(&mut self) -> Result<(), Error> {
        let log = self.scratch.log();
        let since = fs::metadata(&log).map_or(0, |meta| meta.len());
        let outcome = self.spawn(&log).and_then(|()| self.await_ready(since));
        if outcome.is_err() {
            // The reason for the failed start matters more than an error of the cleanup.
            let _ = self.end("KILL", DEATH_LIMIT);
            let _ = self.dismiss_companion();
        }
        outcome
    }

    fn spawn(&mut self, log: &Path) -> Result<(), Error> {
        if let Some(companion) = &self.recipe.companion {
            self.companion = Some(companion.launch.spawn(self.scratch.path(), log)?);
            self.list()?;
            self.await_companion()?;
        }
        self.child = Some(self.recipe.launch.spawn(self.scratch.path(), log)?);
        self.list()
    }

    /// Waits until the companion's port is open, before the server connects to it.
    fn await_companion(&mut self) -> Result<(), Error> {
        let (Some(companion), Some(child)) = (&self.recipe.companion, &mut self.companion) else {
            return Ok(());
        };
        let name = companion.launch.program.display();
        let port = companion.port.number();
        let failure = format!("{name} did not open port {port}");
        let mut ended = false;
        process::wait_until(START_LIMIT, &failure, || {
            ended = !matches!(child.try_wait(), Ok(None));
            ended || port::accepts(port)
        })?;
        if ended {
            // Only one thing keeps the companion from running: another process has its port.
            return Err(Error::new(
                ErrorKind::PortTaken,
                format!("{name} could not have port {port}"),
            ));
        }
        Ok(())
    }

    fn dismiss_companion(&mut self) -> Result<(), Error> {
        let Some(mut child) = self.companion.take() else {
            return Ok(());
        };
        // An error means that the companion has already ended.
        let _ = child.kill();
        child.wait().map(|_| ()).map_err(|error| Error::system("reaping a companion", error))
    }

    /// Writes the running processes to the janitor's list.
    fn list(&self) -> Result<(), Error> {
        let mut pids = self.paused.clone();
        pids.extend(self.pid().filter(|pid| !self.paused.contains(pid)));
        pids.extend(self.companion.as_ref().map(Child::id));
        self.scratch.list(&pids)
    }

    fn await_ready(&mut self, since: u64) -> Result<(), Error> {
        let name = self.recipe.name;
        let start = Instant::now();
        loop {
            let Some(child) = &mut self.child else {
                return Err(Error::new(ErrorKind::NotRunning, format!("{name} was not started")));
            };
            let pid = child.id();
            let status = child
                .try_wait()
                .map_err(|error| Error::system(format!("asking whether {name} lives"), error))?;
            let log = self.log_since(since);
            if let Some(status) = status {
                let said = log.to_lowercase();
                let taken = PORT_TAKEN.iter().any(|sign| said.contains(sign));
                let kind = if taken { ErrorKind::PortTaken } else { ErrorKind::Exited };
                let tail = process::last_lines(&log);
                let message = format!("{name} ended at start ({status}); its log:\n{tail}");
                return Err(Error::new(kind, message));
            }
            let data = self.data();
            let vitals = Vitals { port: self.port(), pid, data: &data, log: &log };
            if (self.recipe.ready)(&vitals) {
                return Ok(());
            }
            if start.elapsed() >= START_LIMIT {
                let limit = START_LIMIT.as_secs();
                let message = format!(
                    "{name} did not accept connections within {limit} s; its log:\n{}",
                    self.tail(since)
                );
                return Err(Error::new(ErrorKind::TimedOut, message));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Reaps dead processes, so that neither a zombie's id nor its port disturbs the next start.
    fn reap(&mut self, family: &[u32]) -> Result<(), Error> {
        let name = self.recipe.name;
        if let Some(mut child) = self.child.take() {
            child.wait().map_err(|error| Error::system(format!("reaping {name}"), error))?;
        }
        self.paused.clear();
        self.dismiss_companion()?;
        self.list()?;
        process::wait_until(DEATH_LIMIT, &format!("the processes of {name} did not die"), || {
            family.iter().all(|pid| process::is_gone(*pid))
        })?;
        let port = self.port();
        let failure = format!("{name} is dead, but port {port} still accepts connections");
        process::wait_until(DEATH_LIMIT, &failure, || !port::accepts(port))
    }

    fn data(&self) -> PathBuf {
        self.scratch.path().join("data")
    }

    fn log_since(&self, since: u64) -> String {
        let bytes = fs::read(self.scratch.log()).unwrap_or_default();
        let from = usize::try_from(since).unwrap_or(0).min(bytes.len());
        String::from_utf8_lossy(&bytes[from..]).into_owned()
    }

    fn tail(&self, since: u64) -> String {
        process::last_lines(&self.log_since(since))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing here may panic, and there is no caller to return an error to: processes that
        // could not be ended are on the janitor's list.
        let _ = self.resume();
        let _ = self.end(self.recipe.abrupt, Duration::from_secs(3));
    }
}
