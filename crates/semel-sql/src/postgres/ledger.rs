//! The ledger's verbs on a connection: binds the parameters, sends the statement and reads the
//! answer.
//!
//! The callers choose the connection (the batcher's, or that of a caller's transaction); the texts
//! are in `statement`.

use std::sync::Arc;

use semel_core::claim::{Fence, Lease};
use semel_core::clock::Timestamp;
use semel_core::key::{Digest, Key};
use semel_core::record::Version;
use semel_core::store::{
    Change, Draft, Error, ErrorKind, Held, Opened, Peeked, Result, Settled, Settlement, Swapped,
};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row};

use super::busy::busy;
use super::session::{Naming, Session, unopened};
use super::statement::{self, conflicted, ends_session, failed};
use crate::batcher::{Dialect, SettleRequest};
use crate::pool::Lifecycle;
use crate::row::{DraftRow, Raw, SettlementRow, cells};

type Statement<'q> = Query<'q, Postgres, PgArguments>;

/// Opens the batcher's connections and runs its batches.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) session: Session,
    pub(super) lifecycle: Arc<Lifecycle>,
}

impl Ledger {
    /// Converts the error of a batch. If the error points at the server, retires every connection
    /// of the store.
    fn failed(&self, operation: &'static str) -> impl Fn(sqlx::Error) -> Error {
        let name = failed(operation);
        move |error| {
            if ends_session(&error) {
                self.lifecycle.retire();
            }
            name(error)
        }
    }
}

impl Dialect for Ledger {
    type Connection = PgConnection;

    async fn connect(&self) -> Result<PgConnection> {
        self.session.connect().await.map_err(unopened("connect"))
    }

    async fn open(
        &self,
        connection: &mut PgConnection,
        drafts: &[Draft],
    ) -> Result<Vec<Result<Opened>>> {
        let naming = self.session.naming();
        self.session.enter(connection).await.map_err(self.failed("open"))?;
        let opened = match drafts {
            [draft] => {
                open(naming, connection, draft, Inside::Itself).await.map(|opened| vec![opened])
            }
            many => open_many(naming, connection, many).await,
        };
        match self.session.leave(connection, opened).await {
            // Another transaction held a lock for longer than a step waits.
            Err(error) if conflicted(&error) => {
                Ok(drafts.iter().map(|_| Ok(Opened::Contended)).collect())
            }
            other => other.map_err(self.failed("open")),
        }
    }

    async fn settle(
        &self,
        connection: &mut PgConnection,
        settlements: &[SettleRequest],
    ) -> Result<Vec<Result<Settled>>> {
        let naming = self.session.naming();
        self.session.enter(connection).await.map_err(self.failed("settle"))?;
        let settled = match settlements {
            [one] => settle(naming, connection, one).await.map(|settled| vec![settled]),
            many => settle_many(naming, connection, many).await,
        };
        match self.session.leave(connection, settled).await {
            Err(error) if conflicted(&error) => {
                Ok(settlements.iter().map(|_| Err(busy("settle"))).collect())
            }
            other => other.map_err(self.failed("settle")),
        }
    }

    async fn peek(
        &self,
        connection: &mut PgConnection,
        digests: &[Digest],
    ) -> Result<Vec<Result<Option<Peeked>>>> {
        let naming = self.session.naming();
        self.session.enter(connection).await.map_err(self.failed("peek"))?;
        let peeked = match digests {
            [digest] => peek(naming, connection, digest).await.map(|peeked| vec![peeked]),
            many => peek_many(naming, connection, many).await,
        };
        self.session.leave(connection, peeked).await.map_err(self.failed("peek"))
    }

    async fn swap(
        &self,
        connection: &mut PgConnection,
        key: &Key,
        judged: Version,
        change: &Change,
    ) -> Result<Swapped> {
        self.session.enter(connection).await.map_err(self.failed("swap"))?;
        let swapped = swap(self.session.naming(), connection, key, judged, change).await;
        match self.session.leave(connection, swapped).await {
            Err(error) if conflicted(&error) => Ok(Swapped::Lost),
            other => other.map_err(self.failed("swap")),
        }
    }
}

/// The transaction in which a statement runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inside {
    /// The statement is a transaction by itself.
    Itself,
    /// A caller's transaction, which gets the mark that the claim belongs to it.
    Caller,
}

