//! Whether the server's clock is believed by those who remove by it.

use semel_core::clock::Timestamp;
use semel_core::store::{ClockTrust, Watermark};
use sqlx::{AssertSqlSafe, MySqlConnection, Row};

use super::session::{deadlock, held};
use super::statement::CLOCK;

/// The server's clock, if it is believed. What is removed afterwards goes by this moment, not by a clock
/// that may have jumped since.
pub(crate) async fn believed(connection: &mut MySqlConnection) -> sqlx::Result<Option<i64>> {
    let text = format!(
        "SELECT {CLOCK}, m.trusted, m.suspect FROM (SELECT 1) one \
         LEFT JOIN semel_clock m ON m.id = 1"
    );
    let row = sqlx::raw_sql(AssertSqlSafe(text)).fetch_one(&mut *connection).await?;
    let (now, trusted): (i64, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
    let suspect: Option<i64> = row.try_get(2)?;
    let at = Timestamp::from_micros(now);
    let (trust, next) = match trusted.map(Timestamp::from_micros) {
        Some(trusted) => {
            Watermark { trusted, suspect: suspect.map(Timestamp::from_micros) }.observe(at)
        }
        // A mark that was lost is made anew, or every jump would be believed.
        None => (ClockTrust::Trusted, Some(Watermark::new(at))),
    };
    if let Some(Watermark { trusted, suspect }) = next {
        let suspect = suspect.map_or_else(|| "NULL".to_owned(), |at| at.as_micros().to_string());
        let text =
            format!("REPLACE INTO semel_clock VALUES (1, {}, {suspect})", trusted.as_micros());
        match sqlx::raw_sql(AssertSqlSafe(text)).execute(connection).await {
            // Another process is writing the same mark.
            Err(error) if held(&error) || deadlock(&error) => {}
            done => {
                done?;
            }
        }
    }
    Ok((trust == ClockTrust::Trusted).then_some(now))
}
