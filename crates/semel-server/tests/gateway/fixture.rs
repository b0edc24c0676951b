//! A private directory for a test, and the gateways that run in it.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::net::TcpSocket;

use crate::program::{self, Service};

/// Returns an address without a listener, which is reserved as long as the socket is kept.
pub(crate) fn nowhere() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// The time limit for any step on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A directory that is removed after its test.
pub(crate) struct Fixture(PathBuf);

impl Fixture {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::SeqCst);
        let name = format!("semel-gateway-{}-{count}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        Self(directory)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file in the directory, and returns its path.
    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Returns the command of a gateway in front of `upstream`, on free ports, with a SQLite store
    /// in the directory unless a flag sets another. Its log is a file in the directory.
    pub(crate) fn command(&self, upstream: &str, flags: &[&str]) -> Command {
        let fixed = ["gateway", "--upstream", upstream, "--listen", "127.0.0.1:0"];
        let admin = match flags.contains(&"--admin-listen") {
            true => &[][..],
            false => &["--admin-listen", "127.0.0.1:0"],
        };
        let arguments = fixed.iter().chain(admin).chain(flags);
        let mut command = program::semel(&self.0, arguments);
        command.stderr(self.log_file());
        command
    }

    /// Starts a gateway with these flags.
    #[track_caller]
    pub(crate) fn gateway(&self, upstream: &str, flags: &[&str]) -> Service {
        Service::start(self.command(upstream, flags))
    }

    /// Starts a gateway with this `semel.toml`.
    #[track_caller]
    pub(crate) fn configured(&self, upstream: &str, file: &str) -> Service {
        // Resets SIGHUP, because the tests themselves may run under `nohup`.
        self.configured_under(&["env", "--default-signal=HUP"], upstream, file)
    }

    /// Starts a gateway with this `semel.toml` through another program.
    #[track_caller]
    pub(crate) fn configured_under(&self, runner: &[&str], upstream: &str, file: &str) -> Service {
        self.write("semel.toml", file);
        let command = self.command(upstream, &["--config", "semel.toml"]);
        Service::start(self.under(runner, &command))
    }

    /// Wraps a command so that another program starts it.
    pub(crate) fn under(&self, runner: &[&str], command: &Command) -> Command {
        let mut outer = program::under(runner, command);
        outer.stderr(self.log_file());
        outer
    }

    fn log_file(&self) -> File {
        File::options().create(true).append(true).open(self.0.join("log")).unwrap()
    }

    /// Returns the log of the gateways.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.0.join("log")).unwrap_or_default()
    }

    /// Waits until the log contains `words` this many times.
    pub(crate) async fn logged(&self, words: &str, times: usize) {
        let end = Instant::now() + PATIENCE;
        while self.log().matches(words).count() < times {
            assert!(Instant::now() < end, "never logged {words:?}:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
