//! Runs the SDKs of other languages, and their documents, against private databases.
//!
//! Packages are installed below the target directory, never into the machine's own interpreters.
//! What the SDKs do is in `sdk/`; this crate only starts it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use semel_servers::python;
use semel_stores::{Address, PrivateStore};

/// The packages of the Python SDK's tests, of the versions that were tested.
pub const PYTHON_PACKAGES: &[&str] = &[
    "psycopg[binary,pool]==3.3.9",
    "asyncpg==0.32.0",
    "sqlalchemy[asyncio]==2.1.8",
    "django==5.2.19",
    "fastapi==0.163.0",
    "flask==3.1.3",
    "httpx==0.28.1",
    "pytest==9.2.0",
    "mypy==2.4.1",
];

/// Returns the root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A database of its own that has Semel's tables and functions, and an interpreter with packages.
#[derive(Debug)]
pub struct Python {
    interpreter: PathBuf,
    store: PrivateStore,
}

impl Python {
    /// Prepares an interpreter, and a database on the server whose URL is in the environment.
    ///
    /// # Panics
    /// If there is no server, or pip cannot install the packages.
    pub async fn on_postgres() -> Self {
        let interpreter = python::interpreter(PYTHON_PACKAGES).expect("an interpreter");
        let store = PrivateStore::named("postgres").await.expect("a private database");
        Self { interpreter, store }
    }

    /// Returns the URL of the database.
    ///
    /// # Panics
    /// If it is no database.
    pub fn url(&self) -> &str {
        match self.store.backend().address() {
            Address::Postgres(url) | Address::MySql(url) => url,
            Address::Memory(_) | Address::Sqlite(_) | Address::Redis { .. } => {
                panic!("the store of these tests is a database with functions")
            }
        }
    }

    /// Returns a command that runs the interpreter in `directory` of the repository, with the SDK on its
    /// path and the URL of the database in the variable of its tests.
    pub fn command(&self, directory: &str) -> Command {
        let mut command = Command::new(&self.interpreter);
        command
            .current_dir(root().join(directory))
            .env("PYTHONPATH", root().join("sdk/python/src"))
            // No compiled files beside the sources.
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("SEMEL_TEST_POSTGRES_URL", self.url());
        command
    }

    /// Returns a directory for what tools remember, which is gone with the database.
    pub fn cache(&self) -> PathBuf {
        self.store.directory().join("cache")
    }

    /// Removes the database.
    pub async fn remove(self) {
        self.store.remove().await;
    }
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
