//! The outbox in SQLite: appending in a caller's transaction, leasing and marking in the writer's.
//!
//! A claim or a mark is a task in the writer's line: one of them rides with every group and shares its
//! flush to the disk. There is one writer, so nothing can change between what a task reads and what
//! it writes. What operators ask is read on the readers' connections.

mod operators;
mod texts;

use std::time::Duration;

use semel::claim::AttemptId;
use semel::clock::Timestamp;
use semel::event::Envelope;
use semel::outbox::{
    Ask, Backlog, Bell, Fate, Leased, Marked, Outbox, Row, Selection, Status, Ticket, Verb,
};
use semel::store::Result;
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Executor, QueryBuilder, Row as _, SqlSafeStr, Sqlite};

use super::queue::{Answer, Step};
use super::{SLICE, SqliteStore, failure};
use crate::outbox::{
    Claimed, Cursor, EventRow, Marks, PUBLISHED, RETRY, Stored, UNTRIED, chunks, discarded, lane,
    statuses, window,
};
use crate::row::undecodable;

/// Rows and bytes in one statement of an append. A power of two, as all smaller statements are: each
/// size is prepared once.
const CHUNK: (usize, usize) = (32, 4 << 20);

/// What the outbox has of its own.
#[derive(Debug, Default)]
pub(super) struct Hatch {
    bell: Bell,
    cursor: Cursor,
}

/// Something to do in the writer's transaction.
#[derive(Debug)]
pub(super) enum Task {
    /// Lease rows.
    Claim { ask: Ask, token: AttemptId, after: Option<u64> },
    /// Write what became of leased rows.
    Mark(Vec<(Ticket, Fate)>),
    /// Do a verb to some rows.
    Apply { selection: Selection, verb: Verb, limit: u32 },
    /// Remove what was published long ago.
    Clean { keep: Duration, limit: u32 },
}

impl Task {
    /// The name of the SPI's method, for errors.
    pub(super) const fn operation(&self) -> &'static str {
        match self {
            Task::Claim { .. } => "claim",
            Task::Mark(_) => "mark",
            Task::Apply { .. } => "apply",
            Task::Clean { .. } => "clean",
        }
    }
}

/// What came of a [`Task`].
#[derive(Debug)]
pub(super) enum Told {
    /// A claim's, by their numbers.
    Leased(Vec<Leased>),
    /// A mark's.
    Marked(Vec<Marked>),
    /// How many rows were changed.
    Changed(u32),
}

/// Does a task in the transaction that `connection` is in.
pub(super) async fn run(
    connection: &mut SqliteConnection,
    task: &Task,
    now: Timestamp,
) -> sqlx::Result<Told> {
    match task {
        Task::Claim { ask, token, after } => {
            let window = window(ask.limit);
            let mut leased = claim(connection, *ask, *token, *after, now, window).await?;
            if leased.is_empty() {
                leased = claim(connection, *ask, *token, *after, now, i64::MAX).await?;
            }
            Ok(Told::Leased(leased))
        }
        Task::Mark(marks) => mark(connection, marks, now).await.map(Told::Marked),
        Task::Apply { selection, verb, limit } => {
            apply(connection, selection, verb, *limit, now).await.map(Told::Changed)
        }
        Task::Clean { keep, limit } => {
            let before = now.as_micros().saturating_sub(semel::clock::micros(*keep));
            let query = sqlx::query(texts::CLEAN).bind(before).bind(i64::from(*limit));
            let done = connection.execute(query).await?;
            Ok(Told::Changed(u32::try_from(done.rows_affected()).unwrap_or(u32::MAX)))
        }
    }
}

async fn claim(
    connection: &mut SqliteConnection,
    ask: Ask,
    token: AttemptId,
    after: Option<u64>,
    now: Timestamp,
    window: i64,
) -> sqlx::Result<Vec<Leased>> {
    let query = match after {
        None => sqlx::query(texts::CLAIM),
        // How it is not done, for a test.
        Some(last) => {
            let condition = format!("AND o.sequence > {last}");
            let text = texts::CLAIM.replace("/* claimed by state */", &condition);
            sqlx::query(AssertSqlSafe(text).into_sql_str()).persistent(false)
        }
    };
    let query = query
        .bind(now.as_micros())
        .bind(i64::from(ask.limit))
        .bind(now.after(ask.lease).as_micros())
        .bind(token.to_bytes().to_vec())
        .bind(window);
    let rows = connection.fetch_all(query).await?;
    let claimed = |row: &SqliteRow| -> sqlx::Result<Leased> {
        let claimed = Claimed {
            now: now.as_micros(),
            sequence: row.try_get(0)?,
            attempts: row.try_get(1)?,
            created_at: row.try_get(2)?,
            stored: stored(row, 3).map_err(|error| error.to_string()),
        };
        Ok(claimed.leased(token))
    };
    let mut leased: Vec<Leased> = rows.iter().map(claimed).collect::<sqlx::Result<_>>()?;
    // RETURNING promises no order.
    leased.sort_by_key(|row| row.ticket.sequence);
    Ok(leased)
}

