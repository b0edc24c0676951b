//! The ledger, the outbox and the id map in a SQLite file: the embedded default, which needs no
//! server.
//!
//! [`SqliteStore::open`] creates the file and its schema. One thread writes for the whole process
//! and commits all waiting steps together, so that many callers share one flush to the disk;
//! replays, waiters and operators read on connections of their own. Other processes may use the
//! same file: they take turns by SQLite's lock, and a step that waits too long for it fails with
//! `Unavailable`.
//!
//! Deliberately absent: databases in memory (refused: each connection would have its own; use
//! [`MemoryStore`](semel_core::store::memory::MemoryStore)), network file systems (reported by `check`)
//! and wake-ups across processes: a waiter in another process polls.

#[cfg(feature = "ids")]
mod business;
mod clock;
mod failure;
mod file_lock;
mod group;
#[cfg(feature = "ids")]
mod idmap;
mod inspect;
mod outbox;
mod queue;
mod readers;
mod schema;
mod settings;
mod statements;
mod task;
mod transaction;
mod watermark;
mod writer;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::claim::Lease;
use semel_core::key::Key;
use semel_core::record::Version;
use semel_core::store::{
    Change, Draft, Error, ErrorKind, Finding, Guarantee, Opened, Peeked, Renewed, Renewer, Result,
    Settled, Settlement, Store, Swapped, Swept, TransactionalStore,
};
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnection;
use tokio::sync::oneshot;

#[cfg(feature = "ids")]
pub use self::business::SqliteTable;
use self::clock::StoreClock;
use self::queue::{Answer, Refused, Step, Ticket};
use self::readers::Readers;
pub use self::schema::{MIGRATIONS, print};
pub use self::settings::{Builder, Synchronous};
use self::statements::identity;
pub use self::transaction::SqliteTransaction;
use self::writer::Shared;

/// The number of records that the writer sweeps in one turn: about a millisecond's work, so that a
/// long sweep never delays another step for longer.
const SLICE: u32 = 128;

/// How long a step waits for the writer at most: longer than any transaction of the store may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The ledger in a SQLite file. Cheap to clone: clones share the writer.
#[derive(Clone, Debug)]
pub struct SqliteStore(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    readers: Readers,
    outbox_state: outbox::OutboxState,
    settings: Builder,
    ended: Mutex<Option<oneshot::Receiver<()>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Waiting steps are still served; then the writer's thread ends.
        self.shared.queue.close();
    }
}

/// The work of the writer since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterCounts {
    /// The number of groups committed, each with at most one flush to the disk.
    pub commits: u64,
    /// The number of steps in all committed groups.
    pub steps: u64,
}

