//! Decides whether statements that remove rows by the store's clock may trust it.

use semel_core::clock::Timestamp;
use semel_core::store::{ClockTrust, Watermark};
use sqlx::sqlite::SqliteConnection;
use sqlx::{Executor, Row};

const READ: &str = "SELECT trusted, suspect FROM semel_clock WHERE id = 1";
const WRITE: &str = "INSERT INTO semel_clock (id, trusted, suspect) VALUES (1, ?, ?) \
    ON CONFLICT (id) DO UPDATE SET trusted = excluded.trusted, suspect = excluded.suspect";

/// Compares the clock with the watermark, in the transaction that `connection` is in.
pub(super) async fn observe(
    connection: &mut SqliteConnection,
    now: Timestamp,
) -> sqlx::Result<ClockTrust> {
    let Some(mark) = read(connection).await? else {
        write(connection, Watermark::new(now)).await?;
        return Ok(ClockTrust::Trusted);
    };
    let (trust, next) = mark.observe(now);
    if let Some(next) = next {
        write(connection, next).await?;
    }
    Ok(trust)
}

/// Stores the first watermark of a store that has none.
pub(super) async fn begin(connection: &mut SqliteConnection, now: Timestamp) -> sqlx::Result<()> {
    match read(connection).await? {
        Some(_) => Ok(()),
        None => write(connection, Watermark::new(now)).await,
    }
}

async fn read(connection: &mut SqliteConnection) -> sqlx::Result<Option<Watermark>> {
    let Some(row) = connection.fetch_optional(READ).await? else { return Ok(None) };
    let suspect: Option<i64> = row.try_get(1)?;
    let trusted = Timestamp::from_micros(row.try_get(0)?);
    Ok(Some(Watermark { trusted, suspect: suspect.map(Timestamp::from_micros) }))
}

async fn write(connection: &mut SqliteConnection, mark: Watermark) -> sqlx::Result<()> {
    let query = sqlx::query(WRITE).bind(mark.trusted.as_micros());
    let query = query.bind(mark.suspect.map(Timestamp::as_micros));
    connection.execute(query).await.map(drop)
}

/// Writes a probe large enough to fail on a nearly full disk, or removes it.
pub(super) async fn probe(connection: &mut SqliteConnection, write: bool) -> sqlx::Result<()> {
    let probe = if write {
        "UPDATE semel_clock SET probe = zeroblob(65536)"
    } else {
        "UPDATE semel_clock SET probe = NULL WHERE probe IS NOT NULL"
    };
    connection.execute(probe).await.map(drop)
}
