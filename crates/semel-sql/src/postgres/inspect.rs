//! Lists records for operators, in the order of their digests.

use semel_core::clock::micros;
use semel_core::record::{Entry, Record, State};
use semel_core::store::{Cursor, Filter, Inspect, Listed, Page, Result, Tally};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Postgres, QueryBuilder, Row};

use super::PgStore;
use super::statement::{CLOCK, failed};
use crate::row::{R_KEY, R_RECORD, Raw, RawKey, is_open, outlined, page, without_body};

/// How many records one page may scan if no index narrows the search. Such a page may be short or
/// empty and still have a next one.
const WINDOW: i64 = 5_000;
/// The largest number of records in a page.
const MOST: u32 = 1_000;

impl Inspect for PgStore {
    async fn list(&self, filter: &Filter, after: Option<&Cursor>, limit: u32) -> Result<Page> {
        let (rows, limit, beyond) = self.rows(R_RECORD.to_owned(), filter, after, limit).await?;
        Ok(page(&rows, limit, beyond, digest, entry))
    }

    async fn survey(
        &self,
        filter: &Filter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Listed>> {
        let empty = "case when r.body is null then null else ''::bytea end";
        let columns = without_body(R_RECORD, "r.body", empty);
        let (rows, limit, beyond) = self.rows(columns, filter, after, limit).await?;
        Ok(page(&rows, limit, beyond, digest, listed))
    }

    async fn tally(&self, filter: &Filter) -> Result<Tally> {
        let (mut tally, mut after) = (Tally::default(), None);
        if holds_nul(filter) {
            return Ok(tally);
        }
        // One statement if an index narrows the search; otherwise one for each window, so that none
        // takes long.
        loop {
            let (filter, begin) = (filter.clone(), after.take());
            let part = self
                .0
                .operators
                .run("tally", move |connection| Box::pin(part(connection, filter, begin)));
            let (counted, until) = part.await?;
            tally = tally.and(counted);
            after = until;
            if after.is_none() {
                return Ok(tally);
            }
        }
    }
}

/// The rows read, the number of them that a page shows, and the digest after which the next page
/// begins.
type Rows = (Vec<PgRow>, u32, Option<Vec<u8>>);

impl PgStore {
    async fn rows(
        &self,
        columns: String,
        filter: &Filter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Rows> {
        // Used whatever its length: it may be the damaged digest of a row.
        let after = after.map(|Cursor(last)| last.clone());
        let limit = limit.clamp(1, MOST);
        if holds_nul(filter) {
            return Ok((Vec::new(), limit, None));
        }
        let filter = filter.clone();
        let (rows, beyond) = self
            .0
            .operators
            .run("list", move |connection| {
                Box::pin(rows(connection, columns, filter, after, limit))
            })
            .await?;
        Ok((rows, limit, beyond))
    }
}

/// Returns whether a text of the filter contains NUL. No stored text does, and the server would
/// refuse the query.
fn holds_nul(filter: &Filter) -> bool {
    let texts = [&filter.tenant, &filter.scope, &filter.id, &filter.reference];
    texts.into_iter().flatten().any(|text| text.contains('\0'))
}

/// Returns whether an index serves the filter. Any other filter scans the primary key, a window at
/// a time.
fn is_indexed(filter: &Filter) -> bool {
    filter.due
        || filter.open
        || filter.digest.is_some()
        || filter.reference.is_some()
        || filter.tenant.is_some()
        || filter.state.is_some_and(is_open)
}

/// Counts the matches in one window, or all matches if an index finds them. Also returns the digest
/// after which to continue.
async fn part(
    connection: &mut PgConnection,
    filter: Filter,
    after: Option<Vec<u8>>,
) -> Result<(Tally, Option<Vec<u8>>)> {
    let until = match is_indexed(&filter) {
        true => None,
        false => window(connection, after.as_deref()).await?,
    };
    let mut query = QueryBuilder::<Postgres>::new(
        "select count(*), coalesce(max(r.attempt::bigint & 4294967295), 0) ",
    );
    query.push("from semel_record r where ");
    push_matches(&mut query, &filter);
    push_after(&mut query, " and ", after.as_deref());
    if let Some(until) = &until {
        query.push(" and r.digest <= ").push_bind(until.clone());
    }
    let counted = query.build_query_as().persistent(false).fetch_one(connection).await;
    let (records, attempts): (i64, i64) = counted.map_err(failed("tally"))?;
    let attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
    Ok((Tally { records: records.cast_unsigned(), attempts }, until))
}

async fn rows(
    connection: &mut PgConnection,
    columns: String,
    filter: Filter,
    after: Option<Vec<u8>>,
    limit: u32,
) -> Result<(Vec<PgRow>, Option<Vec<u8>>)> {
    let until = match is_indexed(&filter) {
        true => None,
        false => window(connection, after.as_deref()).await?,
    };
    let mut query = QueryBuilder::<Postgres>::new("select ");
    query.push(columns).push(", ").push(R_KEY);
    query.push(", octet_length(r.body)::bigint as body_size from semel_record r where ");
    push_matches(&mut query, &filter);
    push_after(&mut query, " and ", after.as_deref());
    if let Some(until) = &until {
        query.push(" and r.digest <= ").push_bind(until.clone());
    }
    query.push(" order by r.digest limit ").push_bind(i64::from(limit) + 1);
    let rows = query.build().persistent(false).fetch_all(connection).await;
    Ok((rows.map_err(failed("list"))?, until))
}

/// Returns the last digest of the window that begins after `after`; `None` if the window reaches
/// the end.
async fn window(connection: &mut PgConnection, after: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
    let mut query = QueryBuilder::<Postgres>::new("select r.digest from semel_record r");
    push_after(&mut query, " where ", after);
    query.push(" order by r.digest limit 1 offset ").push_bind(WINDOW - 1);
    let last = query.build_query_scalar().persistent(false).fetch_optional(connection).await;
    last.map_err(failed("list"))
}

fn digest(row: &PgRow) -> Vec<u8> {
    row.try_get("digest").unwrap_or_default()
}

fn entry(row: &PgRow) -> Result<Entry> {
    let key = RawKey::read(row).map_err(failed("list"))?;
    let raw = Raw::read(row).map_err(failed("list"))?;
    key.entry(raw, "list")
}

fn listed(row: &PgRow) -> Result<Listed> {
    let size = row.try_get("body_size").map_err(failed("list"))?;
    Ok(outlined(entry(row)?, size))
}

/// Appends the filter as a condition. State and kind are literals, not parameters: only then can
/// the planner prove that a partial index covers them.
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
            // Not a range comparison: the order of texts depends on the database's collation.
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
    if filter.open {
        // The condition of the index `semel_record_open`, and the states, which are searched for in it.
        query
            .push(" and (r.state in (2, 3, 4, 5) or (r.state = 0 and r.content_type is not null))");
        query.push(" and r.state in (0, 2, 3, 4, 5)");
    }
    if filter.due {
        // A record written ahead of the clock is due as well: its next attempt gets a new date.
        let ahead = micros(Record::AHEAD);
        query
            .push(" and (r.state = ")
            .push(State::Failed.code())
            .push(" and r.retry_at is not null and (r.retry_at <= (select ")
            .push(CLOCK)
            .push(") or r.updated_at > (select ")
            .push(CLOCK)
            .push(format_args!(") + {ahead}) and coalesce(r.expires_at > (select "))
            .push(CLOCK)
            .push("), true) or r.state = ")
            .push(State::Running.code())
            .push(" and r.content_type is not null and (r.lease_until <= (select ")
            .push(CLOCK)
            .push(") or r.updated_at > (select ")
            .push(CLOCK)
            .push(format_args!(") + {ahead}))"));
    }
    query.push(")");
}

fn push_after(query: &mut QueryBuilder<Postgres>, word: &'static str, after: Option<&[u8]>) {
    if let Some(last) = after {
        query.push(word).push("r.digest > ").push_bind(last.to_vec());
    }
}
