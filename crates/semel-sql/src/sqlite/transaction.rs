//! A transaction of the caller's: the writer's turn, lent out until commit or rollback.
//!
//! It has a connection of its own, so that whatever the work leaves behind on it (temporary tables,
//! settings, statements) never meets the ledger's. All other writers wait meanwhile, so
//! there is a limit on how long the work may take (`work_limit`); the executor keeps to
//! it. Commit and rollback happen on the writer's thread, where no caller can cut them short.

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
/// Fails unless the transaction of [`BEGIN`] is still the open one: COMMIT and ROLLBACK both forget
/// its savepoints. Asking whether *a* transaction is open would not do, the work may have committed
/// ours and begun its own.
const STILL_OPEN: &str = "RELEASE semel_claim; SAVEPOINT semel_claim";

/// Where transactions run: one connection, opened when it is first needed.
///
/// A pool of one, because `sqlx` lets only pools make a transaction that owns its connection, and
/// only such a transaction makes a `begin` of the work's own a SAVEPOINT inside ours.
pub(super) fn workbench(options: SqliteConnectOptions) -> Pool<Sqlite> {
    PoolOptions::<Sqlite>::new()
        .max_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .after_release(|connection, _| {
            Box::pin(async move {
                // What the transaction's end left in the connection's line is done after this.
                connection.ping().await?;
                // Still inside one by its own count: the work ended it behind sqlx's back, and the
                // connection is of no more use.
                Ok(!connection.is_in_transaction())
            })
        })
        .connect_lazy_with(options)
}

/// An open transaction. Dropping it rolls back and gives the writer back.
pub struct SqliteTransaction {
    lent: Option<(Lent, oneshot::Sender<Returned>)>,
}

type Lent = Transaction<'static, Sqlite>;

/// How a transaction comes home.
pub(super) enum Returned {
    /// To be committed.
    Commit(Lent, oneshot::Sender<Result<()>>),
    /// To be rolled back.
    Rollback(Lent),
}

impl fmt::Debug for SqliteTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SqliteTransaction")
    }
}

impl SqliteTransaction {
    /// Begins one; `home` is where it goes when it ends.
    pub(super) async fn begin(
        bench: &Pool<Sqlite>,
        home: oneshot::Sender<Returned>,
    ) -> sqlx::Result<Self> {
        Ok(Self { lent: Some((bench.begin_with(BEGIN).await?, home)) })
    }

    pub(super) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.lent.as_mut().expect("only commit takes it, by value").0
    }

    pub(super) async fn commit(mut self) -> Result<()> {
        let (lent, home) = self.lent.take().expect("only commit takes it, by value");
        let (reply, done) = oneshot::channel();
        send(home, Returned::Commit(lent, reply));
        let gone = "the writer ended with the commit in its hands";
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
        // The check above ended every savepoint inside, so a nested transaction that the work
        // forgot fails here instead of being committed in place of ours.
        let text = "the work left a nested transaction open, so nothing was committed; commit or \
                    roll back what the work begins";
        failure::explained(ErrorKind::Misconfigured, "commit", text, error)
    })
}

/// Makes the transaction that a plain client began one that [`still_open`] knows. Harmless in ours.
pub(super) async fn adopt(connection: &mut SqliteConnection) -> Result<()> {
    // The only way to ask whether a transaction is open: another one cannot begin inside it.
    if connection.execute("BEGIN").await.is_ok() {
        let _ = connection.execute("ROLLBACK").await;
        let text =
            "the connection is in no transaction; begin one before you claim or settle in it";
        return Err(Error::new(ErrorKind::Misconfigured, "open", text));
    }
    let set = connection.execute("SAVEPOINT semel_claim").await;
    set.map(drop).map_err(|error| failure::in_transaction("open", error))
}

/// Fails with `Misconfigured` unless `connection` is still in the transaction that we began.
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
