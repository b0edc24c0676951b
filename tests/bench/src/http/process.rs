//! A server in its own process.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use semel_bench::BoxError;

/// How long a server may take to open its port.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server process. It ends when its standard input closes, so it never outlives this process.
#[derive(Debug)]
pub(crate) struct Process {
    port: u16,
    child: Child,
}

impl Process {
    /// Starts `program`, which prints the port that it serves on.
    pub(crate) async fn start(
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<Self, BoxError> {
        Self::start_with(program, arguments, []).await
    }

    /// Starts `program` with environment variables. The port is at the end of the first line that
    /// it prints, which may be a URL.
    pub(crate) async fn start_with(
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        settings: impl IntoIterator<Item = (&OsStr, &OsStr)>,
    ) -> Result<Self, BoxError> {
        let mut child = Command::new(program)
            .args(arguments)
            .envs(settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            let mut output = BufReader::new(output);
            tokio::time::timeout(PATIENCE, output.read_line(&mut line)).await??;
        }
        let port = line.trim().rsplit(':').next().unwrap_or_default().parse();
        let port = port.map_err(|_| format!("{} did not say its port", program.display()))?;
        Ok(Self { port, child })
    }

    /// Returns a handle on the processor time of the process.
    pub(crate) fn cost(&self) -> Cost {
        Cost { process: self.child.id() }
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Returns the port of the server.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

/// The processor time of a process, which other load distorts less than it distorts rates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    process: Option<u32>,
}

impl Cost {
    /// Returns user and system time so far; `None` on systems without `/proc`.
    pub(crate) fn spent(self) -> Option<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process?)).ok()?;
        // The name may contain any character, brackets included; after it, user and system time are
        // the 12th and 13th fields, in hundredths of a second.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        let (own, kernel): (u64, u64) =
            (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        Some(Duration::from_millis((own + kernel) * 10))
    }
}
