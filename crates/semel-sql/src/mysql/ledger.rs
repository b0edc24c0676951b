//! The ledger's steps on a connection: sends the statements and reads the server's answers.
//!
//! The callers choose the connection, and nothing is judged here. Whether a write took place is
//! always read from the row (`attempt_id`) or from the matched rows, never guessed from an
//! affected-rows count, which a flag of the driver can change.

use std::sync::Arc;
use std::time::Duration;

use semel_core::claim::{Fence, Lease};
use semel_core::key::Key;
use semel_core::record::Version;
use semel_core::store::{
    Change, Draft, Error, ErrorKind, Opened, Peeked, ReplicationState, Result, Settled, Settlement,
    Swapped,
};
use sqlx::mysql::{MySqlConnectOptions, MySqlRow};
use sqlx::{AssertSqlSafe, MySqlConnection, Row};

use super::columns::{Bound, Found, bind_draft, identity};
use super::replication::{self, Observed};
pub(crate) use super::session::failed;
use super::session::{self, Flavour, Role, Server, held};
use super::statement::{Answer, Inside, Texts};
use crate::row::{DraftRow, SettlementRow, undecodable};

/// The pauses after which a settlement that met a lock is sent again. A transaction that only reads
/// the record has ended by then; one that holds it is not waited for any longer.
pub(super) const PAUSES: [Duration; 5] = [
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(4),
    Duration::from_millis(8),
    Duration::from_millis(16),
];

/// Runs the ledger's statements on one server.
pub(crate) struct Ledger {
    pub(crate) options: MySqlConnectOptions,
    pub(crate) server: Server,
    pub(crate) limit: Duration,
    pub(super) texts: Texts,
    pub(super) replication: ReplicationState,
}

impl Ledger {
    pub(crate) fn new(
        options: MySqlConnectOptions,
        server: Server,
        limit: Duration,
        replication: ReplicationState,
    ) -> Self {
        let texts = Texts::new(server.flavour);
        Self { options, server, limit, texts, replication }
    }

    /// Observes which servers could take over. Replicas come and go, so this is repeated.
    pub(super) async fn observe(&self, connection: &mut MySqlConnection) -> Result<Observed> {
        let observed = replication::observe(connection, self.server.flavour).await?;
        self.replication.observe(observed.replication());
        Ok(observed)
    }

    /// Opens a connection for the store's own statements.
    pub(crate) async fn session(&self) -> Result<MySqlConnection> {
        Ok(session::connect(&self.options, Role::Ledger, self.limit).await?.0)
    }

    /// Inserts drafts with different digests, or reads their records. An outer error applies to all
    /// of them.
    pub(super) async fn try_open(
        &self,
        connection: &mut MySqlConnection,
        drafts: &[&Draft],
    ) -> sqlx::Result<Vec<Result<Opened>>> {
        match self.server.flavour {
            Flavour::MariaDb => {
                let rows = self.insert(connection, drafts).await?;
                Ok(drafts.iter().zip(&rows).map(|(draft, row)| opened(draft, row)).collect())
            }
            Flavour::MySql => self.try_open_mysql(connection, drafts).await,
        }
    }

    async fn insert(
        &self,
        connection: &mut MySqlConnection,
        drafts: &[&Draft],
    ) -> sqlx::Result<Vec<MySqlRow>> {
        let query = sqlx::query(AssertSqlSafe(self.texts.insert(drafts.len())));
        let query = drafts.iter().fold(query, |query, draft| bind_draft(query, draft));
        query.fetch_all(connection).await
    }

