//! The writer: a thread that owns the only writing connection and serves the queue.
//!
//! It is a thread of its own, not a task, because claims must be renewed while the application's
//! runtime is blocked. The writer either commits a group or waits for one caller's transaction,
//! never both, so two callers of this process never get "database is locked". The writer of another
//! process can still hold the lock for too long; the error is `Unavailable` then.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use semel_core::store::{Error, ErrorKind, Result};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection, Executor, Pool, Sqlite};
use tokio::sync::{oneshot, watch};

use super::clock::StoreClock;
use super::file_lock::FileLock;
use super::group::{self, Broken};
use super::queue::{Answer, Borrower, OVERDUE, Queue, Request, Step};
use super::settings::{Builder, GRACE};
use super::statements::Texts;
use super::transaction::{self, Returned, SqliteTransaction};
use super::{failure, schema};
use crate::error::again;

/// The state that the writer shares with its callers.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) queue: Queue,
    pub(super) texts: Texts,
    pub(super) clock: StoreClock,
    /// Whether the writer waits for a caller's transaction.
    pub(super) lent: watch::Sender<bool>,
    pub(super) commits: AtomicU64,
    pub(super) steps: AtomicU64,
    /// Whether the last write failed because the disk was full.
    pub(super) full: AtomicBool,
    path: PathBuf,
}

impl Shared {
    pub(super) fn new(clock: StoreClock, path: &Path) -> Self {
        Self {
            queue: Queue::default(),
            texts: Texts::default(),
            clock,
            lent: watch::Sender::new(false),
            commits: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            full: AtomicBool::new(false),
            path: path.to_owned(),
        }
    }

    /// Records whether the disk is full, and logs when that changes.
    fn is_full(&self, full: bool) {
        if self.full.load(Ordering::Relaxed) == full
            || self.full.swap(full, Ordering::Relaxed) == full
        {
            return;
        }
        let path = self.path.display();
        if full {
            tracing::error!(%path, "the disk is full: nothing can be written; free some space");
        } else {
            tracing::info!(%path, "the disk has free space again");
        }
    }
}

struct Writer {
    shared: Arc<Shared>,
    options: SqliteConnectOptions,
    /// `None` after a failure that leaves the connection in an unknown state: the next turn
    /// connects again.
    connection: Option<SqliteConnection>,
    /// The pool in which callers' transactions run.
    transactions: Pool<Sqlite>,
    /// The file locks by which the writers of all processes take turns.
    file_lock: FileLock,
    /// The time after which a lent transaction is overdue.
    tenure: Duration,
}

/// Closes the queue when it is dropped, even if the writer panics: no caller may wait for a thread
/// that has ended.
struct CloseQueue(Arc<Shared>);

impl Drop for CloseQueue {
    fn drop(&mut self) {
        self.0.queue.close();
        while self.0.queue.abandon() {}
        self.0.lent.send_replace(false);
    }
}

/// Starts the writer's thread, and returns once the database is open and its schema verified. The
/// receiver resolves when the thread has ended.
pub(super) async fn start(shared: Arc<Shared>, settings: Builder) -> Result<oneshot::Receiver<()>> {
    let (opened, opening) = oneshot::channel();
    let (ended, settlement) = oneshot::channel();
    let thread = move || {
        // Dropped last, so `settlement` resolves when everything is closed.
        let _ended: oneshot::Sender<()> = ended;
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_time().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                let _ = opened.send(Err(Error::new(ErrorKind::Unavailable, "connect", error)));
                return;
            }
        };
        runtime.block_on(async move {
            match schema::open(&settings).await {
                Ok(connection) => {
                    if opened.send(Ok(())).is_ok() {
                        let options = settings.writing();
                        let transactions = transaction::transaction_pool(options.clone());
                        let connection = Some(connection);
                        let file_lock = FileLock::open(&settings.path, settings.patience());
                        let tenure = settings.tenure() + GRACE;
                        let writer =
                            Writer { shared, options, connection, transactions, file_lock, tenure };
                        writer.serve().await;
                    }
                }
                Err(error) => {
                    let _ = opened.send(Err(error));
                }
            }
        });
    };
    thread::Builder::new()
        .name("semel-sqlite".into())
        .spawn(thread)
        .map_err(|error| Error::new(ErrorKind::Unavailable, "connect", error))?;
    let ended = "the writer's thread ended before the database was open";
    opening
        .await
        .unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, "connect", ended)))
        .map(|()| settlement)
}

impl Writer {
    async fn serve(mut self) {
        let _last_orders = CloseQueue(Arc::clone(&self.shared));
        while let Some(turn) = self.shared.queue.next().await {
            if !turn.group.is_empty() {
                self.commit(turn.group).await;
            }
            if let Some(borrower) = turn.borrower {
                self.lend(borrower).await;
            }
        }
        self.transactions.close().await;
        if let Some(connection) = self.connection.take() {
            // The last connection to close moves the write-ahead log into the database.
            let _ = connection.close().await;
        }
    }

    /// Commits a group and sends its answers, after the COMMIT.
    async fn commit(&mut self, requests: Vec<Request>) {
        let steps: Vec<&Step> = requests.iter().map(|request| &request.step).collect();
        let answers = self.answers(&steps).await;
        for (Request { reply, .. }, answer) in requests.into_iter().zip(answers) {
            let _ = reply.send(answer);
        }
    }

