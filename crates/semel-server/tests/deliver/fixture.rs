//! A database in a file, settings, and the deliverer that runs on them.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use semel_core::Event;
use semel_core::outbox::Outbox as _;
use semel_core::store::TransactionalStore as _;
use semel_sql::sqlite::SqliteStore;

use crate::program::{self, Ended, Service};

/// The time limit for what takes a moment on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// The secret of all subscriptions.
pub(crate) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A private directory with an outbox.
pub(crate) struct Fixture {
    directory: PathBuf,
    store: SqliteStore,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("semel-deliver-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).unwrap();
        let store = SqliteStore::builder(directory.join("semel.db")).migrate(true).open().await;
        Self { directory, store: store.unwrap() }
    }

    /// Writes the settings: the text of the sections, with the secret in each subscription.
    pub(crate) fn settings(&self, text: &str) {
        let secret = format!("[[subscription]]\nsecret = \"{SECRET}\"\n");
        let text = text.replace("[[subscription]]\n", &secret);
        std::fs::write(self.file("semel.toml"), text).unwrap();
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Appends events in one transaction.
    pub(crate) async fn append(&self, events: &[Event]) {
        let mut open = self.store.begin().await.unwrap();
        self.store.append(SqliteStore::connection(&mut open), events).await.unwrap();
        self.store.commit(open).await.unwrap();
    }

    /// Returns the command `semel deliver` with these arguments.
    pub(crate) fn deliver(&self, more: &[&str]) -> Command {
        let all = ["--config", "semel.toml", "deliver", "--admin-listen", "127.0.0.1:0"];
        let mut command = program::semel(&self.directory, all.iter().chain(more));
        // A short lease, so that what a killed process held is soon due again.
        command.env("SEMEL_RELAY__LEASE", "2s").env("SEMEL_INBOX__LEASE", "2s");
        command.env("RUST_LOG", "error");
        command
    }

    #[track_caller]
    pub(crate) fn start(&self) -> Service {
        Service::start(self.deliver(&[]))
    }

    /// Runs `semel deliver` to its end.
    pub(crate) fn run(&self, more: &[&str]) -> Ended {
        Ended::from(self.deliver(more).output().unwrap())
    }

    /// Runs another command of the program on the same store.
    pub(crate) fn semel(&self, arguments: &[&str]) -> Ended {
        program::run(&self.directory, arguments)
    }

    /// Returns what `semel inbox failed` lists, as JSON.
    pub(crate) fn failed(&self, group: &str) -> Vec<serde_json::Value> {
        let listed = self.semel(&["inbox", "failed", "--group", group, "--json"]).well();
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
        listed["events"].as_array().unwrap().clone()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Returns an event about an aggregate, with a number in its payload.
pub(crate) fn event(kind: &str, aggregate: &str, number: usize) -> Event {
    let builder = Event::builder("acme", kind, "/orders").about("order", aggregate);
    builder.json(&serde_json::json!({ "number": number })).build().unwrap()
}

/// Waits until the condition holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Sends a request without a body, and returns the body of the response.
pub(crate) async fn call(method: &str, url: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let rest = url.strip_prefix("http://").unwrap();
    let (host, path) = rest.split_once('/').unwrap();
    let mut stream = tokio::net::TcpStream::connect(host).await.unwrap();
    let head = format!(
        "{method} /{path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
}
