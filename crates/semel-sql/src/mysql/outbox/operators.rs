//! The operators' verbs on the outbox in MySQL and MariaDB: counts, lists and changes rows.
//!
//! Indexes serve selections of dead or waiting rows and of ids. The index is forced, because a
//! server that is to return rows in order scans the primary key to the end if it expects to be done
//! soon. Any other selection scans the table.

use std::time::Duration;

use semel_core::clock::micros;
use semel_core::outbox::{Applied, Backlog, Cleaned, RowAction, Selection, Status};
use semel_core::store::Result;
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};

use super::super::pool::alone;
use super::super::statement::CLOCK;
use super::super::watermark;
use super::put_off::wake;
use super::{OUTLINE, failed, hex, numbers, stored};
use crate::outbox::{GRACE, LONG, Listed, REDATED, are_due, discarded, spellings, statuses};

/// The largest number of rows that one statement removes.
const CHUNK: usize = 200;

pub(super) async fn backlog(connection: &mut MySqlConnection) -> sqlx::Result<Backlog> {
    let most = Backlog::MOST;
    let text = format!(
        "SELECT COUNT(*), CAST({CLOCK} - MIN(created_at) AS SIGNED), (SELECT COUNT(*) FROM \
         (SELECT 1 FROM semel_outbox FORCE INDEX (semel_outbox_dead) WHERE dead = 1 LIMIT {most}) d) \
         FROM (SELECT created_at FROM semel_outbox FORCE INDEX (semel_outbox_due) \
         WHERE due_at IS NOT NULL ORDER BY due_at, sequence LIMIT {most}) w"
    );
    let row = sqlx::raw_sql(AssertSqlSafe(text)).fetch_one(connection).await?;
    let (waiting, oldest): (i64, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
    let dead: i64 = row.try_get(2)?;
    let age = |us| Duration::from_micros(u64::try_from(us).unwrap_or(0));
    Ok(Backlog {
        waiting: waiting.unsigned_abs(),
        dead: dead.unsigned_abs(),
        oldest: oldest.map(age),
    })
}

pub(super) async fn list(
    connection: &mut MySqlConnection,
    selection: &Selection,
    after: Option<u64>,
    limit: u32,
) -> Result<Vec<Listed>> {
    let wanted: Vec<u8> = selection.status.into_iter().map(Status::code).collect();
    let text = format!(
        "SELECT sequence, CAST(status AS SIGNED), attempts, CAST(error AS BINARY), created_at, \
         due_at, published_at, CAST(LENGTH(payload) AS SIGNED), {OUTLINE} FROM semel_outbox{} WHERE sequence > {}{} \
         ORDER BY sequence LIMIT {limit}",
        index(selection, &wanted),
        after.map_or(0, |last| i64::try_from(last).unwrap_or(i64::MAX)),
        matches(selection, &wanted)
    );
    let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(connection).await;
    let listed = |row: &MySqlRow| -> sqlx::Result<Listed> {
        let status: i64 = row.try_get(1)?;
        let error: Option<Vec<u8>> = row.try_get(3)?;
        Ok(Listed {
            sequence: row.try_get(0)?,
            status: i16::try_from(status).unwrap_or(i16::MAX),
            attempts: row.try_get(2)?,
            error: error.map(|error| String::from_utf8_lossy(&error).into_owned()),
            created_at: row.try_get(4)?,
            due_at: row.try_get(5)?,
            settled_at: row.try_get(6)?,
            bytes: row.try_get(7)?,
            stored: stored(row, 8),
        })
    };
    let rows = rows.and_then(|rows| rows.iter().map(listed).collect());
    rows.map_err(|error| alone(failed("list", error)))
}

pub(super) async fn count(
    connection: &mut MySqlConnection,
    selection: &Selection,
    verb: &RowAction,
) -> Result<u64> {
    let wanted = statuses(selection, verb);
    if wanted.is_empty() {
        return Ok(0);
    }
    let text = format!(
        "SELECT COUNT(*) FROM (SELECT 1 FROM semel_outbox{} WHERE TRUE{} LIMIT {}) t",
        index(selection, &wanted),
        matches(selection, &wanted),
        Backlog::MOST
    );
    let row = sqlx::raw_sql(AssertSqlSafe(text)).fetch_one(connection).await;
    let count = row.and_then(|row| row.try_get::<i64, _>(0));
    count.map(i64::unsigned_abs).map_err(|error| alone(failed("count", error)))
}

/// Applies a verb in a transaction: the rows are selected and locked, then written.
pub(super) async fn apply(
    connection: &mut MySqlConnection,
    selection: &Selection,
    verb: &RowAction,
    after: Option<u64>,
    limit: u32,
) -> sqlx::Result<Applied> {
    let wanted = statuses(selection, verb);
    if wanted.is_empty() || limit == 0 {
        return Ok(Applied::default());
    }
    let text = format!(
        "START TRANSACTION; SELECT sequence FROM semel_outbox{} WHERE sequence > {}{} \
         ORDER BY sequence LIMIT {limit} FOR UPDATE SKIP LOCKED",
        index(selection, &wanted),
        after.map_or(0, |last| i64::try_from(last).unwrap_or(i64::MAX)),
        matches(selection, &wanted)
    );
    let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(&mut *connection).await?;
    let chosen: Vec<i64> = rows.iter().map(|row| row.try_get(0)).collect::<sqlx::Result<_>>()?;
    let Some(last) = chosen.last().map(|sequence| sequence.unsigned_abs()) else {
        sqlx::raw_sql("ROLLBACK").execute(connection).await?;
        return Ok(Applied::default());
    };
    let (set, first) = match discarded(verb) {
        Some(reason) => {
            let reason = hex(reason.as_str().as_bytes());
            let settled = "status = 5, token = NULL, due_at = NULL, in_partition = 0";
            let set = format!("{settled}, published_at = {CLOCK}, error = {reason}");
            (set, wake(&chosen))
        }
        None => {
            let pending = "status = 0, attempts = 0, token = NULL, published_at = NULL";
            (format!("{pending}, due_at = {CLOCK}, in_partition = 1"), String::new())
        }
    };
    let text = format!(
        "{first}UPDATE semel_outbox FORCE INDEX (PRIMARY) SET {set} WHERE sequence IN ({}); COMMIT",
        numbers(chosen.iter().copied())
    );
    sqlx::raw_sql(AssertSqlSafe(text)).execute(connection).await?;
    // The locked rows are counted: the server does not count a row that is written with its old
    // values.
    let changed = u32::try_from(chosen.len()).unwrap_or(u32::MAX);
    Ok(Applied { changed, last: Some(last) })
}

/// Removes old rows. Candidates are read from the index without locks, then removed by their
/// numbers with the condition checked again.
pub(super) async fn clean(
    connection: &mut MySqlConnection,
    keep: Duration,
    limit: u32,
) -> sqlx::Result<Cleaned> {
    let longest = *LONG.end() + GRACE;
    let text = format!(
        "UPDATE semel_outbox FORCE INDEX (semel_outbox_due) SET due_at = {CLOCK} + rest_us \
         WHERE due_at > {CLOCK} + {longest} AND due_at - {CLOCK} - {GRACE} > rest_us \
         ORDER BY due_at, sequence LIMIT {REDATED}"
    );
    sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut *connection).await?;
    let Some(now) = watermark::trusted_now(connection).await? else {
        return Ok(Cleaned { removed: 0, clock_suspect: true });
    };
    let old = format!("published_at <= {}", now.saturating_sub(micros(keep)));
    let text = format!(
        "SELECT sequence FROM semel_outbox FORCE INDEX (semel_outbox_published) WHERE {old} \
         ORDER BY published_at LIMIT {limit}"
    );
    let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(&mut *connection).await?;
    let mut found: Vec<i64> = rows.iter().map(|row| row.try_get(0)).collect::<sqlx::Result<_>>()?;
    found.sort_unstable();
    let mut removed = 0;
    for chunk in found.chunks(CHUNK) {
        let list = numbers(chunk.iter().copied());
        let text = format!("DELETE FROM semel_outbox WHERE sequence IN ({list}) AND {old}");
        let done = sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut *connection).await?;
        removed += u32::try_from(done.rows_affected()).unwrap_or(u32::MAX);
    }
    Ok(Cleaned { removed, clock_suspect: false })
}