async fn mark(
    connection: &mut SqliteConnection,
    marks: &[(Ticket, Fate)],
    now: Timestamp,
) -> sqlx::Result<Vec<Marked>> {
    let marks = Marks::of(marks);
    let told = marks.rows.iter().map(|row| {
        let due = match row.fate {
            RETRY => Some(now.as_micros().saturating_add(row.after_us)),
            UNTRIED => Some(now.as_micros()),
            _ => None,
        };
        let published = (row.fate == PUBLISHED).then(|| now.as_micros());
        (row.sequence, hex(&row.token), row.fate, due, row.error, published)
    });
    let told = serde_json::to_string(&told.collect::<Vec<_>>()).expect("numbers and texts");
    let found = connection.fetch_all(sqlx::query(texts::HELD).bind(told.clone())).await?;
    let places = found.iter().map(|row| row.try_get::<i64, _>(0));
    let places: Vec<i64> = places.collect::<sqlx::Result<_>>()?;
    if !places.is_empty() {
        connection.execute(sqlx::query(texts::MARK).bind(told)).await?;
    }
    Ok(marks.answers(places.into_iter().map(|place| usize::try_from(place).unwrap_or(usize::MAX))))
}

async fn apply(
    connection: &mut SqliteConnection,
    selection: &Selection,
    verb: &Verb,
    limit: u32,
    now: Timestamp,
) -> sqlx::Result<u32> {
    let wanted = statuses(selection, verb);
    if wanted.is_empty() {
        return Ok(0);
    }
    let mut query = QueryBuilder::<Sqlite>::new(texts::CHOOSE);
    operators::push_matches(&mut query, selection, &wanted);
    query.push(" ORDER BY sequence LIMIT ").push_bind(i64::from(limit));
    let rows = connection.fetch_all(query.build().persistent(false)).await?;
    let chosen = |row: &SqliteRow| -> sqlx::Result<(i64, Option<String>)> {
        let (tenant, kind): (&str, &str) = (row.try_get(1)?, row.try_get(2)?);
        let lane = lane(tenant, kind, row.try_get(3)?);
        Ok((row.try_get(0)?, lane.map(|lane| hex(&lane))))
    };
    let chosen: Vec<_> = rows.iter().map(chosen).collect::<sqlx::Result<_>>()?;
    let chosen = serde_json::to_string(&chosen).expect("numbers and texts");
    let query = match discarded(verb) {
        Some(reason) => sqlx::query(texts::DISCARD).bind(chosen).bind(reason.as_str().to_owned()),
        None => sqlx::query(texts::REVIVE).bind(chosen).bind(now.as_micros()),
    };
    let done = connection.execute(query).await?;
    Ok(u32::try_from(done.rows_affected()).unwrap_or(u32::MAX))
}

/// Bytes as the statements want them.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        use std::fmt::Write as _;
        let _ = write!(text, "{byte:02X}");
        text
    })
}

/// The event's columns, in the order of [`texts`], from `at` on.
fn stored(row: &SqliteRow, at: usize) -> sqlx::Result<Stored> {
    Ok(Stored {
        id: row.try_get(at)?,
        tenant: row.try_get(at + 1)?,
        aggregatetype: row.try_get(at + 2)?,
        aggregateid: row.try_get(at + 3)?,
        kind: row.try_get(at + 4)?,
        source: row.try_get(at + 5)?,
        payload: row.try_get(at + 6)?,
        content_type: row.try_get(at + 7)?,
        headers: row.try_get(at + 8)?,
        occurred_at: row.try_get(at + 9)?,
    })
}

impl SqliteStore {
    async fn task(&self, task: Task) -> Result<Told> {
        let Answer::Outbox(told) = self.ask(Step::Outbox(task)).await? else {
            unreachable!("a task is answered as one")
        };
        Ok(told)
    }

    /// Does `task` in turns of the writer that are short enough for everybody else.
    async fn in_slices(&self, limit: u32, task: impl Fn(u32) -> Task) -> Result<u32> {
        let mut total = 0;
        loop {
            let slice = (limit - total).min(SLICE);
            let Told::Changed(changed) = self.task(task(slice)).await? else {
                unreachable!("a change is answered as one")
            };
            total += changed;
            if changed < slice || total >= limit {
                return Ok(total);
            }
        }
    }
}

