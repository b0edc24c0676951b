//! The ledger's steps on a connection: what is sent, and what the server's answer means.
//!
//! No connection is chosen here and nothing is judged. Whether a write was ours is always read from
//! the row (`attempt_id`) or from the rows that matched, never guessed from an affected-rows count
//! that a driver's flag can change.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use semel::claim::{Fence, Lease};
use semel::key::{Digest, Key};
use semel::record::Version;
use semel::store::{
    Change, Draft, Ending, Error, ErrorKind, Opened, Peeked, Result, Settled, Swapped,
};
use sqlx::mysql::{MySqlConnectOptions, MySqlRow};
use sqlx::{AssertSqlSafe, MySqlConnection, Row};

use super::columns::{Bound, Found, bind_draft, identity};
use super::many::groups;
use super::session::{self, Flavour, Role, Server, codes, deadlock, held};
use super::statement::{Inside, Texts};
use crate::error::{Stage, classify};
use crate::lanes::{Dialect, Settlement};
use crate::row::{DraftRow, EndingRow, undecodable};

/// How often a statement of ours that lost a deadlock is sent again before its caller learns of it.
const DEADLOCKS: usize = 5;
/// Most bytes of outcomes in one statement: well below what any server takes, and more than a
/// batch of ordinary answers has.
const BYTES: usize = 1 << 20;

/// The statements, and the server they are for.
pub(crate) struct Ledger {
    pub(crate) options: MySqlConnectOptions,
    pub(crate) server: Server,
    pub(crate) limit: Duration,
    pub(super) texts: Texts,
    /// Numbers the statements on many rows, so that a session never mixes two of them up.
    pub(super) batches: AtomicI64,
}

impl Ledger {
    pub(crate) fn new(options: MySqlConnectOptions, server: Server, limit: Duration) -> Self {
        let texts = Texts::new(server.flavour);
        Self { options, server, limit, texts, batches: AtomicI64::new(1) }
    }

    /// Inserts or reads some drafts with different digests. `Err(sqlx)` for all of them.
    async fn try_open(
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

    /// Without RETURNING: look (not waiting for anybody), then insert what is missing.
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
        let fence = if missing.is_empty() {
            Fence(0)
        } else {
            self.insert_mysql(connection, &missing).await?
        };
        let answer = |digest: &[u8; 32]| match take(&mut found, digest) {
            Some(row) => existing(row),
            None => Ok(Opened::Inserted { fence }),
        };
        Ok(digests.iter().map(answer).collect())
    }

    /// Inserts rows that were not there a moment ago; gives the fence, which all of them share.
    pub(crate) async fn insert_mysql(
        &self,
        connection: &mut MySqlConnection,
        drafts: &[&Draft],
    ) -> sqlx::Result<Fence> {
        let query = sqlx::query(AssertSqlSafe(self.texts.insert(drafts.len())));
        let query = drafts.iter().fold(query, |query, draft| bind_draft(query, draft));
        Ok(Fence(query.execute(connection).await?.last_insert_id()))
    }

    /// Reads a record, not waiting for whoever holds it. On a connection of ours, on MySQL.
    pub(crate) async fn probe(
        &self,
        connection: &mut MySqlConnection,
        draft: &Draft,
    ) -> sqlx::Result<Option<Opened>> {
        let digest = identity(&draft.key);
        let mut found = select(connection, self.texts.probe(1), &[digest]).await?;
        take(&mut found, &digest).map(existing).transpose().map_err(sqlx::Error::decode)
    }

    /// [`Store::open`](semel::Store::open) in the caller's transaction, on MariaDB: one statement,
    /// whose answer is the current row at every isolation level. `None` if a rival holds the key.
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

