//! The message that commits a transaction, with everything that the transaction has yet to write.
//!
//! Nothing waits for the answers to the record of a reserved claim, to the ids and to the events of
//! the work, so they cost no trip of their own: see [`Message`]. The record comes first, because
//! its insert fails outside the claim's transaction, where the other statements would be committed
//! one by one.

use semel_core::store::{Committed, Error, ErrorKind, Result};
use sqlx::PgConnection;
use sqlx::error::DatabaseError;
use tokio::time::{Instant, timeout};

use super::super::PgStore;
#[cfg(feature = "ids")]
use super::super::message::PUT_NEW;
use super::super::message::{APPEND, FINISH, Message, Value};
use super::super::session::Naming;
use super::super::statement::{
    self, COMMIT, codes, codes_of_contents, ends_session, failed_in, refused_in,
};
use super::{PgTransaction, check_savepoints, outside_transaction, send};
use crate::deferred::Deferred;
use crate::error::{Stage, classify, timed_out};
use crate::outbox::EventRow;

/// The largest total size of the values that are written into the text of a message, where a byte
/// takes two characters and is read twice; once for the record and once for all events. Larger
/// values are sent in a trip of their own.
const LARGEST_INLINED: usize = 16 * 1024;

/// The kind of row that a statement of the last message writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    Record,
    #[cfg(feature = "ids")]
    Binding,
    Event,
}

impl Write {
    /// Converts the error of a statement that the server refused.
    fn refused(self, error: sqlx::Error) -> Committed {
        match self {
            Write::Record => unwritten(error),
            #[cfg(feature = "ids")]
            Write::Binding => Committed::Failed(refused_in("insert")(error)),
            Write::Event => Committed::Failed(refused_in("append")(error)),
        }
    }
}

