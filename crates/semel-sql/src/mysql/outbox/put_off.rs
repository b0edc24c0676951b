//! Putting off what waits behind others of its partition, so that claims need not walk over it again and
//! again; and making it due when its turn comes.
//!
//! Why nothing is lost. Every write that takes a row out of its partition makes the next one due ([`wake`]), and
//! until then a claim of a row before it takes it along. The head of a partition is locked here and by
//! marks, and a mark looks for the next row after it has that lock, as the row is by then. So if a
//! mark comes first, the head is gone from the partition when it is locked here, and nothing is put off;
//! if this comes first, the mark sees it. Whatever goes wrong all the same heals when the time is
//! over. What has failed rests by the same column, so that it cannot be woken: it is put off for
//! seconds. Rows whose lease ran out are left alone: there are no more than relays had leased.

use std::collections::HashMap;

use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};

use super::super::statement::CLOCK;
use super::{hex, numbers};
use crate::outbox::{LONG, SHORT, Scanned};

/// Partitions whose heads are scanned up in one statement.
const PARTITIONS: usize = 200;

/// Puts off what waits among the first `step` rows that are due, if there are more than `window`.
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

/// The first row of each partition, locked; not those that another transaction has, or that left their partition.
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

/// Writes the new times of those that are still as they were, and commits.
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

/// Makes due what follows these rows in their partitions, if it was put off. To be run where they are
/// locked and before they leave. Empty for no rows.
///
/// The rows to wake are read first, without locks, and then met by their numbers: as a part of the
/// update, the reading would lock what it passes, and wait for the open transactions of every caller that
/// appends.
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