    /// Opens drafts on MySQL, which has no RETURNING: reads without waiting, then inserts what is
    /// missing.
    async fn try_open_mysql(
        &self,
        connection: &mut MySqlConnection,
        drafts: &[&Draft],
    ) -> sqlx::Result<Vec<Result<Opened>>> {
        let digests: Vec<_> = drafts.iter().map(|draft| identity(&draft.key)).collect();
        let text = self.texts.probe(digests.len());
        let mut found = select(connection, text, &digests).await?;
        let missing: Vec<&Draft> = drafts
            .iter()
            .zip(&digests)
            .filter(|(_, digest)| !found.iter().any(|f| is(f, digest)))
            .map(|(draft, _)| *draft)
            .collect();
        let mut fences = match missing.as_slice() {
            [] => Vec::new(),
            missing => self.insert_mysql(connection, missing).await?,
        }
        .into_iter();
        let answer = |digest: &[u8; 32]| match take(&mut found, digest) {
            Some(row) => existing(row),
            None => match fences.next() {
                Some(fence) => Ok(Opened::Inserted { fence }),
                None => Err(silent("open")),
            },
        };
        Ok(digests.iter().map(answer).collect())
    }

    /// Inserts rows that did not exist a moment ago, and returns their fences. Each row has its own
    /// fence, and the server returns only the last one, so those of several rows are read.
    pub(crate) async fn insert_mysql(
        &self,
        connection: &mut MySqlConnection,
        drafts: &[&Draft],
    ) -> sqlx::Result<Vec<Fence>> {
        let query = sqlx::query(AssertSqlSafe(self.texts.insert(drafts.len())));
        let query = drafts.iter().fold(query, |query, draft| bind_draft(query, draft));
        let done = query.execute(&mut *connection).await?;
        if drafts.len() == 1 {
            return Ok(vec![Fence(done.last_insert_id())]);
        }
        let digests: Vec<_> = drafts.iter().map(|draft| identity(&draft.key)).collect();
        let read = select(connection, self.texts.peek(digests.len()), &digests).await;
        let mut found = read.map_err(unread)?;
        let fence = |(draft, digest): (&&Draft, &[u8; 32])| match take(&mut found, digest) {
            Some(Ok(row)) if row.raw.attempt_id == draft.attempt_id.to_bytes() => {
                Ok(Fence::from_i64(row.raw.fence))
            }
            Some(_) | None => Err(sqlx::Error::Protocol("a row that was written is gone".into())),
        };
        drafts.iter().zip(&digests).map(fence).collect()
    }

    /// Reads a record without waiting for a transaction that holds it. Only on MySQL.
    pub(crate) async fn probe(
        &self,
        connection: &mut MySqlConnection,
        draft: &Draft,
    ) -> sqlx::Result<Option<Opened>> {
        let digest = identity(&draft.key);
        let mut found = select(connection, self.texts.probe(1), &[digest]).await?;
        take(&mut found, &digest).map(existing).transpose().map_err(sqlx::Error::decode)
    }

    /// Runs [`Store::open`](semel_core::Store::open) in the caller's transaction, on MariaDB: one
    /// statement, whose answer is the current row at every isolation level. `None` if another
    /// transaction holds the key.
    pub(crate) async fn open_one(
        &self,
        connection: &mut MySqlConnection,
        draft: &Draft,
    ) -> Result<Option<Opened>> {
        match self.insert(connection, &[draft]).await {
            Ok(rows) => {
                let row = rows.first().ok_or_else(|| silent("open"))?;
                opened(draft, row).map(Some)
            }
            Err(error) if self.merely_held(&error) => Ok(None),
            Err(error) => Err(failed("open", error)),
        }
    }

    /// Runs [`Store::swap`](semel_core::Store::swap) in the transaction that the connection is in.
    pub(crate) async fn swap_one(
        &self,
        connection: &mut MySqlConnection,
        key: &Key,
        judged: Version,
        change: &Change,
    ) -> Result<Swapped> {
        let swapped = async {
            // On MySQL an UPDATE always waits for a row, so the row is locked without waiting
            // first.
            if self.server.flavour == Flavour::MySql {
                let free = "SELECT 1 FROM semel_record WHERE digest = ? FOR UPDATE NOWAIT";
                sqlx::query(free)
                    .bind(identity(key).to_vec())
                    .fetch_optional(&mut *connection)
                    .await?;
            }
            self.try_swap(connection, key, judged, change).await
        };
        match swapped.await {
            Ok(swapped) => Ok(swapped),
            // The row may have changed in any way: the caller reads it again.
            Err(error) if self.merely_held(&error) => Ok(Swapped::Lost),
            Err(error) => Err(failed("swap", error)),
        }
    }