impl SqliteStore {
    /// Opens the ledger at `path` with the default settings, creating file and schema.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = std::env::temp_dir().join(format!("semel-open-{}", std::process::id()));
    /// # std::fs::create_dir_all(&directory)?;
    /// use semel_sql::sqlite::SqliteStore;
    ///
    /// let store = SqliteStore::open(directory.join("ledger.db")).await?;
    /// assert_eq!(store.verify().await?, []);
    /// store.close().await;
    /// # std::fs::remove_dir_all(&directory)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::builder(path).open().await
    }

    /// Opens the ledger in the file of the application's pool, with the default settings. Only the
    /// path is taken from the pool: the store has its own writer and readers, which take turns with
    /// the pool's connections by SQLite's lock.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = std::env::temp_dir().join(format!("semel-pool-{}", std::process::id()));
    /// # std::fs::create_dir_all(&directory)?;
    /// use semel_sql::sqlite::SqliteStore;
    /// use semel_sql::sqlx::SqlitePool;
    /// use semel_sql::sqlx::sqlite::SqliteConnectOptions;
    ///
    /// let file = SqliteConnectOptions::new().filename(directory.join("app.db")).create_if_missing(true);
    /// let pool = SqlitePool::connect_with(file).await?;
    /// let store = SqliteStore::from_pool(&pool).await?;
    /// # store.close().await;
    /// # pool.close().await;
    /// # std::fs::remove_dir_all(&directory)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Builder::open`]: a pool of databases in memory is refused.
    pub async fn from_pool(pool: &SqlitePool) -> Result<Self> {
        Self::open(pool.connect_options().get_filename()).await
    }

    /// Returns the settings of a ledger at `path`.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = std::env::temp_dir().join(format!("semel-builder-{}", std::process::id()));
    /// # std::fs::create_dir_all(&directory)?;
    /// use semel_sql::sqlite::SqliteStore;
    ///
    /// let store = SqliteStore::builder(directory.join("ledger.db")).readers(4).open().await?;
    /// for finding in store.check().await? {
    ///     eprintln!("{}: {}", finding.found, finding.fix);
    /// }
    /// # store.close().await;
    /// # std::fs::remove_dir_all(&directory)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(path: impl AsRef<Path>) -> Builder {
        Builder::new(path.as_ref())
    }

    /// Checks the schema of the file at `path` and returns what is missing or wrong. An empty list
    /// means that nothing is. Writes nothing, even if the file is no ledger yet;
    /// [`open`](Self::open) would make it one.
    ///
    /// # Errors
    /// If the file does not exist or is no database.
    pub async fn verify_file(path: impl AsRef<Path>) -> Result<Vec<Finding>> {
        schema::verify(&Self::builder(path)).await
    }

    /// Brings the schema of the file at `path` up to date, creating the file if it does not exist.
    /// Returns the versions that were applied, none if the schema was up to date.
    /// [`verify_file`](Self::verify_file) reports anything else that is wrong.
    ///
    /// # Errors
    /// As [`Builder::open`], and `Misconfigured` if the file ran other statements under the number
    /// of a known migration.
    pub async fn migrate_file(path: impl AsRef<Path>) -> Result<Vec<i32>> {
        schema::migrate(&Self::builder(path).checked()?).await
    }

    /// Checks the schema and returns what is missing or wrong. An empty list means that nothing is.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub async fn verify(&self) -> Result<Vec<Finding>> {
        schema::verify(&self.0.settings).await
    }

    /// Brings the schema up to date, which [`open`](Self::open) does by itself unless
    /// [`Builder::migrate`] is off. Returns the versions that were applied.
    ///
    /// # Errors
    /// As [`migrate_file`](Self::migrate_file).
    pub async fn migrate(&self) -> Result<Vec<i32>> {
        schema::migrate(&self.0.settings).await
    }

    /// Checks the schema, the settings, the file system and whether the file can be written, and
    /// returns what is wrong. An empty list means that nothing is.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub async fn check(&self) -> Result<Vec<Finding>> {
        let mut reader = self.0.readers.reader("check").await?;
        let checked = async {
            let connection = reader.connection();
            let mut findings = schema::findings(connection).await?;
            findings.extend(schema::set_up(connection, &self.0.settings).await?);
            Ok(findings)
        };
        let mut findings = match checked.await {
            Ok(findings) => findings,
            Err(error) => return Err(reader.failed("check", error)),
        };
        findings.extend(self.probe().await.err().map(schema::unwritable));
        Ok(findings)
    }

    async fn start(settings: Builder) -> Result<Self> {
        let clock = StoreClock::new(settings.clock.clone(), &settings.path);
        let shared = Arc::new(Shared::new(clock, &settings.path));
        let (ended, reading) = if settings.read_only {
            shared.queue.close();
            (None, schema::open_to_read(&settings).await?)
        } else {
            let ended = writer::start(Arc::clone(&shared), settings.clone()).await?;
            (Some(ended), settings.reading())
        };
        let readers = Readers::new(reading, settings.readers);
        let (outbox_state, ended) = (outbox::OutboxState::default(), Mutex::new(ended));
        Ok(Self(Arc::new(Inner { shared, readers, outbox_state, settings, ended })))
    }

    /// Closes the store: waiting calls are answered, later ones fail with `Unavailable`, and the
    /// file is closed. Clones are closed with it.
    pub async fn close(&self) {
        self.0.shared.queue.close();
        let ended = self.0.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.0.readers.close().await;
        if let Some(ended) = ended {
            let _ = ended.await;
        }
    }

    /// Returns how much the writer has done since the store was opened, for metrics.
    pub fn writer_counts(&self) -> WriterCounts {
        let Shared { commits, steps, .. } = &*self.0.shared;
        WriterCounts {
            commits: commits.load(Ordering::Relaxed),
            steps: steps.load(Ordering::Relaxed),
        }
    }

    fn enqueue(&self, step: Step) -> Result<(Ticket, Waiting)> {
        let operation = step.operation();
        let (reply, answer) = oneshot::channel();
        match self.0.shared.queue.push(step, reply) {
            Ok(ticket) => Ok((ticket, Waiting { answer, operation })),
            Err(refused) => Err(self.refusal(operation, refused)),
        }
    }

    fn refusal(&self, operation: &'static str, refused: Refused) -> Error {
        let (kind, text) = match refused {
            Refused::Closed if self.0.settings.read_only => {
                (ErrorKind::Misconfigured, "the file was opened read-only")
            }
            Refused::Full => {
                (ErrorKind::Unavailable, "the writer's queue is full; send fewer requests")
            }
            Refused::Overdue => (ErrorKind::Unavailable, queue::OVERDUE),
            Refused::Closed => (ErrorKind::Unavailable, "the store is closed; open it again"),
        };
        Error::new(kind, operation, text)
    }

    async fn submit(&self, step: Step) -> Result<Answer> {
        let (ticket, mut waiting) = self.enqueue(step)?;
        self.answer_in_time(ticket, &mut waiting).await
    }

    /// Waits for the writer's answer, but not for ever: a step that the writer has not taken up
    /// after [`PATIENCE`] is withdrawn, and fails without effect.
    async fn answer_in_time(&self, ticket: Ticket, waiting: &mut Waiting) -> Result<Answer> {
        match tokio::time::timeout(PATIENCE, waiting.answer()).await {
            Ok(answer) => answer,
            Err(_) if self.0.shared.queue.withdraw(ticket) => {
                let text =
                    format!("a transaction has kept the writer for more than {PATIENCE:?}; end it");
                Err(Error::new(ErrorKind::Unavailable, waiting.operation, text))
            }
            // The writer is already running the step.
            Err(_) => waiting.answer().await,
        }
    }

    /// Writes and then removes a probe, to find out whether the file can be written.
    async fn probe(&self) -> Result<()> {
        self.submit(Step::Probe { write: true }).await?;
        self.submit(Step::Probe { write: false }).await.map(drop)
    }

    async fn look(&self, key: &Key, operation: &'static str) -> Result<Option<Peeked>> {
        // The clock is read before the record, so that `now` is never later than the state that is
        // read.
        let now = self.0.shared.clock.now();
        let mut reader = self.0.readers.reader(operation).await?;
        let query = sqlx::query(statements::PEEK).bind(identity(key).to_vec());
        match query.fetch_optional(reader.connection()).await {
            Ok(None) => Ok(None),
            Ok(Some(row)) => Ok(Some(Peeked { record: statements::record(&row, operation)?, now })),
            Err(error) => Err(reader.failed(operation, error)),
        }
    }

    /// Waits for the writer's answer. While a caller's transaction keeps the writer, returns the
    /// record instead, if it already exists.
    async fn open_or_look(
        &self,
        key: &Key,
        ticket: Ticket,
        mut waiting: Waiting,
    ) -> Result<Opened> {
        let mut lent = self.0.shared.lent.subscribe();
        tokio::select! {
            biased;
            answer = self.answer_in_time(ticket, &mut waiting) => return answer.map(opened),
            Ok(_) = lent.wait_for(|lent| *lent) => {}
        }
        if let Ok(Some(Peeked { record, now })) = self.look(key, "open").await
            // If the writer has taken the step meanwhile, its answer counts: it may have written.
            && self.0.shared.queue.withdraw(ticket)
        {
            return Ok(Opened::Existing { record: Box::new(record), now });
        }
        self.answer_in_time(ticket, &mut waiting).await.map(opened)
    }
}

