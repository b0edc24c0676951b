//! The message that begins a transaction and inserts the record of its claim.
//!
//! The same message looks for changes of the session, as before every transaction. If the session
//! was changed, the insert is rolled back before another session asks for the key.

use std::time::Duration;

use semel_core::Fence;
use semel_core::store::{
    Draft, Error, ErrorKind, Opened, Result, TransactionalStore, begin_then_open,
};
use sqlx::MySqlConnection;
use sqlx::mysql::{MySqlQueryResult, MySqlRow};
use tokio::time::timeout;

use super::super::MySqlStore;
use super::super::ledger::{failed, opened, silent};
use super::super::message::{Answers, send};
use super::super::session::{Flavour, held, number};
use super::{BEGIN, CHANGES, MySqlTransaction, ROLLBACK, TransactionPool, WorkSession, changes};
use crate::error::{Stage, timed_out};

/// The number of statements before the insert: two of [`CHANGES`], two of [`BEGIN`].
const BEFORE: usize = 4;

/// The answer to the insert of a record.
struct Insertion {
    row: Option<MySqlRow>,
    id: u64,
}

impl WorkSession {
    /// Begins a transaction and inserts a record, in one trip. Returns whether the session is
    /// unchanged since it was opened, and the result of the insert.
    async fn begin_inserting(
        &mut self,
        insert: &str,
    ) -> sqlx::Result<(bool, sqlx::Result<Insertion>)> {
        let mut answers = Answers::default();
        let text = format!("{CHANGES}; {BEGIN}; {insert}");
        let sent = send(&mut self.connection, text, &mut answers).await;
        let Answers { done, rows } = answers;
        if done.len() < BEFORE {
            sent?;
            return Err(sqlx::Error::Protocol("fewer answers than statements".into()));
        }
        let (before, mut after): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|(statement, _)| *statement < BEFORE);
        let before: Vec<MySqlRow> = before.into_iter().map(|(_, row)| row).collect();
        let (changes, read_only) = changes(&before)?;
        let is_sound = changes == self.changes && !read_only;
        let inserted = match sent {
            Ok(()) => {
                let id = done.last().map_or(0, MySqlQueryResult::last_insert_id);
                Ok(Insertion { row: after.pop().map(|(_, row)| row), id })
            }
            Err(error) if number(&error).is_some() => Err(error),
            Err(error) => return Err(error),
        };
        Ok((is_sound, inserted))
    }
}

impl TransactionPool {
    /// Begins a transaction, and inserts a record in it unless the transaction is on a new
    /// connection. The caller limits how long this may take.
    async fn begin_inserting(
        &self,
        insert: &str,
    ) -> Result<(MySqlTransaction, Option<sqlx::Result<Insertion>>)> {
        let exhausted = || Error::new(ErrorKind::Unavailable, "begin", "no transaction ended");
        let mut session = self.connections.get("begin", Duration::MAX, exhausted).await?;
        while session.reuse().is_some() {
            match session.connection().begin_inserting(insert).await {
                Ok((true, inserted)) => {
                    return Ok((MySqlTransaction::new(session), Some(inserted)));
                }
                Ok((false, _)) => {
                    let _ =
                        sqlx::raw_sql(ROLLBACK).execute(&mut session.connection().connection).await;
                }
                // Nothing was committed on it, so another one may be tried.
                Err(_) => {}
            }
            session.close();
        }
        Ok((self.open(session).await?, None))
    }
}

impl MySqlStore {
    /// Begins a transaction and opens the key of `draft` in it, in one trip on a connection that was
    /// used before. MySQL reads the record first, because its INSERT waits for a lock.
    pub(super) async fn begin_inserting(
        &self,
        draft: &Draft,
    ) -> Result<(MySqlTransaction, Opened)> {
        let Some(insert) = self.ledger.insert_text(draft, self.largest_inlined()) else {
            return begin_then_open(self, draft).await;
        };
        if self.ledger.server.flavour == Flavour::MySql && !self.is_free(draft).await? {
            return begin_then_open(self, draft).await;
        }
        let limit = self.ledger.limit;
        let begun = timeout(limit, self.transactions.begin_inserting(&insert)).await;
        let late = |_| timed_out(Stage::Connecting, "begin", limit);
        let (mut transaction, inserted) = begun.map_err(late)??;
        let opening = match inserted {
            Some(inserted) => self.within("open", self.opened_by(draft, inserted)).await,
            None => self.open_in(Self::connection(&mut transaction), draft).await,
        };
        match opening {
            Ok(opened) => {
                transaction.inserted = matches!(opened, Opened::Inserted { .. });
                Ok((transaction, opened))
            }
            Err(error) => {
                self.rollback(transaction).await;
                Err(error)
            }
        }
    }

    /// Returns whether the key has no record and no other transaction holds it. MySQL only.
    async fn is_free(&self, draft: &Draft) -> Result<bool> {
        let mut session = self.lookups.get("open").await?;
        let looking =
            async |connection: &mut MySqlConnection| self.ledger.probe(connection, draft).await;
        Ok(matches!(session.run_single(looking).await?, Ok(None)))
    }

    /// Converts the answer to the insert.
    async fn opened_by(&self, draft: &Draft, inserted: sqlx::Result<Insertion>) -> Result<Opened> {
        let mysql = self.ledger.server.flavour == Flavour::MySql;
        match inserted {
            Ok(Insertion { id, .. }) if mysql => Ok(Opened::Inserted { fence: Fence(id) }),
            Ok(Insertion { row, .. }) => opened(draft, &row.ok_or_else(|| silent("open"))?),
            Err(error) if mysql && number(&error) == Some(1062) => self.open_held(draft).await,
            Err(error) if held(&error) && !self.ledger.server.timeout_rolls_back => {
                self.open_held(draft).await
            }
            Err(error) => Err(failed("open", error)),
        }
    }
}
