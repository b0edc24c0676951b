//! The parent's side of a child process: start, call, stop, resume and kill it.

use std::collections::HashMap;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::testing::FAILPOINT;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};

use crate::child::{CallResult, Message, Request, Settings};

/// Signal numbers, the same on every Unix that runs the tests.
const SIGABRT: i32 = 6;
const SIGKILL: i32 = 9;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It aborted itself, at a failpoint.
    Aborted,
    /// `kill -9`.
    Killed,
    /// Any other way, which no test causes.
    Other(ExitStatus),
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        match status.signal() {
            Some(SIGABRT) => Exit::Aborted,
            Some(SIGKILL) => Exit::Killed,
            _ => Exit::Other(status),
        }
    }
}

/// The process died before it answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the process died before it answered")]
pub struct Died;

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub struct ChildProcess {
    child: Child,
    line: ChildHandle,
}

/// Sends calls to a child; outlives the process.
#[derive(Clone, Debug)]
pub struct ChildHandle {
    orders: mpsc::UnboundedSender<Request>,
    calls: Arc<Mutex<Calls>>,
}

#[derive(Debug, Default)]
struct Calls {
    /// The process has closed its output.
    over: bool,
    ready: bool,
    awaiting: Option<oneshot::Sender<()>>,
    holding: HashMap<u64, oneshot::Sender<()>>,
    ended: HashMap<u64, oneshot::Sender<CallResult>>,
}

/// A call that waits in its work, after the effect.
#[derive(Debug)]
pub struct HeldCall {
    call: u64,
    line: ChildHandle,
    holding: Option<oneshot::Receiver<()>>,
    ended: oneshot::Receiver<CallResult>,
}

impl ChildProcess {
    /// Starts `program child …`, with a failpoint (`name@n`) if one is given.
    ///
    /// # Errors
    /// The process could not be started.
    pub fn start(program: &Path, settings: &Settings, failpoint: Option<&str>) -> io::Result<Self> {
        let mut command = Command::new(program);
        command
            .arg("child")
            .args(["--store", &settings.backend.to_string()])
            .args(["--mode", settings.mode.name()])
            .args(["--lease", &settings.lease.as_millis().to_string()])
            .args(["--fails-one-in", &settings.fails_one_in.to_string()])
            .arg("--file")
            .arg(&settings.ledger)
            .env_remove(FAILPOINT)
            // A child lives for less time than a backtrace takes.
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        if let Some(failpoint) = failpoint {
            command.env(FAILPOINT, failpoint);
        }
        let mut child = command.spawn()?;
        let (orders, queue) = mpsc::unbounded_channel();
        let line = ChildHandle { orders, calls: Arc::default() };
        if let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) {
            tokio::spawn(write(input, queue));
            tokio::spawn(read(output, Arc::clone(&line.calls)));
        }
        Ok(Self { child, line })
    }

    /// Starts a child without faults and waits until its store is open.
    ///
    /// # Errors
    /// The process could not be started, or died, or took longer than two minutes.
    pub async fn healthy(program: &Path, settings: &Settings) -> io::Result<Self> {
        let process = Self::start(program, settings, None)?;
        match tokio::time::timeout(Duration::from_secs(120), process.line.ready()).await {
            Ok(Ok(())) => Ok(process),
            Ok(Err(died)) => Err(io::Error::other(died)),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the child did not get ready")),
        }
    }

    /// Returns the handle for calls.
    pub fn handle(&self) -> &ChildHandle {
        &self.line
    }

    /// Returns the process id.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// The operating system's.
    pub async fn exited(&mut self) -> io::Result<Exit> {
        self.child.wait().await.map(Exit::from)
    }

    /// Kills it and waits until it has ended.
    ///
    /// # Errors
    /// The operating system's.
    pub async fn kill(&mut self) -> io::Result<Exit> {
        // It may have ended by itself; how it ended is what counts.
        let _ = self.child.start_kill();
        self.exited().await
    }

    /// Sends SIGSTOP and waits until the process has stopped.
    ///
    /// # Errors
    /// It did not stop.
    pub async fn stop(&self) -> io::Result<()> {
        self.signal("STOP").await?;
        let stopped = || -> io::Result<bool> {
            let pid = self.pid().ok_or_else(|| io::Error::other(Died))?;
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
            let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
            Ok(state.is_some_and(|rest| rest.starts_with('T')))
        };
        for _ in 0..12_000 {
            if stopped()? {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "the process did not stop"))
    }

    /// Sends SIGCONT.
    ///
    /// # Errors
    /// The signal could not be sent.
    pub async fn resume(&self) -> io::Result<()> {
        self.signal("CONT").await
    }

    async fn signal(&self, name: &str) -> io::Result<()> {
        let pid = self.pid().ok_or_else(|| io::Error::other(Died))?;
        let sent = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status();
        match sent.await?.success() {
            true => Ok(()),
            false => Err(io::Error::other(format!("signal {name} was not sent"))),
        }
    }
}

