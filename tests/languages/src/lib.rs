//! Runs the SDKs of other languages, and their documents, against private databases.
//!
//! Packages are installed below the target directory, never into the machine's own interpreters.
//! What the SDKs do is in `sdk/`; this crate only starts it.

mod databases;
mod typescript;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use databases::Databases;
use semel_servers::{PgBouncer, Server, python};
pub use typescript::TypeScript;

/// The packages of the Python SDK's tests, of the versions that were tested.
pub const PYTHON_PACKAGES: &[&str] = &[
    "psycopg[binary,pool]==3.3.9",
    "asyncpg==0.32.0",
    "sqlalchemy[asyncio]==2.1.8",
    "django==5.2.19",
    "fastapi==0.163.0",
    "flask==3.1.3",
    "pymysql==1.2.4",
    "aiomysql==0.3.2",
    "httpx==0.28.1",
    "pytest==9.2.0",
    "mypy==2.4.1",
];

/// Returns the root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// An interpreter with packages, and databases of its own that have Semel's tables and functions.
#[derive(Debug)]
pub struct Python {
    interpreter: PathBuf,
    databases: Databases,
}

impl Python {
    /// Prepares an interpreter, and a database on each of the servers `names` (`postgres`, `mysql`,
    /// `mysql9`), whose URLs are in the environment.
    ///
    /// # Panics
    /// If there is no such server, or pip cannot install the packages.
    pub async fn on(names: &[&str]) -> Self {
        let interpreter = python::interpreter(PYTHON_PACKAGES).expect("an interpreter");
        Self { interpreter, databases: Databases::on(names).await }
    }

    /// Returns the URLs of the databases, in the order of their names.
    pub fn urls(&self) -> impl Iterator<Item = &str> {
        self.databases.urls()
    }

    /// Returns a command that runs the interpreter in `directory` of the repository, with the SDK on its
    /// path and the URLs of the databases in the variables of its tests.
    pub fn command(&self, directory: &str) -> Command {
        let mut command = Command::new(&self.interpreter);
        command
            .current_dir(root().join(directory))
            .env("PYTHONPATH", root().join("sdk/python/src"))
            // No compiled files beside the sources.
            .env("PYTHONDONTWRITEBYTECODE", "1");
        self.databases.tell(&mut command);
        command
    }

    /// Removes the databases.
    pub async fn remove(self) {
        self.databases.remove().await;
    }
}

/// Starts a PgBouncer before the server of a URL, and returns it and the URL through it.
///
/// # Panics
/// If there is no PgBouncer.
pub fn through_pgbouncer(url: &str) -> (Server, String) {
    let (server, name) = url.rsplit_once('/').expect("a URL");
    let (start, port) = server.rsplit_once(':').expect("a port");
    let pooler = PgBouncer::before(port.parse().expect("a port")).start();
    let pooler = pooler.expect("a PgBouncer");
    let pooled = format!("{start}:{}/{name}", pooler.port());
    (pooler, pooled)
}

/// Runs a command, and returns what it wrote to its output.
///
/// # Panics
/// If it fails, with all that it wrote.
pub fn succeed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("the program runs");
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?} failed ({status})\n{stdout}\n{stderr}");
    stdout.into_owned()
}