    async fn try_swap(
        &self,
        connection: &mut MySqlConnection,
        key: &Key,
        judged: Version,
        change: &Change,
    ) -> sqlx::Result<Swapped> {
        let digest = identity(key);
        let attempt_id = judged.attempt_id.to_bytes();
        let number = i64::try_from(judged.number).unwrap_or(i64::MAX);
        let query = match change {
            Change::Regrant(draft) | Change::Replace(draft) => {
                let fresh = matches!(change, Change::Replace(_));
                let row = DraftRow::of(draft);
                sqlx::query(AssertSqlSafe(self.texts.regrant(fresh)))
                    .bind(row.fingerprint.to_vec())
                    .bind(row.operation_id.to_vec())
                    .bind(row.attempt_id.to_vec())
                    .bind(row.attempt)
                    .bind(row.owner.as_bytes().to_vec())
                    .bind(row.lease_us)
                    .bind(row.on_crash)
                    .bind(row.keep_us)
                    .bind(row.body.map(<[u8]>::to_vec))
                    .bind(row.content_type.map(|text| text.as_bytes().to_vec()))
                    .bind(row.reference.map(|text| text.as_bytes().to_vec()))
            }
            Change::Settle(Settlement::Removed) => {
                return self.try_remove(connection, &digest, judged).await;
            }
            Change::Settle(settlement) => {
                let text = self.texts.end(answer(settlement));
                bind_ending(sqlx::query(AssertSqlSafe(text)), settlement)
            }
            Change::Redrive => sqlx::query(AssertSqlSafe(self.texts.redrive())),
            Change::Redate => sqlx::query(AssertSqlSafe(self.texts.redate())),
        };
        let query = query.bind(digest.to_vec()).bind(number).bind(attempt_id.to_vec());
        let done = query.execute(connection).await?;
        Ok(match done.rows_affected() {
            0 => Swapped::Lost,
            _ => Swapped::Done { fence: Fence(done.last_insert_id()) },
        })
    }

    async fn try_remove(
        &self,
        connection: &mut MySqlConnection,
        digest: &[u8; 32],
        judged: Version,
    ) -> sqlx::Result<Swapped> {
        let query = sqlx::query(AssertSqlSafe(self.texts.remove()))
            .bind(digest.to_vec())
            .bind(i64::try_from(judged.number).unwrap_or(i64::MAX))
            .bind(judged.attempt_id.to_bytes().to_vec());
        let row = match self.server.flavour {
            Flavour::MariaDb => query.fetch_optional(connection).await?,
            Flavour::MySql => match query.execute(&mut *connection).await?.rows_affected() {
                0 => None,
                _ => {
                    let text = "SELECT CAST(LAST_INSERT_ID() AS SIGNED)";
                    sqlx::query(text).fetch_optional(connection).await?
                }
            },
        };
        Ok(match row {
            None => Swapped::Lost,
            Some(row) => Swapped::Done { fence: Fence::from_i64(row.try_get(0)?) },
        })
    }

    /// Settles one claim. Zero rows mean that the claim is lost.
    pub(crate) async fn settle_one(
        &self,
        connection: &mut MySqlConnection,
        lease: &Lease,
        settlement: &Settlement,
        inside: Inside,
    ) -> sqlx::Result<Settled> {
        let query = match settlement {
            Settlement::Removed => sqlx::query(AssertSqlSafe(self.texts.remove_one(inside))),
            Settlement::Succeeded { .. }
            | Settlement::Failed { .. }
            | Settlement::Dead { .. }
            | Settlement::Uncertain { .. }
            | Settlement::Discarded { .. } => {
                let text = self.texts.settle_one(inside, answer(settlement));
                bind_ending(sqlx::query(AssertSqlSafe(text)), settlement)
            }
        };
        let query = query
            .bind(lease.digest.as_bytes().to_vec())
            .bind(lease.fence.as_i64())
            .bind(lease.attempt_id.to_bytes().to_vec());
        Ok(match query.execute(connection).await?.rows_affected() {
            0 => Settled::Lost,
            _ => Settled::Done,
        })
    }