/// Returns the index that narrows a selection, as a hint.
fn index(selection: &Selection, wanted: &[u8]) -> &'static str {
    if !selection.ids.is_empty() {
        " FORCE INDEX (semel_outbox_event)"
    } else if wanted == [Status::Dead.code()] {
        " FORCE INDEX (semel_outbox_dead)"
    } else if are_due(wanted) {
        " FORCE INDEX (semel_outbox_due)"
    } else {
        ""
    }
}

/// Returns the selection as conditions, beginning with ` AND`. `wanted` are the statuses; all, if
/// empty. Text is compared byte by byte.
fn matches(selection: &Selection, wanted: &[u8]) -> String {
    let mut text = String::new();
    let mut and = |condition: String| {
        text.push_str(" AND ");
        text.push_str(&condition);
    };
    if !wanted.is_empty() {
        and(format!("status IN ({})", numbers(wanted.iter().map(|code| i64::from(*code)))));
        match index(&Selection::default(), wanted) {
            " FORCE INDEX (semel_outbox_dead)" => and("dead = 1".into()),
            " FORCE INDEX (semel_outbox_due)" => and("due_at IS NOT NULL".into()),
            _ => {}
        }
    }
    if !selection.ids.is_empty() {
        let ids: Vec<String> =
            spellings(&selection.ids).into_iter().map(|id| format!("'{id}'")).collect();
        and(format!("id IN ({})", ids.join(",")));
    }
    if let Some(tenant) = &selection.tenant {
        and(format!("tenant = {}", hex(tenant.as_bytes())));
    }
    if let Some(kind) = &selection.kind {
        and(format!("CAST(type AS BINARY) = {}", hex(kind.as_bytes())));
    }
    text
}