    async fn answers(&mut self, steps: &[&Step]) -> Vec<Result<Answer>> {
        let operation = steps.first().map_or("write", |step| step.operation());
        let broken = match self.attempt(steps).await {
            Ok(answers) => return answers,
            Err(broken) => broken,
        };
        let error = match broken {
            // One failed step must not fail the others: nothing was committed, so each is run
            // alone. On a full disk none of them would succeed.
            Broken::Statement(error) if steps.len() > 1 && !failure::is_full(&error) => {
                let mut answers = Vec::with_capacity(steps.len());
                for step in steps {
                    let answer = match self.attempt(&[*step]).await {
                        Ok(mut answers) => answers.pop().expect("one answer per step"),
                        Err(broken) => Err(name(step.operation(), broken)),
                    };
                    answers.push(answer);
                }
                return answers;
            }
            broken @ (Broken::Begin(_) | Broken::Statement(_) | Broken::Commit(_)) => {
                name(operation, broken)
            }
        };
        steps.iter().map(|step| Err(again(&error, step.operation()))).collect()
    }

    /// Runs steps in one transaction. After a failure the connection is in no transaction, or is
    /// not used again.
    async fn attempt(
        &mut self,
        steps: &[&Step],
    ) -> std::result::Result<Vec<Result<Answer>>, Broken> {
        let shared = Arc::clone(&self.shared);
        let _turn = self.file_lock.pass().await;
        let connection = self.connection().await.map_err(Broken::Begin)?;
        match group::commit(connection, &shared.texts, &shared.clock, steps).await {
            Ok(answers) => {
                // Only a probe shows that the disk has space: other commits may have written little
                // or nothing.
                if steps.iter().any(|step| matches!(step, Step::Probe { write: true })) {
                    shared.is_full(false);
                }
                shared.commits.fetch_add(1, Ordering::Relaxed);
                shared.steps.fetch_add(steps.len() as u64, Ordering::Relaxed);
                Ok(answers)
            }
            Err(broken) => {
                let (Broken::Begin(error) | Broken::Statement(error) | Broken::Commit(error)) =
                    &broken;
                let (full, busy) = (failure::is_full(error), failure::is_busy(error));
                let busy = busy && matches!(broken, Broken::Begin(_));
                shared.is_full(full);
                let undone = (full || matches!(broken, Broken::Statement(_)))
                    && connection.execute("ROLLBACK").await.is_ok();
                if !busy && !undone {
                    self.connection = None;
                }
                Err(broken)
            }
        }
    }

    async fn connection(&mut self) -> sqlx::Result<&mut SqliteConnection> {
        if self.connection.is_none() {
            self.connection = Some(self.options.connect().await?);
        }
        Ok(self.connection.as_mut().expect("connected above"))
    }

    /// Begins a transaction for a caller, and waits until it is returned.
    async fn lend(&mut self, borrower: Borrower) {
        // Announced before the wait for the lock begins: callers that only read need not wait.
        self.shared.lent.send_replace(true);
        let _turn = self.file_lock.pass().await;
        let (home, back) = oneshot::channel();
        match SqliteTransaction::begin(&self.transactions, home).await {
            Ok(transaction) => {
                // If the caller was cancelled meanwhile, the transaction is dropped and thereby
                // returned.
                let _ = borrower.send(Ok(transaction));
                if let Some(returned) = self.returned(back).await {
                    returned.finish().await;
                }
            }
            Err(error) => {
                let _ = borrower.send(Err(failure::in_transaction("begin", error)));
            }
        }
        self.shared.lent.send_replace(false);
    }

    /// Waits for a lent transaction. It cannot be taken back from work that moved it elsewhere:
    /// while it is overdue, steps that would begin something are refused instead of waiting
    /// silently.
    async fn returned(&self, mut back: oneshot::Receiver<Returned>) -> Option<Returned> {
        if let Ok(returned) = tokio::time::timeout(self.tenure, &mut back).await {
            return returned.ok();
        }
        let (path, limit) = (self.shared.path.display(), self.tenure);
        tracing::error!(%path, ?limit, "a transaction has outlived its limit and still holds the \
            database: calls are refused until it ends; do not move a unit out of its work (into \
            `tokio::spawn`), and do not block its thread");
        let (requests, borrowers) = self.shared.queue.refuse();
        let refused = |operation| Error::new(ErrorKind::Unavailable, operation, OVERDUE);
        for Request { step, reply, .. } in requests {
            let _ = reply.send(Err(refused(step.operation())));
        }
        for borrower in borrowers {
            let _ = borrower.send(Err(refused("begin")));
        }
        let returned = back.await.ok();
        self.shared.queue.admit();
        tracing::info!(%path, "the overdue transaction has ended: calls are taken again");
        returned
    }
}

fn name(operation: &'static str, broken: Broken) -> Error {
    match broken {
        Broken::Begin(error) | Broken::Statement(error) => {
            failure::in_transaction(operation, error)
        }
        Broken::Commit(error) => failure::at_commit(operation, error),
    }
}
