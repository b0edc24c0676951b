//! Transactions of the store, on connections of their own, and the ledger's steps inside any
//! transaction.
//!
//! Nothing here waits for another transaction: a key that another open transaction holds is
//! answered at once. A transaction of the store has a savepoint from its first statement to its
//! last. The savepoint vanishes with any COMMIT, ROLLBACK or DDL statement of the work, and if the
//! server rolls the transaction back by itself. So if it can be released, the transaction that is
//! committed is still the one in which the claim was made.
//!
//! A connection on which work ran is used again only if its session is unchanged (see
//! [`WorkSession`]).

mod begin;
mod commit;

use std::sync::Arc;
use std::time::Duration;

use semel_core::claim::Lease;
use semel_core::event::Event;
use semel_core::key::Key;
use semel_core::record::Version;
use semel_core::store::{
    Change, Committed, Draft, Error, ErrorKind, Held, Opened, Result, Settled, Settlement, Swapped,
    TransactionalStore,
};
#[cfg(feature = "ids")]
use semel_ids::{create::CreatingStore, map::Binding};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySql, MySqlConnection, Row, SqlSafeStr};
use tokio::time::{sleep, timeout};

use super::MySqlStore;
use super::ledger::{Ledger, PAUSES, failed, silent};
use super::session::{self, Flavour, Role, codes, held, number};
use super::statement::{Inside, at_once};
use crate::deferred::Deferred;
use crate::error::{Stage, classify, timed_out};
use crate::outbox::EventRow;
use crate::pool::{ConnectionPool, Lifecycle, Pooled};
use crate::unit;

const BEGIN: &str = "START TRANSACTION; SAVEPOINT semel_work";
/// Rolls back, and releases the locks of `GET_LOCK` as a commit does.
const ROLLBACK: &str = "ROLLBACK; DO RELEASE_ALL_LOCKS()";
/// Fails outside the transaction that [`BEGIN`] began, and changes nothing inside it.
const STILL_OPEN: &str = "RELEASE SAVEPOINT semel_work; SAVEPOINT semel_work";

/// Selects how many statements have changed the session since it began (SET, USE, temporary tables,
/// prepared statements, open handlers), and whether the server has become read-only.
const CHANGES: &str = "SHOW SESSION STATUS WHERE Variable_name IN ('Com_change_db', \
     'Com_create_sequence', 'Com_create_table', 'Com_create_temporary_table', 'Com_ha_open', \
     'Com_prepare_sql', 'Com_set_option', 'Com_set_role'); \
     SELECT 'read_only', CAST(@@global.read_only AS CHAR)";

/// A connection on which callers' work runs.
///
/// The driver cannot send `COM_RESET_CONNECTION`, so session state that work leaves (`USE`, session
/// variables, temporary tables, an isolation level) cannot be reset. But it can be detected: the
/// server counts such statements per session. If the count differs from that of a new connection,
/// the connection is closed.
struct WorkSession {
    connection: MySqlConnection,
    changes: u64,
}

impl WorkSession {
    async fn open(ledger: &Ledger) -> Result<Self> {
        let failed = |error| classify(codes, Stage::Connecting, "begin", error);
        let Ledger { options, limit, .. } = ledger;
        let (mut connection, _) = session::connect(options, Role::Transaction, *limit).await?;
        let rows = sqlx::raw_sql(CHANGES).fetch_all(&mut connection).await.map_err(failed)?;
        let (changes, _) = changes(&rows).map_err(failed)?;
        // sqlx counts how deep a connection is in transactions. That count is raised once and then
        // stays while the connection is pooled, so that a `begin` of the work is always a
        // savepoint, and so that begin and commit are one trip each.
        let begun = unit::begin::<MySql>(&mut connection, Some(BEGIN.into_sql_str())).await;
        begun.map_err(failed)?;
        Ok(Self { connection, changes })
    }

