//! Claims whose record is written once, when their transaction commits.
//!
//! While a transaction is open, no other session sees its record, so a record with the state
//! Running would be written in vain. Instead, the message that begins the transaction takes the
//! lock that every insert of the record needs (`open.sql`), and the message that commits it inserts
//! the finished record. The primary key still decides: if another record was committed meanwhile,
//! the transaction fails.

use semel_core::claim::Fence;
use semel_core::record::State;
use semel_core::store::{
    Committed, Draft, Error, ErrorKind, Opened, Result, Settlement, TransactionalStore,
};
use sqlx::error::DatabaseError;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use tokio::time::{Instant, timeout};

use super::super::ledger::lock_key;
use super::super::message::{FIND_KEY, FINISH, HOLD_KEY, Message, Value};
use super::super::session::{Naming, Pooling};
use super::super::statement::{self, COMMIT, codes, ends_session, failed_in};
use super::super::{PgStore, storable_draft, storable_settlement};
use super::{PgTransaction, check_savepoints, outside_transaction, send};
use crate::error::{Stage, classify, timed_out};
use crate::row::{DraftRow, SettlementRow};

/// The largest total size of the values that are written into the text of a message, where a byte
/// takes two characters and is read twice. Larger values are sent in a trip of their own.
const LARGEST_INLINED: usize = 16 * 1024;

/// A claim that a transaction holds, and whose record it writes when it commits.
#[derive(Debug)]
pub(super) struct Reserved {
    draft: Draft,
    fence: Fence,
}

/// The result of an attempt to reserve a key in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looked {
    /// The key has no record, and this transaction holds it.
    Free(Fence),
    /// The key has no record, and another transaction holds it.
    Contended,
    /// The key has a record, or the server takes no writes: `open.sql` must be run.
    Unknown,
}

/// Tries to reserve the key of a draft in the transaction that the connection is in, or that
/// `message` begins.
pub(super) async fn look(
    connection: &mut PgConnection,
    message: Message,
    draft: &Draft,
) -> sqlx::Result<Looked> {
    let digest = draft.key.digest();
    let digest = digest.as_bytes();
    let key = Value::bytes(digest);
    let message = message.run(HOLD_KEY, &[key, Value::number(lock_key(digest))]);
    let sql = message.run(FIND_KEY, &[key]).into_sql();
    let rows: Vec<PgRow> = sqlx::raw_sql(sql).fetch_all(connection).await?;
    let [_, found] = rows.as_slice() else { return Err(sqlx::Error::RowNotFound) };
    Ok(match found.try_get("free")? {
        Some(true) => Looked::Free(Fence::from_i64(found.try_get("us")?)),
        Some(false) => Looked::Contended,
        None => Looked::Unknown,
    })
}

/// Returns the values of `finish.sql`, in the order of its placeholders.
fn finished<'a>(
    fence: Fence,
    draft: &'a DraftRow<'_>,
    state: i16,
    ended: &SettlementRow<'a>,
) -> [Value<'a>; 22] {
    // A record that did not succeed keeps its retry payload in the columns of the outcome.
    let (body, content_type, reference) = if state == i16::from(State::Succeeded.code()) {
        (ended.body, ended.content_type, ended.reference)
    } else {
        (draft.body, draft.content_type, draft.reference)
    };
    [
        Value::bytes(&draft.digest),
        Value::number(draft.kind),
        Value::text(draft.tenant),
        Value::text(draft.scope),
        Value::bytes(draft.principal),
        Value::text(draft.id),
        Value::bytes(draft.fingerprint),
        Value::number(state),
        Value::bytes(&draft.operation_id),
        Value::bytes(&draft.attempt_id),
        Value::number(draft.attempt),
        Value::number(fence.as_i64()),
        Value::text(draft.owner),
        Value::Number(ended.retry_us),
        Value::number(draft.on_crash),
        Value::number(draft.keep_us),
        Value::Bytes(body),
        Value::Text(content_type),
        Value::Text(reference),
        Value::Number(ended.omitted_bytes),
        Value::Text(ended.error),
        Value::Number(ended.keep_us),
    ]
}

/// Inserts the finished record in a trip of its own.
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

