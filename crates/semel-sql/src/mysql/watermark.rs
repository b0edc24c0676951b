//! Reads and writes the clock's watermark in MySQL and MariaDB.

use sqlx::{AssertSqlSafe, MySqlConnection, Row};

use super::session::{deadlock, held};
use super::statement::CLOCK;
use crate::watermark::{Judged, Reading};

/// Returns the server's clock, if it is trusted.
pub(crate) async fn trusted_now(connection: &mut MySqlConnection) -> sqlx::Result<Option<i64>> {
    let text = format!(
        "SELECT {CLOCK}, m.trusted, m.suspect FROM (SELECT 1) one \
         LEFT JOIN semel_clock m ON m.id = 1"
    );
    let row = sqlx::raw_sql(AssertSqlSafe(text)).fetch_one(&mut *connection).await?;
    let reading =
        Reading { now: row.try_get(0)?, trusted: row.try_get(1)?, suspect: row.try_get(2)? };
    let Judged { trusted_now, write } = reading.judge();
    if let Some((trusted, suspect)) = write {
        let suspect = suspect.map_or_else(|| "NULL".to_owned(), |at| at.to_string());
        let text = format!("REPLACE INTO semel_clock VALUES (1, {trusted}, {suspect})");
        match sqlx::raw_sql(AssertSqlSafe(text)).execute(connection).await {
            // Another process is writing the same watermark.
            Err(error) if held(&error) || deadlock(&error) => {}
            done => {
                done?;
            }
        }
    }
    Ok(trusted_now)
}