/// A queued step whose answer is awaited.
struct Waiting {
    answer: oneshot::Receiver<Result<Answer>>,
    operation: &'static str,
}

impl Waiting {
    async fn answer(&mut self) -> Result<Answer> {
        let gone = "the writer ended while it ran the step";
        (&mut self.answer)
            .await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Ambiguous, self.operation, gone)))
    }
}

fn opened(answer: Answer) -> Opened {
    let Answer::Opened(opened) = answer else {
        unreachable!("the writer answers an open with `Opened`")
    };
    opened
}

fn swapped(answer: Answer) -> Swapped {
    let Answer::Swapped(swapped) = answer else {
        unreachable!("the writer answers a swap with `Swapped`")
    };
    swapped
}

fn settled(answer: Answer) -> Settled {
    let Answer::Settled(settled) = answer else {
        unreachable!("the writer answers a settle with `Settled`")
    };
    settled
}

impl Store for SqliteStore {
    type Renewer = SqliteRenewer;

    async fn open(&self, draft: &Draft) -> Result<Opened> {
        let asked = match self.enqueue(Step::Open(draft.clone())) {
            Ok((ticket, waiting)) => self.open_or_look(&draft.key, ticket, waiting).await,
            Err(error) if self.0.shared.queue.is_overdue() => Err(error),
            Err(error) => return Err(error),
        };
        match asked {
            // A transaction or another process keeps the lock, or the disk is full. An existing
            // record can still be read.
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Capacity) => {
                match self.look(&draft.key, "open").await {
                    Ok(Some(Peeked { record, now })) => {
                        Ok(Opened::Existing { record: Box::new(record), now })
                    }
                    Ok(None) | Err(_) => Err(error),
                }
            }
            done => done,
        }
    }

    async fn swap(&self, key: &Key, judged: Version, change: &Change) -> Result<Swapped> {
        self.submit(Step::Swap(key.clone(), judged, change.clone())).await.map(swapped)
    }

    async fn settle(&self, lease: &Lease, settlement: &Settlement) -> Result<Settled> {
        self.submit(Step::Settle(*lease, settlement.clone())).await.map(settled)
    }

    async fn peek(&self, key: &Key) -> Result<Option<Peeked>> {
        self.look(key, "peek").await
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        let mut total = Swept::default();
        loop {
            let left = limit - total.removed - total.suspended;
            let slice = left.min(SLICE);
            let Answer::Swept(swept) = self.submit(Step::Sweep(slice)).await? else {
                unreachable!("the writer answers a sweep with `Swept`")
            };
            total.removed += swept.removed;
            total.suspended += swept.suspended;
            total.more = swept.more;
            total.clock_suspect = swept.clock_suspect;
            if !swept.more || slice == left {
                return Ok(total);
            }
        }
    }

    async fn renewer(&self) -> Result<SqliteRenewer> {
        Ok(SqliteRenewer(self.clone()))
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        SqliteStore::check(self).await
    }

    async fn writable(&self) -> Result<()> {
        if self.0.shared.full.load(Ordering::Relaxed) { self.probe().await } else { Ok(()) }
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::Fenced
    }
}