impl PgStore {
    /// Begins a transaction that reserves the key of `draft` if the key has no record yet.
    pub(super) async fn begin_reserving(&self, draft: &Draft) -> Result<(PgTransaction, Opened)> {
        storable_draft("open", draft)?;
        let (session, looked) = self.0.transactions.begin_looking(draft).await?;
        let mut transaction = PgTransaction { session, reserved: None };
        match looked {
            Looked::Free(fence) => {
                transaction.reserved = Some(Box::new(Reserved { draft: draft.clone(), fence }));
                Ok((transaction, Opened::Inserted { fence }))
            }
            Looked::Contended => Ok((transaction, Opened::Contended)),
            Looked::Unknown => {
                match self.open_in(Self::connection(&mut transaction), draft).await {
                    Ok(opened) => Ok((transaction, opened)),
                    Err(error) => {
                        self.rollback(transaction).await;
                        Err(error)
                    }
                }
            }
        }
    }

    /// Writes the record of a reserved claim and commits.
    pub(super) async fn finish_reserved(
        &self,
        mut transaction: PgTransaction,
        reserved: Reserved,
        settlement: &Settlement,
    ) -> Committed {
        #[cfg(feature = "testing")]
        semel_core::testing::failpoint("commit.before");
        let (draft, ended) = (DraftRow::of(&reserved.draft), SettlementRow::of(settlement));
        let unsettled = match (storable_settlement("settle", settlement), ended.state) {
            (Ok(()), Some(state)) => {
                let values = finished(reserved.fence, &draft, state, &ended);
                match self.write_and_commit(&mut transaction, &values).await {
                    Ok(committed) => return committed,
                    Err(unsettled) => unsettled,
                }
            }
            (Ok(()), None) => {
                let text = "a claim without a record cannot be removed; roll back instead";
                Committed::Unsettled(Error::new(ErrorKind::Misconfigured, "settle", text))
            }
            (Err(error), _) => Committed::Unsettled(error),
        };
        self.rollback(transaction).await;
        unsettled
    }

    /// Writes the finished record and commits. An `Err` means that the transaction is still open
    /// and must be rolled back.
    async fn write_and_commit(
        &self,
        transaction: &mut PgTransaction,
        values: &[Value<'_>],
    ) -> std::result::Result<Committed, Committed> {
        if let Err(error) = check_savepoints(transaction.session.connection()) {
            return Err(Committed::Failed(error));
        }
        let began = Instant::now();
        let limit = self.0.limit;
        let size = |value: &Value<'_>| match value {
            Value::Bytes(bytes) => bytes.map_or(0, <[u8]>::len),
            Value::Text(text) => text.map_or(0, str::len),
            Value::Number(_) => 0,
        };
        let inlined = values.iter().map(size).sum::<usize>() <= LARGEST_INLINED;
        let connection = transaction.session.connection();
        let message = if inlined {
            Message::new(self.0.plain.pooling(), "").run(FINISH, values).then(COMMIT)
        } else {
            let inserting = insert(self.0.naming, connection, values);
            match timeout(limit, inserting).await {
                Ok(Ok(())) => Message::new(Pooling::Direct, COMMIT),
                Ok(Err(error)) => return Err(unwritten(error)),
                Err(_) => return Err(Committed::Unsettled(self.late("settle"))),
            }
        };
        let sent = send(connection, message.into_sql(), limit).await;
        // The insert's answer comes first, then the commit's, then those of the session's reset.
        let needed = 1 + usize::from(inlined);
        let failure = match sent.ended {
            Ok(()) => {
                transaction.session.keep();
                return Ok(self.durable(began, Ok(())).await);
            }
            Err(_) if sent.answered >= needed => return Ok(self.durable(began, Ok(())).await),
            Err(failure) => failure,
        };
        let Some(error) = failure else {
            let late = timed_out(Stage::Running, "commit", limit);
            return Ok(self.durable(began, Err(late)).await);
        };
        if ends_session(&error) {
            transaction.session.retire_all();
        }
        if sent.answered + 1 < needed && is_refused(&error) {
            return Err(unwritten(error));
        }
        // The commit may have happened although its answer was lost.
        let error = classify(codes, Stage::Running, "commit", error);
        if error.kind() != ErrorKind::Ambiguous {
            // The server rolled back. It may hold the lock until the session is ready again, which
            // a rollback waits for.
            return Err(Committed::Failed(error));
        }
        Ok(self.durable(began, Err(error)).await)
    }

    /// Returns the result of a commit after making sure that the commit is not on this server
    /// alone.
    async fn durable(&self, began: Instant, committed: Result<()>) -> Committed {
        let confirmed = self.confirmed("commit", began, committed).await;
        confirmed.map_or_else(Committed::Failed, |()| Committed::Done)
    }
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
