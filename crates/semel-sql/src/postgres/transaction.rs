//! Transactions that a claim shares with the caller's own writes.
//!
//! They run on a pool of the store's own. sqlx's pool would ping each connection when it is
//! returned, and a protected transaction may cost only two trips: see `reserve`. The work may do
//! anything on the connection as long as it leaves the transaction open: the trip that ends the
//! transaction also resets the session, before another caller's work can see it.

mod commit;
mod pool;
mod reserve;

use std::time::Duration;

use futures_util::TryStreamExt;
use semel_core::claim::Lease;
use semel_core::event::Event;
use semel_core::key::Key;
use semel_core::record::Version;
use semel_core::store::{
    Change, Committed, Draft, Error, ErrorKind, Held, Opened, Result, Settled, Settlement, Swapped,
    TransactionalStore, settle_then_commit,
};
#[cfg(feature = "ids")]
use semel_ids::{create::CreatingStore, map::Binding};
use sqlx::error::DatabaseError;
use sqlx::{PgConnection, Postgres, SqlSafeStr, SqlStr};
use tokio::time::timeout;

use self::commit::result_of;
pub(super) use self::pool::TransactionPool;
use self::reserve::Reserved;
use super::busy::{Patience, is_busy};
use super::ledger::{self, Inside};
use super::statement::{ADOPT, ROLLBACK, ends_session, failed_in};
use super::{PgStore, storable_change, storable_draft, storable_settlement};
use crate::deferred::Deferred;
use crate::error::{Stage, timed_out};
use crate::pool::Pooled;
use crate::unit;

/// An open transaction that owns its connection. Dropping it closes the connection, which rolls
/// back.
pub struct PgTransaction {
    session: Pooled<PgConnection>,
    /// The claim of the transaction, if its record is not written yet.
    reserved: Option<Box<Reserved>>,
    deferred: Deferred,
}

impl std::fmt::Debug for PgTransaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PgTransaction").finish_non_exhaustive()
    }
}

impl PgTransaction {
    fn new(session: Pooled<PgConnection>) -> Self {
        Self { session, reserved: None, deferred: Deferred::default() }
    }

    async fn rollback(mut self, limit: Duration) {
        let sent = send(self.session.connection(), ROLLBACK.into_sql_str(), limit).await;
        if sent.ended.is_ok() && unit::depth::<Postgres>(self.session.connection()) == 1 {
            self.session.keep();
        }
        // Otherwise the session is closed, which rolls back as well.
    }
}

/// Fails if the work left a savepoint open, since it is unclear whether its writes are to be kept.
fn check_savepoints(connection: &PgConnection) -> Result<()> {
    if unit::depth::<Postgres>(connection) == 1 {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Misconfigured, "commit", "the work left a savepoint open"))
}

/// The result of sending a message of several statements.
struct Sent {
    /// The number of statements that were answered.
    answered: usize,
    /// `Err` if the message failed before its last statement; `Err(None)` if no answer came in
    /// time.
    ended: std::result::Result<(), Option<sqlx::Error>>,
}

/// Sends a message of several statements.
async fn send(connection: &mut PgConnection, sql: SqlStr, limit: Duration) -> Sent {
    let mut answered = 0;
    let sending = async {
        let mut answers = sqlx::raw_sql(sql).fetch_many(connection);
        while let Some(answer) = answers.try_next().await? {
            answered += usize::from(answer.is_left());
        }
        Ok(())
    };
    let ended = match timeout(limit, sending).await {
        Ok(sent) => sent.map_err(Some),
        Err(_) => Err(None),
    };
    Sent { answered, ended }
}

impl TransactionalStore for PgStore {
    type Connection = PgConnection;
    type Transaction = PgTransaction;

    async fn begin(&self) -> Result<PgTransaction> {
        Ok(PgTransaction::new(self.0.transactions.begin().await?))
    }

    fn connection(transaction: &mut PgTransaction) -> &mut PgConnection {
        transaction.session.connection()
    }

    async fn adopt(&self, connection: &mut PgConnection) -> Result<()> {
        let adopting = async { sqlx::raw_sql(ADOPT).execute(connection).await.map(drop) };
        match timeout(self.0.limit, adopting).await {
            Ok(Err(error)) if outside(&error) => Err(outside_transaction("settle")),
            Ok(done) => done.map_err(failed_in("settle")),
            Err(_) => Err(self.late("settle")),
        }
    }