    /// Returns whether the error means only that another transaction holds the row, and nothing was
    /// rolled back.
    pub(super) fn merely_held(&self, error: &sqlx::Error) -> bool {
        held(error) && !self.server.timeout_rolls_back
    }
}

/// Converts the error of a read that was to show the result of a write. The write is done and its
/// result unknown, so the error must not be treated as a refusal of the write.
pub(super) fn unread(error: sqlx::Error) -> sqlx::Error {
    sqlx::Error::Protocol(format!("written, but what was written could not be read: {error}"))
}

pub(super) async fn select(
    connection: &mut MySqlConnection,
    text: Arc<str>,
    digests: &[[u8; 32]],
) -> sqlx::Result<Vec<(Vec<u8>, Result<Found>)>> {
    let query = sqlx::query(AssertSqlSafe(text));
    let query = digests.iter().fold(query, |query, digest| query.bind(digest.to_vec()));
    let rows = query.fetch_all(connection).await?;
    rows.iter().map(|row| Ok((row.try_get("digest")?, Found::read(row, "read")))).collect()
}

fn is(found: &(Vec<u8>, Result<Found>), digest: &[u8; 32]) -> bool {
    found.0.as_slice() == digest
}

pub(super) fn take(
    found: &mut Vec<(Vec<u8>, Result<Found>)>,
    digest: &[u8; 32],
) -> Option<Result<Found>> {
    let place = found.iter().position(|row| is(row, digest))?;
    Some(found.swap_remove(place).1)
}

fn opened(draft: &Draft, row: &MySqlRow) -> Result<Opened> {
    let found = Found::read(row, "open")?;
    let Found { digest, now, raw } = &found;
    if digest.as_slice() != identity(&draft.key) {
        return Err(undecodable("open", sqlx::Error::Protocol("rows in another order".into())));
    }
    // A statement has one clock, so a row that this statement created has its time.
    let ours = raw.attempt_id == draft.attempt_id.to_bytes()
        && raw.created_at == now.as_micros()
        && raw.number == 1;
    if ours {
        Ok(Opened::Inserted { fence: Fence::from_i64(raw.fence) })
    } else {
        existing(Ok(found))
    }
}

pub(super) fn existing(row: Result<Found>) -> Result<Opened> {
    let Peeked { record, now } = row?.peeked("open")?;
    Ok(Opened::Existing { record: Box::new(record), now })
}

/// Returns whether a settlement has an outcome, which replaces a retry payload.
fn answer(settlement: &Settlement) -> Answer {
    if matches!(settlement, Settlement::Succeeded { .. }) { Answer::Given } else { Answer::None }
}

fn bind_ending<'q>(query: Bound<'q>, settlement: &Settlement) -> Bound<'q> {
    let row = SettlementRow::of(settlement);
    let query = match answer(settlement) {
        Answer::None => query,
        Answer::Given => query
            .bind(row.body.map(<[u8]>::to_vec))
            .bind(row.content_type.map(|text| text.as_bytes().to_vec()))
            .bind(row.reference.map(|text| text.as_bytes().to_vec()))
            .bind(row.omitted_bytes),
    };
    query
        .bind(row.state)
        .bind(row.retry_us)
        .bind(row.error.map(|text| text.as_bytes().to_vec()))
        .bind(row.keep_us)
}

pub(super) fn silent(operation: &'static str) -> Error {
    Error::new(ErrorKind::Ambiguous, operation, "the server answered for fewer rows than were sent")
}
