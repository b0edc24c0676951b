//! The settings of a store, and the connect options that they make.
//!
//! WAL, foreign keys and the single writer are always on, so there is no setting for them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use semel_core::clock::Clock;
use semel_core::store::{Error, ErrorKind, Result};
use sqlx::ConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

use super::SqliteStore;

/// How long a transaction's work may keep the writer at most, unless `work_limit` is set: a third
/// of the default lease, since all renewals wait for the writer.
pub(super) const WORK: Duration = Duration::from_secs(10);

/// How much longer than the limit of its work a transaction may take: the claim is made before the
/// work, and the outcome is written after it.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// What a commit waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Synchronous {
    /// The disk: acknowledged writes survive a power cut. The default.
    #[default]
    Full,
    /// The operating system: acknowledged writes survive a crash of the process, but the last
    /// commits before a power cut may be lost, and with them acknowledged claims.
    Normal,
}

/// Settings of a [`SqliteStore`]; see [`SqliteStore::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    pub(super) path: PathBuf,
    pub(super) synchronous: Synchronous,
    busy_timeout: Option<Duration>,
    pub(super) clock: Clock,
    pub(super) work_limit: Option<Duration>,
    pub(super) readers: usize,
    pub(super) migrate: bool,
    pub(super) read_only: bool,
}

impl Builder {
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            synchronous: Synchronous::default(),
            busy_timeout: None,
            clock: Clock::system(),
            work_limit: None,
            readers: 2,
            migrate: true,
            read_only: false,
        }
    }

    /// Sets what a commit waits for. Default [`Synchronous::Full`].
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// Sets how long to wait for another process that writes. Default 2 s more than a transaction's
    /// work may take, which is 12 s, or more if [`work_limit`](Self::work_limit) is above 10 s.
    ///
    /// If it is shorter than the work limit of any process on the file, a writer can fail with
    /// `Unavailable` although the other process keeps to its limit.
    pub fn busy_timeout(mut self, busy_timeout: Duration) -> Self {
        self.busy_timeout = Some(busy_timeout);
        self
    }

    /// Returns how long a writer waits for another process: for each of the two file locks, and for
    /// SQLite's own lock.
    pub(super) fn patience(&self) -> Duration {
        // Another process may have the default limit, whatever this process has set.
        self.busy_timeout.unwrap_or(self.tenure().max(WORK) + GRACE)
    }

    /// Returns how long the work of one transaction may keep the writer at most, whatever its
    /// lease.
    pub(super) fn tenure(&self) -> Duration {
        self.work_limit.unwrap_or(WORK)
    }

    /// Sets the clock by which leases are judged. Default the machine's; tests use one that they
    /// move. Processes that share a file must share a clock.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets how long the work of one transaction may keep the writer. Default a third of the
    /// command's lease, and never more than 10 s.
    ///
    /// All renewals wait meanwhile, whatever their own leases are: the limit must stay below a
    /// third of the *shortest* lease on the file, or claims lapse while their holders work. The
    /// default suits leases of 30 s and more.
    pub fn work_limit(mut self, work_limit: Duration) -> Self {
        self.work_limit = Some(work_limit);
        self
    }

    /// Sets the number of connections for reading, at least 1. Default 2; each has a thread.
    pub fn readers(mut self, readers: usize) -> Self {
        self.readers = readers.max(1);
        self
    }

    /// Sets whether opening the store brings the schema up to date. Default yes.
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// Sets whether the file is only read. Listing and reading then work even if this process may
    /// not write the file and its directory, and every write is refused as `Misconfigured`. Default
    /// no.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Opens the store, creating the file if it does not exist, for its owner alone (0600).
    ///
    /// # Errors
    /// `Misconfigured` if the path cannot be a ledger (in memory, no such directory, read-only, not
    /// a database, another schema), `Unavailable` if another process keeps it locked.
    pub async fn open(self) -> Result<SqliteStore> {
        SqliteStore::start(self.checked()?).await
    }

    pub(super) fn checked(mut self) -> Result<Self> {
        let refused = |text: &str| Err(Error::new(ErrorKind::Misconfigured, "connect", text));
        let Some(path) = self.path.to_str() else {
            return refused("the database's path is not valid UTF-8, which SQLite requires");
        };
        // Readers and writer are separate connections, and each would see an empty database of its
        // own. For a ledger that ends with the process, there is the memory store.
        if path.is_empty() || path == ":memory:" || path.starts_with("file:") {
            return refused(
                "a database in memory or under a URI is no ledger; give the path of a file, or use \
                 `semel_core::store::memory::MemoryStore`",
            );
        }
        // Absolute, so that a later change of the working directory cannot split the store in two.
        if let Ok(absolute) = std::path::absolute(&self.path) {
            self.path = absolute;
        }
        #[cfg(feature = "testing")]
        if semel_core::testing::sabotaged(semel_core::testing::Guard::StoreClock) {
            self.clock = Clock::system();
        }
        Ok(self)
    }

    /// Returns the options of the connection that writes.
    pub(super) fn writing(&self) -> SqliteConnectOptions {
        self.common()
            .create_if_missing(self.migrate)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(match self.synchronous {
                Synchronous::Full => SqliteSynchronous::Full,
                Synchronous::Normal => SqliteSynchronous::Normal,
            })
            .thread_name(|_| "semel-sqlite-write".into())
    }

    /// Returns the options of a connection that reads.
    pub(super) fn reading(&self) -> SqliteConnectOptions {
        self.common().read_only(true).thread_name(|_| "semel-sqlite-read".into())
    }

    fn common(&self) -> SqliteConnectOptions {
        SqliteConnectOptions::new()
            .filename(&self.path)
            .busy_timeout(self.patience())
            // Enough for all blocks of all verbs, and for the statements of callers' transactions.
            .statement_cache_capacity(256)
            .disable_statement_logging()
    }
}
