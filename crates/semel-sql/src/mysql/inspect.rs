//! Lists records for operators, filtered by the server, in the order of their digests.
//!
//! Only reads, without locks. Indexes serve filters for records that neither succeeded nor run, for
//! due records, references and tenants; other filters scan the table a window at a time.

use semel_core::clock::micros;
use semel_core::record::Record;
use semel_core::store::{Cursor, Filter, Inspect, Listed, Page, Result, Tally};
use sqlx::mysql::{MySqlArguments, MySqlRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, MySql, MySqlConnection, Row as _};

use super::MySqlStore;
use super::columns::{read_digest, read_entry, read_outline};
use super::ledger::failed;
use super::statement::{CLOCK, outline, read_with_key};
use crate::row::{is_open, page, undecodable};

/// How many records one page may scan if no index narrows the search. Such a page may be short or
/// empty and still have a next one.
const WINDOW: u64 = 5_000;

impl Inspect for MySqlStore {
    async fn list(&self, filter: &Filter, after: Option<&Cursor>, limit: u32) -> Result<Page> {
        let (rows, beyond) = self.rows(&read_with_key(), filter, after, limit).await?;
        Ok(page(&rows, limit, beyond, read_digest, |row| read_entry(row, "list")))
    }

    async fn survey(
        &self,
        filter: &Filter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Listed>> {
        let (rows, beyond) = self.rows(&outline(), filter, after, limit).await?;
        Ok(page(&rows, limit, beyond, read_digest, |row| read_outline(row, "list")))
    }

    async fn tally(&self, filter: &Filter) -> Result<Tally> {
        let (mut tally, mut after) = (Tally::default(), None);
        // One statement if an index narrows the search; otherwise one for each window, so that none
        // takes long.
        loop {
            let session = self.operators.get("tally").await?;
            let part = async |connection: &mut MySqlConnection| {
                part(connection, filter, after.as_ref()).await
            };
            let (counted, until) = session.operate(part).await?;
            tally = tally.and(counted);
            after = until.map(Cursor);
            if after.is_none() {
                return Ok(tally);
            }
        }
    }
}

/// The rows read, and the digest after which the next page begins.
type Rows = (Vec<MySqlRow>, Option<Vec<u8>>);

impl MySqlStore {
    async fn rows(
        &self,
        columns: &str,
        filter: &Filter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Rows> {
        let session = self.operators.get("list").await?;
        let rows = async |connection: &mut MySqlConnection| {
            rows(connection, columns, filter, after, limit).await
        };
        session.operate(rows).await
    }
}

async fn rows(
    connection: &mut MySqlConnection,
    columns: &str,
    filter: &Filter,
    after: Option<&Cursor>,
    limit: u32,
) -> Result<Rows> {
    let until = beyond(connection, filter, after).await?;
    let mut text = text(columns, filter, after.is_some(), until.is_some());
    text.push_str(" ORDER BY digest LIMIT ?");
    let query = bound(text, filter, after, until.as_deref()).bind(u64::from(limit) + 1);
    let rows = query.fetch_all(connection).await.map_err(|error| failed("list", error))?;
    Ok((rows, until))
}

/// Counts the matches in one window, or all matches if an index finds them. Also returns the digest
/// after which to continue.
async fn part(
    connection: &mut MySqlConnection,
    filter: &Filter,
    after: Option<&Cursor>,
) -> Result<(Tally, Option<Vec<u8>>)> {
    let until = beyond(connection, filter, after).await?;
    let columns = "COUNT(*), CAST(COALESCE(MAX(attempt & 4294967295), 0) AS SIGNED)";
    let text = text(columns, filter, after.is_some(), until.is_some());
    let query = bound(text, filter, after, until.as_deref());
    let row = query.fetch_one(connection).await.map_err(|error| failed("tally", error))?;
    let count = |column| row.try_get(column).map_err(|error| undecodable("tally", error));
    let (records, attempts): (i64, i64) = (count(0)?, count(1)?);
    let attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
    Ok((Tally { records: records.cast_unsigned(), attempts }, until))
}

/// Returns the last digest of the window to scan; `None` if an index finds the records.
async fn beyond(
    connection: &mut MySqlConnection,
    filter: &Filter,
    after: Option<&Cursor>,
) -> Result<Option<Vec<u8>>> {
    let indexed = index(filter).is_some() || filter.digest.is_some();
    if indexed { Ok(None) } else { window(connection, after).await }
}

/// Returns the statement `text` with the values of its conditions bound.
fn bound(
    text: String,
    filter: &Filter,
    after: Option<&Cursor>,
    until: Option<&[u8]>,
) -> Query<'static, MySql, MySqlArguments> {
    let mut query = sqlx::query(AssertSqlSafe(text)).persistent(false);
    if let Some(Cursor(last)) = after {
        query = query.bind(last.clone());
    }
    if let Some(until) = until {
        query = query.bind(until.to_vec());
    }
    if let Some(kind) = filter.kind {
        query = query.bind(i16::from(kind.code()));
    }
    let below = filter.scope.as_deref().filter(|_| filter.below).map(Filter::range_below);
    let [from, to] = below.map_or([None, None], |[from, to]| [Some(from), Some(to)]);
    let words = [&filter.tenant, &filter.scope, &from, &to, &filter.id, &filter.reference];
    for words in words.into_iter().flatten() {
        query = query.bind(words.clone().into_bytes());
    }
    for bytes in filter.digest.as_deref().map(Filter::range_of).into_iter().flatten() {
        query = query.bind(bytes);
    }
    if let Some(operation) = filter.operation {
        query = query.bind(operation.to_bytes().to_vec());
    }
    if let Some(state) = filter.state {
        query = query.bind(i16::from(state.code()));
    }
    query
}

/// Returns the last digest of the window that begins after `after`; `None` if the window reaches
/// the end.
async fn window(
    connection: &mut MySqlConnection,
    after: Option<&Cursor>,
) -> Result<Option<Vec<u8>>> {
    let text = format!(
        "SELECT digest FROM semel_record{} ORDER BY digest LIMIT 1 OFFSET {}",
        if after.is_some() { " WHERE digest > ?" } else { "" },
        WINDOW - 1
    );
    let mut query = sqlx::query(AssertSqlSafe(text)).persistent(false);
    if let Some(Cursor(last)) = after {
        query = query.bind(last.clone());
    }
    let last = query.fetch_optional(connection).await.map_err(|error| failed("list", error))?;
    last.map(|row| row.try_get(0).map_err(|error| undecodable("list", error))).transpose()
}

/// Returns whether the filter selects records by the indexed column `attention`: the state of
/// records that need attention. Of running claims, the column has only those with a retry payload.
fn needs_attention(filter: &Filter) -> bool {
    filter.state.is_some_and(is_open)
}

/// Returns the index by which the records are found. It is forced, because a server that is to
/// return a page in order scans the primary key to the end if it expects to fill the page soon.
fn index(filter: &Filter) -> Option<&'static str> {
    if filter.reference.is_some() {
        Some("semel_record_reference")
    } else if needs_attention(filter) || filter.due || filter.open {
        Some("semel_record_open")
    } else if filter.tenant.is_some() {
        Some("semel_record_tenant")
    } else {
        None
    }
}