    /// Begins another transaction, in one trip. Returns whether the session is unchanged since it
    /// was opened and the server takes writes.
    async fn begin(&mut self) -> sqlx::Result<bool> {
        let text = AssertSqlSafe(format!("{CHANGES}; {BEGIN}"));
        let rows = sqlx::raw_sql(text).fetch_all(&mut self.connection).await?;
        let (changes, read_only) = changes(&rows)?;
        Ok(changes == self.changes && !read_only)
    }
}

/// Reads how often the session was changed, and whether the server is read-only.
fn changes(rows: &[MySqlRow]) -> sqlx::Result<(u64, bool)> {
    let (mut changes, mut read_only) = (0, false);
    for row in rows {
        let (name, value): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        match name.as_str() {
            // Servers show it as a word or as a number, and some have more than two values.
            "read_only" => read_only = !matches!(value.as_str(), "OFF" | "0"),
            _ => changes += value.parse::<u64>().unwrap_or(1),
        }
    }
    Ok((changes, read_only))
}

/// A pool of connections for callers' transactions.
pub(crate) struct TransactionPool {
    connections: Arc<ConnectionPool<WorkSession>>,
    ledger: Arc<Ledger>,
}

impl TransactionPool {
    pub(crate) fn new(ledger: &Arc<Ledger>, size: usize, lifecycle: &Arc<Lifecycle>) -> Self {
        let connections = ConnectionPool::new(size.max(1), lifecycle);
        Self { connections, ledger: Arc::clone(ledger) }
    }

    /// Closes the pool: see [`ConnectionPool::close`].
    pub(crate) fn close(&self) {
        self.connections.close();
    }

    /// Begins a transaction. The caller limits how long that may take.
    async fn begin(&self) -> Result<MySqlTransaction> {
        let exhausted = || Error::new(ErrorKind::Unavailable, "begin", "no transaction ended");
        let mut session = self.connections.get("begin", Duration::MAX, exhausted).await?;
        // An idle connection may have died or been changed. Nothing was begun on it, so another one
        // may be tried.
        while session.reuse().is_some() {
            if matches!(session.connection().begin().await, Ok(true)) {
                return Ok(MySqlTransaction::new(session));
            }
            session.close();
        }
        self.open(session).await
    }

    /// Begins a transaction on a new connection.
    async fn open(&self, mut session: Pooled<WorkSession>) -> Result<MySqlTransaction> {
        session.open(WorkSession::open(&self.ledger)).await?;
        // Marks the connection as in use: a transaction is open on it.
        session.connection();
        Ok(MySqlTransaction::new(session))
    }
}

/// An open transaction of the store. Dropping it closes its connection, and the server rolls back.
pub struct MySqlTransaction {
    session: Pooled<WorkSession>,
    /// Whether the record of the claim was inserted in this transaction.
    inserted: bool,
    deferred: Deferred,
}

impl MySqlTransaction {
    fn new(session: Pooled<WorkSession>) -> Self {
        Self { session, inserted: false, deferred: Deferred::default() }
    }