/// Inserts the draft as a record, or reads the record that already has its key.
pub(super) async fn open(
    naming: Naming,
    connection: &mut PgConnection,
    draft: &Draft,
    inside: Inside,
) -> sqlx::Result<Result<Opened>> {
    let row = DraftRow::of(draft);
    let found = naming
        .query(statement::OPEN)
        .bind(row.digest.as_slice())
        .bind(row.kind)
        .bind(row.tenant)
        .bind(row.scope)
        .bind(row.principal)
        .bind(row.id)
        .bind(row.fingerprint)
        .bind(row.operation_id.as_slice())
        .bind(row.attempt_id.as_slice())
        .bind(row.attempt)
        .bind(row.owner)
        .bind(row.lease_us)
        .bind(row.on_crash)
        .bind(row.keep_us)
        .bind(row.sweep_us)
        .bind(lock_key(&row.digest))
        .bind(row.body)
        .bind(row.content_type)
        .bind(row.reference)
        .bind(inside == Inside::Caller)
        .fetch_optional(connection)
        .await?;
    found.map_or(Ok(Ok(Opened::Contended)), |row| opened(&row))
}

async fn open_many(
    naming: Naming,
    connection: &mut PgConnection,
    drafts: &[Draft],
) -> sqlx::Result<Vec<Result<Opened>>> {
    let rows: Vec<DraftRow<'_>> = drafts.iter().map(DraftRow::of).collect();
    let found = naming
        .query(statement::OPEN_MANY)
        .bind(column(&rows, |row| row.digest.as_slice()))
        .bind(column(&rows, |row| row.kind))
        .bind(column(&rows, |row| row.tenant))
        .bind(column(&rows, |row| row.scope))
        .bind(column(&rows, |row| row.principal))
        .bind(column(&rows, |row| row.id))
        .bind(column(&rows, |row| row.fingerprint))
        .bind(column(&rows, |row| row.operation_id.as_slice()))
        .bind(column(&rows, |row| row.attempt_id.as_slice()))
        .bind(column(&rows, |row| row.attempt))
        .bind(column(&rows, |row| row.owner))
        .bind(column(&rows, |row| row.lease_us))
        .bind(column(&rows, |row| row.on_crash))
        .bind(column(&rows, |row| row.keep_us))
        .bind(column(&rows, |row| row.sweep_us))
        .bind(column(&rows, |row| lock_key(&row.digest)))
        .bind(column(&rows, |row| row.body))
        .bind(column(&rows, |row| row.content_type))
        .bind(column(&rows, |row| row.reference))
        .fetch_all(connection)
        .await?;
    // A key without a row is contended.
    let mut answers: Vec<Result<Opened>> = rows.iter().map(|_| Ok(Opened::Contended)).collect();
    for row in &found {
        if let Some(at) = place(row, &rows, |row| &row.digest)? {
            answers[at] = opened(row)?;
        }
    }
    Ok(answers)
}

/// Reads a row of `open.sql` or `open_many.sql`.
fn opened(row: &PgRow) -> sqlx::Result<Result<Opened>> {
    if let Some(fence) = row.try_get::<Option<i64>, _>("won")? {
        return Ok(Ok(Opened::Inserted { fence: Fence::from_i64(fence) }));
    }
    if row.try_get::<Option<i64>, _>("number")?.is_none() {
        return Ok(Ok(Opened::Contended));
    }
    let now = Timestamp::from_micros(row.try_get("us")?);
    let record = Raw::read(row)?.record("open");
    Ok(record.map(|record| Opened::Existing { record: Box::new(record), now }))
}

/// Settles one claim.
async fn settle(
    naming: Naming,
    connection: &mut PgConnection,
    SettleRequest { lease, settlement }: &SettleRequest,
) -> sqlx::Result<Result<Settled>> {
    let texts = (statement::SETTLE, statement::RELEASE);
    let query = settle_query(naming, texts, lease, &SettlementRow::of(settlement));
    let row = query.fetch_one(connection).await?;
    Ok(settled(row.try_get(0)?))
}

/// Converts the result of a settle: `true` if it was settled, `false` if another transaction has
/// the row locked, null if the claim was lost.
fn settled(done: Option<bool>) -> Result<Settled> {
    match done {
        Some(true) => Ok(Settled::Done),
        Some(false) => Err(busy("settle")),
        None => Ok(Settled::Lost),
    }
}