fn text(columns: &str, filter: &Filter, after: bool, until: bool) -> String {
    let needs_attention = needs_attention(filter);
    let index = index(filter).map_or_else(String::new, |name| format!(" FORCE INDEX ({name})"));
    let mut text = format!("SELECT {columns} FROM semel_record{index} WHERE TRUE");
    let mut and = |wanted: bool, condition: &str| {
        if wanted {
            text.push_str(" AND ");
            text.push_str(condition);
        }
    };
    and(after, "digest > ?");
    and(until, "digest <= ?");
    and(filter.kind.is_some(), "kind = ?");
    and(filter.tenant.is_some(), "tenant = ?");
    let below = "(scope = ? OR (scope >= ? AND scope < ?))";
    and(filter.scope.is_some(), if filter.below { below } else { "scope = ?" });
    and(filter.id.is_some(), "id = ?");
    and(filter.reference.is_some(), "reference = ?");
    and(filter.digest.is_some(), "digest >= ? AND digest <= ?");
    and(filter.operation.is_some(), "operation_id = ?");
    and(filter.state.is_some() && needs_attention, "attention = ?");
    and(filter.state.is_some() && !needs_attention, "state = ?");
    // The index is searched by the first condition. A record written ahead of the clock is due as
    // well: its next attempt gets a new date.
    let ahead = format!("attention_at > {CLOCK} + {}", micros(Record::AHEAD));
    let due = format!(
        "attention IN (0, 2) AND ((attention = 2 AND retry_at IS NOT NULL \
         AND (retry_at <= {CLOCK} OR {ahead}) AND expires_at > {CLOCK}) \
         OR (attention = 0 AND (lease_until <= {CLOCK} OR {ahead})))"
    );
    and(filter.due, &due);
    and(filter.open, "attention IN (0, 2, 3, 4, 5)");
    text
}
