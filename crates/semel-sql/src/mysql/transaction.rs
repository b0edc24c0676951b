//! Transactions: ours, on connections set apart for them, and the ledger's steps inside anybody's.
//!
//! Nothing here waits for a rival: a key that another open transaction holds is answered at once.
//! Our transactions carry a savepoint from their first statement to their last. It vanishes with
//! any COMMIT, ROLLBACK or DDL statement of the work, so releasing it is the proof that what we
//! commit is still the transaction in which the claim was made.

use std::sync::{Arc, Mutex, PoisonError};

use semel::claim::Lease;
use semel::key::Key;
use semel::record::Version;
use semel::store::{
    Change, Draft, Ending, Error, ErrorKind, Opened, Result, Settled, Swapped, TransactionalStore,
};
use sqlx::{MySql, MySqlConnection, Row, SqlSafeStr};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use super::MySqlStore;
use super::ledger::{Ledger, PAUSES, failed, silent};
use super::session::{self, Flavour, Role, codes, held, number};
use super::statement::Inside;
use crate::error::{Stage, classify, timed_out};
use crate::unit;

const BEGIN: &str = "START TRANSACTION; SAVEPOINT semel_work";
const COMMIT: &str = "RELEASE SAVEPOINT semel_work; COMMIT";

/// The connections of our transactions: a fixed number, opened when first needed.
pub(crate) struct Bays {
    ledger: Arc<Ledger>,
    seats: Arc<Semaphore>,
    idle: Mutex<Vec<MySqlConnection>>,
}

impl Bays {
    pub(crate) fn new(ledger: Arc<Ledger>, count: usize) -> Self {
        let seats = Arc::new(Semaphore::new(count.max(1)));
        Self { ledger, seats, idle: Mutex::new(Vec::new()) }
    }

    async fn begin(self: &Arc<Self>) -> Result<MySqlTransaction> {
        let seat = Arc::clone(&self.seats).acquire_owned().await;
        let closed = |_| Error::new(ErrorKind::Unavailable, "begin", "the store is shut down");
        let seat = seat.map_err(closed)?;
        // A connection at rest may have died since. Nothing was begun on it, so another may try.
        while let Some(mut connection) = self.rested() {
            if start(&mut connection).await.is_ok() {
                return Ok(self.occupied(connection, seat));
            }
        }
        let Ledger { options, limit, .. } = &*self.ledger;
        let (mut connection, _) = session::connect(options, Role::Transaction, *limit).await?;
        start(&mut connection)
            .await
            .map_err(|error| classify(codes, Stage::Connecting, "begin", error))?;
        Ok(self.occupied(connection, seat))
    }

    fn rested(&self) -> Option<MySqlConnection> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn rest(&self, connection: MySqlConnection) {
        // Any other depth means that the work left a savepoint open, which we could not end.
        if unit::depth::<MySql>(&connection) == 1 {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
    }

    fn occupied(
        self: &Arc<Self>,
        connection: MySqlConnection,
        seat: OwnedSemaphorePermit,
    ) -> MySqlTransaction {
        MySqlTransaction { connection: Box::new(connection), bays: Arc::clone(self), _seat: seat }
    }
}

/// Begins. sqlx counts how deep a connection is in transactions. That count is raised once and then
/// stays for as long as the connection is in our set, so that a `begin` of the work is always a
/// savepoint, and so that beginning and ending are one trip each.
async fn start(connection: &mut MySqlConnection) -> sqlx::Result<()> {
    match unit::depth::<MySql>(connection) {
        0 => unit::begin::<MySql>(connection, Some(BEGIN.into_sql_str())).await,
        _ => sqlx::raw_sql(BEGIN).execute(connection).await.map(|_| ()),
    }
}

/// An open transaction of ours. Dropping it closes its connection, and the server rolls back.
pub struct MySqlTransaction {
    connection: Box<MySqlConnection>,
    bays: Arc<Bays>,
    _seat: OwnedSemaphorePermit,
}

impl std::fmt::Debug for MySqlTransaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MySqlTransaction").finish_non_exhaustive()
    }
}

impl TransactionalStore for MySqlStore {
    type Connection = MySqlConnection;
    type Transaction = MySqlTransaction;

    async fn begin(&self) -> Result<MySqlTransaction> {
        let limit = self.ledger.limit;
        timeout(limit, self.bays.begin())
            .await
            .unwrap_or_else(|_| Err(timed_out(Stage::Connecting, "begin", limit)))
    }

    fn connection(transaction: &mut MySqlTransaction) -> &mut MySqlConnection {
        &mut transaction.connection
    }

    /// On MariaDB a record that is there stays locked until the caller's transaction ends, because
    /// this server can neither read the current row without a lock at REPEATABLE READ nor let go of
    /// a lock early. Rivals still read it, and are not kept waiting.
    async fn open_in(&self, connection: &mut MySqlConnection, draft: &Draft) -> Result<Opened> {
        self.within("open", async {
            match self.ledger.server.flavour {
                Flavour::MariaDb => match self.ledger.open_one(connection, draft).await? {
                    Some(opened) => Ok(opened),
                    None => self.open_held(draft).await,
                },
                Flavour::MySql => self.open_in_mysql(connection, draft).await,
            }
        })
        .await
    }

    async fn swap_in(
        &self,
        connection: &mut MySqlConnection,
        key: &Key,
        judged: Version,
        change: &Change,
    ) -> Result<Swapped> {
        self.within("swap", self.ledger.swap_one(connection, key, judged, change)).await
    }