/// Settles one claim inside a caller's transaction; `None` if that transaction is over.
pub(super) async fn settle_in(
    naming: Naming,
    connection: &mut PgConnection,
    lease: &Lease,
    settlement: &Settlement,
) -> sqlx::Result<Option<Result<Settled>>> {
    let texts = (statement::SETTLE_IN, statement::RELEASE_IN);
    let query = settle_query(naming, texts, lease, &SettlementRow::of(settlement));
    let row = query.fetch_one(connection).await?;
    let (open, done): (bool, Option<bool>) = (row.try_get(0)?, row.try_get(1)?);
    Ok(open.then(|| settled(done)))
}

/// Locks the record of a claim if the transaction has one snapshot for all its statements; `None`
/// if another transaction has the record locked.
pub(super) async fn hold_in(
    naming: Naming,
    connection: &mut PgConnection,
    lease: &Lease,
) -> sqlx::Result<Option<Held>> {
    let row = naming
        .query(statement::HOLD)
        .bind(lease.digest.as_bytes().to_vec())
        .bind(lease.fence.as_i64())
        .bind(lease.attempt_id.to_bytes().to_vec())
        .fetch_one(connection)
        .await?;
    Ok(match row.try_get::<Option<i32>, _>(0)? {
        Some(0) => Some(Held::Renewable),
        Some(1) => Some(Held::Locked),
        Some(_) => None,
        None => Some(Held::Lost),
    })
}

fn settle_query<'q>(
    naming: Naming,
    (update, delete): (&'static str, &'static str),
    lease: &Lease,
    row: &SettlementRow<'q>,
) -> Statement<'q> {
    let guarded = |sql| {
        naming
            .query(sql)
            .bind(lease.digest.as_bytes().to_vec())
            .bind(lease.fence.as_i64())
            .bind(lease.attempt_id.to_bytes().to_vec())
    };
    match row.state {
        None => guarded(delete),
        Some(state) => ended(guarded(update), state, row),
    }
}

/// Binds the values of a settlement, from the fourth parameter on.
fn ended<'q>(query: Statement<'q>, state: i16, row: &SettlementRow<'q>) -> Statement<'q> {
    query
        .bind(state)
        .bind(row.retry_us)
        .bind(row.body)
        .bind(row.content_type)
        .bind(row.reference)
        .bind(row.omitted_bytes)
        .bind(row.error)
        .bind(row.keep_us)
}

async fn settle_many(
    naming: Naming,
    connection: &mut PgConnection,
    settlements: &[SettleRequest],
) -> sqlx::Result<Vec<Result<Settled>>> {
    let attempts: Vec<[u8; 16]> =
        settlements.iter().map(|s| s.lease.attempt_id.to_bytes()).collect();
    let rows: Vec<SettlementRow<'_>> =
        settlements.iter().map(|s| SettlementRow::of(&s.settlement)).collect();
    let found = naming
        .query(statement::SETTLE_MANY)
        .bind(column(settlements, |s| s.lease.digest.as_bytes().as_slice()))
        .bind(column(settlements, |s| s.lease.fence.as_i64()))
        .bind(column(&attempts, |attempt| attempt.as_slice()))
        .bind(column(&rows, |row| row.state))
        .bind(column(&rows, |row| row.retry_us))
        .bind(column(&rows, |row| row.body))
        .bind(column(&rows, |row| row.content_type))
        .bind(column(&rows, |row| row.reference))
        .bind(column(&rows, |row| row.omitted_bytes))
        .bind(column(&rows, |row| row.error))
        .bind(column(&rows, |row| row.keep_us))
        .fetch_all(connection)
        .await?;
    let mut answers: Vec<Result<Settled>> = rows.iter().map(|_| Ok(Settled::Lost)).collect();
    for row in &found {
        let digest: &[u8] = row.try_get(0)?;
        let done: bool = row.try_get(1)?;
        let at = settlements.iter().position(|s| s.lease.digest.as_bytes().as_slice() == digest);
        let Some(at) = at else { continue };
        if done {
            answers[at] = Ok(Settled::Done);
        } else if !matches!(answers[at], Ok(Settled::Done)) {
            // The row still belongs to this grant but was not settled: another transaction has it
            // locked.
            answers[at] = Err(busy("settle"));
        }
    }
    Ok(answers)
}