    /// [`Store::swap`](semel::Store::swap), in whatever transaction the connection is in.
    pub(crate) async fn swap_one(
        &self,
        connection: &mut MySqlConnection,
        key: &Key,
        judged: Version,
        change: &Change,
    ) -> Result<Swapped> {
        match self.try_swap(connection, key, judged, change).await {
            Ok(swapped) => Ok(swapped),
            // The lost row may be whatever it likes by now: the caller asks again.
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
            }
            Change::End(Ending::Removed) => {
                return self.try_remove(connection, &digest, judged).await;
            }
            Change::End(ending) => {
                bind_ending(sqlx::query(AssertSqlSafe(self.texts.end())), &EndingRow::of(ending))
            }
            Change::Redrive => sqlx::query(AssertSqlSafe(self.texts.redrive())),
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

    /// Ends one claim. Zero rows is Lost.
    pub(crate) async fn settle_one(
        &self,
        connection: &mut MySqlConnection,
        lease: &Lease,
        ending: &Ending,
        inside: Inside,
    ) -> sqlx::Result<Settled> {
        let row = EndingRow::of(ending);
        let query = match row.state {
            Some(_) => bind_ending(sqlx::query(AssertSqlSafe(self.texts.settle_one(inside))), &row),
            None => sqlx::query(AssertSqlSafe(self.texts.remove_one(inside))),
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

    /// Whether the refusal means only that a rival holds the row, and nothing else was undone.
    fn merely_held(&self, error: &sqlx::Error) -> bool {
        held(error) && !self.server.timeout_rolls_back
    }
}

impl Dialect for Ledger {
    type Connection = MySqlConnection;

    async fn connect(&self) -> Result<MySqlConnection> {
        Ok(session::connect(&self.options, Role::Ledger, self.limit).await?.0)
    }

    async fn open(
        &self,
        connection: &mut MySqlConnection,
        drafts: &[Draft],
    ) -> Result<Vec<Result<Opened>>> {
        let mut order: Vec<usize> = (0..drafts.len()).collect();
        order.sort_by_key(|i| drafts[*i].key.digest());
        let mut answers = Answers::new(drafts.len());
        // A statement fails whole when one of its keys is held. Then those that are there are read
        // (a reader waits for nobody), and the rest is halved until only the held ones are left.
        let mut todo = vec![order];
        while let Some(group) = todo.pop() {
            let some: Vec<&Draft> = group.iter().map(|i| &drafts[*i]).collect();
            match self.try_open(connection, &some).await {
                Ok(opened) => answers.put(&group, opened),
                Err(error) if contended(&error) => {
                    let digests: Vec<_> = some.iter().map(|draft| identity(&draft.key)).collect();
                    let text = self.texts.peek(digests.len());
                    let mut found = select(connection, text, &digests)
                        .await
                        .map_err(|error| failed("open", error))?;
                    let mut rest = Vec::new();
                    for (i, digest) in group.iter().zip(&digests) {
                        match take(&mut found, digest) {
                            Some(row) => answers.put(&[*i], [existing(row)]),
                            None if group.len() == 1 => {
                                answers.put(&[*i], [Ok(Opened::Contended)]);
                            }
                            None => rest.push(*i),
                        }
                    }
                    split(rest, &mut todo);
                }
                Err(error) => return Err(failed("open", error)),
            }
        }
        answers.done("open")
    }

    async fn settle(
        &self,
        connection: &mut MySqlConnection,
        settlements: &[Settlement],
    ) -> Result<Vec<Result<Settled>>> {
        let mut answers = Answers::new(settlements.len());
        let mut todo = groups(settlements, BYTES.min(self.server.packet / 4));
        let mut deadlocks = 0;
        while let Some(group) = todo.pop() {
            let some: Vec<&Settlement> = group.iter().map(|i| &settlements[*i]).collect();
            match self.try_settle(connection, &some).await {
                Ok(done) => {
                    let settled = |done| Ok(if done { Settled::Done } else { Settled::Lost });
                    answers.put(&group, done.into_iter().map(settled));
                }
                Err(error) if deadlock(&error) && deadlocks < DEADLOCKS => {
                    deadlocks += 1;
                    todo.push(group);
                }
                Err(error) if held(&error) || deadlock(&error) => {
                    if let [one] = group.as_slice() {
                        // The statement was rolled back: nothing happened to this claim.
                        let error = failed("settle", error).with_kind(ErrorKind::Unavailable);
                        answers.put(&[*one], [Err(error)]);
                    } else {
                        todo.extend(group.into_iter().map(|i| vec![i]));
                    }
                }
                Err(error) => return Err(failed("settle", error)),
            }
        }
        answers.done("settle")
    }

    async fn peek(
        &self,
        connection: &mut MySqlConnection,
        digests: &[Digest],
    ) -> Result<Vec<Result<Option<Peeked>>>> {
        let digests: Vec<[u8; 32]> = digests.iter().map(|digest| *digest.as_bytes()).collect();
        let mut found = select(connection, self.texts.peek(digests.len()), &digests)
            .await
            .map_err(|error| failed("peek", error))?;
        let answer = |digest| match take(&mut found, digest) {
            None => Ok(None),
            Some(row) => row?.peeked("peek").map(Some),
        };
        Ok(digests.iter().map(answer).collect())
    }

    async fn swap(
        &self,
        connection: &mut MySqlConnection,
        key: &Key,
        judged: Version,
        change: &Change,
    ) -> Result<Swapped> {
        match self.swap_one(connection, key, judged, change).await {
            // Alone in its transaction, a statement that lost a deadlock did nothing.
            Err(error) if error.kind() == ErrorKind::RetryTransaction => Ok(Swapped::Lost),
            swapped => swapped,
        }
    }
}

/// Answers in the order of the questions, however they come in.
struct Answers<T>(Vec<Option<Result<T>>>);

impl<T> Answers<T> {
    fn new(count: usize) -> Self {
        Self((0..count).map(|_| None).collect())
    }

    fn put(&mut self, places: &[usize], answers: impl IntoIterator<Item = Result<T>>) {
        for (place, answer) in places.iter().zip(answers) {
            self.0[*place] = Some(answer);
        }
    }

    fn done(self, operation: &'static str) -> Result<Vec<Result<T>>> {
        Ok(self
            .0
            .into_iter()
            .map(|answer| answer.unwrap_or_else(|| Err(silent(operation))))
            .collect())
    }
}

fn split(mut rest: Vec<usize>, todo: &mut Vec<Vec<usize>>) {
    let tail = rest.split_off(rest.len() / 2);
    todo.extend([rest, tail].into_iter().filter(|half| !half.is_empty()));
}

/// A rival holds one of the keys, or wrote it between our look and our insert.
fn contended(error: &sqlx::Error) -> bool {
    held(error) || deadlock(error) || session::number(error) == Some(1062)
}

async fn select(
    connection: &mut MySqlConnection,
    text: Arc<str>,
    digests: &[[u8; 32]],
) -> sqlx::Result<Vec<(Vec<u8>, Result<Found>)>> {
    let query = sqlx::query(AssertSqlSafe(text));
    let query = digests.iter().fold(query, |query, digest| query.bind(digest.to_vec()));
    let rows = query.fetch_all(connection).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, Found::read(row, "read")))).collect()
}