impl PgStore {
    /// Writes what is deferred, `record` first, and commits. An `Err` means that the transaction is
    /// still open and must be rolled back.
    pub(super) async fn write_and_commit(
        &self,
        transaction: &mut PgTransaction,
        record: Option<&[Value<'_>]>,
    ) -> std::result::Result<Committed, Committed> {
        let deferred = std::mem::take(&mut transaction.deferred);
        let connection = transaction.session.connection();
        check_savepoints(connection).map_err(Committed::Failed)?;
        let (began, limit) = (Instant::now(), self.0.limit);
        let (message, writes) = self.last_message(connection, record, &deferred).await?;
        let sent = send(connection, message.then(COMMIT).into_sql(), limit).await;
        // The answers of the writes come first, then the commit's, then those of the session's
        // reset.
        let failure = match sent.ended {
            Ok(()) => {
                transaction.session.keep();
                return Ok(self.durable(began, Ok(())).await);
            }
            // The commit was answered. The session was not reset, so it is closed.
            Err(_) if sent.answered > writes.len() => return Ok(self.durable(began, Ok(())).await),
            Err(failure) => failure,
        };
        let Some(error) = failure else {
            let late = timed_out(Stage::Running, "commit", limit);
            return Ok(self.durable(began, Err(late)).await);
        };
        if ends_session(&error) {
            transaction.session.retire_all();
        }
        if let Some(write) = writes.get(sent.answered).filter(|_| is_refused(&error)) {
            return Err(write.refused(error));
        }
        // The commit may have happened although its answer was lost.
        let error = classify(codes_of_contents, Stage::Running, "commit", error);
        if error.kind() != ErrorKind::Ambiguous {
            // The server rolled back. It may hold the lock until the session is ready again, which
            // a rollback waits for.
            return Err(Committed::Failed(error));
        }
        Ok(self.durable(began, Err(error)).await)
    }

    /// Returns the message that writes what is deferred, and what each of its statements writes.
    /// Writes what is too large for the message, in trips of their own.
    async fn last_message(
        &self,
        connection: &mut PgConnection,
        record: Option<&[Value<'_>]>,
        deferred: &Deferred,
    ) -> std::result::Result<(Message, Vec<Write>), Committed> {
        let rows: Vec<EventRow<'_>> = deferred.events.iter().map(EventRow::of).collect();
        let events_fit = rows.iter().map(EventRow::size).sum::<usize>() <= LARGEST_INLINED;
        let mut message = Message::new(self.0.plain.pooling(), "");
        let mut writes = Vec::new();
        if let Some(values) = record {
            let fits = values.iter().map(Value::size).sum::<usize>() <= LARGEST_INLINED;
            if fits && events_fit {
                message = message.run(FINISH, values);
                writes.push(Write::Record);
            } else {
                self.insert_record(connection, values).await?;
            }
        }
        #[cfg(feature = "ids")]
        for binding in &deferred.bindings {
            let (kind, internal) = (binding.kind(), binding.internal().to_bytes());
            let values = [
                Value::text(kind.name()),
                Value::text(binding.tenant()),
                Value::text(binding.public().as_str()),
                Value::bytes(&internal),
            ];
            message = message.run(PUT_NEW, &values);
            writes.push(Write::Binding);
        }
        if events_fit {
            for row in &rows {
                message = message.run(APPEND, &appended(row));
                writes.push(Write::Event);
            }
        } else {
            self.append_rows(connection, &rows).await.map_err(Committed::Failed)?;
        }
        Ok((message, writes))
    }

    /// Inserts the finished record in a trip of its own.
    async fn insert_record(
        &self,
        connection: &mut PgConnection,
        values: &[Value<'_>],
    ) -> std::result::Result<(), Committed> {
        match timeout(self.0.limit, insert(self.0.naming, connection, values)).await {
            Ok(inserted) => inserted.map_err(unwritten),
            Err(_) => Err(Committed::Unsettled(self.late("settle"))),
        }
    }

    /// Returns the result of a commit after making sure that the commit is not on this server
    /// alone.
    async fn durable(&self, began: Instant, committed: Result<()>) -> Committed {
        let confirmed = self.confirmed("commit", began, committed).await;
        confirmed.map_or_else(Committed::Failed, |()| Committed::Done)
    }
}

/// Returns the values of `outbox_append_one.sql`, in the order of its placeholders.
fn appended<'a>(row: &'a EventRow<'_>) -> [Value<'a>; 11] {
    [
        Value::text(&row.id),
        Value::text(row.tenant),
        Value::text(row.aggregatetype),
        Value::Text(row.aggregateid),
        Value::text(row.kind),
        Value::text(row.source),
        Value::Text(row.payload_text()),
        Value::Bytes(row.payload_bytes()),
        Value::text(row.content_type),
        Value::text(&row.headers),
        Value::text(&row.occurred_at),
    ]
}

async fn insert(
    naming: Naming,
    connection: &mut PgConnection,
    values: &[Value<'_>],
) -> sqlx::Result<()> {
    let mut query = naming.query(statement::FINISH);
    for value in values {
        query = match *value {
            Value::Number(number) => query.bind(number),
            Value::Bytes(bytes) => query.bind(bytes),
            Value::Text(text) => query.bind(text),
        };
    }
    query.execute(connection).await.map(drop)
}

/// Returns whether the server refused the statement and has rolled back for certain.
fn is_refused(error: &sqlx::Error) -> bool {
    let refusal = error.as_database_error();
    refusal.is_some_and(|refusal| codes(refusal) != Some(ErrorKind::Ambiguous))
}

/// Converts the error of inserting a finished record.
fn unwritten(error: sqlx::Error) -> Committed {
    let refusal = error.as_database_error();
    let refusal = refusal.filter(|refusal| refusal.table() == Some("semel_record"));
    match refusal.and_then(DatabaseError::code).as_deref() {
        Some("23505") => Committed::Lost,
        Some("23502") => Committed::Unsettled(outside_transaction("settle")),
        Some(_) | None => Committed::Unsettled(failed_in("settle")(error)),
    }
}

/// Returns the result of a commit that settles nothing.
pub(super) fn result_of(committed: Committed) -> Result<()> {
    match committed {
        Committed::Done => Ok(()),
        Committed::Unsettled(error) | Committed::Failed(error) => Err(error),
        Committed::Lost => {
            let text = "there was no claim to lose";
            Err(Error::new(ErrorKind::Corrupt, "commit", text))
        }
    }
}
