//! The outbox in SQLite: appending in a caller's transaction, leasing and marking in the writer's.
//!
//! A claim or a mark is a task in the writer's queue: every group commits at most one of them and
//! shares its flush to the disk. There is one writer, so nothing can change between a task's reads
//! and its writes. Operators' queries run on the readers' connections.

mod operators;
mod texts;

use std::time::Duration;

use semel_core::claim::AttemptId;
use semel_core::clock::{Timestamp, micros};
use semel_core::event::Event;
use semel_core::outbox::{
    Applied, Backlog, Bell, ClaimRequest, Cleaned, Disposition, Leased, Marked, Outbox, Row,
    RowAction, Selection, Status, Ticket,
};
use semel_core::store::{ClockTrust, Result};
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Executor, QueryBuilder, Row as _, SqlSafeStr, Sqlite};

use super::queue::{Answer, Step};
use super::task::{Task, TaskAnswer};
use super::{SLICE, SqliteStore, failure, watermark};
use crate::outbox::{
    Claimed, Cursor, EventRow, GRACE, LARGEST, LATER, LONG, Marks, PUBLISHED, REDATED, RETRY,
    SHORT, Scanned, Search, Stored, UNTRIED, chunks, discarded, statuses,
};
use crate::row::undecodable;

/// The largest number of rows and of bytes in one statement of an append. The number of rows is a
/// power of two, as in all smaller statements: each size is prepared once.
const CHUNK: (usize, usize) = (32, 4 << 20);

/// The bell of the outbox, and how far a test's claims have come.
#[derive(Debug, Default)]
pub(super) struct OutboxState {
    bell: Bell,
    cursor: Cursor,
}

/// Runs a task in the transaction that `connection` is in.
pub(super) async fn run(
    connection: &mut SqliteConnection,
    task: &Task,
    now: Timestamp,
) -> sqlx::Result<TaskAnswer> {
    match task {
        Task::Claim { ask, token, after, window } => {
            let leased = claim(connection, *ask, *token, *after, now, *window).await?;
            let more = leased.len() < ask.limit as usize
                && due(connection, now, *window + 1).await? > *window;
            Ok(TaskAnswer::Leased(leased, more))
        }
        Task::PutOff { step, window } => {
            put_off(connection, *step, *window, now).await.map(TaskAnswer::Scanned)
        }
        Task::Mark(marks) => mark(connection, marks, now).await.map(TaskAnswer::Marked),
        Task::Apply { selection, verb, after, limit } => {
            apply(connection, selection, verb, *after, *limit, now).await.map(TaskAnswer::Applied)
        }
        Task::Clean { keep, limit } => {
            clean(connection, *keep, *limit, now).await.map(TaskAnswer::Cleaned)
        }
    }
}

async fn clean(
    connection: &mut SqliteConnection,
    keep: Duration,
    limit: u32,
    now: Timestamp,
) -> sqlx::Result<Cleaned> {
    let redating = sqlx::query(texts::REDATE).bind(now.as_micros());
    let redating = redating.bind(*LONG.end() + GRACE).bind(GRACE).bind(REDATED);
    connection.execute(redating).await?;
    if watermark::observe(connection, now).await? == ClockTrust::Suspect {
        return Ok(Cleaned { removed: 0, clock_suspect: true });
    }
    let before = now.as_micros().saturating_sub(micros(keep));
    let query = sqlx::query(texts::CLEAN).bind(before).bind(i64::from(limit));
    let done = connection.execute(query).await?;
    let removed = u32::try_from(done.rows_affected()).unwrap_or(u32::MAX);
    Ok(Cleaned { removed, clock_suspect: false })
}

