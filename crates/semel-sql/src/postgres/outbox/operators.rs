//! The operators' verbs on the outbox in PostgreSQL: counts, lists and changes rows.
//!
//! Statuses are literals in the texts, not parameters: only then can the planner prove that a
//! partial index covers them. A selection by neither status nor id scans the table.

use std::time::Duration;

use semel_core::clock::micros;
use semel_core::outbox::{Applied, Backlog, Cleaned, Row, RowAction, Selection, Status};
use semel_core::store::Result;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Postgres, QueryBuilder, Row as _};

use super::super::session::Naming;
use super::super::statement::failed;
use super::super::watermark;
use super::{OUTLINE, stored};
use crate::outbox::{GRACE, LONG, Listed, REDATED, are_due, discarded, spellings, statuses};

const BACKLOG: &str = include_str!("../queries/outbox_backlog.sql");
const CLEAN: &str = include_str!("../queries/outbox_clean.sql");
const REDATE: &str = include_str!("../queries/outbox_redate.sql");
const APPLY: &str = include_str!("../queries/outbox_apply.sql");
const WAKE: &str = include_str!("../queries/outbox_wake.sql");

/// Returns whether a text of the selection contains NUL. No stored text does, and the server would
/// refuse the query.
pub(super) fn holds_nul(selection: &Selection) -> bool {
    [&selection.tenant, &selection.kind].into_iter().flatten().any(|text| text.contains('\0'))
}

pub(super) async fn backlog(naming: Naming, connection: &mut PgConnection) -> Result<Backlog> {
    let fail = failed("backlog");
    let most = i64::try_from(Backlog::MOST).unwrap_or(i64::MAX);
    let row = naming.query(BACKLOG).bind(most).fetch_one(connection).await.map_err(&fail)?;
    let count = |at: usize| -> Result<u64> {
        let count: i64 = row.try_get(at).map_err(&fail)?;
        Ok(count.unsigned_abs())
    };
    let oldest: Option<i64> = row.try_get(2).map_err(&fail)?;
    let oldest = oldest.map(|us| Duration::from_micros(u64::try_from(us).unwrap_or(0)));
    Ok(Backlog { waiting: count(0)?, dead: count(1)?, oldest })
}

pub(super) async fn list(
    connection: &mut PgConnection,
    selection: Selection,
    after: Option<u64>,
    limit: u32,
) -> Result<Vec<Row>> {
    let mut query = QueryBuilder::<Postgres>::new(
        "select o.sequence, o.status, o.attempts::bigint, o.error, o.created_at, \
         coalesce(o.leased_until, o.due_at), o.published_at, \
         coalesce(octet_length(o.payload), octet_length(o.payload_bytes), 0)::bigint, ",
    );
    query.push(OUTLINE).push(" from semel_outbox o where o.sequence > ");
    query.push_bind(after.map_or(0, |last| i64::try_from(last).unwrap_or(i64::MAX)));
    let wanted: Vec<u8> = selection.status.into_iter().map(Status::code).collect();
    push_matches(&mut query, &selection, &wanted);
    query.push(" order by o.sequence limit ").push_bind(i64::from(limit));
    let rows = query.build().persistent(false).fetch_all(connection).await;
    let listed = |row: &PgRow| -> sqlx::Result<Listed> {
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
    };
    let rows = rows.map_err(failed("list"))?;
    rows.iter().map(|row| listed(row).map_err(failed("list"))?.row()).collect()
}

pub(super) async fn count(
    connection: &mut PgConnection,
    selection: Selection,
    verb: RowAction,
) -> Result<u64> {
    let wanted = statuses(&selection, &verb);
    if wanted.is_empty() {
        return Ok(0);
    }
    let mut query = QueryBuilder::<Postgres>::new(
        "select count(*) from (select from semel_outbox o where true",
    );
    push_matches(&mut query, &selection, &wanted);
    query.push(" limit ").push_bind(i64::try_from(Backlog::MOST).unwrap_or(i64::MAX)).push(") t");
    let counted = query.build_query_scalar::<i64>().persistent(false).fetch_one(connection).await;
    counted.map(i64::unsigned_abs).map_err(failed("count"))
}

