//! Tests the ledger's protocol as functions: the same verdicts as the judge, the same records, and
//! each effect once for programs that know nothing else.

mod contract;
mod forging;
mod judging;
mod racing;
mod rights;

use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection, Row};

use crate::database::Database;
use crate::session::{Ask, Begun, Refusal, Session};

/// A session that uses neither named statements nor settings, as behind any pooler.
pub(crate) struct PgSession(pub(crate) PgConnection);

impl PgSession {
    pub(crate) async fn open(database: &Database) -> Self {
        Self(database.address().connect().await.expect("connected"))
    }
}

impl Session for PgSession {
    const WRITES: u64 = 1;

    async fn run(&mut self, sql: &str) -> Result<(), Refusal> {
        Ok(sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.0).await.map(drop)?)
    }

    async fn begin(&mut self, ask: &Ask) -> Result<Begun, Refusal> {
        let text = "select * from semel_begin($1, $2, $3, $4, keep => $5 * interval '1 ms')";
        // All rows: an error may come after the last one.
        let rows = sqlx::query(text)
            .persistent(false)
            .bind(&ask.tenant)
            .bind(&ask.operation)
            .bind(&ask.key)
            .bind(&ask.request_hash)
            .bind(ask.keep_ms as f64)
            .fetch_all(&mut self.0)
            .await?;
        let row = &rows[0];
        Ok(Begun {
            verdict: row.try_get("verdict")?,
            claim: row.try_get("claim")?,
            operation_id: row.try_get("operation_id")?,
            body: row.try_get("body")?,
            retry_after_ms: row.try_get("retry_after_ms")?,
            error: row.try_get("error")?,
        })
    }

    async fn complete(&mut self, claim: &str, body: &[u8]) -> Result<(), Refusal> {
        let text = "select semel_complete($1, $2, 'application/octet-stream')";
        let done = sqlx::query(text).persistent(false).bind(claim).bind(body);
        Ok(done.execute(&mut self.0).await.map(drop)?)
    }

    async fn fail(
        &mut self,
        ask: &Ask,
        error: &str,
        retry_after_ms: Option<i64>,
    ) -> Result<String, Refusal> {
        let text = "select semel_fail($1, $2, $3, $4, $5, $6, keep => $7 * interval '1 ms')";
        let failed = sqlx::query_scalar(text)
            .persistent(false)
            .bind(&ask.tenant)
            .bind(&ask.operation)
            .bind(&ask.key)
            .bind(&ask.request_hash)
            .bind(error)
            .bind(retry_after_ms)
            .bind(ask.keep_ms as f64);
        Ok(failed.fetch_one(&mut self.0).await?)
    }

    async fn pairs(&mut self, sql: &str) -> Vec<(String, String)> {
        let rows = sqlx::query_as(AssertSqlSafe(sql)).persistent(false);
        rows.fetch_all(&mut self.0).await.expect("read")
    }
}

/// Replaces a part of a function's definition.
pub(crate) async fn sabotage(database: &Database, function: &str, from: &str, to: &str) {
    let mut session = PgSession::open(database).await;
    let text = format!(
        "select proname::text, pg_get_functiondef(oid) from pg_proc where proname = '{function}'"
    );
    let (_, definition) = session.pairs(&text).await.remove(0);
    assert!(definition.contains(from), "{definition}");
    session.run(&definition.replace(from, to)).await.expect("sabotaged");
}