    /// Returns a clean session to the pool, unless the work left a savepoint open, which cannot be
    /// ended.
    fn end(mut self, clean: bool) {
        if clean && unit::depth::<MySql>(&self.session.connection().connection) == 1 {
            self.session.keep();
        }
    }
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
        timeout(limit, self.transactions.begin())
            .await
            .unwrap_or_else(|_| Err(timed_out(Stage::Connecting, "begin", limit)))
    }

    fn connection(transaction: &mut MySqlTransaction) -> &mut MySqlConnection {
        &mut transaction.session.connection().connection
    }

    async fn adopt(&self, connection: &mut MySqlConnection) -> Result<()> {
        self.within("open", still_open_mysql(connection)).await
    }

    /// On MariaDB an existing record stays locked until the caller's transaction ends, because this
    /// server can neither read the current row without a lock at REPEATABLE READ nor release a lock
    /// early. Other callers can still read the record and do not wait.
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

    /// Locks the record in a caller's own transaction. The store's transactions are READ COMMITTED
    /// and need no lock. A caller's transaction may have one snapshot for all its reads, and with
    /// `innodb_snapshot_isolation` it could not write a record that was renewed after that
    /// snapshot. The isolation level of the session does not show this: `SET TRANSACTION` without a
    /// scope sets that of the next transaction only, and the servers show it nowhere. So the record
    /// is always locked there.
    async fn hold_in(&self, connection: &mut MySqlConnection, lease: &Lease) -> Result<Held> {
        self.within("hold", async {
            let asked = sqlx::query("SELECT @semel_work IS NOT NULL").fetch_one(&mut *connection);
            let ours: i64 = asked
                .await
                .and_then(|row| row.try_get(0))
                .map_err(|error| failed("hold", error))?;
            if ours == 1 {
                return Ok(Held::Renewable);
            }
            let flavour = self.ledger.server.flavour;
            let locked = sqlx::query(AssertSqlSafe(hold(flavour)))
                .bind(lease.digest.as_bytes().to_vec())
                .bind(lease.fence.as_i64())
                .bind(lease.attempt_id.to_bytes().to_vec())
                .fetch_optional(connection)
                .await
                .map_err(|error| failed("hold", error))?;
            Ok(locked.map_or(Held::Lost, |_| Held::Locked))
        })
        .await
    }

    async fn settle_in(
        &self,
        connection: &mut MySqlConnection,
        lease: &Lease,
        settlement: &Settlement,
    ) -> Result<Settled> {
        self.within("settle", async {
            if self.ledger.server.flavour == Flavour::MySql {
                still_open_mysql(connection).await?;
            }
            let settled = self.settle_unheld(connection, lease, settlement).await?;
            // Zero rows mean that the claim was lost, or that there was no transaction to settle it
            // in.
            if settled == Settled::Lost {
                self.still_open(connection).await?;
            }
            Ok(settled)
        })
        .await
    }

    async fn begin_and_open(&self, draft: &Draft) -> Result<(MySqlTransaction, Opened)> {
        self.begin_inserting(draft).await
    }

    /// Leaves events that are too large for the server to
    /// [`append`](semel_core::outbox::Outbox::append), which refuses them.
    fn defer_events(&self, transaction: &mut MySqlTransaction, events: Vec<Event>) -> Vec<Event> {
        // Nearly all events are far from the limit, and need no closer look.
        let half = self.ledger.server.packet / 2;
        let is_taken =
            |event: &Event| event.fits(half) || self.takes(event, &EventRow::of(event)).is_ok();
        if !events.iter().all(is_taken) {
            return events;
        }
        transaction.deferred.add_events(events);
        Vec::new()
    }

    async fn settle_and_commit(
        &self,
        transaction: MySqlTransaction,
        lease: &Lease,
        settlement: &Settlement,
    ) -> Committed {
        self.settle_committing(transaction, lease, settlement).await
    }

    async fn commit(&self, transaction: MySqlTransaction) -> Result<()> {
        self.commit_deferred(transaction).await
    }

    async fn rollback(&self, mut transaction: MySqlTransaction) {
        let sent =
            sqlx::raw_sql(ROLLBACK).execute(&mut transaction.session.connection().connection);
        let clean = matches!(timeout(self.ledger.limit, sent).await, Ok(Ok(_)));
        transaction.end(clean);
    }
}

#[cfg(feature = "ids")]
impl CreatingStore for MySqlStore {
    fn defer_binding(&self, transaction: &mut MySqlTransaction, binding: &Binding) -> bool {
        // A claim that was inserted in this transaction has a new operation id, so the ids that are
        // derived from it are new as well.
        transaction.inserted && transaction.deferred.add_binding(binding)
    }
}

impl MySqlStore {
    /// Runs a step inside a transaction. If it fails or takes too long, nothing was committed.
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