fn is(found: &(Vec<u8>, Result<Found>), digest: &[u8; 32]) -> bool {
    found.0.as_slice() == digest
}

fn take(found: &mut Vec<(Vec<u8>, Result<Found>)>, digest: &[u8; 32]) -> Option<Result<Found>> {
    let place = found.iter().position(|row| is(row, digest))?;
    Some(found.swap_remove(place).1)
}

fn opened(draft: &Draft, row: &MySqlRow) -> Result<Opened> {
    let found = Found::read(row, "open")?;
    let Found { digest, now, raw } = &found;
    if digest.as_slice() != identity(&draft.key) {
        return Err(undecodable("open", sqlx::Error::Protocol("rows in another order".into())));
    }
    // All of a statement has one clock, so a row that this statement created carries it.
    let ours = raw.attempt_id == draft.attempt_id.to_bytes()
        && raw.created_at == now.as_micros()
        && raw.number == 1;
    if ours {
        Ok(Opened::Inserted { fence: Fence::from_i64(raw.fence) })
    } else {
        existing(Ok(found))
    }
}

fn existing(row: Result<Found>) -> Result<Opened> {
    let Peeked { record, now } = row?.peeked("open")?;
    Ok(Opened::Existing { record: Box::new(record), now })
}

fn bind_ending<'q>(query: Bound<'q>, row: &EndingRow<'_>) -> Bound<'q> {
    query
        .bind(row.state)
        .bind(row.retry_us)
        .bind(row.body.map(<[u8]>::to_vec))
        .bind(row.content_type.map(|text| text.as_bytes().to_vec()))
        .bind(row.reference.map(|text| text.as_bytes().to_vec()))
        .bind(row.omitted_bytes)
        .bind(row.error.map(|text| text.as_bytes().to_vec()))
        .bind(row.keep_us)
}

pub(crate) fn failed(operation: &'static str, error: sqlx::Error) -> Error {
    classify(codes, Stage::Running, operation, error)
}

fn silent(operation: &'static str) -> Error {
    Error::new(ErrorKind::Ambiguous, operation, "the server answered for fewer rows than were sent")
}
