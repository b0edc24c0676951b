//! Leases rows: which rows, and why no other relay can have them at the same time.
//!
//! A claim is one transaction at READ COMMITTED. `heads` are due rows without an earlier row in
//! their partition, the longest due first. If the first of them has a lapsed lease, it is claimed
//! alone (it may be the row that crashes relays); otherwise rows with a lapsed lease wait for their
//! turn. If the claim is not full, the rows that follow the heads are claimed too, in order and
//! without a gap. A pending row is claimed this way whatever its due time: it may have been put off
//! because it waits for others (`put_off`), and the due time of a pending row means nothing else. A
//! failed row rests, and the rows behind it rest with it.
//!
//! Why it is correct with several concurrent claims: a locked row is read in its current version,
//! and a row that another transaction has locked is skipped, so no claim waits and no row is leased
//! twice. "No earlier row in its partition" is read without locks, as of the statement's beginning,
//! and stays true: a row enters a partition before others only if its transaction commits after
//! those with later numbers (then they were concurrent and have no order), or if an operator makes
//! it due again; a row that has left since only delays the claim. Followers are read after their
//! head is locked, and while it is, no other claim can take them. But rows that were leased with
//! the head and not yet given back can be met, and so can a row that a mark has locked at this
//! moment. So followers are locked and checked again, and if one drops out, those behind it are not
//! claimed.

use std::collections::{BTreeMap, HashMap};

use semel_core::claim::AttemptId;
use semel_core::clock::micros;
use semel_core::outbox::{ClaimRequest, Leased};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};

use super::super::statement::{CLOCK, after};
use super::{COLUMNS, hex, numbers, stored};
use crate::outbox::Claimed;

/// Partitions that one statement looks into: the server opens the table for each.
const PARTITIONS: usize = 128;

/// A due row without an earlier row in its partition.
struct Head {
    sequence: i64,
    partition_key: Option<Vec<u8>>,
    lapsed: bool,
    size: u64,
}

/// Leases rows among the first `window` that are due, and returns whether more are due. After an
/// error the transaction is open, or was rolled back by the server.
pub(super) async fn claim(
    connection: &mut MySqlConnection,
    ask: ClaimRequest,
    token: AttemptId,
    cursor: Option<u64>,
    window: i64,
) -> sqlx::Result<(Vec<Leased>, bool)> {
    let text = AssertSqlSafe(horizon(window));
    let horizon = match sqlx::raw_sql(text).fetch_optional(&mut *connection).await? {
        Some(row) => Some((row.try_get(0)?, row.try_get(1)?)),
        None => None,
    };
    let more = horizon.is_some();
    let text = AssertSqlSafe(heads_within(ask.limit, horizon, cursor));
    let rows = sqlx::raw_sql(text).fetch_all(&mut *connection).await?;
    let heads = rows.iter().map(head).collect::<sqlx::Result<Vec<_>>>()?;
    let fit: Vec<Head> = match heads.first() {
        None => {
            sqlx::raw_sql("ROLLBACK").execute(connection).await?;
            return Ok((Vec::new(), more));
        }
        Some(first) if first.lapsed => heads.into_iter().take(1).collect(),
        Some(_) => heads.into_iter().filter(|head| !head.lapsed).collect(),
    };
    let mut chosen: Vec<(i64, u64)> = fit.iter().map(|head| (head.sequence, head.size)).collect();
    let room = (ask.limit as usize).saturating_sub(fit.len());
    if room > 0 && fit.iter().any(|head| head.partition_key.is_some() && !head.lapsed) {
        chosen.extend(followers(connection, &fit, room).await?);
    }
    let light = light(&chosen, ask.bytes);
    let rows = sqlx::raw_sql(AssertSqlSafe(take(&light, ask, token))).fetch_all(connection).await?;
    let claimed = |row: &MySqlRow| -> sqlx::Result<Leased> {
        let claimed = Claimed {
            now: row.try_get(0)?,
            sequence: row.try_get(1)?,
            attempts: row.try_get(2)?,
            created_at: row.try_get(3)?,
            stored: stored(row, 4),
        };
        Ok(claimed.leased(token))
    };
    Ok((rows.iter().map(claimed).collect::<sqlx::Result<_>>()?, more))
}

/// Returns the first of these rows that have at most `bytes` together, but at least one row. A head
/// comes before its followers and each follower before the next, so the selected rows of a
/// partition have no gap.
fn light(chosen: &[(i64, u64)], bytes: u64) -> Vec<i64> {
    let mut total = 0_u64;
    let fits = |(_, size): &&(i64, u64)| {
        total = total.saturating_add(*size);
        total <= bytes
    };
    let fitting = chosen.iter().take_while(fits).count().max(1);
    chosen.iter().take(fitting).map(|(sequence, _)| *sequence).collect()
}

/// Returns the text that begins the transaction and selects the first due row after the window; no row
/// if at most `window` rows are due.
fn horizon(window: i64) -> String {
    format!(
        "START TRANSACTION; SELECT due_at, sequence FROM semel_outbox \
         FORCE INDEX (semel_outbox_due) WHERE due_at <= {CLOCK} ORDER BY due_at, sequence \
         LIMIT 1 OFFSET {window}"
    )
}