    async fn open_in(&self, connection: &mut PgConnection, draft: &Draft) -> Result<Opened> {
        storable_draft("open", draft)?;
        let naming = self.0.naming;
        let opened =
            self.within("open", ledger::open(naming, connection, draft, Inside::Caller)).await??;
        // The record may exist on this server alone, and must not be returned before that is
        // excluded.
        if matches!(opened, Opened::Existing { .. }) && self.0.durability.in_doubt() {
            self.confirm("open").await?;
        }
        Ok(opened)
    }

    async fn swap_in(
        &self,
        connection: &mut PgConnection,
        key: &Key,
        judged: Version,
        change: &Change,
    ) -> Result<Swapped> {
        storable_change(change)?;
        let naming = self.0.naming;
        self.within("swap", ledger::swap(naming, connection, key, judged, change)).await
    }

    async fn hold_in(&self, connection: &mut PgConnection, lease: &Lease) -> Result<Held> {
        let held = self.within("hold", ledger::hold_in(self.0.naming, connection, lease)).await?;
        held.ok_or_else(|| {
            let text = "the claim's record is being written by another transaction";
            Error::new(ErrorKind::RetryTransaction, "hold", text)
        })
    }

    async fn settle_in(
        &self,
        connection: &mut PgConnection,
        lease: &Lease,
        settlement: &Settlement,
    ) -> Result<Settled> {
        storable_settlement("settle", settlement)?;
        // A concurrent takeover that holds the row may still be rolled back, so the claim is not
        // lost yet. But it may take as long as its work, so it is not waited for.
        let patience = Patience::new();
        loop {
            let settling = ledger::settle_in(self.0.naming, connection, lease, settlement);
            let settled = self.within("settle", settling).await?;
            let settled = settled.ok_or_else(|| outside_transaction("settle"))?;
            if !patience.again(settled.as_ref().is_err_and(is_busy)).await {
                return settled;
            }
        }
    }

    async fn begin_and_open(&self, draft: &Draft) -> Result<(PgTransaction, Opened)> {
        self.begin_reserving(draft).await
    }

    fn defer_events(&self, transaction: &mut PgTransaction, events: Vec<Event>) -> Vec<Event> {
        transaction.deferred.add_events(events);
        Vec::new()
    }

    async fn settle_and_commit(
        &self,
        mut transaction: PgTransaction,
        lease: &Lease,
        settlement: &Settlement,
    ) -> Committed {
        match transaction.reserved.take() {
            Some(reserved) => self.finish_reserved(transaction, *reserved, settlement).await,
            None => settle_then_commit(self, transaction, lease, settlement).await,
        }
    }

    async fn commit(&self, mut transaction: PgTransaction) -> Result<()> {
        if transaction.reserved.is_some() {
            let text =
                "the claim of this transaction is not written; settle and commit in one step";
            return Err(Error::new(ErrorKind::Misconfigured, "commit", text));
        }
        match self.write_and_commit(&mut transaction, None).await {
            Ok(committed) => result_of(committed),
            Err(refused) => {
                self.rollback(transaction).await;
                result_of(refused)
            }
        }
    }

    async fn rollback(&self, transaction: PgTransaction) {
        transaction.rollback(self.0.limit).await;
    }
}

#[cfg(feature = "ids")]
impl CreatingStore for PgStore {
    fn defer_binding(&self, transaction: &mut PgTransaction, binding: &Binding) -> bool {
        // A reserved claim has a new operation id, so the ids that are derived from it are new as
        // well.
        transaction.reserved.is_some() && transaction.deferred.add_binding(binding)
    }
}

/// Returns whether a statement was refused because it was sent outside a transaction block.
fn outside(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(DatabaseError::code).is_some_and(|code| code == "25P01")
}

fn outside_transaction(operation: &'static str) -> Error {
    let text = "the connection is not in the claim's transaction (any more): the work ended it, reset \
                its settings or left it with a search_path to another ledger, or none was begun; leave COMMIT and ROLLBACK to the executor, or settle before the \
                COMMIT of your own transaction";
    Error::new(ErrorKind::Misconfigured, operation, text)
}

impl PgStore {
    /// Runs a statement of the store inside a transaction. If it fails, nothing was committed.
    async fn within<T>(
        &self,
        operation: &'static str,
        statement: impl Future<Output = sqlx::Result<T>> + Send,
    ) -> Result<T> {
        let done = timeout(self.0.limit, statement).await.map_err(|_| self.late(operation))?;
        done.map_err(|error| {
            if ends_session(&error) {
                // The connection may be the store's own, and its idle connections lead to the same
                // server.
                self.0.transactions.retire();
            }
            failed_in(operation)(error)
        })
    }

    fn late(&self, operation: &'static str) -> Error {
        let late = timed_out(Stage::Running, operation, self.0.limit);
        late.with_kind(ErrorKind::Unavailable)
    }
}
