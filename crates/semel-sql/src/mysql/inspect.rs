//! Listing for operators: filtered by the server, in the order of the digests.
//!
//! Reads only, without locks. Failed, Dead and Uncertain records, what is due, and references have an
//! index; other filters walk the table a page at a time.

use semel::store::{Cursor, Filter, Inspect, Page, Result};
use sqlx::{AssertSqlSafe, MySqlConnection};

use super::MySqlStore;
use super::columns::{Found, read_key};
use super::ledger::failed;
use super::statement::{CLOCK, read_with_key};

impl Inspect for MySqlStore {
    async fn list(&self, filter: &Filter, after: Option<&Cursor>, limit: u32) -> Result<Page> {
        let (mut slot, mut connection) = self.aside.take("list").await?;
        let work = list(&mut connection, filter, after, limit);
        let page = self.aside.bounded("list", work).await;
        // A row that cannot be read says nothing about the connection.
        *slot = Some(connection).filter(|_| page.as_ref().err().is_none_or(is_about_a_row));
        page
    }
}

fn is_about_a_row(error: &semel::store::Error) -> bool {
    error.kind() == semel::store::ErrorKind::Corrupt
}

async fn list(
    connection: &mut MySqlConnection,
    filter: &Filter,
    after: Option<&Cursor>,
    limit: u32,
) -> Result<Page> {
    let text = text(filter, after.is_some());
    let mut query = sqlx::query(AssertSqlSafe(text)).persistent(false);
    if let Some(Cursor(last)) = after {
        query = query.bind(last.clone());
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
    let query = query.bind(u64::from(limit) + 1);
    let mut rows = query.fetch_all(connection).await.map_err(|error| failed("list", error))?;
    let more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    let mut page = Page::default();
    for row in &rows {
        let found = Found::read(row, "list")?;
        let last = Cursor(found.digest.clone());
        let key = read_key(row, found.digest, "list")?;
        page.entries.push(key.entry(found.raw, "list")?);
        page.next = more.then_some(last);
    }
    Ok(page)
}

fn text(filter: &Filter, after: bool) -> String {
    // `attention` is the state of those records that need some, and has an index. Of the claims that
    // run it has those with a parcel alone.
    let needs_some = filter.state.is_some_and(|state| state.code() >= 2);
    // Named, because a server that is asked for a page in order walks the primary key to the end if
    // it hopes to fill the page soon.
    let index = match (&filter.reference, needs_some || filter.due) {
        (Some(_), _) => " FORCE INDEX (semel_record_reference)",
        (None, true) => " FORCE INDEX (semel_record_open)",
        (None, false) => "",
    };
    let mut text = format!("SELECT {} FROM semel_record{index} WHERE TRUE", read_with_key());
    let mut and = |wanted: bool, condition: &str| {
        if wanted {
            text.push_str(" AND ");
            text.push_str(condition);
        }
    };
    and(after, "digest > ?");
    and(filter.kind.is_some(), "kind = ?");
    and(filter.tenant.is_some(), "tenant = ?");
    let below = "(scope = ? OR (scope >= ? AND scope < ?))";
    and(filter.scope.is_some(), if filter.below { below } else { "scope = ?" });
    and(filter.id.is_some(), "id = ?");
    and(filter.reference.is_some(), "reference = ?");
    and(filter.digest.is_some(), "digest >= ? AND digest <= ?");
    and(filter.operation.is_some(), "operation_id = ?");
    and(filter.state.is_some() && needs_some, "attention = ?");
    and(filter.state.is_some() && !needs_some, "state = ?");
    // The first condition is what the index is searched by.
    let due = format!(
        "attention IN (0, 2) AND ((attention = 2 AND retry_at <= {CLOCK} AND expires_at > {CLOCK}) \
         OR (attention = 0 AND lease_until <= {CLOCK}))"
    );
    and(filter.due, &due);
    text.push_str(" ORDER BY digest LIMIT ?");
    text
}
