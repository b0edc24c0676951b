//! A caller's transaction: the writer waits for it until commit or rollback.
//!
//! The transaction has a connection of its own, so that state that the work leaves on it (temporary
//! tables, settings, statements) never affects the ledger. All other writers wait meanwhile, so the
//! time for the work is limited (`work_limit`); the executor enforces that. Commit and rollback run
//! on the writer's thread, where no cancelled caller can interrupt them.

use std::fmt;
use std::mem;

use semel_core::store::{Error, ErrorKind, Result};
use sqlx::pool::PoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{Connection, Executor, Pool, Sqlite, Transaction};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::failure;

/// Begins a transaction that can be distinguished from any other: see [`STILL_OPEN`].
const BEGIN: &str = "BEGIN IMMEDIATE; SAVEPOINT semel_claim";
/// Fails unless the transaction of [`BEGIN`] is still open: COMMIT and ROLLBACK both remove its
/// savepoints. Checking whether *a* transaction is open would not be enough, because the work may
/// have committed this one and begun its own.
const STILL_OPEN: &str = "RELEASE semel_claim; SAVEPOINT semel_claim";

/// Returns the pool in which transactions run: one connection, opened when it is first needed.
///
/// It is a pool because in `sqlx` only a pool makes a transaction that owns its connection, and
/// only in such a transaction is a `begin` of the work a SAVEPOINT.
pub(super) fn transaction_pool(options: SqliteConnectOptions) -> Pool<Sqlite> {
    PoolOptions::<Sqlite>::new()
        .max_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .after_release(|connection, _| {
            Box::pin(async move {
                // Waits until the commands that ended the transaction are done.
                connection.ping().await?;
                // If sqlx still counts a transaction, the work ended it without sqlx's knowledge,
                // and the connection is not used again.
                Ok(!connection.is_in_transaction())
            })
        })
        .connect_lazy_with(options)
}

/// An open transaction. Dropping it rolls back, and the writer continues.
pub struct SqliteTransaction {
    lent: Option<(Lent, oneshot::Sender<Returned>)>,
}

type Lent = Transaction<'static, Sqlite>;

/// A transaction that its caller has returned to the writer.
pub(super) enum Returned {
    /// The writer is to commit it.
    Commit(Lent, oneshot::Sender<Result<()>>),
    /// The writer is to roll it back.
    Rollback(Lent),
}

impl fmt::Debug for SqliteTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SqliteTransaction")
    }
}

impl SqliteTransaction {
    /// Begins a transaction; `home` is the channel to the writer through which it is returned.
    pub(super) async fn begin(
        pool: &Pool<Sqlite>,
        home: oneshot::Sender<Returned>,
    ) -> sqlx::Result<Self> {
        Ok(Self { lent: Some((pool.begin_with(BEGIN).await?, home)) })
    }

    pub(super) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.lent.as_mut().expect("only `commit` takes it, and consumes the transaction").0
    }

    pub(super) async fn commit(mut self) -> Result<()> {
        let (lent, home) =
            self.lent.take().expect("only `commit` takes it, and consumes the transaction");
        let (reply, done) = oneshot::channel();
        send(home, Returned::Commit(lent, reply));
        let gone = "the writer ended while it committed";
        done.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Ambiguous, "commit", gone)))
    }
}

impl Drop for SqliteTransaction {
    fn drop(&mut self) {
        if let Some((lent, home)) = self.lent.take() {
            send(home, Returned::Rollback(lent));
        }
    }
}

fn send(home: oneshot::Sender<Returned>, returned: Returned) {
    if let Err(returned) = home.send(returned) {
        // The writer is gone. sqlx panics if a pool's connection is dropped outside a runtime.
        match Handle::try_current() {
            Ok(_) => drop(returned),
            Err(_) => mem::forget(returned),
        }
    }
}

impl Returned {
    /// Ends the transaction. Called on the writer's thread.
    pub(super) async fn finish(self) {
        match self {
            Returned::Rollback(lent) => {
                // An error means that there is nothing left to roll back.
                let _ = lent.rollback().await;
            }
            Returned::Commit(lent, reply) => {
                let _ = reply.send(commit(lent).await);
            }
        }
    }
}

async fn commit(mut lent: Lent) -> Result<()> {
    if let Err(error) = still_open(&mut lent, "commit").await {
        let _ = lent.rollback().await;
        return Err(error);
    }
    lent.commit().await.map_err(|error| {
        if failure::primary(&error) != Some(failure::ERROR) {
            return failure::at_commit("commit", error);
        }
        // The check above released every inner savepoint, so a nested transaction that the work
        // left open fails here instead of being committed in place of the outer one.
        let text = "the work left a nested transaction open, so nothing was committed; commit or \
                    roll back what the work begins";
        failure::explained(ErrorKind::Misconfigured, "commit", text, error)
    })
}

/// Sets the savepoint by which [`still_open`] recognises a transaction that the application began.
/// Harmless in a transaction of the store.
pub(super) async fn adopt(connection: &mut SqliteConnection) -> Result<()> {
    // The only way to find out whether a transaction is open: another one cannot begin inside it.
    if connection.execute("BEGIN").await.is_ok() {
        let _ = connection.execute("ROLLBACK").await;
        let text =
            "the connection is in no transaction; begin one before you claim or settle in it";
        return Err(Error::new(ErrorKind::Misconfigured, "open", text));
    }
    let set = connection.execute("SAVEPOINT semel_claim").await;
    set.map(drop).map_err(|error| failure::in_transaction("open", error))
}

/// Fails with `Misconfigured` unless `connection` is still in the claim's transaction.
pub(super) async fn still_open(
    connection: &mut SqliteConnection,
    operation: &'static str,
) -> Result<()> {
    connection.execute(STILL_OPEN).await.map(drop).map_err(|error| {
        if failure::primary(&error) != Some(failure::ERROR) {
            return failure::in_transaction(operation, error);
        }
        let text = "the connection is no longer in the claim's transaction: the work committed it \
                    or rolled it back; leave COMMIT and ROLLBACK to the executor";
        failure::explained(ErrorKind::Misconfigured, operation, text, error)
    })
}
