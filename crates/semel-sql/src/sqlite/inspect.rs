//! Lists records for operators and schedulers, filtered by SQLite, in the order of their digests.
//!
//! Only reads, on a reader's connection. Indexes serve filters for failed, due or undecided records
//! and for references; other filters scan the primary key.

use semel_core::clock::micros;
use semel_core::record::{Record, State};
use semel_core::store::{Cursor, Filter, Inspect, Listed, Page, Result, Tally};
use sqlx::sqlite::SqliteRow;
use sqlx::{Executor, QueryBuilder, Row as _, Sqlite};

use super::{SqliteStore, statements};
use crate::row::{is_open, page, undecodable};

/// The condition of the index `semel_record_open`, word for word: SQLite uses a partial index only
/// if the query contains the index's own condition.
const OPEN: &str = " AND (state IN (2, 3, 4, 5) OR (state = 0 AND content_type IS NOT NULL))";

impl Inspect for SqliteStore {
    async fn list(&self, filter: &Filter, after: Option<&Cursor>, limit: u32) -> Result<Page> {
        let rows = self.rows(statements::LIST.to_owned(), filter, after, limit).await?;
        let entry = |row: &SqliteRow| statements::entry(row, "list");
        Ok(page(&rows, limit, None, statements::digest, entry))
    }

    async fn survey(
        &self,
        filter: &Filter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Listed>> {
        let rows = self.rows(statements::survey(), filter, after, limit).await?;
        let listed = |row: &SqliteRow| statements::listed(row, "list");
        Ok(page(&rows, limit, None, statements::digest, listed))
    }

    async fn tally(&self, filter: &Filter) -> Result<Tally> {
        let now = self.0.shared.clock.now().as_micros();
        let mut query = QueryBuilder::<Sqlite>::new(
            "SELECT COUNT(*), COALESCE(MAX(attempt & 4294967295), 0) FROM semel_record WHERE TRUE",
        );
        push_matches(&mut query, filter, now);
        let mut reader = self.0.readers.reader("tally").await?;
        let row = match reader.connection().fetch_one(query.build()).await {
            Ok(row) => row,
            Err(error) => return Err(reader.failed("tally", error)),
        };
        let count = |column| row.try_get(column).map_err(|error| undecodable("tally", error));
        let (records, attempts): (i64, i64) = (count(0)?, count(1)?);
        let attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
        Ok(Tally { records: records.cast_unsigned(), attempts })
    }
}

impl SqliteStore {
    /// Reads the rows of a page, and one more if there is one.
    async fn rows(
        &self,
        statement: String,
        filter: &Filter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Vec<SqliteRow>> {
        let now = self.0.shared.clock.now().as_micros();
        let mut query = QueryBuilder::<Sqlite>::new(statement);
        push_page(&mut query, filter, after, limit, now);
        let mut reader = self.0.readers.reader("list").await?;
        match reader.connection().fetch_all(query.build()).await {
            Ok(rows) => Ok(rows),
            Err(error) => Err(reader.failed("list", error)),
        }
    }
}

/// Appends the conditions, the order and the limit to [`statements::LIST`] or
/// [`statements::survey`].
fn push_page(
    query: &mut QueryBuilder<Sqlite>,
    filter: &Filter,
    after: Option<&Cursor>,
    limit: u32,
    now: i64,
) {
    query.push_bind(after.map_or_else(Vec::new, |cursor| cursor.0.clone()));
    push_matches(query, filter, now);
    query.push(" ORDER BY digest LIMIT ").push_bind(i64::from(limit) + 1);
}

/// Appends the conditions of the filter. States are literals, so that a partial index can be used.
fn push_matches(query: &mut QueryBuilder<Sqlite>, filter: &Filter, now: i64) {
    let Filter { kind, tenant, scope, below, id, state, reference, due, open, .. } = filter;
    if let Some(kind) = kind {
        query.push(" AND kind = ").push_bind(i64::from(kind.code()));
    }
    if let Some(tenant) = tenant {
        query.push(" AND tenant = ").push_bind(tenant.clone());
    }
    if let Some(scope) = scope {
        query.push(" AND (scope = ").push_bind(scope.clone());
        if *below {
            let [from, to] = Filter::range_below(scope);
            query.push(" OR (scope >= ").push_bind(from).push(" AND scope < ").push_bind(to);
            query.push(")");
        }
        query.push(")");
    }
    if let Some(id) = id {
        query.push(" AND id = ").push_bind(id.clone());
    }
    if let Some(digest) = &filter.digest {
        let [from, to] = Filter::range_of(digest);
        query.push(" AND digest >= ").push_bind(from).push(" AND digest <= ").push_bind(to);
    }
    if let Some(operation) = filter.operation {
        query.push(" AND operation_id = ").push_bind(operation.to_bytes().to_vec());
    }
    if let Some(state) = state {
        query.push(" AND state = ").push(state.code());
    }
    if let Some(reference) = reference {
        query.push(" AND reference = ").push_bind(reference.clone());
    }
    if *due || *open || state.is_some_and(is_open) {
        query.push(OPEN);
    }
    if *open && !*due && state.is_none() {
        // Implied, but only so are state and scope searched for in the index.
        query.push(" AND state IN (0, 2, 3, 4, 5)");
    }
    if *due {
        let (failed, running) = (State::Failed.code(), State::Running.code());
        // SQLite searches the index by the first condition.
        query.push(format_args!(" AND state IN ({running}, {failed}) AND ((state = {failed}"));
        // A record written ahead of the clock is due as well: its next attempt gets a new date.
        let ahead = now.saturating_add(micros(Record::AHEAD));
        query.push(" AND retry_at IS NOT NULL AND (retry_at <= ").push_bind(now);
        query.push(" OR updated_at > ").push_bind(ahead);
        query.push(") AND expires_at > ").push_bind(now);
        query.push(format_args!(") OR (state = {running} AND content_type IS NOT NULL"));
        query.push(" AND (lease_until <= ").push_bind(now);
        query.push(" OR updated_at > ").push_bind(ahead).push(")))");
    }
}

#[cfg(test)]
mod tests {
    use sqlx::sqlite::SqliteConnectOptions;
    use sqlx::{ConnectOptions, Row};

