//! Removes records that are no longer needed, in small statements that no claim has to wait for.
//!
//! Candidates are read without locks from the index on `sweep_at`. Those that another transaction
//! holds are skipped, the others are written by primary key with the condition checked again, so a
//! record that was claimed again in between stays. All statements use one trusted reading of the
//! server's clock. `sweep_at` is null for Dead, Uncertain and Discarded records, and lies after the
//! end of every live lease.

use semel_core::store::{Result, Swept};
use sqlx::{AssertSqlSafe, MySqlConnection, Row};

use super::columns::Bound;
use super::ledger::failed;
use super::session::{Flavour, deadlock, held};
use super::statement::{CLOCK, at_once, repeat};
use super::watermark;
use crate::row::SWEPT;

/// The largest number of rows per statement: a claim that meets one of them is contended for no
/// longer than the statement takes.
const CHUNK: usize = 100;

/// The condition for a lapsed claim whose work may have taken effect (`OnCrash::Hold`,
/// `OnCrash::Verify`), which must not be forgotten.
const SUSPECT: &str = "state = 0 AND on_crash <> 0";

/// Sweeps at most `limit` records.
pub(crate) async fn sweep(
    connection: &mut MySqlConnection,
    flavour: Flavour,
    limit: u32,
) -> Result<Swept> {
    let fail = |error| failed("sweep", error);
    let Some(now) = watermark::trusted_now(connection).await.map_err(fail)? else {
        return Ok(Swept { clock_suspect: true, ..Swept::default() });
    };
    let mut swept = Swept::default();
    let (suspect, gone) = candidates(connection, limit, now).await?;
    let found = suspect.len() + gone.len();
    for chunk in gone.chunks(CHUNK) {
        swept.removed += write(connection, &at_once(flavour, &remove()), chunk, now).await?;
    }
    for chunk in suspect.chunks(CHUNK) {
        swept.suspended += write(connection, &at_once(flavour, &suspend()), chunk, now).await?;
    }
    // If every candidate is locked, sweeping again at once would find the same.
    swept.more = found >= limit as usize && swept.removed + swept.suspended > 0;
    Ok(swept)
}

type Digests = Vec<Vec<u8>>;

/// Reads the due records from the index: those to suspend and those to remove.
async fn candidates(
    connection: &mut MySqlConnection,
    limit: u32,
    now: i64,
) -> Result<(Digests, Digests)> {
    let text = format!(
        "SELECT digest, {SUSPECT} FROM semel_record \
         FORCE INDEX (semel_record_sweep) WHERE sweep_at <= ? ORDER BY sweep_at LIMIT ?"
    );
    let query = sqlx::query(AssertSqlSafe(text)).bind(now).bind(limit);
    let rows = query.fetch_all(connection).await.map_err(|error| failed("sweep", error))?;
    let (mut suspect, mut gone) = (Digests::new(), Digests::new());
    for row in rows {
        let digest = row.try_get(0).map_err(|error| failed("sweep", error))?;
        let is_suspect: i64 = row.try_get(1).map_err(|error| failed("sweep", error))?;
        if is_suspect == 1 { suspect.push(digest) } else { gone.push(digest) }
    }
    // In the order of the digests, in which every statement locks several rows.
    suspect.sort_unstable();
    gone.sort_unstable();
    Ok((suspect, gone))
}

/// Returns the text that selects the rows of a chunk that no other transaction holds. Its locks end
/// with the statement.
fn free() -> String {
    format!(
        "SELECT digest FROM semel_record FORCE INDEX (PRIMARY) WHERE digest IN ({}) \
         FOR UPDATE SKIP LOCKED",
        repeat("?", CHUNK, ",")
    )
}

fn remove() -> String {
    format!(
        "DELETE r FROM semel_record r FORCE INDEX (PRIMARY) WHERE r.digest IN ({}) \
         AND r.sweep_at <= ? AND NOT ({SUSPECT})",
        repeat("?", CHUNK, ",")
    )
}

fn suspend() -> String {
    format!(
        "UPDATE semel_record FORCE INDEX (PRIMARY) SET number = number + 1, state = 4, \
         lease_until = NULL, retry_at = NULL, error = '{SWEPT}', updated_at = {CLOCK}, \
         completed_at = {CLOCK}, expires_at = NULL WHERE digest IN ({}) AND sweep_at <= ? AND {SUSPECT}",
        repeat("?", CHUNK, ",")
    )
}

/// Runs a statement on the free rows of a chunk. Rows that are locked, or become locked in between,
/// are left for the next sweep.
async fn write(
    connection: &mut MySqlConnection,
    text: &str,
    chunk: &[Vec<u8>],
    now: i64,
) -> Result<u32> {
    let fail = |error| failed("sweep", error);
    let asked = bind_all(&free(), chunk).fetch_all(&mut *connection).await;
    let rows = match asked {
        Ok(rows) => rows,
        Err(error) if held(&error) || deadlock(&error) => return Ok(0),
        Err(error) => return Err(fail(error)),
    };
    let free: Vec<Vec<u8>> =
        rows.iter().map(|row| row.try_get(0)).collect::<sqlx::Result<_>>().map_err(fail)?;
    if free.is_empty() {
        return Ok(0);
    }
    match bind_all(text, &free).bind(now).execute(connection).await {
        Ok(done) => Ok(u32::try_from(done.rows_affected()).unwrap_or(u32::MAX)),
        Err(error) if held(&error) || deadlock(&error) => Ok(0),
        Err(error) => Err(fail(error)),
    }
}

/// Binds a statement on a full chunk. The last digest is repeated to fill the list, so that there
/// is one statement to prepare.
fn bind_all(text: &str, digests: &[Vec<u8>]) -> Bound<'static> {
    let padded = digests.iter().chain(digests.last().into_iter().cycle()).take(CHUNK);
    let query = sqlx::query(AssertSqlSafe(text.to_owned()));
    padded.fold(query, |query, digest| query.bind(digest.clone()))
}