    /// Settles a claim in the caller's transaction. A transaction that only reads the record is
    /// waited for; one that holds it is not, because it may be waiting for this one.
    async fn settle_unheld(
        &self,
        connection: &mut MySqlConnection,
        lease: &Lease,
        settlement: &Settlement,
    ) -> Result<Settled> {
        let mut pauses = PAUSES.into_iter();
        loop {
            let sent = self.ledger.settle_one(connection, lease, settlement, Inside::Caller).await;
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

    /// Fails unless the connection is still in the transaction in which the claim was made: a
    /// transaction of the store is recognised by its savepoint, a caller's by asking the server.
    async fn still_open(&self, connection: &mut MySqlConnection) -> Result<()> {
        let fail = |error| failed("settle", error);
        match sqlx::raw_sql(STILL_OPEN).execute(&mut *connection).await {
            Ok(_) => return Ok(()),
            Err(error) if number(&error) == Some(NO_SAVEPOINT) => {}
            Err(error) => return Err(fail(error)),
        }
        // On MySQL this was checked before the settlement.
        let text = match self.ledger.server.flavour {
            Flavour::MariaDb => "SELECT @semel_work IS NULL AND @@in_transaction = 1",
            Flavour::MySql => "SELECT @semel_work IS NULL",
        };
        let row = sqlx::query(text).fetch_one(connection).await;
        let open: i64 = row.and_then(|row| row.try_get(0)).map_err(fail)?;
        if open == 0 { Err(ended_early("settle")) } else { Ok(()) }
    }

    /// Answers an open whose key another transaction holds: with the last committed record, if
    /// there is one.
    async fn open_held(&self, draft: &Draft) -> Result<Opened> {
        Ok(match self.batcher.step(&draft.key.digest()).await? {
            Some(peeked) => Opened::Existing { record: Box::new(peeked.record), now: peeked.now },
            None => Opened::Contended,
        })
    }

    /// Opens a draft on MySQL: reads on a connection of the store, whose isolation level leaves no
    /// gap lock in the caller's transaction, then inserts in the caller's.
    async fn open_in_mysql(
        &self,
        connection: &mut MySqlConnection,
        draft: &Draft,
    ) -> Result<Opened> {
        let mut session = self.lookups.get("open").await?;
        let looking =
            async |connection: &mut MySqlConnection| self.ledger.probe(connection, draft).await;
        let probed = session.run_single(looking).await?;
        drop(session);
        match probed {
            Ok(Some(opened)) => return Ok(opened),
            Ok(None) => {}
            Err(error) if held(&error) => {
                return match self.ledger.probe(connection, draft).await {
                    // This transaction itself holds the key.
                    Ok(Some(opened)) => Ok(opened),
                    Ok(None) => self.open_held(draft).await,
                    Err(error) if held(&error) => self.open_held(draft).await,
                    Err(error) => Err(failed("open", error)),
                };
            }
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

/// The server's error number for a savepoint that does not exist.
const NO_SAVEPOINT: u16 = 1305;

/// Returns the text that locks the record of a claim if it still belongs to its grant, without
/// waiting for a transaction that has it locked.
fn hold(flavour: Flavour) -> String {
    let found = "SELECT 1 FROM semel_record \
                 WHERE digest = ? AND fence = ? AND attempt_id = ? AND state = 0 FOR UPDATE";
    match flavour {
        Flavour::MariaDb => at_once(flavour, found),
        Flavour::MySql => format!("{found} NOWAIT"),
    }
}

/// Fails outside a transaction, where a savepoint is gone as soon as it is set. On connections of
/// the store, which have no autocommit, that never happens: there the commit detects it.
async fn still_open_mysql(connection: &mut MySqlConnection) -> Result<()> {
    let text = "SAVEPOINT semel_probe; RELEASE SAVEPOINT semel_probe";
    match sqlx::raw_sql(text).execute(connection).await {
        Ok(_) => Ok(()),
        Err(error) if number(&error) == Some(NO_SAVEPOINT) => Err(ended_early("settle")),
        Err(error) => Err(failed("settle", error)),
    }
}

fn ended_early(operation: &'static str) -> Error {
    let text = "the claim's transaction ended before it was completed, so nothing of it is committed: \
                either the work passed over a deadlock (1213) or a lock wait timeout (1205), with \
                which the server rolled the whole transaction back, and has to hand such an error on; \
                or the work ended it itself, and has to do without COMMIT, ROLLBACK and statements \
                that commit (CREATE, ALTER, DROP, TRUNCATE, LOCK TABLES, SET autocommit)";
    Error::new(ErrorKind::Misconfigured, operation, text)
}