    use super::*;
    use crate::sqlite::MIGRATIONS;

    /// Returns SQLite's query plan for a listing.
    async fn plan(filter: Filter) -> String {
        let options = SqliteConnectOptions::new().in_memory(true);
        let mut connection = options.connect().await.unwrap();
        for migration in MIGRATIONS {
            connection.execute(migration.sql).await.unwrap();
        }
        let mut query = QueryBuilder::<Sqlite>::new("EXPLAIN QUERY PLAN ");
        query.push(statements::LIST);
        push_page(&mut query, &filter, Some(&Cursor(vec![1; 32])), 10, 1);
        let rows = connection.fetch_all(query.build()).await.unwrap();
        let steps = rows.iter().map(|row| row.get::<String, _>("detail"));
        steps.collect::<Vec<_>>().join("; ")
    }

    #[tokio::test]
    async fn records_that_need_attention_are_found_by_an_index() {
        for state in [State::Failed, State::Dead, State::Uncertain, State::Discarded] {
            let plan = plan(Filter { state: Some(state), ..Filter::default() }).await;
            assert!(plan.contains("USING INDEX semel_record_open (state=?)"), "{plan}");
        }
    }

    #[tokio::test]
    async fn due_records_are_found_by_an_index() {
        let scoped = Filter { scope: Some("s".into()), due: true, ..Filter::default() };
        for filter in [Filter { due: true, ..Filter::default() }, scoped] {
            let plan = plan(filter).await;
            assert!(plan.contains("USING INDEX semel_record_open (state=?"), "{plan}");
        }
    }

    #[tokio::test]
    async fn a_digest_is_found_by_the_primary_key() {
        let plan = plan(Filter { digest: Some(vec![7; 4]), ..Filter::default() }).await;
        assert!(plan.contains("(digest>? AND digest<?)"), "{plan}");
    }

    #[tokio::test]
    async fn a_tenant_is_found_by_its_index() {
        let plan = plan(Filter { tenant: Some("t".into()), ..Filter::default() }).await;
        assert!(plan.contains("USING INDEX semel_record_tenant (tenant=? AND digest>?)"), "{plan}");
    }

    #[tokio::test]
    async fn a_reference_is_found_by_its_index() {
        let plan = plan(Filter { reference: Some("r".into()), ..Filter::default() }).await;
        assert!(plan.contains("USING INDEX semel_record_reference"), "{plan}");
    }
}