async fn claim(
    connection: &mut SqliteConnection,
    ask: ClaimRequest,
    token: AttemptId,
    after: Option<u64>,
    now: Timestamp,
    window: i64,
) -> sqlx::Result<Vec<Leased>> {
    let query = match after {
        None => sqlx::query(texts::CLAIM),
        // Only for a test: shows that claiming after a cursor is wrong.
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
        .bind(window)
        .bind(i64::try_from(ask.bytes).unwrap_or(i64::MAX))
        .bind(micros(ask.lease))
        .bind(LARGEST);
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
    // RETURNING guarantees no order.
    leased.sort_by_key(|row| row.ticket.sequence);
    Ok(leased)
}

/// Counts the due rows, up to `most`.
async fn due(connection: &mut SqliteConnection, now: Timestamp, most: i64) -> sqlx::Result<i64> {
    let query = sqlx::query(texts::DUE).bind(now.as_micros()).bind(most);
    connection.fetch_one(query).await?.try_get(0)
}

async fn put_off(
    connection: &mut SqliteConnection,
    step: i64,
    window: i64,
    now: Timestamp,
) -> sqlx::Result<Scanned> {
    let rows = due(connection, now, step).await?;
    if rows <= window {
        return Ok(Scanned { rows, put_off: 0 });
    }
    let query = sqlx::query(texts::PUT_OFF)
        .bind(now.as_micros())
        .bind(step)
        .bind(*SHORT.start())
        .bind(*SHORT.end())
        .bind(*LONG.start())
        .bind(*LONG.end());
    let done = connection.execute(query).await?;
    Ok(Scanned { rows, put_off: i64::try_from(done.rows_affected()).unwrap_or(i64::MAX) })
}

/// Makes rows due now that were put off.
async fn wake(connection: &mut SqliteConnection, rows: &[i64], now: Timestamp) -> sqlx::Result<()> {
    if !rows.is_empty() {
        let rows = serde_json::to_string(rows).expect("numbers");
        connection.execute(sqlx::query(texts::WAKE).bind(rows).bind(now.as_micros())).await?;
    }
    Ok(())
}

async fn mark(
    connection: &mut SqliteConnection,
    marks: &[(Ticket, Disposition)],
    now: Timestamp,
) -> sqlx::Result<Vec<Marked>> {
    let marks = Marks::of(marks);
    let bound = marks.rows.iter().map(|row| {
        let due = match row.disposition {
            RETRY | LATER => Some(now.as_micros().saturating_add(row.after_us)),
            UNTRIED => Some(now.as_micros()),
            _ => None,
        };
        let published = (row.disposition == PUBLISHED).then(|| now.as_micros());
        let rest = matches!(row.disposition, RETRY | LATER).then_some(row.after_us);
        (row.sequence, hex(&row.token), row.disposition, due, row.error, published, rest)
    });
    let bound = serde_json::to_string(&bound.collect::<Vec<_>>()).expect("numbers and texts");
    let query = sqlx::query(texts::HELD).bind(bound.clone()).bind(now.as_micros());
    let (mut places, mut behind) = (Vec::with_capacity(marks.rows.len()), Vec::new());
    for row in &connection.fetch_all(query).await? {
        places.push(row.try_get::<i64, _>(0)?);
        behind.extend(row.try_get::<Option<i64>, _>(1)?);
    }
    if !places.is_empty() {
        connection.execute(sqlx::query(texts::MARK).bind(bound)).await?;
        wake(connection, &behind, now).await?;
    }
    Ok(marks.answers(places.into_iter().map(|place| usize::try_from(place).unwrap_or(usize::MAX))))
}

async fn apply(
    connection: &mut SqliteConnection,
    selection: &Selection,
    verb: &RowAction,
    after: Option<u64>,
    limit: u32,
    now: Timestamp,
) -> sqlx::Result<Applied> {
    let wanted = statuses(selection, verb);
    if wanted.is_empty() {
        return Ok(Applied::default());
    }
    let mut query = QueryBuilder::<Sqlite>::new(texts::CHOOSE);
    query.push_bind(after.map_or(0, |last| i64::try_from(last).unwrap_or(i64::MAX)));
    operators::push_matches(&mut query, selection, &wanted);
    query.push(" ORDER BY sequence LIMIT ").push_bind(i64::from(limit));
    let rows = connection.fetch_all(query.build().persistent(false)).await?;
    let chosen = rows.iter().map(|row| row.try_get(0)).collect::<sqlx::Result<Vec<i64>>>()?;
    let last = chosen.last().map(|sequence| sequence.unsigned_abs());
    let chosen = serde_json::to_string(&chosen).expect("numbers");
    let done = match discarded(verb) {
        Some(reason) => {
            // Before the rows leave their partitions.
            let query = sqlx::query(texts::BEHIND).bind(chosen.clone()).bind(now.as_micros());
            let behind = connection.fetch_all(query).await?;
            let behind =
                behind.iter().map(|row| row.try_get(0)).collect::<sqlx::Result<Vec<_>>>()?;
            wake(connection, &behind, now).await?;
            let query = sqlx::query(texts::DISCARD).bind(chosen).bind(reason.as_str().to_owned());
            connection.execute(query.bind(now.as_micros())).await?
        }
        None => {
            let query = sqlx::query(texts::REVIVE).bind(chosen).bind(now.as_micros());
            connection.execute(query).await?
        }
    };
    Ok(Applied { changed: u32::try_from(done.rows_affected()).unwrap_or(u32::MAX), last })
}

/// Returns bytes in hex, as the statements expect them.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        use std::fmt::Write as _;
        let _ = write!(text, "{byte:02X}");
        text
    })
}

