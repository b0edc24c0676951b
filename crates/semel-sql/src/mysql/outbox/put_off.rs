//! Puts off rows that wait behind others of their partition, so that claims need not scan them
//! again and again, and makes them due when their turn comes.
//!
//! Why no row is forgotten: every write that removes a row from its partition makes the next one
//! due ([`wake`]), and until then a claim of a row before it claims it too. The head of a partition
//! is locked here and by marks, and a mark reads the next row after it has that lock. So if a mark
//! comes first, the head has left the partition when it is locked here, and nothing is put off; if
//! this comes first, the mark sees it. If anything else goes wrong, the row is due again when its
//! time is over. A failed row has its backoff in the same column, so it cannot be woken: it is put
//! off for seconds only. Rows whose lease lapsed are not put off: there are no more of them than
//! relays had leased.

use std::collections::HashMap;

use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};

use super::super::statement::CLOCK;
use super::{hex, numbers};
use crate::outbox::{LONG, SHORT, Scanned};

/// The largest number of partitions whose heads are read in one statement.
const PARTITIONS: usize = 200;

/// Puts off the rows that wait among the first `step` due rows, if more than `window` are due.
/// After an error the transaction is open, or was rolled back by the server.
pub(super) async fn put_off(
    connection: &mut MySqlConnection,
    step: i64,
    window: i64,
) -> sqlx::Result<Scanned> {
    let text = format!(
        "START TRANSACTION; SELECT sequence, partition_key, CAST(status AS SIGNED) FROM semel_outbox \
         FORCE INDEX (semel_outbox_due) WHERE due_at <= {CLOCK} ORDER BY due_at, sequence LIMIT {step}"
    );
    let due = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(&mut *connection).await?;
    let rows = i64::try_from(due.len()).unwrap_or(i64::MAX);
    let mut partitions: HashMap<Vec<u8>, Vec<i64>> = HashMap::new();
    for row in due.iter().take(if rows > window { due.len() } else { 0 }) {
        let (partition_key, status): (Option<Vec<u8>>, i64) = (row.try_get(1)?, row.try_get(2)?);
        if let Some(partition_key) = partition_key.filter(|_| matches!(status, 0 | 3)) {
            partitions.entry(partition_key).or_default().push(row.try_get(0)?);
        }
    }
    let heads = heads(connection, partitions.keys().map(Vec::as_slice)).await?;
    let behind = partitions
        .iter()
        .filter_map(|(partition_key, rows)| Some((*heads.get(partition_key)?, rows)));
    let waiting = behind.flat_map(|(head, rows)| rows.iter().filter(move |row| **row > head));
    let put_off = write(connection, numbers(waiting.copied())).await?;
    Ok(Scanned { rows, put_off })
}

/// Locks and returns the first row of each partition, except for rows that another transaction has
/// locked or that have left their partition.
async fn heads(
    connection: &mut MySqlConnection,
    partitions: impl Iterator<Item = &[u8]>,
) -> sqlx::Result<HashMap<Vec<u8>, i64>> {
    let first = |partition_key: &[u8]| {
        format!(
            "(SELECT sequence FROM semel_outbox FORCE INDEX (semel_outbox_partition) WHERE partition_key = {} \
             ORDER BY sequence LIMIT 1)",
            hex(partition_key)
        )
    };
    let firsts: Vec<String> = partitions.map(first).collect();
    let mut heads = HashMap::with_capacity(firsts.len());
    for some in firsts.chunks(PARTITIONS) {
        let text = AssertSqlSafe(some.join(" UNION ALL "));
        let rows = sqlx::raw_sql(text).fetch_all(&mut *connection).await?;
        let found: Vec<i64> = rows.iter().map(|row| row.try_get(0)).collect::<sqlx::Result<_>>()?;
        if found.is_empty() {
            continue;
        }
        let text = format!(
            "SELECT sequence, partition_key FROM semel_outbox FORCE INDEX (PRIMARY) WHERE sequence IN ({}) \
             AND partition_key IS NOT NULL FOR UPDATE SKIP LOCKED",
            numbers(found)
        );
        for row in &sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(&mut *connection).await? {
            heads.insert(row.try_get(1)?, row.try_get(0)?);
        }
    }
    Ok(heads)
}

/// Writes the new due times of the rows that are still unchanged, and commits.
async fn write(connection: &mut MySqlConnection, waiting: String) -> sqlx::Result<i64> {
    let mut held: Vec<i64> = Vec::new();
    if !waiting.is_empty() {
        let text = format!(
            "SELECT sequence FROM semel_outbox FORCE INDEX (PRIMARY) WHERE sequence IN ({waiting}) \
             AND status IN (0, 3) AND due_at <= {CLOCK} FOR UPDATE SKIP LOCKED"
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(&mut *connection).await?;
        held = rows.iter().map(|row| row.try_get(0)).collect::<sqlx::Result<_>>()?;
    }
    if held.is_empty() {
        sqlx::raw_sql("ROLLBACK").execute(connection).await?;
        return Ok(0);
    }
    let age = format!("{CLOCK} - created_at");
    let text = format!(
        "UPDATE semel_outbox FORCE INDEX (PRIMARY) SET due_at = {CLOCK} + IF(status = 3, \
         LEAST(GREATEST({age}, {}), {}), LEAST(GREATEST({age}, {}), {})) WHERE sequence IN ({}); COMMIT",
        SHORT.start(),
        SHORT.end(),
        LONG.start(),
        LONG.end(),
        numbers(held.iter().copied())
    );
    sqlx::raw_sql(AssertSqlSafe(text)).execute(connection).await?;
    Ok(i64::try_from(held.len()).unwrap_or(i64::MAX))
}

/// Returns the text that makes the rows due that follow `leaving` in their partitions, if they were
/// put off. Must be run while the leaving rows are locked and before they leave. Empty for no rows.
///
/// The rows to wake are read first, without locks, and then updated by their numbers: as a part of
/// the update, the read would lock every row that it passes, and wait for the open transactions of
/// all callers that append.
pub(super) fn wake(leaving: &[i64]) -> String {
    if leaving.is_empty() {
        return String::new();
    }
    format!(
        "SELECT JSON_ARRAYAGG(t.next) INTO @semel_wake FROM (SELECT (SELECT \
         IF(b.status = 0 AND b.due_at > {CLOCK}, b.sequence, NULL) FROM semel_outbox b \
         FORCE INDEX (semel_outbox_partition) WHERE b.partition_key = h.partition_key AND b.sequence > h.sequence \
         ORDER BY b.partition_key, b.sequence LIMIT 1) AS next FROM semel_outbox h FORCE INDEX (PRIMARY) \
         WHERE h.sequence IN ({}) AND h.partition_key IS NOT NULL) t WHERE t.next IS NOT NULL; \
         UPDATE JSON_TABLE(@semel_wake, '$[*]' COLUMNS (sequence BIGINT PATH '$')) t \
         STRAIGHT_JOIN semel_outbox n FORCE INDEX (PRIMARY) ON n.sequence = t.sequence \
         SET n.due_at = {CLOCK} WHERE n.status = 0 AND n.due_at > {CLOCK}; ",
        numbers(leaving.iter().copied())
    )
}
