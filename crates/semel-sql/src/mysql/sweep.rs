//! Sweeping: removes what nobody can need, in small statements that no claim has to wait for.
//!
//! Candidates are read without locks from the index on `sweep_at`, then written by primary key with
//! the condition asked again, so a record that was claimed anew in between stays. `sweep_at` is null
//! for Dead and Uncertain records and lies after the end of every live lease.

use semel::store::{Result, Swept};
use sqlx::{AssertSqlSafe, MySqlConnection, Row};

use super::ledger::failed;
use super::session::{deadlock, held};
use super::statement::{CLOCK, repeat};
use crate::row::SWEPT;

/// Rows per statement: a claim that meets one of them is contended for no longer than this takes.
const CHUNK: usize = 100;

/// Sweeps at most `limit` records.
pub(crate) async fn sweep(connection: &mut MySqlConnection, limit: u32) -> Result<Swept> {
    let mut swept = Swept::default();
    let (hold, gone) = candidates(connection, limit).await?;
    swept.more = hold.len() + gone.len() >= limit as usize && limit > 0;
    for chunk in gone.chunks(CHUNK) {
        swept.removed += write(connection, &remove(), chunk).await?;
    }
    for chunk in hold.chunks(CHUNK) {
        swept.suspended += write(connection, &suspend(), chunk).await?;
    }
    Ok(swept)
}

type Digests = Vec<Vec<u8>>;

/// Due records by the index: those to suspend and those to remove.
async fn candidates(connection: &mut MySqlConnection, limit: u32) -> Result<(Digests, Digests)> {
    let text = format!(
        "SELECT digest, state = 0 AND on_crash = 1 FROM semel_record \
         FORCE INDEX (semel_record_sweep) WHERE sweep_at <= {CLOCK} ORDER BY sweep_at LIMIT ?"
    );
    let query = sqlx::query(AssertSqlSafe(text)).bind(limit);
    let rows = query.fetch_all(connection).await.map_err(|error| failed("sweep", error))?;
    let (mut hold, mut gone) = (Digests::new(), Digests::new());
    for row in rows {
        let digest = row.try_get(0).map_err(|error| failed("sweep", error))?;
        let suspend: i64 = row.try_get(1).map_err(|error| failed("sweep", error))?;
        if suspend == 1 { hold.push(digest) } else { gone.push(digest) }
    }
    // In the order of the digests, as every statement that locks several rows.
    hold.sort_unstable();
    gone.sort_unstable();
    Ok((hold, gone))
}

fn remove() -> String {
    format!(
        "DELETE r FROM semel_record r FORCE INDEX (PRIMARY) WHERE r.digest IN ({}) \
         AND r.sweep_at <= {CLOCK} AND NOT (r.state = 0 AND r.on_crash = 1)",
        repeat("?", CHUNK, ",")
    )
}

fn suspend() -> String {
    format!(
        "UPDATE semel_record FORCE INDEX (PRIMARY) SET number = number + 1, state = 4, \
         lease_until = NULL, retry_at = NULL, body = NULL, content_type = NULL, reference = NULL, \
         omitted_bytes = NULL, error = '{SWEPT}', updated_at = {CLOCK}, completed_at = {CLOCK}, \
         expires_at = NULL WHERE digest IN ({}) AND sweep_at <= {CLOCK} AND state = 0 \
         AND on_crash = 1",
        repeat("?", CHUNK, ",")
    )
}

/// Runs a statement on at most [`CHUNK`] rows; a chunk that meets a lock is left for next time.
async fn write(connection: &mut MySqlConnection, text: &str, chunk: &[Vec<u8>]) -> Result<u32> {
    let Some(last) = chunk.last() else { return Ok(0) };
    // The last digest fills the list up, so that there is one statement to prepare.
    let padded = chunk.iter().chain(std::iter::repeat(last)).take(CHUNK);
    let query = sqlx::query(AssertSqlSafe(text.to_owned()));
    let query = padded.fold(query, |query, digest| query.bind(digest.clone()));
    match query.execute(connection).await {
        Ok(done) => Ok(u32::try_from(done.rows_affected()).unwrap_or(u32::MAX)),
        Err(error) if held(&error) || deadlock(&error) => Ok(0),
        Err(error) => Err(failed("sweep", error)),
    }
}