async fn peek(
    naming: Naming,
    connection: &mut PgConnection,
    digest: &Digest,
) -> sqlx::Result<Result<Option<Peeked>>> {
    let row = naming
        .query(statement::PEEK)
        .bind(digest.as_bytes().as_slice())
        .fetch_optional(connection)
        .await?;
    row.as_ref().map_or(Ok(Ok(None)), peeked)
}

async fn peek_many(
    naming: Naming,
    connection: &mut PgConnection,
    digests: &[Digest],
) -> sqlx::Result<Vec<Result<Option<Peeked>>>> {
    let found = naming
        .query(statement::PEEK_MANY)
        .bind(column(digests, |digest| digest.as_bytes().as_slice()))
        .fetch_all(connection)
        .await?;
    let mut answers: Vec<Result<Option<Peeked>>> = digests.iter().map(|_| Ok(None)).collect();
    for row in &found {
        if let Some(at) = place(row, digests, Digest::as_bytes)? {
            answers[at] = peeked(row)?;
        }
    }
    Ok(answers)
}

fn peeked(row: &PgRow) -> sqlx::Result<Result<Option<Peeked>>> {
    let now = Timestamp::from_micros(row.try_get("us")?);
    let record = Raw::read(row)?.record("peek");
    Ok(record.map(|record| Some(Peeked { record, now })))
}

/// Applies `change` to the record of `key` if the record still has the version `judged`.
pub(super) async fn swap(
    naming: Naming,
    connection: &mut PgConnection,
    key: &Key,
    judged: Version,
    change: &Change,
) -> sqlx::Result<Swapped> {
    let judging = |sql| {
        naming
            .query(sql)
            .bind(key.digest().as_bytes().to_vec())
            .bind(judged.attempt_id.to_bytes().to_vec())
            .bind(i64::try_from(judged.number).unwrap_or(i64::MAX))
    };
    let query = match change {
        Change::Regrant(draft) => regranted(judging(statement::REGRANT), draft, false),
        Change::Replace(draft) => regranted(judging(statement::REGRANT), draft, true),
        Change::Redrive => judging(statement::REDRIVE),
        Change::Redate => judging(statement::REDATE),
        Change::Settle(settlement) => {
            let row = SettlementRow::of(settlement);
            match row.state {
                None => judging(statement::REMOVE),
                Some(state) => ended(judging(statement::END), state, &row),
            }
        }
    };
    let row = query.fetch_optional(connection).await?;
    Ok(match row {
        Some(row) => Swapped::Done { fence: Fence::from_i64(row.try_get(0)?) },
        None => Swapped::Lost,
    })
}

fn regranted<'q>(query: Statement<'q>, draft: &'q Draft, anew: bool) -> Statement<'q> {
    let row = DraftRow::of(draft);
    query
        .bind(row.fingerprint)
        .bind(row.operation_id.to_vec())
        .bind(row.attempt_id.to_vec())
        .bind(row.attempt)
        .bind(row.owner)
        .bind(row.lease_us)
        .bind(row.on_crash)
        .bind(row.keep_us)
        .bind(row.sweep_us)
        .bind(anew)
        .bind(row.body)
        .bind(row.content_type)
        .bind(row.reference)
}

cells!(PgRow: i16, i32, i64, String, Vec<u8>, Option<i64>, Option<String>, Option<Vec<u8>>);

/// Refuses text that PostgreSQL cannot store, before it can fail a batch with other callers' steps.
pub(super) fn storable(operation: &'static str, what: &str, text: &str) -> Result<()> {
    if !text.contains('\0') {
        return Ok(());
    }
    let words = format!("the {what} holds a NUL character, which PostgreSQL's text cannot");
    Err(Error::new(ErrorKind::Misconfigured, operation, words))
}

fn column<'a, T, C>(items: &'a [T], cell: impl Fn(&'a T) -> C) -> Vec<C> {
    items.iter().map(cell).collect()
}

/// Returns the position of the request that a row of a batch answers.
fn place<T>(
    row: &PgRow,
    items: &[T],
    digest: impl Fn(&T) -> &[u8; 32],
) -> sqlx::Result<Option<usize>> {
    let found: &[u8] = row.try_get("digest")?;
    Ok(items.iter().position(|item| digest(item).as_slice() == found))
}

/// Returns the advisory lock of a key: the first eight bytes of its digest. If two keys collide,
/// they contend for a moment, nothing worse.
pub(super) fn lock_key(digest: &[u8; 32]) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = *digest;
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}