/// Applies a verb to the selected rows. Runs in a transaction of its own: the rows are selected and
/// locked, then written. After a failure the connection is closed, which rolls back.
pub(super) async fn apply(
    naming: Naming,
    connection: &mut PgConnection,
    selection: Selection,
    verb: RowAction,
    after: Option<u64>,
    limit: u32,
) -> Result<Applied> {
    let fail = failed("apply");
    let wanted = statuses(&selection, &verb);
    if wanted.is_empty() || limit == 0 {
        return Ok(Applied::default());
    }
    let mut query = QueryBuilder::<Postgres>::new(
        "select o.sequence, o.partition_key from semel_outbox o where o.sequence > ",
    );
    query.push_bind(after.map_or(0, |last| i64::try_from(last).unwrap_or(i64::MAX)));
    push_matches(&mut query, &selection, &wanted);
    query.push(" order by o.sequence limit ").push_bind(i64::from(limit));
    query.push(" for update skip locked");
    let rows = query.build().persistent(false).fetch_all(&mut *connection).await.map_err(&fail)?;
    let chosen = |row: &PgRow| Ok((row.try_get(0)?, row.try_get(1)?));
    let chosen: Vec<(i64, Option<String>)> =
        rows.iter().map(chosen).collect::<sqlx::Result<_>>().map_err(&fail)?;
    let reason = discarded(&verb);
    // The partitions that wait for the rows now.
    let (sequences, held): (Vec<i64>, Vec<Option<String>>) = chosen.into_iter().unzip();
    let changed = naming
        .query(APPLY)
        .bind(&sequences)
        .bind(reason.as_ref().map(|reason| reason.as_str().to_owned()))
        .execute(&mut *connection)
        .await
        .map_err(&fail)?;
    if reason.is_some() {
        let wake = naming.query(WAKE).bind(held).bind(&sequences);
        wake.execute(&mut *connection).await.map_err(&fail)?;
    }
    let changed = u32::try_from(changed.rows_affected()).unwrap_or(u32::MAX);
    Ok(Applied { changed, last: sequences.last().map(|last| last.unsigned_abs()) })
}

pub(super) async fn clean(
    naming: Naming,
    connection: &mut PgConnection,
    keep: Duration,
    limit: u32,
) -> Result<Cleaned> {
    let redating = naming.query(REDATE).bind(*LONG.end() + GRACE).bind(GRACE).bind(REDATED);
    redating.execute(&mut *connection).await.map_err(failed("clean"))?;
    let Some(now) = watermark::trusted_now(naming, connection, "clean").await? else {
        return Ok(Cleaned { removed: 0, clock_suspect: true });
    };
    let before = now.saturating_sub(micros(keep));
    let query = naming.query(CLEAN).bind(before).bind(i64::from(limit));
    let cleaned = query.execute(connection).await.map_err(failed("clean"))?;
    let removed = u32::try_from(cleaned.rows_affected()).unwrap_or(u32::MAX);
    Ok(Cleaned { removed, clock_suspect: false })
}

/// Appends the selection as conditions, beginning with ` and`. `wanted` are the statuses; all, if
/// empty.
fn push_matches(query: &mut QueryBuilder<Postgres>, selection: &Selection, wanted: &[u8]) {
    if !wanted.is_empty() {
        let codes: Vec<String> = wanted.iter().map(ToString::to_string).collect();
        match codes.as_slice() {
            // One value with `=`, so that the planner recognises the condition of a partial index.
            [one] => query.push(" and o.status = ").push(one),
            many => query.push(" and o.status in (").push(many.join(", ")).push(")"),
        };
        if are_due(wanted) {
            query.push(" and o.due_at is not null");
        }
        if wanted == [Status::Dead.code()] {
            query.push(" and o.due_at is null and o.published_at is null");
        }
    }
    if !selection.ids.is_empty() {
        query.push(" and o.id = any(").push_bind(spellings(&selection.ids)).push(")");
    }
    if let Some(tenant) = &selection.tenant {
        query.push(" and o.tenant = ").push_bind(tenant.clone());
    }
    if let Some(kind) = &selection.kind {
        query.push(" and o.type = ").push_bind(kind.clone());
    }
}