    async fn settle_in(
        &self,
        connection: &mut MySqlConnection,
        lease: &Lease,
        ending: &Ending,
    ) -> Result<Settled> {
        self.within("settle", async {
            if self.ledger.server.flavour == Flavour::MySql {
                still_open_mysql(connection).await?;
            }
            let settled = self.settle_unheld(connection, lease, ending).await?;
            // Zero rows: the claim was lost, or there was no transaction to settle it in.
            if settled == Settled::Lost && self.ledger.server.flavour == Flavour::MariaDb {
                still_open_mariadb(connection).await?;
            }
            Ok(settled)
        })
        .await
    }

    async fn commit(&self, mut transaction: MySqlTransaction) -> Result<()> {
        let limit = self.ledger.limit;
        let sent = sqlx::raw_sql(COMMIT).execute(&mut *transaction.connection);
        match timeout(limit, sent).await {
            Ok(Ok(_)) => {
                let MySqlTransaction { connection, bays, .. } = transaction;
                bays.rest(*connection);
                Ok(())
            }
            Ok(Err(error)) if number(&error) == Some(1305) => Err(ended_early("commit")),
            Ok(Err(error)) => Err(failed("commit", error)),
            Err(_) => Err(timed_out(Stage::Running, "commit", limit)),
        }
    }

    async fn rollback(&self, mut transaction: MySqlTransaction) {
        let sent = sqlx::raw_sql("ROLLBACK").execute(&mut *transaction.connection);
        if let Ok(Ok(_)) = timeout(self.ledger.limit, sent).await {
            let MySqlTransaction { connection, bays, .. } = transaction;
            bays.rest(*connection);
        }
    }
}

impl MySqlStore {
    /// Runs a step inside a transaction. Whatever fails, and however late, nothing was committed.
    async fn within<T>(
        &self,
        operation: &'static str,
        step: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let limit = self.ledger.limit;
        let done = timeout(limit, step).await;
        done.unwrap_or_else(|_| Err(timed_out(Stage::Running, operation, limit))).map_err(|error| {
            if error.kind() == ErrorKind::Ambiguous {
                return error.with_kind(ErrorKind::Unavailable);
            }
            error
        })
    }

    /// Ends a claim in the caller's transaction. A rival that looks at the record is waited out, one
    /// that holds it is not: its transaction may be waiting for this one.
    async fn settle_unheld(
        &self,
        connection: &mut MySqlConnection,
        lease: &Lease,
        ending: &Ending,
    ) -> Result<Settled> {
        let mut pauses = PAUSES.into_iter();
        loop {
            let sent = self.ledger.settle_one(connection, lease, ending, Inside::Caller).await;
            let error = match sent {
                Ok(settled) => return Ok(settled),
                Err(error) => error,
            };
            if !self.ledger.merely_held(&error) {
                return Err(failed("settle", error));
            }
            match pauses.next() {
                Some(pause) => sleep(pause).await,
                None => return Err(failed("settle", error).with_kind(ErrorKind::Unavailable)),
            }
        }
    }

    /// A rival holds the key: what was last committed under it, if anything.
    async fn open_held(&self, draft: &Draft) -> Result<Opened> {
        Ok(match self.lanes.step(&draft.key.digest()).await? {
            Some(peeked) => Opened::Existing { record: Box::new(peeked.record), now: peeked.now },
            None => Opened::Contended,
        })
    }

    /// Looks on a connection of ours, whose isolation leaves no gap lock in the caller's
    /// transaction, then inserts in theirs. Not run: there was no MySQL server to run it on.
    async fn open_in_mysql(
        &self,
        connection: &mut MySqlConnection,
        draft: &Draft,
    ) -> Result<Opened> {
        let (mut slot, mut aside) = self.aside.take("open").await?;
        let probed = self.ledger.probe(&mut aside, draft).await;
        *slot = Some(aside);
        drop(slot);
        match probed {
            Ok(Some(opened)) => return Ok(opened),
            Ok(None) => {}
            Err(error) if held(&error) => return self.open_held(draft).await,
            Err(error) => return Err(failed("open", error)),
        }
        match self.ledger.insert_mysql(connection, &[draft]).await {
            Ok(fences) => match fences.as_slice() {
                [fence] => Ok(Opened::Inserted { fence: *fence }),
                _ => Err(silent("open")),
            },
            Err(error) if number(&error) == Some(1062) => self.open_held(draft).await,
            Err(error) if held(&error) && !self.ledger.server.timeout_rolls_back => {
                self.open_held(draft).await
            }
            Err(error) => Err(failed("open", error)),
        }
    }
}

async fn still_open_mariadb(connection: &mut MySqlConnection) -> Result<()> {
    let text = "SELECT CAST(@@in_transaction AS SIGNED)";
    let row = sqlx::query(text).fetch_one(connection).await;
    let open: i64 = row.and_then(|row| row.try_get(0)).map_err(|error| failed("settle", error))?;
    if open == 0 { Err(ended_early("settle")) } else { Ok(()) }
}

/// Outside a transaction a savepoint is gone as soon as it is set.
async fn still_open_mysql(connection: &mut MySqlConnection) -> Result<()> {
    let text = "SAVEPOINT semel_probe; RELEASE SAVEPOINT semel_probe";
    match sqlx::raw_sql(text).execute(connection).await {
        Ok(_) => Ok(()),
        Err(error) if number(&error) == Some(1305) => Err(ended_early("settle")),
        Err(error) => Err(failed("settle", error)),
    }
}

fn ended_early(operation: &'static str) -> Error {
    let text = "the work ended the claim's transaction itself: take COMMIT, ROLLBACK and statements \
                that commit by themselves (CREATE, ALTER, DROP, TRUNCATE, LOCK TABLES) out of it";
    Error::new(ErrorKind::Misconfigured, operation, text)
}
