//! A server in a process of its own, for as long as this lives.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::super::Trouble;

/// A server has this long to open its port.
const PATIENCE: Duration = Duration::from_secs(30);

/// The process. Its standard input is ours: when we end, however we end, so does it.
#[derive(Debug)]
pub(crate) struct Process {
    port: u16,
    _child: Child,
}

impl Process {
    /// Starts `program`, which prints the port that it serves.
    pub(crate) async fn start(
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<Self, Trouble> {
        let mut child = Command::new(program)
            .args(arguments)
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
        let port = line.trim().parse();
        let port = port.map_err(|_| format!("{} did not say its port", program.display()))?;
        Ok(Self { port, _child: child })
    }

    /// Where it serves.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}