/// Returns the text that selects and locks the heads. The first row of a partition is selected and
/// compared: with NOT EXISTS the server would read the whole partition. It is ordered by both
/// columns of the index: by the second alone, MySQL would sort the partition for every row.
fn heads_within(limit: u32, window: Option<(i64, i64)>, cursor: Option<u64>) -> String {
    let within = window.map_or_else(String::new, |(due, last)| {
        format!(" AND o.due_at <= {due} AND (o.due_at < {due} OR o.sequence <= {last})")
    });
    // Only for a test: shows that claiming after a cursor is wrong.
    let beyond = cursor.map_or_else(String::new, |last| format!(" AND o.sequence > {last}"));
    format!(
        "SELECT o.sequence, o.partition_key, CAST(o.status AS SIGNED), CAST(LENGTH(o.payload) AS SIGNED) \
         FROM semel_outbox o FORCE INDEX (semel_outbox_due) WHERE o.due_at <= {CLOCK}{within}{beyond} \
         AND (o.partition_key IS NULL OR o.sequence = (SELECT p.sequence FROM semel_outbox p \
         FORCE INDEX (semel_outbox_partition) WHERE p.partition_key = o.partition_key ORDER BY p.partition_key, p.sequence LIMIT 1)) \
         ORDER BY o.due_at, o.sequence LIMIT {limit} FOR UPDATE SKIP LOCKED"
    )
}

fn head(row: &MySqlRow) -> sqlx::Result<Head> {
    let (status, size): (i64, i64) = (row.try_get(2)?, row.try_get(3)?);
    let (lapsed, size) = (status == 1, size.unsigned_abs());
    Ok(Head { sequence: row.try_get(0)?, partition_key: row.try_get(1)?, lapsed, size })
}

/// Locks and returns the rows that follow the heads, with their sizes: in each partition a run
/// without a gap, at most `room` in all, the second of each partition before the third of any.
async fn followers(
    connection: &mut MySqlConnection,
    fit: &[Head],
    room: usize,
) -> sqlx::Result<Vec<(i64, u64)>> {
    let partitioned: Vec<&Head> = fit.iter().filter(|head| head.partition_key.is_some()).collect();
    let mut rows = Vec::new();
    // More heads than there is room for need not be followed.
    for some in partitioned[..room.min(partitioned.len())].chunks(PARTITIONS) {
        let text = AssertSqlSafe(trail(some, room));
        rows.append(&mut sqlx::raw_sql(text).fetch_all(&mut *connection).await?);
    }
    let mut runs: BTreeMap<i64, Vec<(i64, bool)>> = BTreeMap::new();
    for row in &rows {
        let (head, sequence, ready): (i64, i64, i64) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        runs.entry(head).or_default().push((sequence, ready != 0));
    }
    let mut ready: Vec<(usize, i64)> = Vec::new();
    for run in runs.values_mut() {
        run.sort_unstable();
        let whole = run.iter().take_while(|(_, ready)| *ready).count();
        run.truncate(whole);
        ready.extend(run.iter().enumerate().map(|(place, (sequence, _))| (place, *sequence)));
    }
    // One more row of each partition before two more of any: rows that are claimed together should
    // not have to wait for each other.
    ready.sort_unstable();
    ready.truncate(room);
    if ready.is_empty() {
        return Ok(Vec::new());
    }
    let text = format!(
        "SELECT sequence, CAST(LENGTH(payload) AS SIGNED) FROM semel_outbox FORCE INDEX (PRIMARY) \
         WHERE sequence IN ({}) AND (status = 0 OR status = 3 AND due_at <= {CLOCK}) \
         FOR UPDATE SKIP LOCKED",
        numbers(ready.iter().map(|(_, sequence)| *sequence))
    );
    let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(connection).await?;
    let mut held: HashMap<i64, u64> = HashMap::with_capacity(rows.len());
    for row in &rows {
        held.insert(row.try_get(0)?, row.try_get::<i64, _>(1)?.unsigned_abs());
    }
    let mut chosen: Vec<(usize, i64, u64)> = Vec::with_capacity(held.len());
    for run in runs.values() {
        let run = run.iter().map_while(|(sequence, _)| Some((*sequence, *held.get(sequence)?)));
        chosen.extend(run.enumerate().map(|(place, (sequence, size))| (place, sequence, size)));
    }
    chosen.sort_unstable();
    Ok(chosen.into_iter().map(|(_, sequence, size)| (sequence, size)).collect())
}

fn trail(fit: &[&Head], room: usize) -> String {
    let partitioned = fit.iter().filter_map(|head| {
        head.partition_key.as_ref().map(|partition_key| (head.sequence, partition_key))
    });
    let part = |(head, partition_key): (i64, &Vec<u8>)| {
        format!(
            "(SELECT {head}, n.sequence, n.status = 0 OR n.status = 3 AND n.due_at <= {CLOCK} \
             FROM semel_outbox n FORCE INDEX (semel_outbox_partition) \
             WHERE n.partition_key = {} AND n.sequence > {head} ORDER BY n.sequence LIMIT {room})",
            hex(partition_key)
        )
    };
    partitioned.map(part).collect::<Vec<_>>().join(" UNION ALL ")
}

fn take(chosen: &[i64], ask: ClaimRequest, token: AttemptId) -> String {
    let list = numbers(chosen.iter().copied());
    let lease = micros(ask.lease);
    format!(
        "UPDATE semel_outbox FORCE INDEX (PRIMARY) SET status = 1, attempts = attempts + 1, \
         token = {}, due_at = {}, rest_us = {lease} WHERE sequence IN ({list}); \
         SELECT {CLOCK}, sequence, attempts, created_at, {COLUMNS} \
         FROM semel_outbox FORCE INDEX (PRIMARY) WHERE sequence IN ({list}) ORDER BY sequence; \
         COMMIT",
        hex(&token.to_bytes()),
        after(&lease.to_string())
    )
}
