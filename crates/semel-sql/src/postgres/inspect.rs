//! Listing for operators, in order of the digest.

use semel::key::Digest;
use semel::record::{Entry, State};
use semel::store::{Cursor, Filter, Inspect, Page, Result};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Postgres, QueryBuilder, Row};

use super::PgStore;
use super::ledger::raw;
use super::statement::{CLOCK, COLUMNS, failed};
use crate::row::RawKey;

/// How many records one page may look at where no index narrows the search: such a page may come
/// back short, or empty, and still have a next one.
const WINDOW: i64 = 5_000;
/// Most records in a page.
const MOST: u32 = 1_000;

impl Inspect for PgStore {
    async fn list(&self, filter: &Filter, after: Option<&Cursor>, limit: u32) -> Result<Page> {
        let after = after.and_then(|cursor| Digest::from_bytes(&cursor.0));
        let limit = limit.clamp(1, MOST);
        let texts = [&filter.tenant, &filter.scope, &filter.id, &filter.reference];
        if texts.into_iter().flatten().any(|text| text.contains('\0')) {
            // No stored text holds one, and the server would refuse to look.
            return Ok(Page::default());
        }
        let filter = filter.clone();
        self.aside("list", move |connection| Box::pin(list(connection, filter, after, limit))).await
    }
}

async fn list(
    connection: &mut PgConnection,
    filter: Filter,
    after: Option<Digest>,
    limit: u32,
) -> Result<Page> {
    // An index answers these by itself; everything else walks the primary key, a window at a time.
    let indexed = filter.due
        || filter.digest.is_some()
        || filter.reference.is_some()
        || matches!(filter.state, Some(State::Failed | State::Dead | State::Uncertain));
    let mut query = QueryBuilder::<Postgres>::new("select ");
    query.push(COLUMNS).push(", r.digest, r.kind, r.tenant, r.scope, r.principal, r.id, ");
    push_matches(&mut query, &filter);
    if indexed {
        query.push(" as matching from semel_record r where ");
        push_matches(&mut query, &filter);
        push_after(&mut query, " and ", after);
        query.push(" order by r.digest limit ").push_bind(i64::from(limit) + 1);
    } else {
        query.push(" as matching from semel_record r");
        push_after(&mut query, " where ", after);
        query.push(" order by r.digest limit ").push_bind(WINDOW);
    }
    let rows = query.build().persistent(false).fetch_all(connection).await;
    let rows = rows.map_err(failed("list"))?;
    let whole = i64::try_from(rows.len()).unwrap_or(i64::MAX)
        < if indexed { i64::from(limit) + 1 } else { WINDOW };
    page(&rows, limit, whole)
}

/// Gathers at most `limit` matching rows; `whole` says that there is nothing beyond them.
fn page(rows: &[PgRow], limit: u32, whole: bool) -> Result<Page> {
    let mut entries = Vec::new();
    let mut seen = 0;
    let mut last = None;
    for row in rows {
        if entries.len() >= limit as usize {
            break;
        }
        seen += 1;
        last = Some(Cursor(row.try_get(DIGEST).map_err(failed("list"))?));
        if row.try_get(MATCHING).map_err(failed("list"))? {
            entries.push(entry(row)?);
        }
    }
    let done = whole && seen == rows.len();
    Ok(Page { entries, next: last.filter(|_| !done) })
}

const DIGEST: usize = 21;
const MATCHING: usize = DIGEST + 6;

fn entry(row: &PgRow) -> Result<Entry> {
    let read = || -> sqlx::Result<_> {
        let key = RawKey {
            digest: row.try_get(DIGEST)?,
            kind: row.try_get(DIGEST + 1)?,
            tenant: row.try_get(DIGEST + 2)?,
            scope: row.try_get(DIGEST + 3)?,
            principal: row.try_get(DIGEST + 4)?,
            id: row.try_get(DIGEST + 5)?,
        };
        Ok((key, raw(row, 0)?))
    };
    let (key, raw) = read().map_err(failed("list"))?;
    key.entry(raw, "list")
}

/// The filter as a condition. State and kind are written out, from our own codes: only then can the
/// planner prove that a partial index covers them.
fn push_matches(query: &mut QueryBuilder<Postgres>, filter: &Filter) {
    query.push("(true");
    if let Some(kind) = filter.kind {
        query.push(" and r.kind = ").push(kind.code());
    }
    if let Some(state) = filter.state {
        query.push(" and r.state = ").push(state.code());
    }
    if let Some(tenant) = &filter.tenant {
        query.push(" and r.tenant = ").push_bind(tenant.clone());
    }
    if let Some(scope) = &filter.scope {
        query.push(" and (r.scope = ").push_bind(scope.clone());
        if filter.below {
            // Not by comparing: in which order texts are is the database's own choice.
            query.push(" or starts_with(r.scope, ").push_bind(format!("{scope}/")).push(")");
        }
        query.push(")");
    }
    if let Some(id) = &filter.id {
        query.push(" and r.id = ").push_bind(id.clone());
    }
    if let Some(digest) = &filter.digest {
        let [from, to] = Filter::range_of(digest);
        query.push(" and r.digest >= ").push_bind(from).push(" and r.digest <= ").push_bind(to);
    }
    if let Some(operation) = filter.operation {
        query.push(" and r.operation_id = ").push_bind(operation.to_bytes().to_vec());
    }
    if let Some(reference) = &filter.reference {
        query.push(" and r.reference = ").push_bind(reference.clone());
    }
    if filter.due {
        query
            .push(" and (r.state = ")
            .push(State::Failed.code())
            .push(" and r.retry_at <= (select ")
            .push(CLOCK)
            .push(") and coalesce(r.expires_at > (select ")
            .push(CLOCK)
            .push("), true) or r.state = ")
            .push(State::Running.code())
            .push(" and r.content_type is not null and r.lease_until <= (select ")
            .push(CLOCK)
            .push("))");
    }
    query.push(")");
}

fn push_after(query: &mut QueryBuilder<Postgres>, word: &'static str, after: Option<Digest>) {
    if let Some(digest) = after {
        query.push(word).push("r.digest > ").push_bind(digest.as_bytes().to_vec());
    }
}
