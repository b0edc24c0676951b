//! Marks leased rows with their dispositions: one trip for up to [`CHUNK`] of them.
//!
//! The rows are locked in the order of their numbers, so that two marks cannot deadlock. There is
//! no UPDATE … RETURNING, so the rows that were locked under their token are the rows that were
//! written. The row that follows one that leaves its partition becomes due, if it was put off.

use std::collections::{BTreeMap, HashMap};

use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};

use super::super::statement::{CLOCK, after};
use super::put_off::wake;
use super::{hex, numbers};
use crate::outbox::{DEAD, LATER, MarkRow, PUBLISHED, RETRY, UNTRIED};

/// The largest number of rows in one transaction.
pub(super) const CHUNK: usize = 200;

/// Writes marks, and returns the positions of those whose lease still held its row. After an error
/// the transaction is open, or was rolled back by the server.
pub(super) async fn mark(
    connection: &mut MySqlConnection,
    rows: &[MarkRow<'_>],
) -> sqlx::Result<Vec<usize>> {
    let found = sqlx::raw_sql(AssertSqlSafe(text(rows))).fetch_all(connection).await?;
    let mut held = Vec::with_capacity(found.len());
    for row in &found {
        let token: Vec<u8> = row.try_get(1)?;
        held.push((row.try_get::<i64, _>(0)?, token));
    }
    let held: HashMap<i64, Vec<u8>> = held.into_iter().collect();
    let is_held = |row: &MarkRow<'_>| held.get(&row.sequence).is_some_and(|t| t[..] == row.token);
    Ok((0..rows.len()).filter(|place| is_held(&rows[*place])).collect())
}

fn text(rows: &[MarkRow<'_>]) -> String {
    let mut tokens: Vec<String> = rows.iter().map(|row| hex(&row.token)).collect();
    tokens.sort_unstable();
    tokens.dedup();
    let mut text = format!(
        "START TRANSACTION; SELECT sequence, token FROM semel_outbox FORCE INDEX (PRIMARY) \
         WHERE sequence IN ({}) AND status = 1 AND token IN ({}) ORDER BY sequence FOR UPDATE; ",
        numbers(rows.iter().map(|row| row.sequence)),
        tokens.join(",")
    );
    // Even if the lease no longer holds the row: a row that becomes due too early does no harm.
    let leaving = rows.iter().filter(|row| matches!(row.disposition, PUBLISHED | DEAD));
    text.push_str(&wake(&leaving.map(|row| row.sequence).collect::<Vec<_>>()));
    let mut alike: BTreeMap<(i16, [u8; 16]), Vec<i64>> = BTreeMap::new();
    for row in rows {
        if matches!(row.disposition, PUBLISHED | UNTRIED) {
            alike.entry((row.disposition, row.token)).or_default().push(row.sequence);
        } else {
            text.push_str(&update(&failed(row), &row.token, &[row.sequence]));
        }
    }
    for ((disposition, token), sequences) in alike {
        let set = if disposition == PUBLISHED {
            format!("status = 2, due_at = NULL, in_partition = 0, published_at = {CLOCK}")
        } else {
            // SET works from left to right: the status depends on the old number of attempts.
            format!(
                "status = IF(attempts > 1, 3, 0), attempts = GREATEST(attempts - 1, 0), \
                 due_at = {CLOCK}"
            )
        };
        text.push_str(&update(&set, &token, &sequences));
    }
    text.push_str("COMMIT");
    text
}

fn failed(row: &MarkRow<'_>) -> String {
    let error = row.error.map_or_else(|| "error".to_owned(), |error| hex(error.as_bytes()));
    match row.disposition {
        RETRY => {
            let (after, rest) = (after(&row.after_us.to_string()), row.after_us);
            format!("status = 3, due_at = {after}, rest_us = {rest}, error = {error}")
        }
        LATER => format!(
            "status = 3, attempts = GREATEST(attempts - 1, 0), due_at = {}, rest_us = {}, \
             error = {error}",
            after(&row.after_us.to_string()),
            row.after_us
        ),
        DEAD => format!("status = 4, due_at = NULL, in_partition = 0, error = {error}"),
        _ => format!("status = 4, due_at = NULL, error = {error}"),
    }
}

fn update(set: &str, token: &[u8; 16], sequences: &[i64]) -> String {
    format!(
        "UPDATE semel_outbox FORCE INDEX (PRIMARY) SET {set}, token = NULL \
         WHERE sequence IN ({}) AND token = {} AND status = 1; ",
        numbers(sequences.iter().copied()),
        hex(token)
    )
}
