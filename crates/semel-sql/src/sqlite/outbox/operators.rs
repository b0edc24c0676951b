//! The operators' queries on the outbox in SQLite. Their verbs are tasks of the writer.
//!
//! Indexes serve queries for dead or waiting rows and for ids; any other query scans the table.

use std::time::Duration;

use semel_core::clock::Timestamp;
use semel_core::outbox::{Backlog, Selection};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Executor, QueryBuilder, Row as _, Sqlite};

use super::{stored, texts};
use crate::outbox::{Listed, are_due, spellings};

fn most() -> i64 {
    i64::try_from(Backlog::MOST).unwrap_or(i64::MAX)
}

pub(super) async fn backlog(
    connection: &mut SqliteConnection,
    now: Timestamp,
) -> sqlx::Result<Backlog> {
    let row = connection.fetch_one(sqlx::query(texts::BACKLOG).bind(most())).await?;
    let (waiting, oldest): (i64, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
    let dead: i64 = row.try_get(2)?;
    let age = |at| now.remaining(Timestamp::from_micros(at)).unwrap_or(Duration::ZERO);
    Ok(Backlog {
        waiting: waiting.unsigned_abs(),
        dead: dead.unsigned_abs(),
        oldest: oldest.map(age),
    })
}

pub(super) fn list(
    selection: &Selection,
    wanted: &[u8],
    after: Option<u64>,
    limit: u32,
) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::<Sqlite>::new(texts::LIST);
    query.push_bind(after.map_or(0, |last| i64::try_from(last).unwrap_or(i64::MAX)));
    push_matches(&mut query, selection, wanted);
    query.push(" ORDER BY sequence LIMIT ").push_bind(i64::from(limit));
    query
}

pub(super) fn listed(row: &SqliteRow) -> sqlx::Result<Listed> {
    Ok(Listed {
        sequence: row.try_get(0)?,
        status: row.try_get(1)?,
        attempts: row.try_get(2)?,
        error: row.try_get(3)?,
        created_at: row.try_get(4)?,
        due_at: row.try_get(5)?,
        settled_at: row.try_get(6)?,
        bytes: row.try_get(7)?,
        stored: stored(row, 8).map_err(|error| error.to_string()),
    })
}

pub(super) async fn count(
    connection: &mut SqliteConnection,
    selection: &Selection,
    wanted: &[u8],
) -> sqlx::Result<u64> {
    let mut query = QueryBuilder::<Sqlite>::new(texts::COUNT);
    push_matches(&mut query, selection, wanted);
    query.push(" LIMIT ").push_bind(most()).push(")");
    let row = connection.fetch_one(query.build().persistent(false)).await?;
    row.try_get::<i64, _>(0).map(i64::unsigned_abs)
}

/// Appends the selection as conditions, beginning with ` AND`. `wanted` are the statuses; all, if
/// empty. Statuses are literals: SQLite uses a partial index only if the query contains the index's
/// own condition.
pub(super) fn push_matches(query: &mut QueryBuilder<Sqlite>, selection: &Selection, wanted: &[u8]) {
    if !wanted.is_empty() {
        let codes: Vec<String> = wanted.iter().map(ToString::to_string).collect();
        match codes.as_slice() {
            [one] => query.push(" AND status = ").push(one),
            many => query.push(" AND status IN (").push(many.join(", ")).push(")"),
        };
        if are_due(wanted) {
            query.push(" AND due_at IS NOT NULL");
        }
    }
    if !selection.ids.is_empty() {
        let ids = serde_json::to_string(&spellings(&selection.ids)).expect("texts");
        query.push(" AND id IN (SELECT value FROM json_each(").push_bind(ids).push("))");
    }
    if let Some(tenant) = &selection.tenant {
        query.push(" AND tenant = ").push_bind(tenant.clone());
    }
    if let Some(kind) = &selection.kind {
        query.push(" AND type = ").push_bind(kind.clone());
    }
}