impl ChildHandle {
    /// Waits until the child's store is open. One caller at a time.
    ///
    /// # Errors
    /// [`Died`].
    pub async fn ready(&self) -> Result<(), Died> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut calls = self.lock();
            match (calls.over, calls.ready) {
                (true, _) => return Err(Died),
                (false, true) => return Ok(()),
                (false, false) => calls.awaiting = Some(sender),
            }
        }
        receiver.await.map_err(|_| Died)
    }

    /// Executes the operation of `key` in the child.
    ///
    /// # Errors
    /// [`Died`].
    pub async fn ask(&self, key: &str, wait: Duration) -> Result<CallResult, Died> {
        self.order(key, wait, false)?.ended.await.map_err(|_| Died)
    }

    /// Begins the operation of `key` in the child, which waits after its effect.
    ///
    /// # Errors
    /// [`Died`].
    pub fn hold(&self, key: &str) -> Result<HeldCall, Died> {
        self.order(key, Duration::ZERO, true)
    }

    fn order(&self, key: &str, wait: Duration, hold: bool) -> Result<HeldCall, Died> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let call = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let (ended_sender, ended) = oneshot::channel();
        let (holding_sender, holding) = oneshot::channel();
        {
            let mut calls = self.lock();
            if calls.over {
                return Err(Died);
            }
            calls.ended.insert(call, ended_sender);
            if hold {
                calls.holding.insert(call, holding_sender);
            }
        }
        let order = Request::Execute { call, key: key.to_owned(), wait, hold };
        self.orders.send(order).map_err(|_| Died)?;
        Ok(HeldCall { call, line: self.clone(), holding: Some(holding), ended })
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldCall {
    /// Waits until the work has written its effect; returns `false` if the claim was not granted.
    ///
    /// # Errors
    /// [`Died`].
    pub async fn holding(&mut self) -> Result<bool, Died> {
        let Some(holding) = self.holding.take() else { return Ok(true) };
        // The sender is dropped when the call ends without holding, and when the process dies.
        match holding.await {
            Ok(()) => Ok(true),
            Err(_) if self.line.lock().over => Err(Died),
            Err(_) => Ok(false),
        }
    }

    /// Continues the work and waits for its result.
    ///
    /// # Errors
    /// [`Died`].
    pub async fn finish(self) -> Result<CallResult, Died> {
        self.line.orders.send(Request::Finish { call: self.call }).map_err(|_| Died)?;
        self.ended.await.map_err(|_| Died)
    }
}

async fn write(mut input: ChildStdin, mut queue: mpsc::UnboundedReceiver<Request>) {
    while let Some(order) = queue.recv().await {
        let mut line = serde_json::to_string(&order).expect("orders are plain data");
        line.push('\n');
        if input.write_all(line.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn read(output: ChildStdout, calls: Arc<Mutex<Calls>>) {
    let lock = || calls.lock().unwrap_or_else(PoisonError::into_inner);
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        // A killed process may leave half a line.
        let Ok(word) = serde_json::from_str::<Message>(&line) else { continue };
        let mut calls = lock();
        match word {
            Message::Ready => {
                calls.ready = true;
                let _ = calls.awaiting.take().map(|ready| ready.send(()));
            }
            Message::Holding { call } => {
                let _ = calls.holding.remove(&call).map(|holding| holding.send(()));
            }
            Message::Ended { call, answer } => {
                calls.holding.remove(&call);
                let _ = calls.ended.remove(&call).map(|ended| ended.send(answer));
            }
        }
    }
    *lock() = Calls { over: true, ..Calls::default() };
}