/// Renews leases through the writer's queue, before all other steps. The writer has a thread of its
/// own, so a blocked application delays no renewal.
#[derive(Debug)]
pub struct SqliteRenewer(SqliteStore);

impl Renewer for SqliteRenewer {
    async fn renew(&mut self, leases: &[(Lease, Duration)]) -> Result<Vec<Renewed>> {
        match self.0.submit(Step::Renew(leases.to_vec())).await? {
            Answer::Renewed(renewed) => Ok(renewed),
            Answer::Settled(_)
            | Answer::Opened(_)
            | Answer::Swapped(_)
            | Answer::Swept(_)
            | Answer::Probed
            | Answer::Outbox(_) => unreachable!("the writer answers a renewal with `Renewed`"),
        }
    }
}

impl TransactionalStore for SqliteStore {
    type Connection = SqliteConnection;
    type Transaction = SqliteTransaction;

    async fn begin(&self) -> Result<SqliteTransaction> {
        let (borrower, lent) = oneshot::channel();
        let refused = self.0.shared.queue.push_borrower(borrower);
        refused.map_err(|refused| self.refusal("begin", refused))?;
        let gone = "the writer ended before the transaction's turn came";
        lent.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, "begin", gone)))
    }

    fn connection(transaction: &mut SqliteTransaction) -> &mut SqliteConnection {
        transaction.connection()
    }

    async fn adopt(&self, connection: &mut SqliteConnection) -> Result<()> {
        transaction::adopt(connection).await
    }

    async fn open_in(&self, connection: &mut SqliteConnection, draft: &Draft) -> Result<Opened> {
        transaction::adopt(connection).await?;
        self.join(connection, &Step::Open(draft.clone())).await.map(opened)
    }

    async fn swap_in(
        &self,
        connection: &mut SqliteConnection,
        key: &Key,
        judged: Version,
        change: &Change,
    ) -> Result<Swapped> {
        self.join(connection, &Step::Swap(key.clone(), judged, change.clone())).await.map(swapped)
    }

    async fn settle_in(
        &self,
        connection: &mut SqliteConnection,
        lease: &Lease,
        settlement: &Settlement,
    ) -> Result<Settled> {
        transaction::still_open(connection, "settle").await?;
        self.join(connection, &Step::Settle(*lease, settlement.clone())).await.map(settled)
    }

    async fn commit(&self, transaction: SqliteTransaction) -> Result<()> {
        transaction.commit().await
    }

    async fn rollback(&self, transaction: SqliteTransaction) {
        drop(transaction);
    }

    fn work_limit(&self, lease: Duration) -> Option<Duration> {
        Some(self.0.settings.work_limit.unwrap_or((lease / 3).min(settings::WORK)))
    }
}

impl SqliteStore {
    async fn join(&self, connection: &mut SqliteConnection, step: &Step) -> Result<Answer> {
        let Shared { texts, clock, .. } = &*self.0.shared;
        group::join(connection, texts, clock, step).await
    }
}