/// Reads the columns of an event, in the order of [`texts`], from position `at` on.
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
    async fn task(&self, task: Task) -> Result<TaskAnswer> {
        let Answer::Outbox(answer) = self.submit(Step::Outbox(task)).await? else {
            unreachable!("the writer answers a task with `Outbox`")
        };
        Ok(answer)
    }

    async fn put_off(&self, search: &Search) -> Result<Scanned> {
        let task = Task::PutOff { step: search.step(), window: search.window() };
        let TaskAnswer::Scanned(scanned) = self.task(task).await? else {
            unreachable!("the writer answers with `Scanned`")
        };
        Ok(scanned)
    }
}

impl Outbox for SqliteStore {
    type Connection = SqliteConnection;

    async fn append(&self, connection: &mut SqliteConnection, events: &[Event]) -> Result<()> {
        let now = self.0.shared.clock.now().as_micros();
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

    async fn claim(&self, ask: ClaimRequest) -> Result<Vec<Leased>> {
        let outbox_state = &self.0.outbox_state;
        let mut search = Search::new(ask.limit);
        loop {
            let (token, after) = (AttemptId::generate(), outbox_state.cursor.after());
            let task = Task::Claim { ask, token, after, window: search.window() };
            let TaskAnswer::Leased(leased, more) = self.task(task).await? else {
                unreachable!("the writer answers with `Leased`")
            };
            if !ask.look_further {
                // What there is in the window is all that was asked for.
            } else if leased.is_empty() {
                if more && search.goes_on(self.put_off(&search).await?) {
                    continue;
                }
                if search.gave_up() {
                    outbox_state.bell.ring();
                }
            } else if more {
                // For the next claim. The leased rows are returned even if this fails.
                let _ = self.put_off(&search).await;
            }
            outbox_state.cursor.passed(&leased);
            return Ok(leased);
        }
    }

    async fn mark(&self, marks: &[(Ticket, Disposition)]) -> Result<Vec<Marked>> {
        let TaskAnswer::Marked(marked) = self.task(Task::Mark(marks.to_vec())).await? else {
            unreachable!("the writer answers with `Marked`")
        };
        Ok(marked)
    }

    async fn backlog(&self) -> Result<Backlog> {
        let now = self.0.shared.clock.now();
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

    async fn count(&self, selection: &Selection, verb: &RowAction) -> Result<u64> {
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

    /// Runs in several short turns of the writer, so that other steps can run in between.
    async fn apply(
        &self,
        selection: &Selection,
        verb: &RowAction,
        mut after: Option<u64>,
        limit: u32,
    ) -> Result<Applied> {
        let mut all = Applied::default();
        while all.changed < limit {
            let (selection, verb) = (selection.clone(), verb.clone());
            let slice = (limit - all.changed).min(SLICE);
            let task = Task::Apply { selection, verb, after, limit: slice };
            let TaskAnswer::Applied(applied) = self.task(task).await? else {
                unreachable!("the writer answers with `Applied`")
            };
            all =
                Applied { changed: all.changed + applied.changed, last: applied.last.or(all.last) };
            after = applied.last;
            if applied.changed < slice {
                break;
            }
        }
        self.0.outbox_state.bell.ring();
        Ok(all)
    }

    async fn clean(&self, keep: Duration, limit: u32) -> Result<Cleaned> {
        let mut total = Cleaned::default();
        loop {
            let slice = (limit - total.removed).min(SLICE);
            let TaskAnswer::Cleaned(cleaned) =
                self.task(Task::Clean { keep, limit: slice }).await?
            else {
                unreachable!("the writer answers with `Cleaned`")
            };
            total.removed += cleaned.removed;
            total.clock_suspect = cleaned.clock_suspect;
            if cleaned.removed < slice || total.removed >= limit {
                return Ok(total);
            }
        }
    }

    fn bell(&self) -> &Bell {
        &self.0.outbox_state.bell
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
            .bind(now)
    })
}