impl Outbox for SqliteStore {
    type Connection = SqliteConnection;

    async fn append(&self, connection: &mut SqliteConnection, events: &[Envelope]) -> Result<()> {
        let now = self.0.shared.tick.now().as_micros();
        let rows: Vec<EventRow<'_>> = events.iter().map(EventRow::of).collect();
        for mut chunk in chunks(&rows, CHUNK.0, CHUNK.1) {
            while !chunk.is_empty() {
                let (block, rest) = chunk.split_at(1 << chunk.len().ilog2());
                let query = append(block, now);
                let failed = |error| failure::in_transaction("append", error);
                connection.execute(query).await.map_err(failed)?;
                chunk = rest;
            }
        }
        Ok(())
    }

    async fn claim(&self, ask: Ask) -> Result<Vec<Leased>> {
        let hatch = &self.0.hatch;
        let task = Task::Claim { ask, token: AttemptId::generate(), after: hatch.cursor.after() };
        let Told::Leased(leased) = self.task(task).await? else {
            unreachable!("a claim is answered as one")
        };
        hatch.cursor.passed(&leased);
        Ok(leased)
    }

    async fn mark(&self, marks: &[(Ticket, Fate)]) -> Result<Vec<Marked>> {
        match self.task(Task::Mark(marks.to_vec())).await? {
            Told::Marked(marked) => Ok(marked),
            Told::Leased(_) | Told::Changed(_) => unreachable!("a mark is answered as one"),
        }
    }

    async fn backlog(&self) -> Result<Backlog> {
        let now = self.0.shared.tick.now();
        let mut reader = self.0.readers.reader("backlog").await?;
        match operators::backlog(reader.connection(), now).await {
            Ok(backlog) => Ok(backlog),
            Err(error) => Err(reader.failed("backlog", error)),
        }
    }

    async fn list(
        &self,
        selection: &Selection,
        after: Option<u64>,
        limit: u32,
    ) -> Result<Vec<Row>> {
        let wanted: Vec<u8> = selection.status.into_iter().map(Status::code).collect();
        let mut query = operators::list(selection, &wanted, after, limit);
        let mut reader = self.0.readers.reader("list").await?;
        match reader.connection().fetch_all(query.build().persistent(false)).await {
            Ok(rows) => {
                let read = |row| operators::listed(row).map_err(|e| undecodable("list", e))?.row();
                rows.iter().map(read).collect()
            }
            Err(error) => Err(reader.failed("list", error)),
        }
    }

    async fn count(&self, selection: &Selection, verb: &Verb) -> Result<u64> {
        let wanted = statuses(selection, verb);
        if wanted.is_empty() {
            return Ok(0);
        }
        let mut reader = self.0.readers.reader("count").await?;
        match operators::count(reader.connection(), selection, &wanted).await {
            Ok(count) => Ok(count),
            Err(error) => Err(reader.failed("count", error)),
        }
    }

    async fn apply(&self, selection: &Selection, verb: &Verb, limit: u32) -> Result<u32> {
        let task = |limit| {
            let (selection, verb) = (selection.clone(), verb.clone());
            Task::Apply { selection, verb, limit }
        };
        let changed = match verb {
            // What is discarded is dead, so it would be chosen again.
            Verb::Discard { .. } => {
                let Told::Changed(changed) = self.task(task(limit)).await? else {
                    unreachable!("a change is answered as one")
                };
                changed
            }
            Verb::Redrive | Verb::Republish => self.in_slices(limit, task).await?,
        };
        self.0.hatch.bell.ring();
        Ok(changed)
    }

    async fn clean(&self, keep: Duration, limit: u32) -> Result<u32> {
        self.in_slices(limit, |limit| Task::Clean { keep, limit }).await
    }

    fn bell(&self) -> &Bell {
        &self.0.hatch.bell
    }
}

fn append<'q>(
    rows: &'q [EventRow<'q>],
    now: i64,
) -> sqlx::query::Query<'q, Sqlite, SqliteArguments> {
    let values = vec![texts::VALUES; rows.len()].join(", ");
    let text = format!("{}{values}{}", texts::APPEND, texts::UNLESS_THERE);
    let query = sqlx::query(AssertSqlSafe(text).into_sql_str());
    rows.iter().fold(query, |query, row| {
        query
            .bind(&*row.id)
            .bind(row.tenant)
            .bind(row.aggregatetype)
            .bind(row.aggregateid)
            .bind(row.kind)
            .bind(row.source)
            .bind(row.payload)
            .bind(row.content_type)
            .bind(&*row.headers)
            .bind(&*row.occurred_at)
            .bind(now)
            .bind(row.lane.as_ref().map(|lane| lane.as_slice()))
            .bind(now)
    })
}
